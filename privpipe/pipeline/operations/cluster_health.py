"""The cluster: certificates, and each worker's versions, clock, files and way to the storage."""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dask

from privpipe.cluster.workers.boundary import run_sealed
from privpipe.cluster.workers.certificates import PARTS, read_certificate
from privpipe.cluster.workers.connection import connect
from privpipe.pipeline.operations.place_health import Finding, weigh
from privpipe.pipeline.runs.run import cluster_options
from privpipe.store.access.lease import MOST_SKEW
from privpipe.store.access.location import join, local_path
from privpipe.store.access.objects import delete_tree, open_store, read_bytes, write_bytes
from privpipe.store.arrays.layout import ROOT_DOCUMENT

WARN_DAYS = 14.0
"""Left to a certificate when its renewal becomes due."""

LEAST_FREE = 2**30
"""Bytes for spilled records."""


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
    """Reach the scheduler, and ask each worker."""
    address = options.cluster.address
    if address is None:
        yield weigh("cluster", "a local one, made for each run")
        return
    release = options.release.path
    begun = time.perf_counter()
    with connect(cluster_options(options)) as client:
        spent = time.perf_counter() - begun
        yield weigh("scheduler", f"{address} answers after {spent:.1f} s")
        asked = client.run(run_sealed, look_around, options.collection.path, release)
        for worker, found in asked.items():
            yield from _judge(worker, found, time.time())


def look_around(collection: str, release: str) -> dict[str, Any]:
    """Worker side: clock, modes, disk, and a round trip through the storage; no record."""
    mask = os.umask(0o077)
    os.umask(mask)
    probe = join(os.path.dirname(release.rstrip("/")) or ".", f".privpipe-{secrets.token_hex(8)}")
    store, mark = open_store(probe), secrets.token_bytes(16)
    write_bytes(store, "probe", mark)
    written = read_bytes(store, "probe") == mark
    delete_tree(store)
    if (path := local_path(probe)) is not None:
        shutil.rmtree(path, ignore_errors=True)
    return {
        "time": time.time(),
        "umask": mask,
        "cores": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "free": shutil.disk_usage(dask.config.get("temporary-directory", None) or ".").free,
        "reads": read_bytes(open_store(collection, read_only=True), ROOT_DOCUMENT) is not None,
        "writes": written,
    }


def _judge(worker: str, found: Mapping[str, Any], now: float) -> Iterator[Finding]:
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
