"""One pass over labelled records: moments of features, by class or number too; tasks from them.

All that the closed-form filters need and all that the iterative ones start from. The centred
updates are Chan, Golub and LeVeque's. Named variables and their moments become tasks, or a refusal
that says why (Hamm, JMLR 2017, sections 3.2 and 3.3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy.sparse as sp

from privpipe.errors import InputError
from privpipe.numerics.logistic import measure_entropy
from privpipe.numerics.moments import CoMoments
from privpipe.protocols import Column, FloatArray, IntArray, Shard, Shards, ShardSchema
from privpipe.sanitizers import arrays
from privpipe.sanitizers.minimax.training import tasks as planning
from privpipe.sanitizers.minimax.training.tasks import Task, TaskKind, TaskOptions

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
        n = len(y)
        values, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
        # A product with a sparse table of hits sums by class in one pass over the features.
        hits = sp.csr_array((np.ones(n), (codes, np.arange(n))), shape=(len(values), n))
        mean = float(y.mean()) if n else 0.0
        deviation = y - mean
        cross = deviation @ (x - x.mean(axis=0)) if n else np.zeros(x.shape[1])
        spread = float(deviation @ deviation)
        found = cls(values, counts, hits @ x / counts[:, None], False, mean, spread, cross)
        return found._forget_many()

    def merge(self, other: LabelMoments, n: int, m: int, step: FloatArray) -> LabelMoments:
        """Both, where self has `n` records, other `m`, and their feature means differ by `step`."""
        values = np.union1d(self.values, other.values)
        counts, sums = np.zeros(len(values), np.int64), np.zeros((len(values), len(step)))
        for part in (self, other):
            at = np.searchsorted(values, part.values)
            counts[at] += part.counts
            sums[at] += part.counts[:, None] * part.means
        # Chan, Golub and LeVeque's update; the ratio first, for n m grows with the square of the
        # records.
        weight, rise = n * (m / (n + m)), other.mean - self.mean
        lost = self.overflowed or other.overflowed
        mean = self.mean + rise * (m / (n + m))
        spread = self.spread + other.spread + weight * rise**2
        cross = self.cross + other.cross + weight * rise * step
        found = LabelMoments(values, counts, sums / counts[:, None], lost, mean, spread, cross)
        return found._forget_many()

    def _forget_many(self) -> LabelMoments:
        """The same without single values, once there are too many."""
        if not self.overflowed and len(self.values) <= MAX_CLASSES:
            return self
        values, counts, means = self.values[:0], self.counts[:0], self.means[:0]
        return replace(self, values=values, counts=counts, means=means, overflowed=True)


@dataclass(frozen=True, eq=False)
class LabelledMoments:
    """Moments of the features of complete records, and of each variable with them.

    Parameters
    ----------
    features
        Count, mean and centred products of the features.
    n_incomplete
        Records left out because a variable is missing.
    labels
        One per desired, then one per confidential variable.
    """

    features: CoMoments
    n_incomplete: int
    labels: tuple[LabelMoments, ...]

    @property
    def count(self) -> int:
        """Number of complete records."""
        return int(self.features.count)

    @property
    def mean(self) -> FloatArray:
        """Of the features, (n_features,)."""
        return self.features.mean

    @property
    def covariance(self) -> FloatArray:
        """Of the features, (n_features, n_features), divided by the count."""
        return self.features.scatter / self.count

    def merge(self, other: LabelledMoments) -> LabelledMoments:
        """Summary of the records of both."""
        n_incomplete = self.n_incomplete + other.n_incomplete
        if self.count == 0 or other.count == 0:
            return replace(other if self.count == 0 else self, n_incomplete=n_incomplete)
        step = other.mean - self.mean
        pairs = zip(self.labels, other.labels, strict=True)
        labels = tuple(a.merge(b, self.count, other.count, step) for a, b in pairs)
        return LabelledMoments(self.features.merge(other.features), n_incomplete, labels)


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
    arrays.check_unweighted(shards.schema)
    moments = shards.reduce(partial(summarise_labelled, schema=shards.schema))
    if moments.count == 0:
        raise InputError(
            f"All {moments.n_incomplete} training records lack a desired or confidential variable.",
            remedy="Train on records whose variables are known.",
            code="missing_labels",
        )
    n_read = moments.count + moments.n_incomplete
    arrays.say_incomplete(moments.n_incomplete, n_read, "desired or confidential")
    return moments


def summarise_labelled(shard: Shard, schema: ShardSchema) -> LabelledMoments:
    """Summarise the complete records of a shard block by block, in float64.

    Raises
    ------
    InputError
        If a feature is not finite; the message counts records.
    """
    n, width = shard.features.shape
    rows = max(256, BLOCK_BYTES // (8 * width))
    # Neutral in merging: a shard without records sums to it.
    nothing = np.empty((0, len(schema.desired) + len(schema.confidential)))
    whole = _summarise_block(np.empty((0, width)), nothing, 0)
    for first in range(0, n, rows):
        labels, complete = arrays.read_labels(shard, slice(first, first + rows), schema)
        # A copy: arrays that came over the network are not aligned, and products with them took 6
        # to 10 times as long.
        x = np.array(shard.features[first : first + rows], np.float64)
        arrays.check_training(x)
        whole = whole.merge(_summarise_block(x[complete], labels[complete], len(x)))
    return whole


def _summarise_block(x: FloatArray, labels: FloatArray, n_read: int) -> LabelledMoments:
    variables = tuple(LabelMoments.of(x, y) for y in labels.T)
    return LabelledMoments(CoMoments.of(x).check_squares(), n_read - len(x), variables)


@dataclass(frozen=True)
class Radius:
    """Largest distance of a complete record from a point, in the units of the features."""

    value: float

    def merge(self, other: Radius) -> Radius:
        """The larger of both."""
        return Radius(max(self.value, other.value))


def measure_radius(shards: Shards, centre: FloatArray) -> float:
    """Largest Euclidean distance of a complete record from `centre`, in one pass."""
    return shards.reduce(partial(find_radius, schema=shards.schema, centre=centre)).value


def find_radius(shard: Shard, schema: ShardSchema, centre: FloatArray) -> Radius:
    """Worker side, block by block."""
    found = 0.0
    rows_at_once = max(256, BLOCK_BYTES // (8 * len(centre)))
    for at in range(0, len(shard.features), rows_at_once):
        rows = slice(at, at + rows_at_once)
        complete = arrays.read_labels(shard, rows, schema)[1]
        x = np.asarray(shard.features[rows], np.float64)[complete] - centre
        found = max(found, float(np.einsum("ij,ij->i", x, x).max(initial=0.0)))
    return Radius(float(np.sqrt(found)))


LABEL_STATISTICS = (LabelledMoments, LabelMoments, CoMoments, Radius)
"""What the fit of a filter sums up over the records in one pass."""


def measure_tasks(
    options: TaskOptions, shards: Shards, *, ridge: float = 0.0, with_intercept: bool = True
) -> tuple[LabelledMoments, tuple[Task, ...]]:
    """Moments of the records, in one pass, and their tasks; see `plan_tasks`.

    Raises
    ------
    InputError, OptionError
        If options and records do not go together; what the schema shows before any is read.
    """
    arrays.check_shards(shards, products=True)
    options.check(shards.schema)
    moments = measure_moments(shards)
    arrays.check_spread("feature", np.diag(moments.covariance), moments.mean)
    options.examine(shards)
    tasks = plan_tasks(options, shards.schema, moments, ridge=ridge, with_intercept=with_intercept)
    return moments, tasks


def plan_tasks(
    options: TaskOptions,
    schema: ShardSchema,
    moments: LabelledMoments,
    *,
    ridge: float = 0.0,
    with_intercept: bool = True,
) -> tuple[Task, ...]:
    """Turn named variables into tasks, desired ones first.

    Raises
    ------
    InputError
        If a variable has one class or codes out of range, or there are fewer records than classes.
    OptionError
        If the class to single out does not exist.
    """
    labels, tasks = iter(moments.labels), list[Task]()
    for role, columns, sign in (
        ("desired", schema.desired, options.tradeoff),
        ("confidential", schema.confidential, -1.0),
    ):
        for column, weight in zip(columns, options.spread_weights(role, len(columns)), strict=True):
            task = _plan_one(options, role, column, next(labels), moments.count)
            # Private tasks count negatively: Phi is lowered by raising their losses.
            tasks.append(replace(task, column=len(tasks), weight=sign * weight))
    if options.reconstruction_weight:
        tasks.append(_plan_reconstruction(moments, options))
    return tuple(replace(t, ridge=ridge, with_intercept=with_intercept) for t in tasks)


def _plan_one(options: TaskOptions, role: str, column: Column, label: LabelMoments, n: int) -> Task:
    kind: TaskKind = getattr(options, f"{role}_task")
    single_out = options.single_out if role == "confidential" else None
    if _is_read_as_classes(column, label, kind):
        _check_classes(role, column, label, n)
        counts = label.counts
        if single_out is not None:
            chosen = label.values == single_out
            if not chosen.any():
                raise planning.refuse_class(column, single_out)
            counts = np.array([counts[chosen].sum(), counts[~chosen].sum()])
        return Task(
            name=column.name,
            role=role,
            classes=label.values,
            singled_out=np.nan if single_out is None else single_out,
            baseline=measure_entropy(counts),
        )
    if single_out is not None:
        raise planning.refuse_number(column)
    # Relative to the mean: a large constant has a spread of rounding.
    spread = np.sqrt(label.spread / n)
    if not spread > 1e-12 * abs(label.mean):
        problem = f"The {role} variable {column.name!r} is constant in the training records."
        remedy = "Train on records in which it varies, or leave it out."
        raise InputError(problem, remedy=remedy, code="single_class")
    centre, scale = np.array([label.mean]), np.array([spread])
    return Task(name=column.name, role=role, centre=centre, scale=scale)


def _is_read_as_classes(column: Column, label: LabelMoments, kind: TaskKind) -> bool:
    """Whether the variable is read as classes."""
    if column.is_categorical:
        return True
    if kind == "auto":
        # A year or a count of children is a class; a weight that happens to be whole has too many
        # values.
        # Beyond 2^53 every float is whole.
        small = np.abs(label.values) < 2.0**53
        whole = bool((small & (label.values == np.round(label.values))).all())
        return not label.overflowed and whole and len(label.values) <= planning.MAX_AUTO_CLASSES
    if kind == "classification" and label.overflowed:
        problem = f"The variable {column.name!r} has too many distinct values for classes."
        raise InputError(problem, remedy='Bin it, or set the task to "regression".')
    return kind == "classification"


def _check_classes(role: str, column: Column, label: LabelMoments, n_records: int) -> None:
    k, values = column.n_categories, label.values
    if k is not None and (label.overflowed or not np.isin(values, np.arange(k)).all()):
        problem = f"The {role} variable {column.name!r} has codes outside 0 .. {k - 1}."
        remedy = "Leave those records out, or correct codes or number of categories."
        raise InputError(problem, remedy=remedy, code="labels_out_of_range")
    if len(values) < 2:
        problem = f"The {role} variable {column.name!r} has a single class in the training records."
        remedy = "Train on records of at least two classes, or leave the variable out."
        raise InputError(problem, remedy=remedy, code="single_class")
    # With a class for every record a head predicts all of them, whatever the filter.
    if n_records <= len(values):
        problem = f"{n_records} records are too few for {len(values)} classes of {column.name!r}."
        remedy = "Train on more records than classes."
        raise InputError(problem, remedy=remedy, code="too_few_records")


def _plan_reconstruction(moments: LabelledMoments, options: TaskOptions) -> Task:
    return Task(
        name="features",
        role="features",
        weight=options.tradeoff * options.reconstruction_weight,
        centre=moments.mean,
        # One scale for all features: the loss is a share of their whole variance.
        scale=np.full(len(moments.mean), np.sqrt(max(float(np.trace(moments.covariance)), 1e-300))),
    )
