"""Fit where entries are missing: problem (5), from patterns, or from all records each round.

Records that lack the same entries are one matrix of co-moments. Where they lack them in too many
ways, each round reads the shards once; nothing of the width of the collection is ever held.
"""

import math
from functools import partial

import numpy as np

from privpipe.numerics.masking import missing
from privpipe.numerics.masking.completion import set_penalty
from privpipe.numerics.moments import CoMoments, count_targets
from privpipe.protocols import BoolArray, FloatArray, Shard, Shards, ShardSchema
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
    moments: CoMoments, known: BoolArray, centre: FloatArray, scale: FloatArray
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
) -> missing.FactorModel:
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
    request = _make_request(shards, survey, centre, scale, clip)
    # With the column of ones, which is known in every record.
    n_columns, n = len(centre) + 1, survey.n_records
    n_known = float(survey.counts.sum()) + n
    per_column = n_known / n_columns
    products = n_columns * (n_columns + 1) / 2
    many = n_columns <= MOST_COLUMNS and n_known >= ENTRIES_PER_PRODUCT * products
    if noise_level is None and many:
        # Indicators of classes have no noise: a low rank with noise fell to an RMSE of 20 on School
        # with 80 % missing, worse than the mean.
        return missing.fit_covariance(request, n_columns, n)
    width = min(n_columns, MOST_LOADINGS)
    # A fixed seed: the fit is a function of the records, and a start without zeros finds all
    # directions.
    start = np.linalg.qr(np.random.default_rng(0).normal(size=(n_columns, width)))[0]
    level = noise_level
    if level is None:
        penalty = set_penalty(COARSE_NOISE, n_columns, per_column)
        coarse = missing.fit_loadings(request, start, penalty, tolerance=1e-6)
        sums = request(coarse.loadings, coarse.ridge, False)
        loss = missing.measure_loss(coarse.loadings, sums)
        level, start = math.sqrt(loss / n_known), coarse.loadings
    # The ridge of a record's system: without any, records with few entries cannot be solved.
    level = max(level, LEAST_NOISE)
    found = missing.fit_loadings(
        request, start, set_penalty(level, n_columns, per_column), tolerance=1e-7
    )
    values, vectors = np.linalg.eigh(found.gram / n)
    retained = values > 1e-6 * values[-1]
    return missing.fit_factors(
        request, vectors[:, retained] * np.sqrt(values[retained]), level**2, n
    )


def _make_request(
    shards: Shards, survey: RecordSurvey, centre: FloatArray, scale: FloatArray, clip: float
) -> missing.Request:
    """The sums of a round: from moments of patterns, or else from the records."""
    if not survey.overflown:
        patterns = []
        for pattern, moments in sorted(survey.parts.items()):
            known = np.array([one == "1" for one in pattern])
            gram = expand_moments(moments, known, centre, scale)
            patterns.append((np.append(known, True), gram, moments.count))
        return partial(missing.sum_patterns, patterns)
    # Too many patterns to hold a matrix for each: every round reads the records instead.
    oracle = shards.oracle(_sum_shard, schema=shards.schema, centre=centre, scale=scale, clip=clip)

    def request(loadings: FloatArray, ridge: float, expected: bool) -> missing.RecordSums:
        products, cross, scatter, squares, n_known = oracle((loadings, ridge, expected))
        return products, cross, scatter, squares, n_known

    return request


def _sum_shard(
    shard: Shard,
    parameters: tuple[FloatArray, float, bool],
    *,
    schema: ShardSchema,
    centre: FloatArray,
    scale: FloatArray,
    clip: float,
) -> missing.RecordSums:
    """What a round needs of the records of a shard."""
    t = count_targets(schema.desired)
    rows = np.ones((len(shard.features), len(centre) + 1))
    rows[:, :t], rows[:, t:-1] = code_responses(shard, schema), shard.features
    rows[:, :-1] = (rows[:, :-1] - centre) / scale
    if clip:
        np.clip(rows[:, t:-1], -clip, clip, out=rows[:, t:-1])
    return missing.sum_rows(rows, *parameters)
