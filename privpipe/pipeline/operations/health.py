"""``privpipe doctor``: places of this machine, the bucket, the cluster and its workers.

Workers import this module, and need not have Prefect: the server is looked at in
`privpipe.pipeline.operations.server_health`.
"""

import os
import resource
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import dask
import fsspec

from privpipe.cluster.workers.boundary import run_sealed, seal
from privpipe.cluster.workers.certificates import PARTS, read_certificate
from privpipe.cluster.workers.connection import connect
from privpipe.pipeline.runs.run import cluster_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.spend import is_promised_across_runs, list_fleeting
from privpipe.store.access.lease import MOST_SKEW
from privpipe.store.access.location import create_bytes, join, local_path, shown
from privpipe.store.access.objects import delete_tree, open_store, read_bytes, write_bytes
from privpipe.store.arrays.layout import ROOT_DOCUMENT
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
        detail = (
            f"{shown(parent)} {'refuses' if enforced else 'takes'} a second write of one object"
        )
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
    refused = is_promised_across_runs(options) and options.privacy.ephemeral == "refuse"
    remedy = "Name folders that last in [privacy] account or PRIVPIPE_ACCOUNT, and PRIVPIPE_KEYS."
    for sentence in (fleeting := list_fleeting(options)):
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
    for part in [part for part in PARTS if (folder / f"{part}.pem").exists()]:
        state = read_certificate(folder, part)
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
    with connect(cluster_options(options)) as client:
        # Before the workers are queried: this is the way to the scheduler alone.
        spent = time.perf_counter() - begun
        yield weigh("scheduler", f"{address} answers after {spent:.1f} s")
        queried = client.run(run_sealed, look_around, options.collection.path, release)
        for worker, found in queried.items():
            yield from _judge_worker(worker, found, time.time())


def look_around(collection: str, release: str) -> dict[str, Any]:
    """Worker side: clock, modes, disk, and a round trip through the storage; no record."""
    # It can only be read by setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    probe = join(os.path.dirname(release.rstrip("/")) or ".", f".privpipe-{secrets.token_hex(8)}")
    # Bytes of this round trip alone: an older probe must not answer for it.
    store, mark = open_store(probe), secrets.token_bytes(16)
    write_bytes(store, "probe", mark)
    written = read_bytes(store, "probe") == mark
    delete_tree(store)
    if (path := local_path(probe)) is not None:
        shutil.rmtree(path, ignore_errors=True)
    return {
        "time": time.time(),
        "umask": mask,
        # A core dump of a worker holds records.
        "cores": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "free": shutil.disk_usage(dask.config.get("temporary-directory", None) or ".").free,
        "reads": read_bytes(open_store(collection, read_only=True), ROOT_DOCUMENT) is not None,
        "writes": written,
    }


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
