"""The flows that are deployed: a whole run and its parts, each for a logical time.

``deploy/prefect.yaml`` names them. Parameters are paths, names and times; the server refuses others
by their types. A queue starts one run at a time, in the order of their times: one that finds
another at work waits. A run whose process died is started again by an automation, for the same
logical time. What has a receipt is not done again, and what is published is never made again.
"""

import logging
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from prefect import flow
from prefect.logging.handlers import APILogHandler
from prefect.runtime import deployment, flow_run
from pydantic import WithJsonSchema

from privpipe.cluster.executors.boundary import run_sealed
from privpipe.errors import ClusterError, MemoryBudgetError, PrivpipeError, StoreError
from privpipe.flows.release_flow import EVERYTHING, STAGES, release_collection
from privpipe.pipeline.operations.prefect_server import check_server, outlive_reader
from privpipe.pipeline.runs.configuration_file import read_options, read_time
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages.increment_check import TimeSpan

Stage = Literal["train", "clean", "audit", "publish"]

_MOMENT = r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$"

# Prefect's server looks at a pattern; of the format it does not know what it is.
Time = Annotated[
    datetime, WithJsonSchema({"type": "string", "format": "date-time", "pattern": _MOMENT})
]
"""A logical time, with its offset."""


def name_run() -> str:
    """Of a flow run: its configuration and logical time, as ``people-2026-11-23``."""
    given = flow_run.parameters
    time = given.get("logical_time") or given.get("until")
    moment = read_time(flow_run.scheduled_start_time if time in (None, *STAGES) else time)
    form = "%Y-%m-%d" if flow_run.flow_name == "privpipe-release" else "%Y-%m-%dT%H%M"
    return f"{Path(str(given['config_path'])).stem}-{moment:{form}}"


def find_logical_time(given: datetime | None) -> datetime:
    """The time given, or that for which the run was scheduled."""
    return read_time(flow_run.scheduled_start_time if given is None else given)


@flow(name="privpipe-release", flow_run_name=name_run, log_prints=False, persist_result=False)
def release(config_path: str, until: Stage = "publish", logical_time: Time | None = None) -> str:
    """Sanitise the collection of a configuration file; returns the path of the release.

    Parameters
    ----------
    config_path
        The configuration, in the folder that the worker works in.
    until
        Last stage to do; the work so far stays in the workspace, where the next run resumes.
    logical_time
        Fills ``{logical_time}`` in ``[release] path``; that of the schedule by default.
    """
    return _release(config_path, find_logical_time(logical_time), until=until)


@flow(name="privpipe-increment", flow_run_name=name_run, log_prints=False, persist_result=False)
def increment(config_path: str, logical_time: Time | None = None) -> str:
    """Release the partitions that came until a logical time, as the next generation.

    Parameters
    ----------
    config_path
        A configuration with ``[release] incremental = true``.
    logical_time
        That of the schedule by default. The same time twice: nothing to do.
    """
    until = find_logical_time(logical_time)
    return _release(config_path, until, TimeSpan(None, until))


@flow(name="privpipe-backfill", flow_run_name=name_run, log_prints=False, persist_result=False)
def backfill(config_path: str, since: Time, until: Time) -> str:
    """Release the partitions of a span of logical times that are not released yet.

    Parameters
    ----------
    config_path
        A configuration with ``[release] incremental = true``.
    since, until
        Both included. Another run of the same release at work is waited for.
    """
    return _release(config_path, read_time(until), TimeSpan(read_time(since), read_time(until)))


def _release(
    config_path: str, logical_time: datetime, span: TimeSpan = EVERYTHING, until: Stage = "publish"
) -> str:
    outlive_reader()  # the worker that reads the output may die, the run need not
    if (n_starts := flow_run.run_count or 1) > MOST_STARTS:  # killed for what it is, as by memory
        raise ClusterError(
            f"This run was started {n_starts - 1} times and its process died each time.",
            remedy="Look at the memory and the log of the machine that runs it, then start it by "
            "`privpipe gaps NAME --fill`: what has a receipt is retained.",
            code="crashes",
        )
    lines = logging.getLogger("privpipe.lines")
    if not lines.handlers:
        # To Prefect's page of the run alone: Prefect's own logger would print each line again.
        lines.addHandler(APILogHandler())
        lines.setLevel(logging.INFO)
        lines.propagate = False
    watch = Watch(deployment=deployment.name or "", link=flow_run.ui_url or "", log=lines.info)

    def work() -> str:
        options = read_options(config_path, logical_time)
        return run_sealed(release_collection, options, watch, until, span)

    # Whoever answers there has chosen the configuration that is read below.
    run_sealed(check_server)
    return retry_passing(work, watch.say)


R = TypeVar("R")

PAUSES = (10.0, 60.0, 300.0, *(600.0,) * 18)
"""Seconds before each further attempt: an outage of three hours costs no night."""

OUTAGES = frozenset({"unreachable", "no-workers", "scheduler-lost", "storage", "lease", "busy"})
"""Codes of errors that last as long as something is away, or as another run is at work."""

PASSING = OUTAGES | {"task-lost", "task-failed"}
"""Codes of errors that may be gone a moment later; a full disk is not among them."""

FEW = 3
"""Further attempts where nothing is away."""

MOST_STARTS = 8
"""Of one run: who dies so often dies for a reason. A death that is reported twice counts twice."""


def is_passing(error: PrivpipeError) -> bool:
    """Whether another attempt may end well.

    >>> is_passing(ClusterError("No worker joined.", code="no-workers"))
    True
    >>> is_passing(StoreError("The release exists.", code="exists"))
    False
    """
    kind = isinstance(error, ClusterError | StoreError)
    return kind and not isinstance(error, MemoryBudgetError) and error.code in PASSING


def retry_passing(work: Callable[[], R], say: Callable[[str], None]) -> R:
    """Call until it ends well, an error is not one that passes, or the attempts are used up."""
    for number, pause in enumerate(PAUSES):
        try:
            return work()
        except PrivpipeError as error:
            if not is_passing(error) or (error.code not in OUTAGES and number >= FEW):
                raise
            problem = error.code
        say(f"retry    {problem}: resumes in {pause:.0f} s after what has a receipt")
        time.sleep(pause)
    return work()
