"""Versions of driver and workers: what shapes a release is the same on both, or nothing begins."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from distributed import Client, WorkerPlugin

from privpipe.errors import ClusterError

SHAPING = ("privpipe", "numpy", "scipy", "zarr", "dask", "distributed", "scikit-learn", "numba")


def list_shaping_versions() -> dict[str, str]:
    """Versions of this process: Python to the minor number, and the libraries that compute."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"python": python, **{name: version(name) for name in SHAPING}}


def describe_difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """What differs, as text; empty where nothing does.

    >>> describe_difference({"numpy": "2.4", "zarr": "3.1"}, {"numpy": "2.5", "zarr": "3.1"})
    'numpy 2.5 instead of 2.4'
    """
    return ", ".join(
        f"{name} {theirs.get(name, 'missing')} instead of {wanted}"
        for name, wanted in ours.items()
        if theirs.get(name) != wanted
    )


def check_versions(client: Client) -> None:
    """Compare every worker with this process; later ones are compared as they join.

    Raises
    ------
    ClusterError
        With the worker and what differs.
    """
    ours = list_shaping_versions()
    for address, theirs in client.run(list_shaping_versions).items():
        if differs := describe_difference(ours, theirs):
            raise ClusterError(
                f"The worker {address} has {differs}.",
                remedy="Install constraints.txt there, as on the driver, and start it again.",
                code="versions",
            )
    client.register_plugin(ComparedVersions(ours))


class ComparedVersions(WorkerPlugin):
    """Sends a worker of other versions away when it joins."""

    name = "privpipe-versions"
    idempotent = False

    def __init__(self, wanted: Mapping[str, str]) -> None:
        self.wanted = dict(wanted)

    def setup(self, worker: Any) -> None:
        """Run once on each worker, as it joins."""
        if describe_difference(self.wanted, list_shaping_versions()):
            # With its nanny: it would come back as it is.
            worker.loop.add_callback(worker.close, timeout=5, nanny=True, reason="versions")
