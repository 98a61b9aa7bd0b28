"""What training in rounds over the records keeps in memory: known before any work."""

from __future__ import annotations

import os
from dataclasses import dataclass

from dask.utils import parse_bytes

from privpipe.cluster.executors.executor import RESIDENT_SHARE, LocalExecutor
from privpipe.cluster.workers.worker_memory import KEPT_SHARE, find_room
from privpipe.pipeline.runs.run import Run


@dataclass(frozen=True)
class RoundPlan:
    """Features that every round of a fit asks about.

    Parameters
    ----------
    n_bytes
        Of the features of all training records, as they are stored.
    room
        Bytes of them that are kept; None of workers that are not known before they are connected.
    workers
        On this machine; 0 where this process does all work.
    """

    n_bytes: int
    room: int | None
    workers: int = 0

    def describe(self) -> str:
        """In a sentence."""
        asks = "every one asks of all training records, " + _write_bytes(self.n_bytes)
        if self.room is None:
            return (
                f"{asks} of features: read once and kept, shared among the workers, as far as "
                f"{KEPT_SHARE:.0%} of their memory goes; the rest is read anew in every round."
            )
        whose = f" by {self.workers} workers" if self.workers else ""
        if self.n_bytes <= self.room:
            return f"{asks} of features: read once and kept{whose}."
        return (
            f"{asks} of features: {_write_bytes(self.room)} are kept{whose}, the rest is read anew "
            "in every round. More memory, or [cluster] workers on more machines, keep more."
        )


def plan_rounds(run: Run) -> RoundPlan | None:
    """What is read how often; None of a method that does not learn in rounds."""
    if not run.method.in_rounds:
        return None
    schema, cluster = run.training.schema_of_records, run.options.cluster
    n_bytes = schema.n_records * schema.n_features * (8 if schema.dtype == "float64" else 4)
    if cluster.address is not None:
        return RoundPlan(n_bytes, None)
    memory = LocalExecutor().measure().smallest
    if cluster.workers == 0:
        return RoundPlan(n_bytes, int(RESIDENT_SHARE * memory))
    workers = cluster.workers or os.cpu_count() or 1
    given = cluster.memory_limit
    limit = memory // workers if given == "auto" else parse_bytes(given)
    return RoundPlan(n_bytes, workers * find_room(limit), workers)


def _write_bytes(n_bytes: int) -> str:
    """Bytes for people.

    >>> _write_bytes(3 << 20), _write_bytes(5 << 30)
    ('3.0 MiB', '5.0 GiB')
    """
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"
