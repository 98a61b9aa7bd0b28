"""Intervals of proportions and, by influences, of other scores; subjects may share records.

They are formed on a scale where the score's errors are near normal, with the corrections that few
records or groups need.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import scipy
from scipy import special

from privpipe.errors import InputError, OptionError
from privpipe.protocols import BoolArray, FloatArray, IntArray

Scale = Callable[[FloatArray], FloatArray]

Limits = Callable[[float], tuple[float, float]]
"""Lower and upper limit at a level."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence limits.

    Parameters
    ----------
    estimate, lower, upper
        Value and two-sided limits, in the unit of the score.
    level
        Confidence of the pair of limits, between 0 and 1.
    method
        "wilson", "exact", "influence" or "ranks", with "grouped_" before it where
        intervals are over groups, "parts_wilson" or "none".
    relaxed
        Limits at lower levels, as (level, lower, upper): a procedure that shares its level over
        several questions needs less confidence once some are answered.
    """

    estimate: float
    lower: float
    upper: float
    level: float
    method: str
    relaxed: tuple[tuple[float, float, float], ...] = ()

    @property
    def above_nothing(self) -> float:
        """Lower limit with half of its distance more, for "is it more than nothing?".

        Where nothing is behind a score, adversaries of several folds err together, for each learns
        from what the others judge. The area's error is 1.42 times as large as it looks.
        """
        return self.lower - (self.estimate - self.lower) / 2

    def at(self, level: float) -> "Interval":
        """The interval at the lowest level held that is at least this one, or this very one.

        >>> hits = np.repeat([True, False], 50)
        >>> interval = measure_hits_interval(hits, Confidence(0.99, also=[0.95]))
        >>> interval.at(0.95) == measure_hits_interval(hits)
        True
        """
        fit = min((limits for limits in self.relaxed if limits[0] >= level), default=None)
        if fit is None:
            return self
        return replace(self, level=fit[0], lower=fit[1], upper=fit[2], relaxed=())


@dataclass(frozen=True, eq=False)
class Confidence:
    """How the intervals of a score are found.

    Parameters
    ----------
    level, also
        Two-sided confidence, and lower levels at which limits are found as well.
    groups : (n_records,), optional
        Subjects that share records, any integers; then intervals are over subjects.
    seed
        Orders ties.

    Raises
    ------
    OptionError
        If `level` is not strictly between 0 and 1.
    """

    level: float = 0.95
    also: Sequence[float] = ()
    groups: IntArray | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < (level := self.level) < 1:
            raise OptionError(f"level is {level}.", remedy="Use a number between 0 and 1: 0.95.")

    def find(self, estimate: float, limits: Limits, method: str) -> Interval:
        """The interval of an estimate from what gives its limits at a level."""
        # Limits at lower levels are found at once: no score is stored for them.
        relaxed = tuple((one, *limits(one)) for one in sorted(self.also) if one < self.level)
        name = method if self.groups is None else f"grouped_{method}"
        return Interval(estimate, *limits(self.level), self.level, name, relaxed)


USUAL = Confidence()
"""Of 95 percent, for records that are no one's."""


def measure_hits_interval(hits: BoolArray, confidence: Confidence = USUAL) -> Interval:
    """Wilson's score interval for a proportion of trials, which may be alike within groups.

    Of groups the number of trials is replaced by the number of independent trials that would have
    the variance seen between groups. These are never more than the trials there are. The normal
    quantile is replaced by Student's with one degree of freedom less than there are groups, see
    `count_even`. That covers groups of very different sizes. Where 5 to 20 groups are all hits or
    none, and only a few have any, limits are too narrow. At 95 % they miss .1 of proportions.

    Parameters
    ----------
    hits : (n_records,)
        Success of each record.
    confidence
        Level, and groups.

    Raises
    ------
    InputError
        If there are no trials, or fewer than two groups.

    References
    ----------
    Wilson 1927; Brown, Cai and DasGupta 2001, Interval Estimation for a Binomial Proportion; Korn
    and Graubard 1998, Confidence Intervals for Proportions with Small Expected Number of Positive
    Counts; Dean and Pagano 2015 (the Wilson form).

    Examples
    --------
    >>> hits = np.repeat([True, False], 50)
    >>> alone = measure_hits_interval(hits)
    >>> round(alone.lower, 4), round(alone.upper, 4)
    (0.4038, 0.5962)
    >>> bool(measure_hits_interval(hits, Confidence(groups=np.arange(100) // 10)).lower < 0.25)
    True
    """
    n_hits, n = int(hits.sum()), len(hits)
    _check_counts(n_hits, n)
    if confidence.groups is None:
        return confidence.find(n_hits / n, _find_wilson(n_hits / n, n, math.inf), "wilson")
    codes, n_groups = code_groups(confidence.groups, n)
    effective = plan_effective(hits, codes, n_groups)
    limits = _find_wilson(float(hits.mean()), effective, count_even(codes) - 1)
    return confidence.find(float(hits.mean()), limits, "wilson")


def measure_exact_interval(n_hits: int, n_trials: int, *, level: float = 0.95) -> Interval:
    """Clopper and Pearson's interval for a proportion; its coverage is never below `level`.

    Raises
    ------
    InputError
        If there are no trials, or more hits than trials.

    Examples
    --------
    >>> round(measure_exact_interval(0, 10).upper, 4)
    0.3085
    """
    _check_counts(n_hits, n_trials)
    exact = partial(limit_exactly, n_hits, n_trials)
    return Confidence(level).find(n_hits / n_trials, exact, "exact")


def measure_parts_interval(hits: FloatArray, sizes: FloatArray, *, level: float = 0.95) -> Interval:
    """As `measure_hits_interval` of groups, from sums over parts of the trials.

    Subjects are whole within a part; parts are drawn by hash, and few: 64 give a variance with 63
    degrees of freedom whatever the number of subjects.

    Parameters
    ----------
    hits, sizes : (n_parts,)
        Successes and trials of each part.
    level
        Two-sided confidence.

    Raises
    ------
    InputError
        If fewer than two parts hold a trial.

    Examples
    --------
    >>> found = measure_parts_interval(np.full(64, 50.0) + np.arange(64) % 3, np.full(64, 100.0))
    >>> round(found.estimate, 3), round(found.upper - found.lower, 3)
    (0.51, 0.025)
    """
    # Parts without a trial are no units.
    hits, sizes = hits[sizes > 0], sizes[sizes > 0]
    if len(sizes) < 2:
        problem = f"{len(sizes)} parts of the records hold a trial."
        raise InputError(problem, remedy="Judge more records.")
    p, effective = _count_effective(hits, sizes)
    return Confidence(level).find(p, _find_wilson(p, effective, len(sizes) - 1), "parts_wilson")


def measure_difference_interval(
    hits: BoolArray, others: BoolArray, confidence: Confidence = USUAL
) -> Interval:
    """Interval of the difference of two proportions of the same trials.

    Parameters
    ----------
    hits, others : (n_trials,)
        Success of each trial by one way and by another.
    confidence
        As of `measure_hits_interval`.

    References
    ----------
    Newcombe 1998, Improved Confidence Intervals for the Difference Between Binomial Proportions
    Based on Paired Data; Zou and Donner 2008 (the joining of limits).

    Examples
    --------
    >>> known = np.arange(1000) < 300
    >>> found = measure_difference_interval(known | (np.arange(1000) > 899), known)
    >>> round(found.estimate, 9), bool(0.08 < found.lower < 0.09), bool(0.11 < found.upper < 0.13)
    (0.1, True, True)
    """
    limits = partial(limit_difference, hits, others, confidence.groups)
    return confidence.find(float(np.mean(hits) - np.mean(others)), limits, "wilson")


def limit_difference(
    hits: BoolArray, others: BoolArray, groups: IntArray | None, level: float
) -> tuple[float, float]:
    """Limits of the difference of two proportions of the same trials; see above.

    Only trials that one way alone gets right say anything. Their two shares have Wilson limits,
    which are joined by their squares with the correlation of two shares of one total.
    """
    confidence = Confidence(level, groups=groups)
    up = measure_hits_interval(hits & ~others, confidence)
    down = measure_hits_interval(others & ~hits, confidence)
    b, c = up.estimate, down.estimate
    # Of one total, a larger share of one is a smaller one of the other.
    against = -float(np.sqrt(b * c / max((1 - b) * (1 - c), 1e-12)))
    if groups is not None:
        against = max(against, _correlate(hits & ~others, others & ~hits, groups))
    return limit_subtraction((b, up.lower, up.upper), (c, down.lower, down.upper), against)


def _correlate(one: BoolArray, other: BoolArray, groups: IntArray) -> float:
    """Least correlation of two proportions over groups, at two deviations (Fisher 1921).

    Records that are alike are said to be of one class: what is right of them and what is wrong
    come together. Taken for trials of one total, limits of 280 groups were twice as wide.
    """
    codes, n_groups = code_groups(groups, len(one))
    sizes, *sums = (np.bincount(codes, by, n_groups) for by in (None, one, other))
    a, b = (some - some.sum() / sizes.sum() * sizes for some in sums)
    found = min(float(a @ b) / max(math.sqrt(float(a @ a) * float(b @ b)), 1e-300), 0.999)
    # Large groups count most, as if there were so many.
    n = float((sizes**2.0).sum() ** 2 / (sizes**4.0).sum())
    return math.tanh(math.atanh(max(found, -0.999)) - 2 / math.sqrt(max(n - 3, 1e-6)))


def limit_subtraction(
    one: tuple[float, float, float], other: tuple[float, float, float], correlation: float
) -> tuple[float, float]:
    """Limits of the difference of two estimates with limits of their own (Zou and Donner 2008).

    >>> [round(end, 3) for end in limit_subtraction((0.5, 0.47, 0.53), (0.3, 0.26, 0.34), 0.0)]
    [0.15, 0.25]
    """
    (x, low, up), (y, least, most) = one, other
    sides = (x - low, most - y), (up - x, y - least)
    squares = (a * a + b * b - 2 * correlation * a * b for a, b in sides)
    below, above = (float(np.sqrt(max(0.0, one))) for one in squares)
    return x - y - below, x - y + above


def plan_effective(hits: BoolArray, codes: IntArray, n_groups: int) -> float:
    """Independent trials that would have the variance seen between groups, at most all trials.

    Parameters
    ----------
    hits : (n_trials,)
        Success of each trial.
    codes : (n_trials,)
        Group of each trial, 0 .. n_groups - 1.
    n_groups
        Number of groups; without any spread (all hits, or none) each counts as one trial.
    """
    sums, sizes = (np.bincount(codes, by, minlength=n_groups).astype(float) for by in (hits, None))
    return _count_effective(sums, sizes)[1]


def _count_effective(hits: FloatArray, sizes: FloatArray) -> tuple[float, float]:
    """The proportion, and effective trials, of sums over groups or parts."""
    n, total = len(sizes), float(sizes.sum())
    p = float(hits.sum()) / total
    departure = hits - p * sizes
    # The linearised variance of a ratio of sums over groups.
    variance = n / (n - 1) * float(departure @ departure) / total**2
    if variance == 0:
        return p, min(float(n), total)
    # Nor more than trials of a group are alike, in any group: that variance is one of the few
    # largest, and where these happen to be near p, limits at 95 % missed .16 of proportions.
    more = sizes > 1
    each = hits * (1 - 2 * p) + p**2 * sizes
    alike = float(((departure**2 - each)[more] / (sizes[more] - 1)).sum())
    alike = min(1.0, max(0.0, alike / (p * (1 - p) * max(float(sizes[more].sum()), 1.0))))
    pooled = total / (1 + alike * (float(sizes @ sizes) / total - 1))
    return p, min(p * (1 - p) / variance, pooled, total)


def _find_wilson(p: float, n: float, freedom: float) -> Limits:
    """Wilson's limits with Student's quantile, which of endless freedom is the normal one."""
    return lambda level: limit_wilson(p, n, float(scipy.stats.t.ppf(0.5 + level / 2, freedom)))


def limit_wilson(p: float, n: float, z: float) -> tuple[float, float]:
    """Wilson's limits of a proportion of so many trials, `z` standard errors away."""
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * float(np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)))
    # By rounding the estimate may lie outside its limits where they are at 0 or 1.
    return max(0.0, min(p, middle - half)), min(1.0, max(p, middle + half))


def limit_exactly(n_hits: float, n_trials: float, level: float) -> tuple[float, float]:
    """Clopper and Pearson's limits; numbers of effective trials need not be whole."""
    tail, beta = (1 - level) / 2, scipy.stats.beta
    lower = beta.ppf(tail, n_hits, n_trials - n_hits + 1) if n_hits > 0 else 0.0
    upper = beta.ppf(1 - tail, n_hits + 1, n_trials - n_hits) if n_hits < n_trials else 1.0
    return float(lower), float(upper)


def _check_counts(n_hits: int, n_trials: int) -> None:
    if n_trials < 1 or not 0 <= n_hits <= n_trials:
        problem = f"A proportion of {n_hits} in {n_trials} has no interval."
        raise InputError(problem, remedy="Give at least one trial and no more hits than trials.")


def code_groups(groups: IntArray, n_records: int) -> tuple[IntArray, int]:
    """Codes 0 .. n_groups - 1 of the groups, and their number; InputError below two."""
    if len(groups) != n_records:
        problem = f"groups has {len(groups)} entries for {n_records} records."
        raise InputError(problem, remedy="Give one group per record.")
    codes, n_groups = groups, int(groups.max(initial=-1)) + 1
    # An audit's groups are codes already: counted, they need no sort for each of its intervals.
    if groups.min(initial=0) < 0 or n_groups > n_records or not np.bincount(groups).all():
        kinds, codes = np.unique(groups, return_inverse=True)
        n_groups = len(kinds)
    if n_groups < 2:
        problem = f"An interval over groups needs 2 groups, got {n_groups}."
        remedy = "Use more groups, or leave groups out where records are independent."
        raise InputError(problem, remedy=remedy)
    return codes, n_groups


def count_even(codes: IntArray) -> float:
    """Groups of one size that vary as these do, whose few largest decide (Kish 1965).

    By their number, of groups of 1 to 500 records a lower limit missed 20 times too often.

    >>> count_even(np.array([0, 0, 1, 1])), round(count_even(np.array([0, 0, 0, 0, 0, 1])), 2)
    (2.0, 1.38)
    """
    sizes = np.bincount(codes).astype(np.float64)
    return max(LEAST_EVEN, float(sizes.sum() ** 2 / (sizes @ sizes)))


LEAST_EVEN = 1.1
"""Groups that all count as where one holds nearly everything."""

Link = Literal["identity", "logit", "log", "log_complement"]
"""Scale on which an interval is symmetric: x, log x/(1-x), log x, log(1-x)."""

EXACT = 1e-9
"""What is nearer to 1 is 1. Replicates of 0 and of rounding errors are far apart as logarithms: the
lower limit of a perfect prediction was -1e138."""


def measure_influence_interval(
    estimate: float,
    influence: FloatArray,
    confidence: Confidence = USUAL,
    *,
    link: Link = "identity",
    decisive: IntArray | None = None,
    centred: int = 1,
) -> Interval:
    """Interval of a score from what a record more of each kind would change: one pass, no draws.

    Parameters
    ----------
    estimate
        The score of all records.
    influence : (n_records,)
        Derivative of the score by the weight of each record; they add up to 0. Those of a group
        are added.
    confidence
        Levels, and groups, which are drawn whole.
    link
        Scale of the limits: "logit" for scores within 0 and 1, "log" for positive ones,
        "log_complement" for those below 1 such as R squared.
    decisive : (n_classes,), optional
        Units whose order by chance would be a perfect score, by class.
    centred
        Parts, of whole groups, within each of which influences add up to 0, as of folds.

    Raises
    ------
    InputError
        If there are fewer than two records or groups.

    Notes
    -----
    Limits use Student's quantile and the factor ``sqrt(units / freedom)``. The degrees of freedom
    are as many as there are units beyond one of each part. Where few records decide, the freedom is
    that of the variance (Satterthwaite 1946, by the influences' fourth powers). Without it R
    squared of heavy tails claimed too much in .04 of draws, at a promise of .005. Where the score
    cannot vary it has no width, but for `decisive`: a few units that happen to be in order say
    little.

    References
    ----------
    Hampel 1974, The Influence Curve and its Role in Robust Estimation; Hesterberg 2015, What
    Teachers Should Know About the Bootstrap (the correction for few units).

    Examples
    --------
    >>> values = np.arange(100.0)
    >>> found = measure_influence_interval(49.5, (values - 49.5) / 100)
    >>> bool(43 < found.lower < 45), bool(54 < found.upper < 56)
    (True, True)
    """
    if (n_units := float(len(influence))) < 2:
        raise InputError("An interval needs 2 records, got 1.", remedy="Use more records.")
    if confidence.groups is not None:
        codes, n_groups = code_groups(confidence.groups, len(influence))
        n_units = count_even(codes)
        influence = np.asarray(np.bincount(codes, influence, minlength=n_groups))
    clip, (_, _, slope) = 0.5 / n_units, _LINKS[link]
    squares = influence**2
    total, freedom = float(squares.sum()), max(LEAST_EVEN - 1, n_units - centred)
    # Without the factor intervals of few units are too short (Hesterberg 2015).
    spread = float(np.sqrt(total * n_units / freedom)) * slope(estimate, clip)
    if (heavy := float(squares @ squares) - total**2 / len(squares)) > 0:
        freedom = min(freedom, 2 * total**2 / heavy)
    limits = _limit_on_link(estimate, spread, (clip, freedom), link, decisive)
    return confidence.find(estimate, limits, "influence")


def _limit_on_link(
    estimate: float, spread: float, at: tuple[float, float], link: Link, decisive: IntArray | None
) -> Limits:
    """Student's limits around an estimate whose spread is given on the scale of the link."""
    # The estimate, and what is clipped with it, on the scale of the link.
    (to_link, from_link, _), (clip, freedom) = _LINKS[link], at
    centre = float(to_link(np.array([estimate]), clip)[0])

    def limits(level: float) -> tuple[float, float]:
        # Farther on the scale of a link nothing is known, and its exponential overflows.
        half = min(500.0, spread * float(scipy.stats.t.ppf(0.5 + level / 2, freedom)))
        ends = from_link(np.array([centre - half, centre + half]))
        # A score at its edge (an area of exactly 1) is clipped on the link's scale.
        lower, upper = min(float(ends.min()), estimate), max(float(ends.max()), estimate)
        if decisive is None:
            return lower, upper
        # By chance so many units are in order with the probability that is allowed.
        most = float(np.mean(((1 - level) / 2) ** (1 / np.maximum(decisive, 1))))
        return min(lower, most), max(upper, 1 - most)

    return limits


Slope = Callable[[float, float], float]

_LINKS: dict[Link, tuple[Callable[[FloatArray, float], FloatArray], Scale, Slope]] = {
    "identity": (lambda x, _: x, lambda y: y, lambda x, _: 1.0),
    "logit": (
        lambda x, clip: special.logit(np.clip(x, clip, 1 - clip)),
        special.expit,
        lambda x, clip: 1 / max(x * (1 - x), clip * (1 - clip)),
    ),
    "log": (
        lambda x, _: np.log(np.maximum(x, np.finfo(float).tiny)),
        np.exp,
        lambda x, _: 1 / x if x > 0 else 0.0,
    ),
    "log_complement": (
        lambda x, _: np.log(np.maximum(1 - x, EXACT)),
        lambda y: 1 - np.exp(y),
        lambda x, _: 1 / max(1 - x, EXACT),
    ),
}
"""Each link, which takes what to clip, its inverse, and its slope."""
