"""``privpipe doctor``: Prefect's server, the cluster and its workers, places, account, keys.

Whether all that a scheduled run needs is there, closed to others, and set up as the files say.
"""

import os
import secrets
import shutil
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import dask
import fsspec
import httpx

from privpipe.cluster.executors.boundary import run_sealed, seal
from privpipe.cluster.workers import certificates, connection, processes
from privpipe.pipeline.operations import deployment_file, prefect_server
from privpipe.pipeline.runs import run, spend
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.store.access.lease import MOST_SKEW
from privpipe.store.access.location import create_bytes, join, local_path, shown
from privpipe.store.keyring.account import find_account
from privpipe.store.keyring.keyfiles import KeyFolder, key_folder

LEAST_FREE = 2**30
"""Bytes where releases go, and for records that workers spill."""


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Parameters
    ----------
    state
        "ok", "warns" (works, and will not for long or not for everyone) or "fails".
    what
        The thing looked at, in two or three words.
    detail
        What was seen.
    remedy
        What to do; empty where nothing is wrong.
    """

    state: Literal["ok", "warns", "fails"]
    what: str
    detail: str
    remedy: str = ""


def weigh(what: str, detail: str, remedy: str = "", *, fails: bool = True) -> Finding:
    """A finding: what needs no remedy is well."""
    bad: Literal["warns", "fails"] = "fails" if fails else "warns"
    return Finding(bad if remedy else "ok", what, detail, remedy)


Check = Callable[[], Iterable[Finding]]


def run_checks(checks: Mapping[str, Check]) -> Iterator[Finding]:
    """Findings of all checks, in order; a check that breaks fails with what it says."""
    for name, check in checks.items():
        try:
            yield from check()
        except Exception as error:
            # As what leaves a worker: its text may quote a value.
            sealed = seal(error, name)
            yield Finding("fails", name, sealed.message, sealed.remedy)


def check_places(options: Any) -> Iterator[Finding]:
    """Where the release goes: space on a disk, conditional writes of a bucket."""
    release = options.release.path
    path = local_path(release)
    if path is None:
        parent = release.rstrip("/").rpartition("/")[0]
        enforced = tries_conditions(parent)
        does = "refuses" if enforced else "takes"
        detail = f"{shown(parent)} {does} a second write of one object"
        remedy = "Use a store that enforces If-None-Match: without it two runs may publish."
        yield weigh("put-if-absent", detail, remedy * (not enforced))
        return
    folder = os.path.dirname(path)
    # The folder of the release need not be there yet.
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free = shutil.disk_usage(folder).free
    remedy = "Free space; `privpipe purge RELEASE` drops stopped runs." * (free < LEAST_FREE)
    yield weigh("disk", f"{free / 2**30:.1f} GiB free at {folder}", remedy)


def tries_conditions(parent: str) -> bool:
    """Whether a bucket refuses to replace an object that must not exist; tried, then removed."""
    probe = join(parent, f".privpipe-doctor-{secrets.token_hex(8)}")
    try:
        # Different values: one that holds ours already would count as made by us.
        return create_bytes(probe, b"first") and not create_bytes(probe, b"second")
    finally:
        file_system, path = fsspec.core.url_to_fs(probe)
        file_system.rm(path)


def check_account(options: RunOptions) -> Iterator[Finding]:
    """Account and keys lie where they last; what is refused fails the configuration as well."""
    refused = spend.is_promised_across_runs(options) and options.privacy.ephemeral == "refuse"
    remedy = "Name folders that last in [privacy] account or PRIVPIPE_ACCOUNT, and PRIVPIPE_KEYS."
    for sentence in (fleeting := spend.list_fleeting(options)):
        detail = f"{sentence}: what later runs have to know is forgotten"
        yield weigh("account", detail, remedy, fails=refused)
    if not fleeting:
        place = shown(find_account(options.privacy.account))
        yield weigh("account", f"{place} is not in memory or a container's layer")


def check_keys() -> Iterator[Finding]:
    """The folder of keys is private, or not there yet."""
    folder = key_folder()
    if not folder.exists():
        yield weigh("key folder", f"{folder} is made when a method first draws")
        return
    with KeyFolder(folder, "").opened():
        yield weigh("key folder", f"{folder} is its owner's alone")


WARN_DAYS = 14.0
"""Left to a certificate when its renewal becomes due."""


def check_certificates() -> Iterator[Finding]:
    """Expiry, authority and modes of what Dask's configuration names."""
    given = str(dask.config.get("distributed.comm.tls.ca-file", None) or "")
    if not given:
        remedy = "privpipe certs FOLDER, then export DASK_CONFIG=FOLDER/dask.yaml"
        yield weigh("certificates", "Dask's configuration names none", remedy)
        return
    folder = Path(given).parent
    renewal = f"privpipe certs {folder} --renew, then restart scheduler and workers"
    for part in [part for part in certificates.PARTS if (folder / f"{part}.pem").exists()]:
        state = certificates.read_certificate(folder, part)
        left = state.days_left()
        problems = {
            "is not signed by the authority beside it": not state.ours,
            "has a key that others can read": not state.private,
            f"expired on {state.expires:%Y-%m-%d}": left < 0,
            f"expires in {left:.0f} days": left < WARN_DAYS,
        }
        problem = next((text for text, is_so in problems.items() if is_so), "")
        detail = f"{part} {problem or f'until {state.expires:%Y-%m-%d}'}"
        soon = state.ours and state.private and left >= 0
        yield weigh("certificate", detail, renewal if problem else "", fails=not soon)


def check_cluster(options: Any) -> Iterator[Finding]:
    """Reach the scheduler, and query each worker."""
    address = options.cluster.address
    if address is None:
        yield weigh("cluster", "a local one, made for each run")
        return
    release = options.release.path
    begun = time.perf_counter()
    with connection.connect(run.cluster_options(options)) as client:
        # Before the workers are queried: this is the way to the scheduler alone.
        yield weigh("scheduler", f"{address} answers after {time.perf_counter() - begun:.1f} s")
        queried = client.run(run_sealed, processes.look_around, options.collection.path, release)
        for worker, found in queried.items():
            yield from _judge_worker(worker, found, time.time())


def _judge_worker(worker: str, found: Mapping[str, Any], now: float) -> Iterator[Finding]:
    skew = abs(now - float(found["time"]))
    problems = {
        "cannot read the collection": not found["reads"],
        "cannot write beside the release": not found["writes"],
        f"has a clock {skew:.0f} s away from ours": skew > MOST_SKEW,
        f"makes files with umask {found['umask']:03o}": found["umask"] & 0o077 != 0o077,
        "writes core dumps": found["cores"] != 0,
        f"has {found['free'] / 2**30:.1f} GiB free for spilled records": found["free"] < LEAST_FREE,
    }
    wrong = [text for text, is_wrong in problems.items() if is_wrong]
    for text in wrong:
        yield weigh("worker", f"{worker} {text}", "See deploy/RUNBOOK.md, page Start: workers.")
    if not wrong:
        yield weigh("worker", f"{worker} reads, writes, clock within {skew:.1f} s")


TIME_LIMIT = 30.0
"""Seconds for an answer: a busy SQLite takes long."""


def check_server_health() -> Iterator[Finding]:
    """Whether the server answers us, and no one without the password."""
    url = prefect_server.check_server()
    known = _request(url, "/work_pools/filter", password=True)
    yield weigh("Prefect server", f"answers at {url}")
    if known.status_code != httpx.codes.OK:
        remedy = "Set PREFECT_API_AUTH_STRING to the server's PREFECT_SERVER_API_AUTH_STRING."
        yield weigh("password", f"the server answers {known.status_code} to ours", remedy)
        return
    if _request(url, "/work_pools/filter").status_code == httpx.codes.UNAUTHORIZED:
        yield weigh("password", "required; ours is right")
    else:
        yield weigh(
            "password",
            "the server answers without one: every user of this machine may start runs",
            "Start it with PREFECT_SERVER_API_AUTH_STRING=user:secret.",
            # On the loopback other users of this machine reach it, from elsewhere everyone.
            fails=not certificates.is_loopback(urlsplit(url).hostname or ""),
        )
    for pool in known.json():
        status, name = str(pool.get("status")), pool["name"]
        remedy = f"Start a worker: prefect worker start --pool {name}" * (status != "READY")
        yield weigh("work pool", f"{name}: {status.lower().replace('_', ' ')}", remedy, fails=False)


def check_deployed(path: str, automations: str) -> Iterator[Finding]:
    """Whether schedules, limits and automations on the server are those of the files."""
    url = prefect_server.check_server()
    by_name = {item["name"]: item for item in _list(url, "/deployments/filter")}
    for deployment in deployment_file.read_deployments(path):
        yield _compare(deployment, by_name.pop(deployment.name, {}), path)
    for name in (name for name, item in by_name.items() if "privpipe" in item.get("tags", ())):
        remedy = f"Remove it: prefect deployment delete FLOW/{name}, then privpipe gaps {name} "
        remedy += "--end; or name it in the file again."
        yield weigh("deployment", f"{name} runs on, and is not in {path}", remedy, fails=False)
    watching = {item["name"] for item in _list(url, "/automations/filter") if item["enabled"]}
    for name in (item["name"] for item in deployment_file.read_automations(automations)):
        state = "enabled" if name in watching else "not on the server, or not enabled"
        remedy = f"privpipe deploy {path}" * (name not in watching)
        yield weigh("automation", f"{name}: {state}", remedy)


def _compare(deployment: deployment_file.Deployment, found: dict[str, Any], path: str) -> Finding:
    """A deployment of the file with what the server has under its name, empty where nothing."""
    # As the file states them; the server adds keys of its own.
    schedules = {
        (item["schedule"].get("cron"), item["schedule"].get("timezone"), item["active"])
        for item in found.get("schedules", ())
    }
    lease = found.get("global_concurrency_limit")
    problems = {
        "is not on the server": not found,
        "has other schedules on the server than in the file": schedules
        != set(deployment.schedules),
        f"is in the queue {found.get('work_queue_name')}, not {deployment.queue}": (
            found.get("work_queue_name") != deployment.queue
        ),
        "has a concurrency limit of its own, which ends runs when the server is away": bool(lease),
        "is paused": bool(found.get("paused")),
    }
    name = f"{deployment.flow}/{deployment.name}"
    for problem in (text for text, is_so in problems.items() if is_so):
        return weigh("deployment", f"{name} {problem}", f"privpipe deploy {path}")
    when = ", ".join(f"{cron} {zone}" for cron, zone, active in deployment.schedules if active)
    return weigh("deployment", f"{name}  {when or 'when started by hand'}")


def _list(url: str, path: str) -> list[dict[str, Any]]:
    answer = _request(url, path, password=True)
    answer.raise_for_status()
    return list(answer.json())


def _request(url: str, path: str, *, password: bool = False) -> httpx.Response:
    """An answer of the server; a lost connection is Prefect's to explain."""
    user, _, secret = os.environ.get("PREFECT_API_AUTH_STRING", "").partition(":")
    # Not by Prefect's client: what the server answers without the password is to be found out.
    return httpx.post(
        f"{url}{path}",
        timeout=TIME_LIMIT,
        verify=ssl.create_default_context(cafile=os.environ.get("PREFECT_API_SSL_CERT_FILE")),
        auth=(user, secret) if password and user else None,
        json={},
    )
