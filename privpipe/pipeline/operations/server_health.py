"""Prefect's server: reachable, closed to others, and set up as the file of deployments says."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx

from privpipe.cluster.workers.listener_owner import is_loopback
from privpipe.pipeline.operations.place_health import Finding, weigh
from privpipe.pipeline.serving.deployment_file import Deployment, read_automations, read_deployments
from privpipe.pipeline.serving.server_address import check_server

PATIENCE = 30.0
"""Seconds for an answer: a busy SQLite takes long."""

ENDED = ("COMPLETED", "FAILED", "CRASHED")
"""Not cancelled: a run that finds another at work is, and one that somebody stopped."""

MOST_RUNS = 50
"""Newest runs that are looked at for one of the schedule's own."""


def check_server_health() -> Iterator[Finding]:
    """Whether the server answers us, and nobody without the password."""
    url = check_server()
    what = "Prefect server"
    _ask(url, "/health", "GET")
    yield weigh(what, f"answers at {url}")
    known = _ask(url, "/work_pools/filter", "POST", password=True)
    if known.status_code != httpx.codes.OK:
        yield weigh(
            "password",
            f"the server answers {known.status_code} to ours",
            "Set PREFECT_API_AUTH_STRING to the server's PREFECT_SERVER_API_AUTH_STRING.",
        )
        return
    if _ask(url, "/work_pools/filter", "POST").status_code == httpx.codes.UNAUTHORIZED:
        yield weigh("password", "asked for; ours is right")
    else:
        yield weigh(
            "password",
            "the server answers without one: every user of this machine may start runs",
            "Start it with PREFECT_SERVER_API_AUTH_STRING=user:secret.",
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
    there = _list(url, "/deployments/filter")
    by_name = {item["name"]: item for item in there}
    for wanted in read_deployments(path):
        there_is = by_name.get(wanted.name)
        yield _compare(wanted, there_is, path)
        if there_is is not None and any(active for _, _, active in wanted.schedules):
            yield _judge_last_run(url, wanted, there_is["id"])
    watching = {item["name"] for item in _list(url, "/automations/filter") if item["enabled"]}
    for item in read_automations(automations):
        found = item["name"] in watching
        detail = f"{item['name']}: {'enabled' if found else 'not on the server, or not enabled'}"
        yield weigh("automation", detail, "" if found else f"privpipe deploy {path}")


def _compare(wanted: Deployment, found: dict[str, Any] | None, path: str) -> Finding:
    name, problem = f"{wanted.flow}/{wanted.name}", ""
    if found is None:
        problem = "is not on the server"
    else:
        schedules = {
            (item["schedule"].get("cron"), item["schedule"].get("timezone"), item["active"])
            for item in found["schedules"]
        }
        limit = (found.get("global_concurrency_limit") or {}).get("limit")
        strategy = (found.get("concurrency_options") or {}).get("collision_strategy")
        if schedules != set(wanted.schedules):
            problem = "has other schedules on the server than in the file"
        elif (limit, strategy) != (1, "CANCEL_NEW"):
            problem = f"has the limit {limit} with {strategy}, not 1 with CANCEL_NEW"
        elif found.get("paused"):
            problem = "is paused"
    if problem:
        return weigh("deployment", f"{name} {problem}", f"privpipe deploy {path}")
    when = ", ".join(f"{cron} {zone}" for cron, zone, active in wanted.schedules if active)
    return weigh("deployment", f"{name}  {when or 'when asked'}")


def _judge_last_run(url: str, wanted: Deployment, deployment: str) -> Finding:
    """How the newest run of a schedule ended; those that found another at work are left out."""
    asked = {
        "deployments": {"id": {"any_": [deployment]}},
        "flow_runs": {"state": {"type": {"any_": list(ENDED)}}},
        "sort": "END_TIME_DESC",
        "limit": MOST_RUNS,
    }
    runs = [run for run in _list(url, "/flow_runs/filter", asked) if run["auto_scheduled"]]
    name = f"{wanted.flow}/{wanted.name}"
    if not runs:
        return weigh("last run", f"{name} has not run by its schedule yet")
    state, ended = runs[0]["state_type"], str(runs[0]["end_time"])[:16].replace("T", " ")
    remedy = "Read the run's page in Prefect, or its log; it goes on where it stopped."
    detail = f"{name} by its schedule, {state.lower()} at {ended} UTC"
    return weigh("last run", detail, remedy * (state != "COMPLETED"), fails=False)


def _list(url: str, path: str, asked: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    answer = _ask(url, path, "POST", password=True, asked=asked)
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()
    return found


def _ask(
    url: str, path: str, method: str, *, password: bool = False, asked: dict[str, Any] | None = None
) -> httpx.Response:
    """An answer of the server; a lost connection is Prefect's to explain."""
    user, _, secret = os.environ.get("PREFECT_API_AUTH_STRING", "").partition(":")
    given: dict[str, Any] = {"auth": (user, secret)} if password and user else {}
    body: dict[str, Any] = {"json": asked or {}} if method == "POST" else {}
    authority = os.environ.get("PREFECT_API_SSL_CERT_FILE")
    proved = ssl.create_default_context(cafile=authority)
    return httpx.request(method, f"{url}{path}", timeout=PATIENCE, verify=proved, **given, **body)
