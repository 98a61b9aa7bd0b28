"""What passes over the records find out before they are masked: a survey, and missing entries.

Problem (5) of Yi et al. 2014 completes these from the moments of each pattern of missing entries.
Where records lack entries in too many ways, each round reads the shards once; nothing of the width
of the collection is ever held.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import cast

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.masking import completion, missing
from privpipe.numerics.moments import CoMoments, code_targets, count_targets
from privpipe.protocols import BoolArray, FloatArray, Shard, Shards, ShardSchema

MOST_PATTERNS = 32
"""Patterns of missing entries whose moments are summed apart."""

BLOCK_RECORDS = 8192
"""Records that are surveyed at once."""

LARGEST = 1e150
"""Of a value: squares of larger ones are infinite."""


@dataclass(frozen=True, eq=False)
class RecordSurvey:
    """Moments and extremes of [responses, features] of some records.

    Parameters
    ----------
    n_responses
        How many of the columns are responses.
    n_records, n_empty
        Records read, and those of them that hold no feature at all.
    counts, least, most : (n_columns,)
        Known entries of each column, and bounds of them (infinite where there are none). The bounds
        are an eighth of a deviation wide at most: no value of a record is revealed.
    whole : (n_columns,), bool
        Whether all known entries of a column are integers.
    parts
        Co-moments of the known columns, by the pattern of known entries ("101": the second is
        missing). They are of the whole records alone once there were too many patterns.
    centre, spread : (n_columns,)
        Mean of the known entries and the sum of squares of their deviations.
    n_clipped
        Entries that were clipped.
    overflown
        Whether there were too many patterns.
    """

    n_responses: int
    n_records: int
    n_empty: int
    counts: FloatArray
    least: FloatArray
    most: FloatArray
    whole: BoolArray
    centre: FloatArray
    spread: FloatArray
    parts: Mapping[str, CoMoments] = field(default_factory=dict)
    n_clipped: int = 0
    overflown: bool = False

    def merge(self, other: "RecordSurvey") -> "RecordSurvey":
        """Survey of the records of both."""
        parts = dict(self.parts)
        for pattern, moments in other.parts.items():
            parts[pattern] = parts[pattern].merge(moments) if pattern in parts else moments
        # Once too many, always: what was dropped cannot be merged any more.
        overflown = self.overflown or other.overflown or len(parts) > MOST_PATTERNS
        counts = self.counts + other.counts
        # Chan, Golub and LeVeque's update, column by column, since each has its own missing
        # entries.
        share = other.counts / np.maximum(counts, 1)
        step = other.centre - self.centre
        return RecordSurvey(
            self.n_responses,
            self.n_records + other.n_records,
            self.n_empty + other.n_empty,
            counts,
            np.minimum(self.least, other.least),
            np.maximum(self.most, other.most),
            self.whole & other.whole,
            self.centre + share * step,
            self.spread + other.spread + self.counts * share * step**2,
            {p: parts[p] for p in parts if "0" not in p} if overflown else parts,
            self.n_clipped + other.n_clipped,
            overflown,
        )

    @property
    def complete(self) -> CoMoments:
        """Co-moments of the records without a missing entry."""
        n = len(self.counts)
        return self.parts.get("1" * n, CoMoments.empty(n))

    @property
    def n_incomplete(self) -> int:
        """Records with a missing entry."""
        return self.n_records - round(self.complete.count)

    @property
    def scale(self) -> FloatArray:
        """Standard deviation of the known entries; 1 where they do not vary."""
        return np.sqrt(np.where(self.constant, 1.0, self.spread / np.maximum(self.counts, 1)))

    @property
    def constant(self) -> BoolArray:
        """Which columns do not vary, or are missing throughout."""
        # A constant column far from zero varies by rounding.
        return np.asarray(self.spread <= (1e-13 * np.abs(self.centre)) ** 2 * self.counts)

    @property
    def varying_integers(self) -> BoolArray:
        """Which features are integers and vary."""
        return np.asarray((self.whole & ~self.constant)[self.n_responses :])

    @property
    def furthest(self) -> FloatArray:
        """Largest deviation from the mean, in standard deviations; 0 where nothing is known."""
        deviation = np.maximum(self.most - self.centre, self.centre - self.least) / self.scale
        return np.where(self.counts > 0, deviation, 0.0)


def code_responses(shard: Shard, schema: ShardSchema, part: slice = slice(None)) -> FloatArray:
    """Desired variables as responses: numbers, and indicators of classes; NaN where missing."""
    return code_targets(shard.desired[part], schema.desired, "zero_one")


def survey_records(
    shard: Shard,
    *,
    schema: ShardSchema,
    complete: bool,
    low: FloatArray | None = None,
    high: FloatArray | None = None,
) -> RecordSurvey:
    """Survey the records of a shard.

    Parameters
    ----------
    shard, schema
    complete
        Whether features may be missing (NaN).
    low, high : (n_features,), optional
        Bounds to which features are clipped first.

    Raises
    ------
    InputError
        If features are infinite, or missing where none may be; with their number.
    """
    t = count_targets(schema.desired)
    bounds = None if low is None or high is None else (low, high)
    parts = []
    # Block by block, which a cache holds while it is looked at in several ways; one of no records
    # where there are none.
    for start in range(0, max(len(shard.features), 1), BLOCK_RECORDS):
        part = slice(start, start + BLOCK_RECORDS)
        features = shard.features[part]
        rows = np.empty((len(features), t + schema.n_features))
        rows[:, :t], rows[:, t:] = code_responses(shard, schema, part), features
        parts.append(_survey_block(rows, t, complete, bounds))
    return reduce(RecordSurvey.merge, parts)


def _survey_block(
    rows: FloatArray, t: int, complete: bool, bounds: tuple[FloatArray, FloatArray] | None
) -> RecordSurvey:
    """Survey of a few records, [responses, features], which are clipped in place."""
    n, n_columns = rows.shape
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is looked at below
        moments = None if bounds else CoMoments.of(rows)
    n_clipped, overflown = 0, False
    if moments is not None and np.isfinite(moments.scatter).all():
        # All is finite: what else is required follows from the moments.
        known, parts = np.broadcast_to(np.True_, rows.shape), {"1" * n_columns: moments}
        counts = np.full(n_columns, float(n))
        centre, spread = moments.mean, np.diag(moments.scatter).copy()
        least, most = rows.min(axis=0, initial=np.inf), rows.max(axis=0, initial=-np.inf)
    else:
        _check_features(rows[:, t:], complete)
        if bounds:
            inner = rows[:, t:]
            n_clipped = int(np.count_nonzero((inner < bounds[0]) | (inner > bounds[1])))
            np.clip(inner, *bounds, out=inner)
        _check_size(rows, t)
        # Infinite ones were refused above: what is left not finite is missing.
        known = np.isfinite(rows)
        parts, overflown = _cut_by_pattern(rows, known)
        counts, centre, spread, least, most = _measure_columns(rows, known)
    # Bounds are rounded away from the mean, by an eighth of a deviation at most: no value is
    # revealed. Of a constant column there is none to round by: its bounds are its one value.
    deviation = np.sqrt(spread / np.maximum(counts, 1))
    varies = deviation > 0
    step = np.where(varies, np.exp2(np.floor(np.log2(np.where(varies, deviation, 1.0)))), 0.0) / 8
    return RecordSurvey(
        n_responses=t,
        n_records=n,
        n_empty=int(np.count_nonzero(~known[:, t:].any(axis=1))),
        counts=counts,
        least=centre - _round_up(centre - least, step),
        most=centre + _round_up(most - centre, step),
        whole=_find_whole(rows, known),
        centre=centre,
        spread=spread,
        parts=parts,
        n_clipped=n_clipped,
        overflown=overflown,
    )


def _check_features(features: FloatArray, complete: bool) -> None:
    wrong = np.isinf(features) if complete else ~np.isfinite(features)
    bad = int(np.count_nonzero(wrong.any(axis=1)))
    if bad:
        first = "" if complete else 'Set [method] missing = "complete", which completes NaN, or '
        raise InputError(
            f"{bad} of {len(features)} records hold features that are "
            + ("infinite." if complete else "missing or infinite."),
            remedy=f"{first}leave them out." if first else "Leave them out.",
            code="nonfinite",
        )


def _check_size(rows: FloatArray, t: int) -> None:
    if np.isinf(rows[:, :t]).any():
        problem = "A response is infinite."
        raise InputError(problem, remedy="Leave such records out.", code="nonfinite")
    large = int(np.count_nonzero((np.abs(rows) > LARGEST).any(axis=1)))
    if large:
        problem = f"{large} of {len(rows)} records exceed {LARGEST:g} in a value: squares overflow."
        raise InputError(problem, remedy="Ingest them in a larger unit.", code="nonfinite")


def _measure_columns(rows: FloatArray, known: BoolArray) -> tuple[FloatArray, ...]:
    """Counts, mean, spread, least and largest value of each column, of what is known."""
    counts = known.sum(axis=0).astype(np.float64)
    # Counted from a record of their own: a column of equal values has no spread at all.
    anchor = np.where(known[0], rows[0], 0.0) if len(rows) else np.zeros(rows.shape[1])
    moved = rows - anchor if known.all() else np.where(known, rows - anchor, 0.0)
    shift = moved.sum(axis=0) / np.maximum(counts, 1)
    spread = np.maximum(np.square(moved).sum(axis=0) - counts * shift**2, 0.0)
    least = np.min(moved, axis=0, where=known, initial=np.inf)
    most = np.max(moved, axis=0, where=known, initial=-np.inf)
    return counts, anchor + shift, spread, anchor + least, anchor + most


def _round_up(values: FloatArray, step: FloatArray) -> FloatArray:
    """To multiples of a step, away from zero; as they are where it is zero or nothing is known."""
    finite = np.isfinite(values) & (step > 0)
    whole = np.ceil(np.where(finite, values, 0.0) / np.where(step > 0, step, 1.0)) * step
    return np.asarray(np.where(finite, whole, values))


def _find_whole(rows: FloatArray, known: BoolArray) -> BoolArray:
    """Which columns hold integers alone; most that do not are found in a few records."""
    whole = ((rows[:64] == np.rint(rows[:64])) | ~known[:64]).all(axis=0)
    maybe = np.flatnonzero(whole)
    if len(maybe) and len(rows) > 64:
        some = rows[:, maybe]
        whole[maybe] = ((some == np.rint(some)) | ~known[:, maybe]).all(axis=0)
    return np.asarray(whole)


def _cut_by_pattern(rows: FloatArray, known: BoolArray) -> tuple[dict[str, CoMoments], bool]:
    """Co-moments of the known columns of each pattern; of the whole records if there are many."""
    if not len(rows):
        return {}, False
    if known.all():
        return {"1" * rows.shape[1]: CoMoments.of(rows)}, False
    patterns, owner = np.unique(known, axis=0, return_inverse=True)
    # Of one block already; the whole records are summed all the same.
    overflown = len(patterns) > MOST_PATTERNS
    parts = {
        "".join("1" if one else "0" for one in pattern): CoMoments.of(
            rows[owner.ravel() == number][:, pattern]
        )
        for number, pattern in enumerate(patterns)
        if pattern.all() or not overflown
    }
    return parts, overflown


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
    covariance (`fit_covariance`). It assumes no low rank, which features of classes do not have.

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
        penalty = completion.set_penalty(COARSE_NOISE, n_columns, per_column)
        coarse = missing.fit_loadings(request, start, penalty, tolerance=1e-6)
        loss = missing.measure_loss(coarse.loadings, request(coarse.loadings, coarse.ridge, False))
        level, start = math.sqrt(loss / n_known), coarse.loadings
    # The ridge of a record's system: without any, records with few entries cannot be solved.
    level = max(level, LEAST_NOISE)
    penalty = completion.set_penalty(level, n_columns, per_column)
    found = missing.fit_loadings(request, start, penalty, tolerance=1e-7)
    values, axes = np.linalg.eigh(found.gram / n)
    retained = values > 1e-6 * values[-1]
    return missing.fit_factors(request, axes[:, retained] * np.sqrt(values[retained]), level**2, n)


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
    return lambda *given: cast(missing.RecordSums, oracle(given))


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
