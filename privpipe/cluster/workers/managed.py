"""Clusters that other systems start: a batch queue, Kubernetes, Dask Gateway, Coiled.

Each by its own library, which reads all else (queue, image, project) from its section of
Dask's configuration; nothing of it is repeated here.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import dask

from privpipe.errors import ClusterError


class Manager(NamedTuple):
    """How a library starts a cluster."""

    package: str
    module: str
    name: str
    runs_scheduler: bool = False
    """In this process: it gets the certificate and the closed pages of a local one."""


MANAGERS = {
    "slurm": Manager("dask-jobqueue", "dask_jobqueue", "SLURMCluster", runs_scheduler=True),
    "kubernetes": Manager("dask-kubernetes", "dask_kubernetes.operator", "KubeCluster"),
    "gateway": Manager("dask-gateway", "dask_gateway", "GatewayCluster"),
    "coiled": Manager("coiled", "coiled", "Cluster"),
}


@contextmanager
def start_managed(kind: str, n_workers: int | None, scheduler: Mapping[str, Any]) -> Iterator[Any]:
    """Have a cluster started, and so many workers; it ends with the context.

    Parameters
    ----------
    kind
        One of `MANAGERS`.
    n_workers
        None for as many as the library's own configuration starts.
    scheduler
        Class and options of a scheduler in this process.

    Raises
    ------
    ClusterError
        If the library is missing, or says why there is no cluster.
    """
    manager = MANAGERS[kind]
    try:
        make = getattr(import_module(manager.module), manager.name)
        here = {"security": True, "scheduler_cls": scheduler["cls"]}
        # Options that are given replace all of the configuration's, its host and port among them.
        theirs = dask.config.get(f"jobqueue.{kind}.scheduler-options", {})
        here["scheduler_options"] = {**theirs, **scheduler["options"]}
        cluster = make(**here if manager.runs_scheduler else {})
    except ModuleNotFoundError:
        raise ClusterError(
            f'[cluster] kind = "{kind}" needs {manager.package}, which is not installed.',
            remedy=f"Install it with: pip install {manager.package}",
            code="no-manager",
        ) from None
    except Exception as error:  # each library raises its own; no record was read yet
        raise ClusterError(
            f'[cluster] kind = "{kind}": {manager.name} says: {error}',
            remedy="Complete Dask's configuration of that library, as docs/howto/cluster.md shows.",
            code="no-manager",
        ) from None
    with cluster:
        if n_workers is not None:
            cluster.scale(n_workers)
        yield cluster
