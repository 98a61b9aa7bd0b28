"""``privpipe doctor``: Prefect's server is reachable, closed to others, set up as the files say."""

import os
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx

from privpipe.cluster.workers.listener_owner import is_loopback
from privpipe.pipeline.operations.deployment_file import (
    Deployment,
    read_automations,
    read_deployments,
)
from privpipe.pipeline.operations.health import Finding, weigh
from privpipe.pipeline.operations.prefect_setup import check_server

TIME_LIMIT = 30.0
"""Seconds for an answer: a busy SQLite takes long."""

ENDED = ("COMPLETED", "FAILED", "CRASHED")
"""Not cancelled: a run that finds another at work is, and one that somebody stopped."""

MOST_RUNS = 50
"""Newest runs that are looked at for one of the schedule's own."""


def check_server_health() -> Iterator[Finding]:
    """Whether the server answers us, and no one without the password."""
    url = check_server()
    what = "Prefect server"
    _request(url, "/health", "GET")
    yield weigh(what, f"answers at {url}")
    known = _request(url, "/work_pools/filter", "POST", password=True)
    if known.status_code != httpx.codes.OK:
        yield weigh(
            "password",
            f"the server answers {known.status_code} to ours",
            "Set PREFECT_API_AUTH_STRING to the server's PREFECT_SERVER_API_AUTH_STRING.",
        )
        return
    if _request(url, "/work_pools/filter", "POST").status_code == httpx.codes.UNAUTHORIZED:
        yield weigh("password", "required; ours is right")
    else:
        yield weigh(
            "password",
            "the server answers without one: every user of this machine may start runs",
            "Start it with PREFECT_SERVER_API_AUTH_STRING=user:secret.",
            # On the loopback other users of this machine reach it, from elsewhere everyone.
            fails=not is_loopback(urlsplit(url).hostname or ""),
        )
    for pool in known.json():
        status, name = str(pool.get("status")), pool["name"]
        remedy = f"Start a worker: prefect worker start --pool {name}" * (status != "READY")
        detail = f"{name}: {status.lower().replace('_', ' ')}"
        yield weigh("work pool", detail, remedy, fails=False)


def check_deployed(path: str, automations: str) -> Iterator[Finding]:
    """Whether schedules, limits and automations on the server are those of the files."""
    url = check_server()
    by_name = {item["name"]: item for item in _list(url, "/deployments/filter")}
    for deployment in read_deployments(path):
        found = by_name.get(deployment.name, {})
        yield _compare(deployment, found, path)
        if found and any(active for _, _, active in deployment.schedules):
            yield _judge_last_run(url, deployment, found["id"])
    watching = {item["name"] for item in _list(url, "/automations/filter") if item["enabled"]}
    for name in (item["name"] for item in read_automations(automations)):
        state = "enabled" if name in watching else "not on the server, or not enabled"
        remedy = f"privpipe deploy {path}" * (name not in watching)
        yield weigh("automation", f"{name}: {state}", remedy)


def _compare(deployment: Deployment, found: dict[str, Any], path: str) -> Finding:
    """A deployment of the file with what the server has under its name, empty where nothing."""
    # As the file states them; the server adds keys of its own.
    schedules = {
        (item["schedule"].get("cron"), item["schedule"].get("timezone"), item["active"])
        for item in found.get("schedules", ())
    }
    limit = (found.get("global_concurrency_limit") or {}).get("limit")
    strategy = (found.get("concurrency_options") or {}).get("collision_strategy")
    problems = {
        "is not on the server": not found,
        "has other schedules on the server than in the file": schedules
        != set(deployment.schedules),
        f"has the limit {limit} with {strategy}, not 1 with CANCEL_NEW": (limit, strategy)
        != (1, "CANCEL_NEW"),
        "is paused": bool(found.get("paused")),
    }
    name = f"{deployment.flow}/{deployment.name}"
    for problem in (text for text, is_so in problems.items() if is_so):
        return weigh("deployment", f"{name} {problem}", f"privpipe deploy {path}")
    when = ", ".join(f"{cron} {zone}" for cron, zone, active in deployment.schedules if active)
    return weigh("deployment", f"{name}  {when or 'when started by hand'}")


def _judge_last_run(url: str, deployment: Deployment, key: str) -> Finding:
    """How the newest run of a schedule ended; those that found another at work are left out."""
    query = {
        "deployments": {"id": {"any_": [key]}},
        "flow_runs": {"state": {"type": {"any_": list(ENDED)}}},
        "sort": "END_TIME_DESC",
        "limit": MOST_RUNS,
    }
    # Runs that somebody started by hand say nothing of the schedule.
    runs = [run for run in _list(url, "/flow_runs/filter", query) if run["auto_scheduled"]]
    name = f"{deployment.flow}/{deployment.name}"
    if not runs:
        return weigh("last run", f"{name} has not run by its schedule yet")
    state, ended = runs[0]["state_type"], str(runs[0]["end_time"])[:16].replace("T", " ")
    remedy = "Read the run's page in Prefect, or its log; it resumes where it stopped."
    detail = f"{name} by its schedule, {state.lower()} at {ended} UTC"
    return weigh("last run", detail, remedy * (state != "COMPLETED"), fails=False)


def _list(url: str, path: str, query: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    answer = _request(url, path, "POST", password=True, query=query)
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()
    return found


def _request(
    url: str, path: str, method: str, *, password: bool = False, query: dict[str, Any] | None = None
) -> httpx.Response:
    """An answer of the server; a lost connection is Prefect's to explain."""
    user, _, secret = os.environ.get("PREFECT_API_AUTH_STRING", "").partition(":")
    # Not by Prefect's client: what the server answers without the password is to be found out.
    return httpx.request(
        method,
        f"{url}{path}",
        timeout=TIME_LIMIT,
        verify=ssl.create_default_context(cafile=os.environ.get("PREFECT_API_SSL_CERT_FILE")),
        auth=(user, secret) if password and user else None,
        json=(query or {}) if method == "POST" else None,
    )
