"""The first audit of a release: learn on raw records, attack released ones, judge others.

Every figure is a sum over records, so the audit is a mergeable statistic, exact and of flat memory.
It is the same for any chunking, and the same for a collection and for its whole repeats.

The definitions are those of Xu et al. 2017, section "Experimental results". There e_privacy is the
squared change of the confidential prediction. A record is completely private when its confidential
label is predicted no better than from the mean record. The adversary is least squares (algorithm
3). Released records of a low-rank map lie in a subspace but for rounding; fitted in all
coordinates, least squares would fit the rounding. So it works in the coordinates that the release
itself shows to carry more than rounding.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from privpipe.attacks.statistics import intervals, privacy
from privpipe.errors import InputError, RankError
from privpipe.numerics import moments as regression
from privpipe.numerics.finite import find_finite_rows, keep_rows
from privpipe.numerics.moments import Coding, CoMoments, LeastSquares
from privpipe.numerics.random.record_hash import cut_in_parts
from privpipe.protocols import Column, FloatArray, IntArray, Shard, Shards, ShardSchema

VIEWS = {
    "raw": "raw",
    "released": "released",
    "retrained": "released, attack retrained",
    "answer_only": "knowing only the target",
    "guessing": "guessing",
}
"""Name of each way to predict, as reports show it."""

ROUNDINGS = 32.0
"""A direction counts when its deviation exceeds this many units of rounding."""

LITTLE_RIDGE = 1e-6
"""Used only where the raw design is rank-deficient and least squares is not determined."""

MOST_FEATURES = 1000
"""Features whose distortion is reported one by one: the most distorted of more."""


@dataclass(frozen=True, eq=False)
class PairMoments:
    """What an adversary learns from released records with known labels.

    Parameters
    ----------
    moments
        Of ``[released features, targets]``, over records without missing targets.
    joint
        Per confidential categorical variable: how often each class comes with each desired
        combination, (n_combinations, n_classes); None for a numeric variable.
    """

    moments: CoMoments
    joint: tuple[IntArray | None, ...]

    def merge(self, other: "PairMoments") -> "PairMoments":
        """Summary of the records of both."""
        pairs = zip(self.joint, other.joint, strict=True)
        joint = tuple(None if a is None or b is None else a + b for a, b in pairs)
        return PairMoments(self.moments.merge(other.moments), joint)


@dataclass(frozen=True, eq=False)
class AuditPlan:
    """All that judging a shard of raw and released records needs.

    Parameters
    ----------
    schema
        Of the raw records.
    coding
        Values of categorical targets.
    raw
        Predictors of all targets, desired first, fitted on raw records.
    attack
        Predictors of all targets, retrained on released records.
    mean : (n_features,)
        Mean raw training record.
    joint
        See `PairMoments`.
    keeps_features
        Whether the raw predictors apply to released records as they are.
    """

    schema: ShardSchema
    coding: Coding
    raw: LeastSquares
    attack: LeastSquares
    mean: FloatArray
    joint: tuple[IntArray | None, ...]
    keeps_features: bool = True

    @property
    def columns(self) -> tuple[Column, ...]:
        """Desired, then confidential variables."""
        return self.schema.desired + self.schema.confidential


@dataclass(frozen=True, eq=False)
class AuditSums:
    """Sums over judged records.

    Parameters
    ----------
    count
        Records.
    added
        Arrays that add, by name.
    """

    count: int
    added: dict[str, FloatArray] = field(default_factory=dict)

    def merge(self, other: "AuditSums") -> "AuditSums":
        """Sums over the records of both."""
        added: Any = {name: value + other.added[name] for name, value in self.added.items()}
        return AuditSums(self.count + other.count, added)


def audit_release(
    schema: ShardSchema,
    learned: tuple[CoMoments, PairMoments],
    test: Shards,
    *,
    n_released: int,
    unit_roundoff: float,
    coding: Coding = "zero_one",
    keeps_features: bool = True,
    level: float = 0.95,
) -> dict[str, Any]:
    """Judge a release on labelled records that its map has never seen.

    Parameters
    ----------
    schema
        Of the raw records.
    learned
        What `summarise_raw` found of raw records, which train the predictors that an outsider may
        already have, and `summarise_pairs` of others, on which the adversary retrains.
    test
        Further records with their released counterparts: they judge.
    n_released
        Number of released features.
    unit_roundoff
        Of the released dtype.
    coding
        Values of categorical targets.
    keeps_features
        Whether released columns are the raw features, so that raw predictors apply to them.
    level
        Two-sided confidence of the limits of complete privacy.

    Returns
    -------
    findings
        By name:

        - ``n_records``
        - ``privacy``: per view e_privacy and complete_privacy, mean over targets and per target,
          the latter with limits
        - ``distortion``: per feature, in units of its own deviation; None where columns differ
        - ``desired`` and ``confidential``: per variable and view accuracy and f1 of a categorical,
          r2 and rmse of a numeric variable

    Raises
    ------
    InputError
        If no record is left to attack or to judge.

    References
    ----------
    Xu et al. 2017, "Experimental results" and algorithm 3.
    """
    plan = plan_audit(schema, learned, n_released, unit_roundoff, coding, keeps_features)
    # A second pass: what is judged depends on all that the first one learned.
    sums: AuditSums = test.reduce(partial(measure_pairs, plan=plan))
    if sums.count == 0:
        remedy = "Hold out more records with [audit] holdout."
        raise InputError("No record is left to judge.", remedy=remedy, code="audit-too-small")
    found = {view: _find_privacy(sums, plan, view, level) for view in ("released", "retrained")}
    return {
        "n_records": sums.count,
        "privacy": {VIEWS[view]: figures for view, figures in found.items() if figures},
        "distortion": _find_distortion(sums, schema.feature_names),
        "desired": {one.name: _find_predictions(sums, one) for one in schema.desired},
        "confidential": {one.name: _find_predictions(sums, one) for one in schema.confidential},
    }


def plan_audit(
    schema: ShardSchema,
    learned: tuple[CoMoments, PairMoments],
    n_released: int,
    unit_roundoff: float,
    coding: Coding,
    keeps_features: bool = True,
) -> AuditPlan:
    """Fit the predictors of an audit; arguments and errors as of `audit_release`."""
    moments, pairs = learned
    n = schema.n_features
    try:
        raw = regression.solve_least_squares(moments, n)
    except RankError:
        # Dependent features have many predictors of equal fit; the ridge takes the one of least
        # norm.
        raw = regression.solve_least_squares(moments, n, ridge=LITTLE_RIDGE)
    return AuditPlan(
        schema=schema,
        coding=coding,
        raw=raw,
        attack=fit_linear_attack(pairs.moments, n_released, unit_roundoff),
        mean=moments.mean[:n],
        joint=pairs.joint,
        keeps_features=keeps_features,
    )


def summarise_raw(shard: Shard, *, schema: ShardSchema, coding: Coding) -> CoMoments:
    """Co-moments of ``[features, desired and confidential targets]`` of complete records."""
    values = np.hstack([shard.desired, shard.confidential])
    targets = regression.code_targets(values, schema.desired + schema.confidential, coding)
    complete = find_finite_rows(shard.features) & find_finite_rows(targets)
    n_features = shard.features.shape[1]
    rows = np.empty((int(complete.sum()), n_features + targets.shape[1]))
    rows[:, :n_features] = keep_rows(shard.features, complete)
    rows[:, n_features:] = keep_rows(targets, complete)
    return CoMoments.of(rows, in_place=True)


def summarise_pairs(shard: Shard, *, schema: ShardSchema, coding: Coding) -> PairMoments:
    """What a shard of released records with labels teaches the adversary."""
    values = np.hstack([shard.desired, shard.confidential])
    complete = ~np.isnan(values).any(axis=1) & find_finite_rows(shard.released)
    targets = regression.code_targets(values, schema.desired + schema.confidential, coding)
    rows = keep_rows(np.hstack([shard.released, targets]), complete)
    combined = encode_desired(shard.desired, schema.desired)[complete]
    n = int(np.prod([column.n_categories or 1 for column in schema.desired], dtype=np.int64))
    joint: list[IntArray | None] = []
    for j, column in enumerate(schema.confidential):
        if (k := column.n_categories) is None:
            joint.append(None)
            continue
        flat = combined * k + shard.confidential[complete, j].astype(np.int64)
        joint.append(np.bincount(flat, minlength=n * k).reshape(n, k))
    return PairMoments(CoMoments.of(rows, in_place=True), tuple(joint))


def measure_pairs(shard: Shard, *, plan: AuditPlan) -> AuditSums:
    """Judge the records of a shard: raw features, released features, true labels."""
    # A withheld row reveals that it is withheld; that is attacked by adversaries, not here.
    held = find_finite_rows(shard.released)
    tables = shard.features, shard.released, shard.desired, shard.confidential
    x, released, desired, confidential = (one if held.all() else one[held] for one in tables)
    # Limits of complete privacy are of the spread between parts, which have to be the same for any
    # chunking: so a record is put by its content, or by its subject, a column behind the others.
    confidential, subject = np.split(confidential, [len(plan.schema.confidential)], axis=1)
    whole = np.nan_to_num(subject) if subject.shape[1] else np.hstack([x, confidential])
    parts = cut_in_parts(whole, privacy.PARTS)
    x, released = x.astype(np.float64), released.astype(np.float64)
    values = np.hstack([desired, confidential])
    targets = regression.code_targets(values, plan.columns, plan.coding)
    views = {"raw": (plan.raw, x), "retrained": (plan.attack, released)}
    direct = widen(plan.raw, released.shape[1]) if plan.keeps_features else None
    if direct is not None:
        views["released"] = (direct, released)
    scores = {view: adversary.predict(seen) for view, (adversary, seen) in views.items()}
    added = _measure_distortion(x, released, plan.mean)
    added |= _measure_floors(desired, confidential, plan)
    secret = slice(regression.count_targets(plan.schema.desired), None)
    raw, expected, truth = plan.raw.select(secret), scores["raw"][:, secret], targets[:, secret]
    for view, (adversary, seen) in views.items():
        added |= _measure_predictions(view, scores[view], values, targets, plan)
        if view != "raw":
            mine, guess = adversary.select(secret), scores[view][:, secret]
            added[f"privacy/{view}"] = privacy.sum_privacy(
                mine, seen, expected, truth, raw, plan.mean, guess, parts
            )
    return AuditSums(len(x), added)


def _measure_distortion(x: FloatArray, made: FloatArray, mean: FloatArray) -> dict[str, FloatArray]:
    """How far each feature moved, and how far it varies; nothing of a release of other columns."""
    if made.shape[1] == x.shape[1] + 1:  # a column of ones that raw records lack
        made = made[:, :-1]
    if made.shape[1] != x.shape[1]:
        return {}
    held = find_finite_rows(x)  # what is imputed was not there to be distorted
    x, made = keep_rows(x, held), keep_rows(made, held)
    moved, away = made - x, x - mean
    # Column sums of squares without a squared copy of the block.
    squares = [np.einsum("ij,ij->j", table, table) for table in (moved, away)]
    counts = np.full(x.shape[1], float(len(x)))
    return {"distortion": np.vstack([squares[0], away.sum(axis=0), squares[1], counts])}


def encode_desired(desired: FloatArray, columns: Sequence[Column]) -> IntArray:
    """Number the combinations of desired classes; numbers count as one class."""
    combined = np.zeros(len(desired), np.int64)
    for column, values in zip(columns, desired.T, strict=True):
        if column.n_categories:
            combined = combined * column.n_categories + np.nan_to_num(values).astype(np.int64)
    return combined


def _measure_predictions(
    view: str, scores: FloatArray, values: FloatArray, targets: FloatArray, plan: AuditPlan
) -> dict[str, FloatArray]:
    """Confusion matrices of categorical variables, error sums of numeric ones."""
    found, start = {}, 0
    for column, value in zip(plan.columns, values.T, strict=True):
        width = regression.count_targets([column])
        score, target = scores[:, start : start + width], targets[:, start : start + width]
        start += width
        known = ~np.isnan(value)
        if column.n_categories is None:
            y, error = target[known, 0], target[known, 0] - score[known, 0]
            table = np.array([known.sum(), y.sum(), y @ y, error @ error])
        else:
            table = _confusion(value, _classify(score, plan.coding), column)
        found[f"{view}/{column.name}"] = table
    return found


def _measure_floors(
    desired: FloatArray, confidential: FloatArray, plan: AuditPlan
) -> dict[str, FloatArray]:
    """What guessing, and knowing the desired classes alone, reveals of a confidential class."""
    found, combined = {}, encode_desired(desired, plan.schema.desired)
    columns = plan.schema.confidential
    for column, joint, truth in zip(columns, plan.joint, confidential.T, strict=True):
        if joint is not None:
            overall = np.full(len(truth), joint.sum(axis=0).argmax())
            found[f"guessing/{column.name}"] = _confusion(truth, overall, column)
            # Bayes: of each combination the class that came with it most often in training.
            best = joint.argmax(axis=1)[combined]
            found[f"answer_only/{column.name}"] = _confusion(truth, best, column)
    return found


def _classify(score: FloatArray, coding: Coding) -> IntArray:
    if score.shape[1] == 1:
        return (score[:, 0] > (0.5 if coding == "zero_one" else 0.0)).astype(np.int64)
    return np.asarray(score.argmax(axis=1))


def _confusion(truth: FloatArray, guess: IntArray, column: Column) -> FloatArray:
    """Counts of (true class, predicted class), of records whose class is known."""
    k, known = max(column.n_categories or 0, 2), ~np.isnan(truth)
    flat = truth[known].astype(np.int64) * k + guess[known]
    return np.bincount(flat, minlength=k * k).reshape(k, k).astype(np.float64)


def find_coordinates(moments: CoMoments, n_features: int, roundoff: float) -> FloatArray:
    """Directions of released records that carry more than the rounding of their dtype.

    Parameters
    ----------
    moments
        Of rows ``[released features, ...]``.
    n_features
        Number of released features.
    roundoff
        Of the released dtype, half of its ``numpy.finfo(dtype).eps``: ``2**-24`` for float32.

    Returns
    -------
    directions : (n_features, rank)
        Orthonormal, by decreasing variance.
    """
    covariance = moments.scatter[:n_features, :n_features] / max(moments.count, 1)
    squares = np.diag(covariance) + moments.mean[:n_features] ** 2
    floor = (ROUNDINGS * roundoff) ** 2 * squares.max(initial=0.0)
    # Moments themselves are float64 sums: nothing below their own rounding is a direction.
    floor = max(floor, n_features * 2.0**-52 * np.diag(covariance).max(initial=0.0))
    eigenvalues, vectors = np.linalg.eigh(covariance)
    # The decomposition errs in proportion to the largest eigenvalue, on each processor its own way.
    floor = max(floor, ROUNDINGS * 2.0**-52 * eigenvalues.max(initial=0.0))
    return np.asarray(vectors[:, eigenvalues > floor][:, ::-1])


def fit_linear_attack(moments: CoMoments, n_features: int, unit_roundoff: float) -> LeastSquares:
    """Least squares of confidential targets on the coordinates of released records.

    Parameters
    ----------
    moments
        Of rows ``[released features, targets]`` of the records the adversary trains on.
    n_features
        Number of released features.
    unit_roundoff
        Of the released dtype.

    Returns
    -------
    LeastSquares
        In the released features, so that it applies to released records as they are; zero
        coefficients when nothing varies.

    Raises
    ------
    InputError
        If there are fewer than two records.

    References
    ----------
    Xu et al. 2017, Figure 5 (algorithm 3).
    """
    if moments.count < 2:
        problem = f"{moments.count} records are too few to train an attack on."
        remedy = "Hold out more records for the audit."
        raise InputError(problem, remedy=remedy, code="audit-too-small")
    directions = find_coordinates(moments, n_features, unit_roundoff)
    scatter, mean = moments.scatter, moments.mean
    inner = directions.T @ scatter[:n_features, :n_features] @ directions
    cross = directions.T @ scatter[:n_features, n_features:]
    variances = np.diag(inner)
    coefficients = directions @ (cross / variances[:, None] if len(variances) else cross)
    intercept = mean[n_features:] - mean[:n_features] @ coefficients
    condition = float(variances[0] / variances[-1]) if len(variances) else 1.0
    return LeastSquares(coefficients, intercept, condition)


def widen(fitted: LeastSquares, n_released: int) -> LeastSquares | None:
    """A raw predictor for released records: as it is, or with the column of ones they have.

    None where released records have other features.
    """
    n = len(fitted.coefficients)
    if n_released == n:
        return fitted
    if n_released == n + 1:
        rows = np.vstack([fitted.coefficients, fitted.intercept])
        return LeastSquares(rows, np.zeros_like(fitted.intercept), fitted.condition)
    return None


def _find_distortion(sums: AuditSums, names: Sequence[str]) -> dict[str, Any] | None:
    """Root mean squared change of each feature, the most distorted first."""
    if (table := sums.added.get("distortion")) is None or not table.size:
        return None
    # Means of squares about the training mean: the deviation is less the square of the mean shift.
    changed, total, squares = table[:3] / np.maximum(table[3], 1)
    spread = np.sqrt(np.maximum(squares - total**2, 0.0))
    moved = np.sqrt(changed)
    # A feature that does not vary has no deviation to be measured in.
    relative = np.divide(moved, spread, out=np.full_like(moved, np.nan), where=spread > 0)
    order = np.argsort(-np.nan_to_num(relative, nan=-1.0), kind="stable")
    known = relative[np.isfinite(relative)]
    return {
        "n_features": len(relative),
        "quartiles": np.quantile(known, [0, 0.25, 0.5, 0.75, 1]).tolist() if len(known) else [],
        "features": [
            {
                "feature": names[j] if names else f"feature {j}",
                "rms": float(moved[j]),
                "relative": float(relative[j]) if np.isfinite(relative[j]) else None,
            }
            for j in order[:MOST_FEATURES]
        ],
    }


def _find_privacy(sums: AuditSums, plan: AuditPlan, of: str, level: float) -> dict[str, Any] | None:
    table = sums.added.get(f"privacy/{of}")
    if table is None or not plan.schema.confidential:
        return None
    targets = regression.name_targets(plan.schema.confidential)
    found = asdict(privacy.report_privacy(table.sum(axis=0), targets))
    try:
        hits, sizes = table[:, 2].sum(axis=1), table[:, 3].sum(axis=1)  # by parts of the records
        limits = asdict(intervals.measure_parts_interval(hits, sizes, level=level))
    except InputError:  # all of one subject
        limits = None
    return found | {"complete_privacy_limits": limits}


def _find_predictions(sums: AuditSums, column: Column) -> dict[str, Any]:
    return {
        shown: _find_accuracy(table, column) if column.is_categorical else _find_error(table)
        for view, shown in VIEWS.items()
        if (table := sums.added.get(f"{view}/{column.name}")) is not None
    }


def _find_accuracy(confusion: FloatArray, column: Column) -> dict[str, float]:
    """Accuracy, and F1: of class 1 for two classes, the mean over classes for more."""
    hits, total = np.diag(confusion), confusion.sum()
    f1 = 2 * hits / np.maximum(confusion.sum(axis=0) + confusion.sum(axis=1), 1)
    return {
        "accuracy": float(hits.sum() / max(total, 1)),
        "f1": float(f1[1] if (column.n_categories or 0) <= 2 else f1.mean()),
    }


def _find_error(table: FloatArray) -> dict[str, float]:
    count, total, squares, error = table
    spread = squares - total**2 / max(count, 1)
    return {
        "r2": float(1 - error / spread) if spread > 0 else 0.0,
        "rmse": float(np.sqrt(error / max(count, 1))),
    }
