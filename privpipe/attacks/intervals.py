"""Confidence intervals: Wilson, Clopper-Pearson, and the bootstrap, by record or by group.

Accuracies get Wilson's interval, with a design effect where records share a subject; every
other score gets a bootstrap interval formed on a scale where its errors are near normal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special, stats

from privpipe.errors import InputError, OptionError
from privpipe.protocols import BoolArray, FloatArray, IntArray

__all__ = [
    "Interval",
    "Link",
    "draw_weights",
    "measure_bootstrap_interval",
    "measure_exact_interval",
    "measure_grouped_wilson_interval",
    "measure_wilson_interval",
]

Link = Literal["identity", "logit", "log", "log_complement"]
"""Scale on which a bootstrap interval is symmetric: x, log x/(1-x), log x, log(1-x)."""

_CELLS_AT_ONCE = 2_000_000
"""Replicates times records held at once (8 bytes each)."""


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
        "wilson", "grouped_wilson", "exact", "bootstrap", "grouped_bootstrap" or "none".
    """

    estimate: float
    lower: float
    upper: float
    level: float
    method: str


def measure_wilson_interval(n_hits: int, n_trials: int, *, level: float = 0.95) -> Interval:
    """Wilson's score interval for a proportion of independent trials.

    Parameters
    ----------
    n_hits, n_trials
        Number of successes and of trials.
    level
        Two-sided confidence.

    Raises
    ------
    InputError
        If there are no trials, or more hits than trials.
    OptionError
        If `level` is not strictly between 0 and 1.

    References
    ----------
    Wilson 1927; Brown, Cai and DasGupta 2001, Interval Estimation for a Binomial Proportion.

    Examples
    --------
    >>> interval = measure_wilson_interval(50, 100)
    >>> round(interval.lower, 4), round(interval.upper, 4)
    (0.4038, 0.5962)
    """
    _check_counts(n_hits, n_trials)
    check_level(level)
    z = float(stats.norm.ppf(0.5 + level / 2))
    lower, upper = _wilson_limits(n_hits / n_trials, n_trials, z)
    return Interval(n_hits / n_trials, lower, upper, level, "wilson")


def measure_exact_interval(n_hits: int, n_trials: int, *, level: float = 0.95) -> Interval:
    """Clopper and Pearson's interval for a proportion; its coverage is never below `level`.

    Parameters, errors: as `measure_wilson_interval`.

    Examples
    --------
    >>> round(measure_exact_interval(0, 10).upper, 4)
    0.3085
    """
    _check_counts(n_hits, n_trials)
    check_level(level)
    tail = (1 - level) / 2
    lower = 0.0 if n_hits == 0 else stats.beta.ppf(tail, n_hits, n_trials - n_hits + 1)
    upper = 1.0 if n_hits == n_trials else stats.beta.ppf(1 - tail, n_hits + 1, n_trials - n_hits)
    return Interval(n_hits / n_trials, float(lower), float(upper), level, "exact")


def measure_grouped_wilson_interval(
    hits: BoolArray, groups: IntArray, *, level: float = 0.95
) -> Interval:
    """Wilson's interval for a proportion of trials that are alike within groups.

    The number of trials is replaced by the number of independent trials that would have the
    variance seen between groups, never more than the trials there are, and the normal
    quantile by Student's with one degree of freedom less than there are groups.

    Parameters
    ----------
    hits : (n_records,)
        Success of each record.
    groups : (n_records,)
        Subject of each record; any integers.
    level
        Two-sided confidence.

    Raises
    ------
    InputError
        If there are fewer than two groups.

    References
    ----------
    Korn and Graubard 1998, Confidence Intervals for Proportions with Small Expected Number of
    Positive Counts; Dean and Pagano 2015 (the Wilson form).

    Examples
    --------
    >>> hits = np.repeat([True, False], 50)
    >>> interval = measure_grouped_wilson_interval(hits, np.arange(100) // 10)
    >>> bool(interval.lower < 0.25)
    True
    """
    _check_counts(int(hits.sum()), len(hits))
    check_level(level)
    codes, n_groups = _group_codes(groups, len(hits))
    p = float(hits.mean())
    sizes = np.bincount(codes)
    departure = np.bincount(codes, weights=hits.astype(np.float64)) - p * sizes
    variance = n_groups / (n_groups - 1) * float(departure @ departure) / len(hits) ** 2
    # Without any spread (all hits, or none) a group counts as one trial.
    effective = p * (1 - p) / variance if variance > 0 else float(n_groups)
    quantile = float(stats.t.ppf(0.5 + level / 2, n_groups - 1))
    lower, upper = _wilson_limits(p, min(effective, len(hits)), quantile)
    return Interval(p, lower, upper, level, "grouped_wilson")


def measure_bootstrap_interval(
    score: Callable[[FloatArray], FloatArray],
    n_records: int,
    *,
    groups: IntArray | None = None,
    link: Link = "identity",
    level: float = 0.95,
    n_replicates: int = 400,
    seed: int = 0,
) -> Interval:
    """Bootstrap interval of a score that is a function of record weights.

    A replicate draws records (or whole groups) with replacement, which amounts to weighting
    each by the times it was drawn. The standard deviation over replicates is taken on the
    scale of `link`; the limits use Student's quantile with one degree of freedom less than
    there are units and the factor ``sqrt(units / (units - 1))``, without which few units
    give intervals that are too short. They depend smoothly on `level`, so that the high
    levels of a multiplicity correction do not rest on a few extreme replicates.

    Parameters
    ----------
    score
        Takes weights (n_replicates, n_records) and returns (n_replicates,); NaN where a
        replicate leaves it undefined.
    n_records
        Number of records the score speaks of.
    groups : (n_records,), optional
        Subject of each record; whole subjects are drawn.
    link
        Scale of the limits: "logit" for scores within 0 and 1, "log" for positive ones,
        "log_complement" for those below 1 such as R squared.
    level
        Two-sided confidence.
    n_replicates
        Number of replicates.
    seed
        Seed of the draws.

    Raises
    ------
    InputError
        If there are fewer than two records or groups.
    OptionError
        If `level` or `n_replicates` is out of range.

    Notes
    -----
    Where the score cannot vary (all replicates equal) the interval has no width.

    References
    ----------
    Efron and Tibshirani 1993, chapters 6, 12 and 14; Hesterberg 2015, What Teachers Should
    Know About the Bootstrap (the correction for few units).

    Examples
    --------
    >>> values = np.arange(100.0)
    >>> mean = lambda weights: weights @ values / weights.sum(axis=1)
    >>> interval = measure_bootstrap_interval(mean, 100)
    >>> interval.estimate, bool(43 < interval.lower < 45), bool(54 < interval.upper < 56)
    (49.5, True, True)
    """
    check_level(level)
    if n_replicates < 50:
        raise OptionError(f"n_replicates is {n_replicates}.", remedy="Use 50 or more.")
    if groups is None:
        codes, n_units = None, n_records
        if n_records < 2:
            raise InputError(
                f"A bootstrap needs 2 records, got {n_records}.", remedy="Use more records."
            )
    else:
        codes, n_units = _group_codes(groups, n_records)
    estimate = float(score(np.ones((1, n_records)))[0])
    replicates = np.concatenate(
        [score(w) for w in draw_weights(n_records, codes, n_units, n_replicates, seed)]
    )
    seen = replicates[np.isfinite(replicates)]
    clip = 0.5 / n_units
    spread = float(np.std(_to_link(seen, link, clip), ddof=1)) if len(seen) > 1 else np.nan
    reach = spread * float(stats.t.ppf(0.5 + level / 2, n_units - 1))
    reach *= float(np.sqrt(n_units / (n_units - 1)))
    centre = float(_to_link(np.array([estimate]), link, clip)[0])
    ends = _from_link(np.array([centre - reach, centre + reach]), link)
    method = "bootstrap" if groups is None else "grouped_bootstrap"
    # A score at its edge (an area of exactly 1) is clipped on the link's scale.
    lower, upper = min(float(ends.min()), estimate), max(float(ends.max()), estimate)
    return Interval(estimate, lower, upper, level, method)


def draw_weights(
    n_records: int, codes: IntArray | None, n_units: int, n_replicates: int, seed: int
) -> Iterator[FloatArray]:
    """Yield bootstrap weights, (some replicates, n_records), a bounded block at a time.

    Parameters
    ----------
    n_records
        Number of records.
    codes : (n_records,), optional
        Unit of each record, 0 .. n_units - 1; None when each record is a unit.
    n_units
        Number of units drawn in each replicate.
    n_replicates, seed
        Number of replicates and seed of the draws.
    """
    random = np.random.default_rng(seed)
    at_once = max(1, _CELLS_AT_ONCE // max(n_records, n_units))
    for start in range(0, n_replicates, at_once):
        rows = min(at_once, n_replicates - start)
        drawn = random.integers(0, n_units, (rows, n_units)) + np.arange(rows)[:, None] * n_units
        counts = np.bincount(drawn.ravel(), minlength=rows * n_units).reshape(rows, n_units)
        yield (counts if codes is None else counts[:, codes]).astype(np.float64)


def check_level(level: float) -> None:
    """Raise OptionError unless a confidence level lies strictly between 0 and 1."""
    if not 0 < level < 1:
        raise OptionError(f"level is {level}.", remedy="Use a number between 0 and 1, say 0.95.")


def _check_counts(n_hits: int, n_trials: int) -> None:
    if n_trials < 1 or not 0 <= n_hits <= n_trials:
        raise InputError(
            f"A proportion of {n_hits} in {n_trials} has no interval.",
            remedy="Give at least one trial and no more hits than trials.",
        )


def _wilson_limits(p: float, n: float, z: float) -> tuple[float, float]:
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * float(np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)))
    return max(0.0, min(p, middle - half)), min(1.0, max(p, middle + half))


def _group_codes(groups: IntArray, n_records: int) -> tuple[IntArray, int]:
    if len(groups) != n_records:
        raise InputError(
            f"groups has {len(groups)} entries for {n_records} records.",
            remedy="Give one group per record.",
        )
    kinds, codes = np.unique(groups, return_inverse=True)
    if len(kinds) < 2:
        raise InputError(
            f"An interval over groups needs 2 groups, got {len(kinds)}.",
            remedy="Use more groups, or leave groups out where records are independent.",
        )
    return codes, len(kinds)


def _to_link(values: FloatArray, link: Link, clip: float) -> FloatArray:
    if link == "logit":
        return np.asarray(special.logit(np.clip(values, clip, 1 - clip)))
    if link == "log":
        return np.log(np.maximum(values, np.finfo(float).tiny))
    if link == "log_complement":
        return np.log(np.maximum(1 - values, np.finfo(float).tiny))
    return values


def _from_link(values: FloatArray, link: Link) -> FloatArray:
    if link == "logit":
        return np.asarray(special.expit(values))
    if link == "log":
        return np.exp(values)
    if link == "log_complement":
        return 1 - np.exp(values)
    return values
