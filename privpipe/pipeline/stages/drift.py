"""How far new records are from those that the model was trained and judged on.

The audit speaks of records like the training records. So for each new partition the difference of
each feature's mean is measured in standard deviations of the training records, with an interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np

from privpipe.errors import GateError
from privpipe.numerics.limits import Figure, say_upper
from privpipe.numerics.moments import CoMoments
from privpipe.protocols import FloatArray

ROUNDING = 1e-9
"""Of a sum of shares: a share below it is none."""


@dataclass(frozen=True)
class DriftReference:
    """Count, means and standard deviations of the training records; private."""

    count: float
    mean: FloatArray
    deviation: FloatArray

    @classmethod
    def of(cls, moments: CoMoments) -> DriftReference:
        """From the moments of the records that the fit saw."""
        variance = np.diag(moments.scatter) / max(moments.count - 1, 1)
        return cls(float(moments.count), moments.mean, np.sqrt(variance))

    def encode(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "count": self.count,
            "mean": self.mean.tolist(),
            "deviation": self.deviation.tolist(),
        }

    @classmethod
    def decode(cls, content: Mapping[str, Any]) -> DriftReference:
        """What `encode` made."""
        return cls(
            float(content["count"]), np.array(content["mean"]), np.array(content["deviation"])
        )


@dataclass(frozen=True)
class Drift:
    """The largest difference of a mean.

    Parameters
    ----------
    estimate, upper
        In standard deviations of the training records; `upper` holds for all features together.
    n_new
        Features that vary in the new records and did not in the training records; of these the
        unit is the root mean square of the other features' deviations.
    n_records
    """

    estimate: float
    upper: float
    n_new: int
    n_records: int


def measure_drift(
    reference: DriftReference, moments: CoMoments, level: float = 0.95, sizes: Sequence[int] = ()
) -> Drift:
    """Compare the records of a partition with the training records.

    Parameters
    ----------
    reference
    moments
        Of the features of the partition's finite records.
    level
        Confidence of the upper limit, over all features (Bonferroni; normal quantiles, with the
        variances of both sides as they were found).
    sizes
        Categories of each attribute, where features are indicators of categories: a record whose
        category the training records have not is in none, and that is compared as well.
    """
    n = max(float(moments.count), 1.0)
    variance = np.diag(moments.scatter) / max(n - 1, 1)
    mean, variance = _add_nameless(moments.mean, variance, sizes)
    usual, usual_variance = _add_nameless(reference.mean, reference.deviation**2, sizes)
    deviation = np.sqrt(usual_variance)
    # A feature that did not vary has no unit of its own; any that begins to vary is new, and is
    # measured in the typical deviation instead of an infinite number of nothing.
    constant = deviation == 0
    typical = float(np.sqrt(np.mean(deviation**2))) or 1.0
    scale = np.where(constant, typical, deviation)
    apart = np.abs(mean - usual) / scale
    squared = variance / scale**2
    # Two sides of each feature share what the level leaves (Bonferroni).
    z = NormalDist().inv_cdf(1 - (1 - level) / (2 * max(len(apart), 1)))
    # The means of both sides are uncertain: that of the new records in units of the reference.
    spread = np.sqrt(squared / n + 1.0 / max(reference.count, 1.0))
    new = constant & ((squared > 0) | (apart > 0))
    return Drift(
        float(np.max(apart, initial=0.0)),
        float(np.max(apart + z * spread, initial=0.0)),
        int(new.sum()),
        int(n),
    )


def _add_nameless(
    mean: FloatArray, variance: FloatArray, sizes: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """With a feature more per block of indicators: that the record is in none, and its share."""
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
    lacking = 1 - np.array([mean[a:b].sum() for a, b in pairwise(starts)])
    lacking = np.where(lacking < ROUNDING, 0.0, np.minimum(lacking, 1.0))
    variances = np.concatenate([variance, lacking * (1 - lacking)])
    return np.concatenate([mean, lacking]), variances


def check_drift(drift: Drift, limit: float | None, name: str) -> None:
    """Refuse a partition whose records may be others than those that were judged.

    Raises
    ------
    GateError
        With both numbers; a partition too small to show it does not pass.
    """
    figure = Figure(drift.estimate, drift.estimate, drift.upper)
    if limit is None or figure.within(limit):
        return
    new = f"; {drift.n_new} features vary that were constant there" if drift.n_new else ""
    raise GateError(
        f"The partition {name!r} ({drift.n_records:,} records) may have drifted: a feature's mean "
        f"is {drift.estimate:.3g}, and at most {say_upper(drift.upper, limit)}, standard "
        f"deviations from the training records; allowed are {limit:g}{new}.",
        remedy="Nothing was published. Train on records like these (a new line of generations), "
        "append more records of the partition, or set [gate] drift_max.",
        code="drift",
    )
