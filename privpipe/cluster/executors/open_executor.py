"""Open the executor that a configuration asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

from privpipe.cluster.events import Listener, ignore
from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Executor, LocalExecutor
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.cluster.workers.monitoring.performance import report_performance


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
