"""Fit where entries are missing: problem (5), from patterns, or from all records each round.

Records that lack the same entries are one matrix of co-moments. Where they lack them in too many
ways, each round reads the shards once; nothing of the width of the collection is ever held.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from privpipe.numerics.masking import factor_model
from privpipe.numerics.masking.completion import set_penalty
from privpipe.numerics.masking.missing import LoadingSums, fit_loadings, sum_pattern, sum_rows
from privpipe.numerics.moments import CoMoments, count_targets
from privpipe.protocols import FloatArray, Shard, Shards, ShardSchema
from privpipe.sanitizers.masking.record_survey import RecordSurvey, code_responses

LEAST_NOISE = 1e-3
"""Of standardised features, where entries are missing and no noise is given or found."""

COARSE_NOISE = 0.5
"""With which records are completed first, to see their noise."""

MOST_LOADINGS = 64
"""Dimensions of completed records at most."""

ENTRIES_PER_PRODUCT = 20
"""Known entries per product of two columns from which a covariance of its own is fitted."""

MOST_COLUMNS = 64
"""Columns up to which it is: a record's system is of that size."""


def expand_moments(
    moments: CoMoments, known: npt.NDArray[np.bool_], centre: FloatArray, scale: FloatArray
) -> FloatArray:
    """Sums of products about a centre, with ones as last column; zero where not known."""
    mean = (moments.mean - centre[known]) / scale[known]
    inner = moments.scatter / np.outer(scale[known], scale[known])
    # Co-moments are about their own mean; the sums needed here are about a centre common to all
    # patterns.
    inner += moments.count * np.outer(mean, mean)
    places = np.flatnonzero(np.append(known, False))
    gram = np.zeros((len(known) + 1, len(known) + 1))
    gram[np.ix_(places, places)] = inner
    gram[-1, places] = gram[places, -1] = moments.count * mean
    gram[-1, -1] = moments.count
    return gram


def complete_records(
    shards: Shards,
    survey: RecordSurvey,
    centre: FloatArray,
    scale: FloatArray,
    *,
    noise_level: float | None,
    clip: float,
) -> factor_model.FactorModel:
    """Problem (5), first with a coarse noise level, then with what its errors show; refitted.

    Where records are many beside their columns, and no noise level is given, the refit is their
    covariance (`fit_covariance`): it assumes no low rank, which features of classes do not have.

    Parameters
    ----------
    shards, survey
        Records, and what one pass found of them.
    centre, scale : (n_columns,)
        Of [responses, features].
    noise_level
        Standard deviation of the noise of standardised entries; None to find it.
    clip
        Standardised features are clipped here; 0 not at all.

    References
    ----------
    Yi et al. 2014, problem (5); Little and Rubin 2002, section 11.2.
    """
    sum_up, expect = _make_questions(shards, survey, centre, scale, clip)
    # With the column of ones, which is known in every record.
    n_columns, n = len(centre) + 1, survey.n_records
    n_known = float(survey.counts.sum()) + n
    per_column = n_known / n_columns
    products = n_columns * (n_columns + 1) / 2
    if (
        noise_level is None
        and n_columns <= MOST_COLUMNS
        and n_known >= ENTRIES_PER_PRODUCT * products
    ):
        # Indicators of classes have no noise: a low rank with noise fell to an RMSE of 20 on School
        # with 80 % missing, worse than the mean.
        return factor_model.fit_covariance(expect, n_columns, n)
    width = min(n_columns, MOST_LOADINGS)
    # A fixed seed: the fit is a function of the records, and a start without zeros finds all
    # directions.
    start = np.linalg.qr(np.random.default_rng(0).normal(size=(n_columns, width)))[0]
    level = noise_level
    if level is None:
        penalty = set_penalty(COARSE_NOISE, n_columns, per_column)
        coarse = fit_loadings(sum_up, start, penalty, tolerance=1e-6)
        _, _, _, loss = sum_up(coarse.loadings, coarse.ridge)
        level, start = math.sqrt(loss / n_known), coarse.loadings
    # The ridge of a record's system: without any, records with few entries cannot be solved.
    level = max(level, LEAST_NOISE)
    found = fit_loadings(sum_up, start, set_penalty(level, n_columns, per_column), tolerance=1e-7)
    values, vectors = np.linalg.eigh(found.gram / n)
    retained = values > 1e-6 * values[-1]
    return factor_model.fit_factors(
        expect, vectors[:, retained] * np.sqrt(values[retained]), level**2, n
    )


def _make_questions(
    shards: Shards, survey: RecordSurvey, centre: FloatArray, scale: FloatArray, clip: float
) -> tuple[
    Callable[[FloatArray, float], LoadingSums],
    Callable[[FloatArray, float], factor_model.FactorSums],
]:
    """Both questions of a round: answered by moments of patterns, or else by the records."""
    # Too many patterns to hold a matrix for each: every round reads the records instead.
    if survey.overflown:
        sum_all = shards.oracle(
            _sum_shard, schema=shards.schema, centre=centre, scale=scale, clip=clip
        )

        def sum_up(loadings: FloatArray, ridge: float) -> LoadingSums:
            products, cross, scatter, loss = sum_all(("sum", loadings, ridge))
            return products, cross, scatter, loss

        def expect(loadings: FloatArray, variance: float) -> factor_model.FactorSums:
            products, cross, scatter, squares, n_known = sum_all(("expect", loadings, variance))
            return products, cross, scatter, squares, n_known

        return sum_up, expect
    patterns = {
        np.append(known, True).tobytes(): (
            expand_moments(moments, known, centre, scale),
            moments.count,
        )
        for pattern, moments in survey.parts.items()
        for known in (np.array([one == "1" for one in pattern]),)
    }
    grams = {name: gram for name, (gram, _) in patterns.items()}
    return partial(sum_pattern, grams), partial(factor_model.expect_pattern, patterns)


def _sum_shard(
    shard: Shard,
    parameters: tuple[str, FloatArray, float],
    *,
    schema: ShardSchema,
    centre: FloatArray,
    scale: FloatArray,
    clip: float,
) -> LoadingSums | factor_model.FactorSums:
    """What a round needs of the records of a shard."""
    t = count_targets(schema.desired)
    rows = np.ones((len(shard.features), len(centre) + 1))
    rows[:, :t], rows[:, t:-1] = code_responses(shard, schema), shard.features
    rows[:, :-1] = (rows[:, :-1] - centre) / scale
    if clip:
        np.clip(rows[:, t:-1], -clip, clip, out=rows[:, t:-1])
    request, loadings, ridge = parameters
    return (factor_model.expect_rows if request == "expect" else sum_rows)(rows, loadings, ridge)
