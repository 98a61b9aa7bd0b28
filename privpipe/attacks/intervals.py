"""Intervals of proportions: Wilson and Clopper-Pearson, and Wilson's where records share subjects.

For scores that are no proportions see `bootstrap`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from privpipe.errors import InputError, OptionError
from privpipe.protocols import BoolArray, IntArray

__all__ = [
    "Interval",
    "check_level",
    "code_groups",
    "measure_exact_interval",
    "measure_grouped_wilson_interval",
    "measure_wilson_interval",
]


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
    codes, n_groups = code_groups(groups, len(hits))
    p = float(hits.mean())
    sizes = np.bincount(codes)
    departure = np.bincount(codes, weights=hits.astype(np.float64)) - p * sizes
    variance = n_groups / (n_groups - 1) * float(departure @ departure) / len(hits) ** 2
    # Without any spread (all hits, or none) a group counts as one trial.
    effective = p * (1 - p) / variance if variance > 0 else float(n_groups)
    quantile = float(stats.t.ppf(0.5 + level / 2, n_groups - 1))
    lower, upper = _wilson_limits(p, min(effective, len(hits)), quantile)
    return Interval(p, lower, upper, level, "grouped_wilson")


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


def code_groups(groups: IntArray, n_records: int) -> tuple[IntArray, int]:
    """Codes 0 .. n_groups - 1 of the groups, and their number; InputError below two."""
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
