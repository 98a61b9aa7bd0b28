"""What an outsider knows before the release: least squares on raw records of their own.

Fitted by the judge itself, from `numerics.regression` alone: were the fit of the judged used here,
a fault of it would be hidden by itself.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from privpipe.attacks.statistics.answers import Answers
from privpipe.errors import InputError, RankError
from privpipe.numerics.finite import find_finite_rows
from privpipe.numerics.regression.labels import Coding, code_targets
from privpipe.numerics.regression.moments import (
    CoMoments,
    LeastSquares,
    measure_scale,
    solve_least_squares,
)
from privpipe.numerics.regression.tsqr import Frame, TriangularFactor, solve_triangular
from privpipe.protocols import FloatArray, Shard, Shards, ShardSchema

WORST_CONDITION = 1e5
"""Above this condition of the scaled Gram matrix a factor of the design is asked for."""


def measure_raw(train: Shards, coding: Coding) -> tuple[CoMoments, FloatArray]:
    """Co-moments of ``[features, confidential targets]`` where these are known; the mean record.

    The mean is that of all records, also of those without labels.

    Raises
    ------
    InputError
        If features are not finite.
    """
    schema = train.schema
    found: Answers = train.reduce(partial(summarise_raw_records, schema=schema, coding=coding))
    labelled, others = found.parts
    features = np.arange(schema.n_features)
    return labelled, labelled.select(features).merge(others).mean


def summarise_raw_records(shard: Shard, *, schema: ShardSchema, coding: Coding) -> Answers:
    """Co-moments of the records with labels, and of the features of those without."""
    bad = int(np.count_nonzero(~find_finite_rows(shard.features)))
    if bad:
        raise InputError(
            f"{bad} of {len(shard.features)} training records hold features that are not finite.",
            remedy="Remove or impute them before judging.",
            code="nonfinite",
        )
    targets = code_confidential(shard, schema, coding)
    known = find_finite_rows(targets)
    x = shard.features.astype(np.float64)
    labelled = CoMoments.of(np.hstack([x[known], targets[known]]), _weigh(shard, known))
    return Answers((labelled, CoMoments.of(x[~known], _weigh(shard, ~known))))


def fit_raw_predictor(
    train: Shards, moments: CoMoments, *, coding: Coding, ridge: float = 0.0
) -> LeastSquares:
    """Predictor of the confidential targets, with an intercept.

    Parameters
    ----------
    train
        The records; asked once more where their co-moments are too coarse.
    moments
        What `measure_raw` found of them.
    coding
        Values of categorical targets.
    ridge
        See `solve_least_squares`.

    Raises
    ------
    RankError
        If the features are dependent to the precision of float64 and ``ridge = 0``.
    InputError
        If fewer than two records have labels.
    """
    schema = train.schema
    n, names = schema.n_features, schema.feature_names
    try:
        found = solve_least_squares(moments, n, ridge=ridge, names=names)
        if found.condition <= WORST_CONDITION:
            return found
    except RankError:
        pass  # as far as the Gram matrix can tell; the factor sees twice as many digits
    frame = Frame(moments.mean, measure_scale(moments, n, True), True)
    factor: TriangularFactor = train.reduce(
        partial(summarise_factor, schema=schema, coding=coding, frame=frame)
    )
    return solve_triangular(factor, frame, ridge=ridge, names=names)


def summarise_factor(
    shard: Shard, *, schema: ShardSchema, coding: Coding, frame: Frame
) -> TriangularFactor:
    """Triangular factor of features and targets of the records with labels."""
    targets = code_confidential(shard, schema, coding)
    known = find_finite_rows(targets)
    x = shard.features[known].astype(np.float64)
    return TriangularFactor.of_design(x, targets[known], frame, _weigh(shard, known))


def code_confidential(shard: Shard, schema: ShardSchema, coding: Coding) -> FloatArray:
    """Confidential target columns of a shard, (n_records, n_targets), NaN where missing."""
    return code_targets(shard.confidential, schema.confidential, coding)


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


def _weigh(shard: Shard, rows: npt.NDArray[np.bool_]) -> FloatArray | None:
    return shard.weights[rows] if shard.weights.size else None
