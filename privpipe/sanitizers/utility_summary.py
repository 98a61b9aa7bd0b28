"""What cleaning cost, as a value that merges: for receipts, without any value of a record."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class UtilitySummary:
    """What cleaning some records cost, in squared units of the desired prediction.

    Parameters
    ----------
    n_records
        Records cleaned, withheld ones included.
    n_withheld
        Rows of NaN: rounding alone might have cost them more than the budget.
    total, largest
        Sum and largest value of e_utility over the other records.
    n_at_budget
        Records that spent the whole budget but for a thousandth.
    """

    n_records: int
    n_withheld: int
    total: float
    largest: float
    n_at_budget: int

    def merge(self, other: UtilitySummary) -> UtilitySummary:
        """Summary of the records of both."""
        return UtilitySummary(
            self.n_records + other.n_records,
            self.n_withheld + other.n_withheld,
            self.total + other.total,
            max(self.largest, other.largest),
            self.n_at_budget + other.n_at_budget,
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, for receipts."""
        return asdict(self)
