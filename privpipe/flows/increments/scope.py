"""Which partitions a run is for, by their logical times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from privpipe.errors import OptionError
from privpipe.store.collections.growing_collection import StoredPartition


@dataclass(frozen=True)
class Scope:
    """Times from `since`, included, to `until`, included; None is no limit.

    A scheduled run is for all that came until its logical time; a backfill for a span. Runs may
    happen in any order: what one of them finds released it leaves as it is.
    """

    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.since > self.until:
            raise OptionError(
                "A backfill ends before it begins.",
                remedy="Give --from the earlier time.",
                code="scope",
            )

    def holds(self, partition: StoredPartition) -> bool:
        """Whether the partition is in the span."""
        time = datetime.fromisoformat(partition.time)
        after = self.since is None or time >= self.since
        return after and (self.until is None or time <= self.until)
