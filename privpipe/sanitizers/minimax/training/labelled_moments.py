"""One pass over labelled records: moments of features, and of features by class or number.

All that the closed-form filters need and all that the iterative ones start from. The centred
updates are Chan, Golub and LeVeque's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy.sparse as sp

from privpipe.errors import InputError
from privpipe.numerics.finite import find_finite_rows
from privpipe.numerics.regression.moments import CoMoments
from privpipe.protocols import FloatArray, IntArray, Shard, Shards, ShardSchema
from privpipe.sanitizers.arrays import check_shards, check_unweighted, read_labels, say_incomplete

MAX_CLASSES = 1024
"""Most distinct values of a variable that one pass collects; more make it a number."""
BLOCK_BYTES = 1 << 24


@dataclass(frozen=True, eq=False)
class LabelMoments:
    """Features against one variable.

    Parameters
    ----------
    values : (n_values,), float64
        Distinct values, ascending; empty once there are more than `MAX_CLASSES`.
    counts : (n_values,), int64
    means : (n_values, n_features), float64
        Mean of the features of the records with each value.
    overflowed
        Whether there were more values than are collected.
    mean, spread
        Mean of the variable and sum of its squared deviations.
    cross : (n_features,), float64
        Sum of products of the deviations of features and variable.
    """

    values: FloatArray
    counts: IntArray
    means: FloatArray
    overflowed: bool
    mean: float
    spread: float
    cross: FloatArray

    @classmethod
    def of(cls, x: FloatArray, y: FloatArray) -> LabelMoments:
        """Summarise features (n, n_features), float64, and a variable (n,) without gaps."""
        values, codes = np.unique(y, return_inverse=True)
        overflowed = len(values) > MAX_CLASSES
        if overflowed:
            values, counts, means = _nothing(x.shape[1])
        else:
            counts = np.bincount(codes, minlength=len(values))
            rows = np.arange(len(y))
            hits = sp.csr_array((np.ones(len(y)), (codes, rows)), shape=(len(values), len(y)))
            means = (hits @ x) / counts[:, None]
        mean = float(y.mean())
        deviation = y - mean
        cross = deviation @ (x - x.mean(axis=0))
        return cls(values, counts, means, overflowed, mean, float(deviation @ deviation), cross)

    def merge(self, other: LabelMoments, n: int, m: int, step: FloatArray) -> LabelMoments:
        """Both, where self has `n` records, other `m`, and their feature means differ by `step`."""
        weight = n * (m / (n + m))
        rise = other.mean - self.mean
        overflowed = self.overflowed or other.overflowed
        values = np.union1d(self.values, other.values)
        overflowed = overflowed or len(values) > MAX_CLASSES
        if overflowed:
            values, counts, means = _nothing(len(step))
        else:
            counts, means = _merge_classes(values, self, other)
        return LabelMoments(
            values,
            counts,
            means,
            overflowed,
            self.mean + rise * (m / (n + m)),
            self.spread + other.spread + weight * rise**2,
            self.cross + other.cross + weight * rise * step,
        )


@dataclass(frozen=True, eq=False)
class LabelledMoments:
    """Count, mean and centred products of the features, and of each variable with them.

    Parameters
    ----------
    count
        Number of complete records.
    n_incomplete
        Records left out because a variable is missing.
    mean : (n_features,), float64
    scatter : (n_features, n_features), float64
        Sum over records of the outer products of deviations from the mean.
    labels
        One per desired, then one per confidential variable.
    """

    count: int
    n_incomplete: int
    mean: FloatArray
    scatter: FloatArray
    labels: tuple[LabelMoments, ...]

    @property
    def covariance(self) -> FloatArray:
        """Of the features, (n_features, n_features), divided by the count."""
        return self.scatter / self.count

    def merge(self, other: LabelledMoments) -> LabelledMoments:
        """Summary of the records of both."""
        n_incomplete = self.n_incomplete + other.n_incomplete
        if self.count == 0 or other.count == 0:
            return replace(other if self.count == 0 else self, n_incomplete=n_incomplete)
        n, m = self.count, other.count
        step = other.mean - self.mean
        scatter = self.scatter + other.scatter
        scatter += n * (m / (n + m)) * np.outer(step, step)
        return LabelledMoments(
            n + m,
            n_incomplete,
            self.mean + step * (m / (n + m)),
            scatter,
            tuple(a.merge(b, n, m, step) for a, b in zip(self.labels, other.labels, strict=True)),
        )


def measure_moments(shards: Shards) -> LabelledMoments:
    """Moments of the complete records of all shards, in one pass.

    Raises
    ------
    OptionError
        If records have weights.
    InputError
        If no record is complete, or features are not finite.

    Warns
    -----
    LeftOutWarning
        If records are not complete, with their number.
    """
    check_shards(shards)
    check_unweighted(shards.schema)
    moments = shards.reduce(partial(summarise_labelled, schema=shards.schema))
    if moments.count == 0:
        raise InputError(
            f"All {moments.n_incomplete} training records lack a desired or confidential variable.",
            remedy="Train on records whose variables are known.",
            code="missing_labels",
        )
    n_read = moments.count + moments.n_incomplete
    say_incomplete(moments.n_incomplete, n_read, "desired or confidential")
    return moments


@dataclass(frozen=True)
class Radius:
    """Largest distance of a complete record from a point, in the units of the features."""

    value: float

    def merge(self, other: Radius) -> Radius:
        """The larger of both."""
        return Radius(max(self.value, other.value))


def measure_radius(shards: Shards, centre: FloatArray) -> float:
    """Largest Euclidean distance of a complete record from `centre`, in one pass."""
    find = partial(find_radius, schema=shards.schema, centre=centre)
    return shards.reduce(find).value


def find_radius(shard: Shard, schema: ShardSchema, centre: FloatArray) -> Radius:
    """Worker side, block by block."""
    found = 0.0
    rows_at_once = max(256, BLOCK_BYTES // (8 * len(centre)))
    for at in range(0, len(shard.features), rows_at_once):
        rows = slice(at, at + rows_at_once)
        complete = read_labels(shard, rows, schema)[1]
        x = np.asarray(shard.features[rows], np.float64)[complete] - centre
        found = max(found, float(np.einsum("ij,ij->i", x, x).max(initial=0.0)))
    return Radius(float(np.sqrt(found)))


def summarise_labelled(shard: Shard, schema: ShardSchema) -> LabelledMoments:
    """Summarise the complete records of a shard block by block, in float64.

    Raises
    ------
    InputError
        If a feature is not finite; the message counts records.
    """
    n, width = shard.features.shape
    rows = max(256, BLOCK_BYTES // (8 * width))
    whole = _summarise_nothing(width, len(schema.desired) + len(schema.confidential))
    for first in range(0, n, rows):
        labels, complete = read_labels(shard, slice(first, first + rows), schema)
        x = np.array(shard.features[first : first + rows], np.float64)
        bad = int(np.count_nonzero(~find_finite_rows(x)))
        if bad:
            raise InputError(
                f"At least {bad} training records hold features that are not finite.",
                remedy="Remove or impute them before training; in a run [release] nonfinite = "
                '"impute" or "withhold" does.',
                code="nonfinite",
            )
        whole = whole.merge(_summarise_block(x[complete], labels[complete], len(x)))
    return whole


def _summarise_nothing(width: int, n_labels: int) -> LabelledMoments:
    empty = LabelMoments(*_nothing(width), False, 0.0, 0.0, np.zeros(width))
    zeros = np.zeros((width, width))
    return LabelledMoments(0, 0, np.zeros(width), zeros, (empty,) * n_labels)


def _summarise_block(x: FloatArray, labels: FloatArray, n_read: int) -> LabelledMoments:
    if len(x) == 0:
        nothing = _summarise_nothing(x.shape[1], labels.shape[1])
        return replace(nothing, n_incomplete=n_read)
    found = tuple(LabelMoments.of(x, labels[:, j]) for j in range(labels.shape[1]))
    moments = CoMoments.of(x)
    return LabelledMoments(len(x), n_read - len(x), moments.mean, moments.scatter, found)


def _nothing(width: int) -> tuple[FloatArray, IntArray, FloatArray]:
    return np.empty(0), np.empty(0, np.int64), np.empty((0, width))


def _merge_classes(
    values: FloatArray, left: LabelMoments, right: LabelMoments
) -> tuple[IntArray, FloatArray]:
    counts = np.zeros(len(values), np.int64)
    sums = np.zeros((len(values), left.means.shape[1]))
    for part in (left, right):
        at = np.searchsorted(values, part.values)
        counts[at] += part.counts
        sums[at] += part.counts[:, None] * part.means
    return counts, sums / counts[:, None]


LABEL_STATISTICS = (LabelledMoments, LabelMoments, Radius)
"""What the fit of a filter sums up over the records in one pass."""
