"""Open the executor that a configuration asks for."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

from distributed import Client
from threadpoolctl import threadpool_limits

from privpipe.cluster.events import Listener, ignore
from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Executor, LocalExecutor
from privpipe.cluster.workers.connection import ClusterOptions, connect


@contextmanager
def report_performance(client: Client, path: str | None) -> Iterator[None]:
    """Write the report of the block, private to its owner; nothing where no path is given.

    Parameters
    ----------
    client
        Of the cluster. Where its scheduler is gone at the end, nothing is written.
    path
        File; its folder is made.
    """
    if path is None:
        yield
        return
    begun, count = time.time(), client.run_on_scheduler(_begin)
    yield
    page = client.run_on_scheduler(_draw, begun=begun, count=count)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(re.sub(r"<link[^>]*>", "", page))  # an icon, asked of the network


def _begin(dask_scheduler: Any) -> int:
    """Scheduler side: begin to note tasks; where the record of the system stands."""
    dask_scheduler.get_task_stream(start=0, stop=0)
    return int(dask_scheduler.monitor.count)


async def _draw(dask_scheduler: Any, begun: float, count: int) -> str:
    """Scheduler side: the page, its profiles without source."""
    real = dask_scheduler.get_profile

    async def get_profile(**asked: Any) -> Any:
        return _drop_source(await real(**asked))

    dask_scheduler.get_profile = get_profile
    try:
        page: str = await dask_scheduler.performance_report(
            start=begun, last_count=count, code="not shown", mode="inline"
        )
    finally:
        del dask_scheduler.get_profile
    return page


def _drop_source(state: dict[str, Any]) -> dict[str, Any]:
    """A profile, and those of its calls, with no line of code and no folder of this machine."""
    described = {**state["description"], "line": ""}
    described["filename"] = PurePath(str(described.get("filename", ""))).name
    calls = {name: _drop_source(inner) for name, inner in state["children"].items()}
    return {**state, "description": described, "children": calls}


@contextmanager
def open_executor(
    options: ClusterOptions, run: str, listener: Listener = ignore
) -> Iterator[Executor]:
    """All work in this process where no workers are asked for, on a cluster otherwise.

    Parameters
    ----------
    options
        ``workers = 0`` without an address: this process.
    run
        Identifier of the run.
    listener
        Receives the events.

    Raises
    ------
    OptionError, ClusterError
        As `connect`.
    """
    if options.address is None and options.workers == 0:
        # As on a worker: more threads give other bits, and fight for the processors of others.
        with threadpool_limits(limits=1):
            yield LocalExecutor(listener)
        return
    with connect(options) as client, report_performance(client, options.performance_report):
        yield DaskExecutor(client, run, listener)
