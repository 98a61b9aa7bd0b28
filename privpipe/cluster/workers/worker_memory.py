"""What a memory plan knows of the workers; apart from their connection, which loads Dask."""

from __future__ import annotations

from dataclasses import dataclass

KEPT_SHARE = 0.4
"""Of a worker's memory: what it keeps of shards. Beyond .6 Dask writes to disk what it holds."""

RESERVED = 400 << 20
"""Bytes of a worker's memory that its libraries and the reading of records take."""


@dataclass(frozen=True)
class WorkerMemory:
    """The workers as a memory plan sees them.

    Parameters
    ----------
    n_workers, n_threads
        Workers, and threads over all of them.
    smallest
        Memory limit of the smallest worker, bytes; 0 when there is none.
    total
        Sum of the limits, bytes.
    threads
        Threads of the worker with most threads.
    """

    n_workers: int
    n_threads: int
    smallest: int
    total: int
    threads: int


def find_room(limit: int) -> int:
    """Bytes of shards that a worker of so many bytes of memory keeps."""
    return int(KEPT_SHARE * max(0, limit - RESERVED))
