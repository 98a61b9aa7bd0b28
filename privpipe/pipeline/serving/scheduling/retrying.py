"""Retries of a whole run: for errors of cluster and storage that pass, and for no other.

A run that is tried again resumes: only what has no receipt is done. A closed gate, wrong data or a
wrong option would come out the same, and are told at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from privpipe.errors import ClusterError, MemoryBudgetError, PrivpipeError, StoreError

R = TypeVar("R")

PAUSES = (10.0, 60.0, 300.0)
"""Seconds before each further attempt."""

PASSING = frozenset(
    {"unreachable", "no-workers", "task-lost", "task-failed", "scheduler-lost", "storage", "lease"}
)
"""Codes of errors that may be gone a moment later; a full disk is not among them."""


def is_passing(error: PrivpipeError) -> bool:
    """Whether another attempt may end well.

    >>> is_passing(ClusterError("No worker joined.", code="no-workers"))
    True
    >>> is_passing(StoreError("The release exists.", code="exists"))
    False
    """
    kind = isinstance(error, ClusterError | StoreError)
    return kind and not isinstance(error, MemoryBudgetError) and error.code in PASSING


def retry_passing(
    work: Callable[[], R],
    say: Callable[[str], None],
    pauses: Sequence[float] = PAUSES,
    sleep: Callable[[float], None] = time.sleep,
) -> R:
    """Call until it ends well, an error is not one that passes, or the attempts are used up."""
    for pause in pauses:
        try:
            return work()
        except PrivpipeError as error:
            if not is_passing(error):
                raise
            problem = error.code
        say(f"retry    {problem}: goes on in {pause:.0f} s with what has a receipt")
        sleep(pause)
    return work()
