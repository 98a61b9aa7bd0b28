"""What a memory plan knows of the workers; apart from their connection, which loads Dask."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WorkerMemory"]


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
