"""What training in rounds over the records keeps in memory: known before any work."""

from __future__ import annotations

from dataclasses import dataclass

from privpipe.cluster.executors.executor import RESIDENT_SHARE, LocalExecutor
from privpipe_flows.runs.run import Run

__all__ = ["RoundPlan", "plan_rounds"]


@dataclass(frozen=True)
class RoundPlan:
    """Features that every round of a fit asks about.

    Parameters
    ----------
    n_bytes
        Of the features of all training records, as they are stored.
    room
        Bytes of them that this process keeps; None where workers keep all that they load.
    """

    n_bytes: int
    room: int | None

    def describe(self) -> str:
        """In a sentence."""
        asks = "every one asks of all training records, " + _write_bytes(self.n_bytes)
        if self.room is None:
            return (
                f"{asks} of features: read once and kept, shared among the workers, whose memory "
                "must hold them."
            )
        if self.n_bytes <= self.room:
            return f"{asks} of features: read once and kept."
        return (
            f"{asks} of features: {_write_bytes(self.room)} are kept ({RESIDENT_SHARE:.0%} of the "
            "memory), the rest is read anew in every round. [cluster] workers on more machines "
            "keep more."
        )


def plan_rounds(run: Run) -> RoundPlan | None:
    """What is read how often; None of a method that does not learn in rounds."""
    if not run.method.in_rounds:
        return None
    schema, cluster = run.training.schema_of_records, run.options.cluster
    n_bytes = schema.n_records * schema.n_features * (8 if schema.dtype == "float64" else 4)
    alone = cluster.address is None and cluster.workers == 0
    room = int(RESIDENT_SHARE * LocalExecutor().measure().smallest)
    return RoundPlan(n_bytes, room if alone else None)


def _write_bytes(n_bytes: int) -> str:
    """Bytes for people.

    >>> _write_bytes(3 << 20), _write_bytes(5 << 30)
    ('3.0 MiB', '5.0 GiB')
    """
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"
