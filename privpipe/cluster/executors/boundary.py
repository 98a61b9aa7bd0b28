"""The worker-side boundary: nothing but our own errors leaves a worker.

Dask keeps the exception of a failed task, prints it in the worker's log and serves it on the
worker's pages; texts of foreign exceptions may hold values of records. So every function sent to
a worker goes through `run_sealed`.
"""

import errno
import os
from collections.abc import Callable
from pathlib import PurePath
from traceback import walk_tb
from types import TracebackType
from typing import ParamSpec, TypeVar

from privpipe.errors import ClusterError, FormatError, MemoryBudgetError, PrivpipeError, StoreError
from privpipe.store.access.location import explain_refusal

REFUSALS = frozenset(
    getattr(errno, name)
    for name in (
        "EACCES EPERM EROFS ENAMETOOLONG ENOTDIR EISDIR ELOOP EIO EMFILE ENFILE ESTALE EBUSY "
        "ENODEV EXDEV"
    ).split()
)
"""What a file system says when a place is at fault, not the code."""

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
    # Before the refusals of stores: a full disk has its own remedy wherever it is met.
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreError(
            f"The disk is full ({stage}).",
            remedy="Free space, then run again: the work so far is retained.",
            code="disk-full",
        )
    if (refused := explain_refusal(error)) is not None:
        return StoreError(
            f"{refused.message.rstrip('.')} ({stage}).", remedy=refused.remedy, code=refused.code
        )
    if isinstance(error, OSError) and error.errno in REFUSALS:
        return StoreError(
            f"The file system refused: {os.strerror(error.errno or 0).lower()} ({stage}).",
            remedy="Check the places that are named, and your rights there.",
            code="refused",
        )
    if isinstance(error, MemoryError):
        return MemoryBudgetError(
            f"A worker ran out of memory ({stage}).", remedy="Use fewer threads or smaller chunks."
        )
    if isinstance(error, RecursionError):
        return FormatError(
            f"A document is nested deeper than can be read ({stage}).",
            remedy="It is damaged, or made to fail: get it again from where it came.",
            code="nested",
        )
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
