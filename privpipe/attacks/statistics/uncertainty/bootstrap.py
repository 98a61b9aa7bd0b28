"""Bootstrap intervals of scores that are functions of record weights, by record or by group.

The interval is formed on a scale where the score's errors are near normal, with the corrections
that few records or groups need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import scipy
from scipy import special

from privpipe.attacks.statistics.uncertainty.intervals import (
    Interval,
    check_level,
    code_groups,
    find_limits,
)
from privpipe.errors import InputError, OptionError
from privpipe.protocols import FloatArray, IntArray

Link = Literal["identity", "logit", "log", "log_complement"]
"""Scale on which a bootstrap interval is symmetric: x, log x/(1-x), log x, log(1-x)."""

EXACT = 1e-9
"""What is nearer to 1 is 1: replicates of 0 and of rounding errors are far apart as logarithms, and
the lower limit of a perfect prediction was -1e138."""

_CELLS_AT_ONCE = 200_000
"""Replicates times records held at once (8 bytes each): they stay in a core's cache."""


def measure_bootstrap_interval(
    score: Callable[[FloatArray], FloatArray],
    n_records: int,
    *,
    groups: IntArray | None = None,
    link: Link = "identity",
    level: float = 0.95,
    also: Sequence[float] = (),
    n_replicates: int = 400,
    seed: int = 0,
    decisive: IntArray | None = None,
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
    level, also
        Two-sided confidence, and lower levels at which limits are kept as well.
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
    Where the score cannot vary (all replicates equal) the interval has no width, but for
    `decisive`: a few units that happen to be in order are in order in every replicate.

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
        codes, n_units = code_groups(groups, n_records)
    estimate = float(score(np.ones((1, n_records)))[0])
    replicates = np.concatenate(
        [score(w) for w in draw_weights(n_records, codes, n_units, n_replicates, seed)]
    )
    seen = replicates[np.isfinite(replicates)]
    clip = 0.5 / n_units
    spread = float(np.std(_to_link(seen, link, clip), ddof=1)) if len(seen) > 1 else np.nan
    centre = float(_to_link(np.array([estimate]), link, clip)[0])
    spread *= float(np.sqrt(n_units / (n_units - 1)))

    def limits(level: float) -> tuple[float, float]:
        reach = spread * float(scipy.stats.t.ppf(0.5 + level / 2, n_units - 1))
        ends = _from_link(np.array([centre - reach, centre + reach]), link)
        # A score at its edge (an area of exactly 1) is clipped on the link's scale.
        lower, upper = min(float(ends.min()), estimate), max(float(ends.max()), estimate)
        if decisive is None:
            return lower, upper
        most = float(np.mean(((1 - level) / 2) ** (1 / np.maximum(decisive, 1))))
        return min(lower, most), max(upper, 1 - most)

    method = "bootstrap" if groups is None else "grouped_bootstrap"
    return find_limits(estimate, limits, level, also, method)


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


def _to_link(values: FloatArray, link: Link, clip: float) -> FloatArray:
    if link == "logit":
        return np.asarray(special.logit(np.clip(values, clip, 1 - clip)))
    if link == "log":
        return np.log(np.maximum(values, np.finfo(float).tiny))
    if link == "log_complement":
        return np.log(np.maximum(1 - values, EXACT))
    return values


def _from_link(values: FloatArray, link: Link) -> FloatArray:
    if link == "logit":
        return np.asarray(special.expit(values))
    if link == "log":
        return np.exp(values)
    if link == "log_complement":
        return 1 - np.exp(values)
    return values
