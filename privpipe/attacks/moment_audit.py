"""The first audit of a release, in one pass over pairs of raw and released records.

Every figure is a sum over records, so the audit is a mergeable statistic: exact, of flat memory,
the same for any chunking, and the same for a collection and for its whole repeats.

The definitions are those of Xu et al. 2017, section "Experimental results": e_privacy is the
squared change of the confidential prediction, and a record is completely private when its
confidential label is predicted no better than from the mean record. The adversary is least squares
(algorithm 3). Released records of a low-rank map lie in a subspace but for rounding; fitted in all
coordinates, least squares would fit the rounding. So it works in the coordinates that the release
itself shows to carry more than rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from privpipe.attacks.statistics.privacy import PARTS, sum_privacy
from privpipe.errors import InputError
from privpipe.numerics import moments as regression
from privpipe.numerics.finite import find_finite_rows, keep_rows
from privpipe.numerics.random.record_hash import cut_in_parts
from privpipe.protocols import Column, FloatArray, IntArray, Shard

ROUNDINGS = 32.0
"""A direction counts when its deviation exceeds this many units of rounding."""


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

    moments: regression.CoMoments
    joint: tuple[IntArray | None, ...]

    def merge(self, other: PairMoments) -> PairMoments:
        """Summary of the records of both."""
        return PairMoments(
            self.moments.merge(other.moments),
            tuple(
                None if mine is None or theirs is None else mine + theirs
                for mine, theirs in zip(self.joint, other.joint, strict=True)
            ),
        )


@dataclass(frozen=True, eq=False)
class AuditPlan:
    """All that judging a shard of raw and released records needs.

    Parameters
    ----------
    desired, confidential
        The variables, in the order of the shard's columns.
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

    desired: tuple[Column, ...]
    confidential: tuple[Column, ...]
    coding: regression.Coding
    raw: regression.LeastSquares
    attack: regression.LeastSquares
    mean: FloatArray
    joint: tuple[IntArray | None, ...]
    keeps_features: bool = True

    @property
    def columns(self) -> tuple[Column, ...]:
        """Desired, then confidential variables."""
        return self.desired + self.confidential


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

    def merge(self, other: AuditSums) -> AuditSums:
        """Sums over the records of both."""
        return AuditSums(
            self.count + other.count,
            {name: value + other.added[name] for name, value in self.added.items()},
        )


def summarise_pairs(
    shard: Shard,
    *,
    desired: Sequence[Column],
    confidential: Sequence[Column],
    coding: regression.Coding,
) -> PairMoments:
    """What a shard of released records with labels teaches the adversary."""
    values = np.hstack([shard.desired, shard.confidential])
    complete = ~np.isnan(values).any(axis=1) & find_finite_rows(shard.released)
    targets = regression.code_targets(values, [*desired, *confidential], coding)
    rows = keep_rows(np.hstack([shard.released, targets]), complete)
    combined = encode_desired(shard.desired, desired)[complete]
    n_combinations = count_combinations(desired)
    joint: list[IntArray | None] = []
    for j, column in enumerate(confidential):
        if column.n_categories is None:
            joint.append(None)
            continue
        codes = shard.confidential[complete, j].astype(np.int64)
        flat = np.bincount(
            combined * column.n_categories + codes, minlength=n_combinations * column.n_categories
        )
        joint.append(flat.reshape(n_combinations, column.n_categories))
    return PairMoments(regression.CoMoments.of(rows, in_place=True), tuple(joint))


def measure_pairs(shard: Shard, *, plan: AuditPlan) -> AuditSums:
    """Judge the records of a shard: raw features, released features, true labels."""
    # A withheld row reveals that it is withheld; that is attacked by adversaries, not here.
    shard = _only_released(shard)
    # Limits of complete privacy are of the spread between parts, which have to be the same for any
    # chunking: so a record is put by its content, or by its subject.
    parts = _cut(shard, plan)
    shard = replace(shard, confidential=shard.confidential[:, : len(plan.confidential)])
    x = shard.features.astype(np.float64)
    released = shard.released.astype(np.float64)
    values = np.hstack([shard.desired, shard.confidential])
    targets = regression.code_targets(values, plan.columns, plan.coding)
    added: dict[str, FloatArray] = {}
    scores = {"raw": plan.raw.predict(x), "retrained": plan.attack.predict(released)}
    direct = widen(plan.raw, released.shape[1]) if plan.keeps_features else None
    adversaries = {"retrained": plan.attack}
    if direct is not None:
        adversaries["released"] = direct
        scores["released"] = direct.predict(released)
    _add_privacy(added, adversaries, released, scores, targets, plan, parts)
    _add_distortion(added, x, released, plan.mean)
    for name, score in scores.items():
        _add_predictions(added, name, score, values, targets, plan)
    _add_floors(added, shard, plan)
    return AuditSums(len(x), added)


def _cut(shard: Shard, plan: AuditPlan) -> IntArray:
    """Part of each record: by its subject where one is given, else by what it holds.

    A column behind the confidential ones is the subject.
    """
    subject = shard.confidential[:, len(plan.confidential) :]
    if subject.shape[1]:
        return cut_in_parts(np.nan_to_num(subject), PARTS)
    return cut_in_parts(np.hstack([shard.features, shard.confidential]), PARTS)


def _add_distortion(
    added: dict[str, FloatArray], x: FloatArray, released: FloatArray, mean: FloatArray
) -> None:
    """How far each feature moved, and how far it varies; nothing of a release of other columns."""
    if released.shape[1] == x.shape[1] + 1:  # a column of ones that raw records lack
        released = released[:, :-1]
    if released.shape[1] != x.shape[1]:
        return
    held = find_finite_rows(x)  # what is imputed was not there to be distorted
    x, released = keep_rows(x, held), keep_rows(released, held)
    moved, away = released - x, x - mean
    # Column sums of squares without a squared copy of the block.
    squares = [np.einsum("ij,ij->j", table, table) for table in (moved, away)]
    counts = np.full(x.shape[1], float(len(x)))
    added["distortion"] = np.vstack([squares[0], away.sum(axis=0), squares[1], counts])


def _only_released(shard: Shard) -> Shard:
    """Leave out withheld records, whose row holds nothing."""
    held = find_finite_rows(shard.released)
    if held.all():
        return shard
    return replace(
        shard,
        features=shard.features[held],
        desired=shard.desired[held],
        confidential=shard.confidential[held],
        released=shard.released[held],
    )


def encode_desired(desired: FloatArray, columns: Sequence[Column]) -> IntArray:
    """Number the combinations of desired classes; numbers count as one class."""
    combined = np.zeros(len(desired), np.int64)
    for j, column in enumerate(columns):
        if column.n_categories:
            combined = combined * column.n_categories + np.nan_to_num(desired[:, j]).astype(
                np.int64
            )
    return combined


def count_combinations(columns: Sequence[Column]) -> int:
    """Number of combinations of desired classes."""
    return int(np.prod([column.n_categories or 1 for column in columns], dtype=np.int64))


def _add_privacy(
    added: dict[str, FloatArray],
    adversaries: dict[str, regression.LeastSquares],
    released: FloatArray,
    scores: dict[str, FloatArray],
    targets: FloatArray,
    plan: AuditPlan,
    parts: IntArray,
) -> None:
    """What each adversary's view adds to the privacy of the confidential targets."""
    confidential = slice(regression.count_targets(plan.desired), None)
    truth, raw = targets[:, confidential], plan.raw.select(confidential)
    for name, adversary in adversaries.items():
        added[f"privacy/{name}"] = sum_privacy(
            adversary.select(confidential),
            released,
            scores["raw"][:, confidential],
            truth,
            raw,
            plan.mean,
            scores[name][:, confidential],
            parts,
        )


def _add_predictions(
    added: dict[str, FloatArray],
    view: str,
    scores: FloatArray,
    values: FloatArray,
    targets: FloatArray,
    plan: AuditPlan,
) -> None:
    """Confusion matrices of categorical variables, error sums of numeric ones."""
    start = 0
    for j, column in enumerate(plan.columns):
        width = regression.count_targets([column])
        score, target = scores[:, start : start + width], targets[:, start : start + width]
        start += width
        known = ~np.isnan(values[:, j])
        if column.n_categories is None:
            y, error = target[known, 0], target[known, 0] - score[known, 0]
            added[f"{view}/{column.name}"] = np.array([known.sum(), y.sum(), y @ y, error @ error])
        else:
            guess = _classify(score, plan.coding)
            added[f"{view}/{column.name}"] = _confusion(values[:, j], guess, known, column)


def _add_floors(added: dict[str, FloatArray], shard: Shard, plan: AuditPlan) -> None:
    """What guessing, and knowing the desired classes alone, reveals of a confidential class."""
    combined = encode_desired(shard.desired, plan.desired)
    for j, (column, joint) in enumerate(zip(plan.confidential, plan.joint, strict=True)):
        if joint is None:
            continue
        truth = shard.confidential[:, j]
        known = ~np.isnan(truth)
        overall = np.full(len(truth), joint.sum(axis=0).argmax())
        added[f"guessing/{column.name}"] = _confusion(truth, overall, known, column)
        # Bayes: of each combination the class that came with it most often in training.
        best = joint.argmax(axis=1)[combined]
        added[f"answer_only/{column.name}"] = _confusion(truth, best, known, column)


def _classify(score: FloatArray, coding: regression.Coding) -> IntArray:
    if score.shape[1] == 1:
        return (score[:, 0] > (0.5 if coding == "zero_one" else 0.0)).astype(np.int64)
    best: IntArray = score.argmax(axis=1)
    return best


def _confusion(truth: FloatArray, guess: IntArray, known: FloatArray, column: Column) -> FloatArray:
    """Counts of (true class, predicted class)."""
    k = max(column.n_categories or 0, 2)
    flat = truth[known].astype(np.int64) * k + guess[known]
    return np.bincount(flat, minlength=k * k).reshape(k, k).astype(np.float64)


def find_coordinates(
    moments: regression.CoMoments, n_features: int, unit_roundoff: float
) -> FloatArray:
    """Directions of released records that carry more than the rounding of their dtype.

    Parameters
    ----------
    moments
        Of rows ``[released features, ...]``.
    n_features
        Number of released features.
    unit_roundoff
        Of the released dtype: ``2**-24`` for float32, ``2**-53`` for float64.

    Returns
    -------
    directions : (n_features, rank)
        Orthonormal, by decreasing variance.
    """
    covariance = moments.scatter[:n_features, :n_features] / max(moments.count, 1)
    squares = np.diag(covariance) + moments.mean[:n_features] ** 2
    floor = (ROUNDINGS * unit_roundoff) ** 2 * squares.max(initial=0.0)
    # Moments themselves are float64 sums: nothing below their own rounding is a direction.
    floor = max(floor, n_features * 2.0**-52 * np.diag(covariance).max(initial=0.0))
    eigenvalues, vectors = np.linalg.eigh(covariance)
    # The decomposition errs in proportion to the largest eigenvalue, on each processor its own way.
    floor = max(floor, ROUNDINGS * 2.0**-52 * eigenvalues.max(initial=0.0))
    directions: FloatArray = vectors[:, eigenvalues > floor][:, ::-1]
    return directions


def fit_linear_attack(
    moments: regression.CoMoments, n_features: int, unit_roundoff: float
) -> regression.LeastSquares:
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
    regression.LeastSquares
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
        raise InputError(
            f"{moments.count} records are too few to train an attack on.",
            remedy="Hold out more records for the audit.",
            code="audit-too-small",
        )
    directions = find_coordinates(moments, n_features, unit_roundoff)
    scatter, mean = moments.scatter, moments.mean
    inner = directions.T @ scatter[:n_features, :n_features] @ directions
    cross = directions.T @ scatter[:n_features, n_features:]
    variances = np.diag(inner)
    weights = cross / variances[:, None] if len(variances) else cross
    coefficients = directions @ weights
    intercept = mean[n_features:] - mean[:n_features] @ coefficients
    condition = float(variances[0] / variances[-1]) if len(variances) else 1.0
    return regression.LeastSquares(coefficients, intercept, condition)


def widen(fitted: regression.LeastSquares, n_released: int) -> regression.LeastSquares | None:
    """A raw predictor for released records: as it is, or with the column of ones they have.

    None where released records have other features.
    """
    n = len(fitted.coefficients)
    if n_released == n:
        return fitted
    if n_released == n + 1:
        rows = np.vstack([fitted.coefficients, fitted.intercept])
        return regression.LeastSquares(rows, np.zeros_like(fitted.intercept), fitted.condition)
    return None
