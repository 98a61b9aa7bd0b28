"""The utility promise, checked on every released record from what is stored.

The loss of a record is the squared change of its desired prediction (Xu et al. 2017, e_utility),
computed from raw record, released record and predictor without a line of the cleaning's code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from privpipe.capabilities import UtilityPromise
from privpipe.numerics.finite import find_finite_rows, keep_rows
from privpipe.protocols import FloatArray, Shard, Shards

IN_CACHE = 1024
"""Records that are measured together: their changes stay near the processor."""

AT_BUDGET = 1e-3
"""A record counts as at its budget when it spent all but this share of it."""


@dataclass(frozen=True)
class UtilityLosses:
    """Losses of some records, in squared units of the desired prediction.

    Parameters
    ----------
    n_records
        Records whose raw and released features are finite; withheld ones are not.
    total, largest
        Sum and largest of their losses.
    n_at_budget, n_above
        How many spent the budget but for a thousandth, and more than the budget.
    """

    n_records: int
    total: float
    largest: float
    n_at_budget: int
    n_above: int

    def merge(self, other: UtilityLosses) -> UtilityLosses:
        """Losses of the records of both."""
        return UtilityLosses(
            self.n_records + other.n_records,
            self.total + other.total,
            max(self.largest, other.largest),
            self.n_at_budget + other.n_at_budget,
            self.n_above + other.n_above,
        )

    def describe(self, budget: float) -> dict[str, Any]:
        """JSON-ready: n_records, budget, mean, largest, share_at_budget, n_above_budget."""
        n = max(self.n_records, 1)
        return {
            "n_records": self.n_records,
            "budget": budget,
            "mean": self.total / n,
            "largest": self.largest,
            "share_at_budget": self.n_at_budget / n,
            "n_above_budget": self.n_above,
        }


def audit_utility(released: Shards, promise: UtilityPromise) -> UtilityLosses:
    """Measure what every record lost.

    Parameters
    ----------
    released
        Raw records with their released counterparts.
    promise
        The predictor and the budget.
    """
    losses: UtilityLosses = released.reduce(partial(measure_losses, promise=promise))
    return losses


def measure_losses(shard: Shard, *, promise: UtilityPromise) -> UtilityLosses:
    """Losses of a shard, from the difference of the records: large predictions cost no digit.

    Released records may have a column of ones that raw ones lack.
    """
    raw, released = shard.features, shard.released
    if raw.shape[1] < released.shape[1]:
        raw = np.hstack([raw, np.ones((len(raw), 1))])
    blocks = range(0, len(raw), IN_CACHE)
    slices = [slice(first, first + IN_CACHE) for first in blocks]
    found = [_lose(raw[some], released[some], promise) for some in slices]
    loss = np.concatenate([np.empty(0), *found])
    budget = promise.utility_budget
    return UtilityLosses(
        len(loss),
        float(loss.sum()),
        float(loss.max(initial=0.0)),
        int(np.sum(loss >= budget * (1 - AT_BUDGET))),
        int(np.sum(loss > budget)),
    )


def _lose(raw: FloatArray, released: FloatArray, promise: UtilityPromise) -> FloatArray:
    """Losses of those records whose change is known: of a withheld one the row is NaN."""
    change = np.subtract(released, raw, dtype=np.float64)
    change = keep_rows(change, find_finite_rows(change))
    return np.asarray(((change @ promise.predictor) ** 2).sum(axis=1))
