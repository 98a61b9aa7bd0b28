"""The worker-side boundary: nothing but our own errors leaves a worker.

Dask keeps the exception of a failed task, prints it in the worker's log and serves it on the
worker's pages. Texts of foreign exceptions may hold values of records. So every function sent to a
worker goes through `run_sealed`.
"""

from collections.abc import Callable
from pathlib import PurePath
from traceback import walk_tb
from types import TracebackType
from typing import ParamSpec, TypeVar

from privpipe.errors import ClusterError, FormatError, MemoryBudgetError, PrivpipeError, StoreError
from privpipe.store.access.location import explain_file_error, explain_refusal

P = ParamSpec("P")
R = TypeVar("R")


def run_sealed(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function; let only a sealed error of ours out, without context or cause."""
    problem: PrivpipeError
    try:
        return function(*args, **kwargs)
    except Exception as error:
        problem = seal(error, getattr(function, "__name__", "task"))
    # Raised outside the except block: no __context__ travels along.
    raise problem


def seal(error: Exception, stage: str) -> PrivpipeError:
    """Turn any exception into one of ours that holds no foreign text.

    Our own errors keep their text, which by rule holds no value of a record. Of others only the
    type and the place in the code remain.
    """
    if isinstance(error, PrivpipeError):
        # A new one: the traceback of the old one holds frames, and these hold records.
        return type(error)(error.message, remedy=error.remedy, code=error.code)
    refused, of_files = explain_refusal(error), explain_file_error(error, stage)
    # Not before a full disk, which has its own remedy wherever it is met.
    if refused is not None and (of_files is None or of_files.code != "disk-full"):
        problem = f"{refused.message.rstrip('.')} ({stage})."
        return StoreError(problem, remedy=refused.remedy, code=refused.code)
    if of_files is not None:
        return of_files
    if isinstance(error, MemoryError):
        problem = f"A worker ran out of memory ({stage})."
        return MemoryBudgetError(problem, remedy="Use fewer threads or smaller chunks.")
    if isinstance(error, RecursionError):
        problem = f"A document is nested deeper than can be read ({stage})."
        remedy = "It is damaged, or made to fail: get it again from where it came."
        return FormatError(problem, remedy=remedy, code="nested")
    # What Dask itself says of lost workers and connections is no fault of ours.
    foreign = type(error).__module__.partition(".")[0] == "distributed"
    return (ClusterError if foreign else PrivpipeError)(
        f"{stage} failed with {type(error).__name__} at {_place(error.__traceback__)}.",
        remedy="See the logs of scheduler and workers, then run again: the work so far is retained."
        if foreign
        else "This is a fault of privpipe or of its installation; report type and place.",
        code="task-failed",
    )


def _place(traceback: TracebackType | None) -> str:
    """File name and line of the innermost frame."""
    place = "an unknown place"
    for frame, line in walk_tb(traceback):
        # The file's name alone: its folder may be a user's.
        place = f"{PurePath(frame.f_code.co_filename).name}:{line}"
    return place
