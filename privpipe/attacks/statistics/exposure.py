"""Exposure: the share of records that an adversary claims rightly at few false alarms.

Averages hide a few records that are known for certain. Here the adversary claims a class only
where it is surest, and what counts is the true-positive rate at a small false-positive rate
(Carlini et al. 2022, Membership Inference Attacks From First Principles).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from privpipe.attacks.statistics.intervals import (
    Interval,
    code_groups,
    find_limits,
    limit_difference,
    limit_exactly,
    plan_effective,
)
from privpipe.protocols import BoolArray, FloatArray, IntArray


def measure_exposure(
    truth: IntArray,
    ranking: FloatArray,
    *,
    false_positive: float,
    groups: IntArray | None = None,
    level: float = 0.95,
    also: Sequence[float] = (),
    seed: int = 0,
) -> Interval:
    """True-positive rate at a false-positive rate, over all claims "this record is of class c".

    Every record is claimed for every class, most certainly where its ranking exceeds the class's
    median most. A claim of the true class is positive, any other negative; of two classes either
    may be the one that shows. The negative claims of a class weigh together as much as its
    positive ones, and what is unknown ranks in random order, so that a release that reveals nothing
    has a rate equal to the false-positive rate, however uneven the classes.

    Parameters
    ----------
    truth : (n_records,)
        Codes of the true classes, 0 .. n_classes - 1.
    ranking : (n_records, n_classes)
        The larger, the likelier the class, on one scale but for an offset per class. Of two
        classes their difference counts.
    false_positive
        Share of negative claims that may be made.
    groups : (n_records,), optional
        Subjects that share records; numbers of claims then become effective ones.
    level, also
        Two-sided confidence, and lower levels at which limits are found as well.
    seed
        Seed of the order of ties.

    Returns
    -------
    Interval
        NaN where there is no negative claim.

    Notes
    -----
    Two things are uncertain: where the threshold of the given rate lies (order statistics of the
    negative claims) and how many positive claims exceed it (Clopper and Pearson). The distances
    of both from the estimate are joined by their squares, as Zou and Donner do.

    References
    ----------
    Zou and Donner 2008, Construction of Confidence Limits About Effect Measures.

    Examples
    --------
    >>> truth = np.arange(4000) % 2
    >>> sure = np.where(np.arange(4000) < 200, truth - 0.5, 0.0)
    >>> found = measure_exposure(truth, np.column_stack([-sure, sure]), false_positive=0.001)
    >>> 0.045 < found.estimate < 0.055, found.lower > 0.03, found.upper < 0.07
    (True, True, True)
    """
    method = "ranks" if groups is None else "grouped_ranks"
    if len(np.unique(truth)) < 2:
        return Interval(np.nan, np.nan, np.nan, level, method)
    claims = _rank_claims(truth, ranking, false_positive, groups, seed)
    return find_limits(claims.estimate, claims.limits, level, also, method)


def measure_exposure_gain(
    truth: IntArray,
    ranking: FloatArray,
    known: FloatArray,
    *,
    false_positive: float,
    groups: IntArray | None = None,
    level: float = 0.95,
    also: Sequence[float] = (),
    seed: int = 0,
) -> Interval:
    """How much more is claimed rightly by one ranking than by another, of the same records.

    Parameters
    ----------
    truth, ranking, false_positive, groups, level, also, seed
        As `measure_exposure`.
    known : (n_records, n_classes)
        The ranking of who knows less.

    Returns
    -------
    Interval
        Of the difference of both true-positive rates, between -1 and 1.

    Notes
    -----
    Who is claimed rightly by both says nothing of the difference: the limits are those of the
    shares that one alone claims, joined by their squares with what both thresholds leave open. As
    far as both claim the same records their thresholds move together, else on their own.

    References
    ----------
    Zou and Donner 2008; Newcombe 1998, Improved Confidence Intervals for the Difference Between
    Binomial Proportions Based on Paired Data.
    """
    method = "ranks" if groups is None else "grouped_ranks"
    if len(np.unique(truth)) < 2:
        return Interval(np.nan, np.nan, np.nan, level, method)
    mine, theirs = (
        _rank_claims(truth, one, false_positive, groups, seed) for one in (ranking, known)
    )
    estimate = mine.estimate - theirs.estimate

    def limits(level: float) -> tuple[float, float]:
        down, up = limit_difference(mine.shown, theirs.shown, groups, level)
        below, above = _vary_thresholds(mine, theirs, (1 - level) / 2)
        lower = estimate - np.hypot(estimate - down, below)
        upper = estimate + np.hypot(up - estimate, above)
        return max(-1.0, float(lower)), min(1.0, float(upper))

    return find_limits(estimate, limits, level, also, method)


def _vary_thresholds(mine: _Claims, theirs: _Claims, tail: float) -> tuple[float, float]:
    """How far below and above the estimate a difference lies where both thresholds may be."""
    both = int((mine.shown & theirs.shown).sum())
    alike = both / max(int(mine.shown.sum()), int(theirs.shown.sum()), 1)
    (down, up), (their_down, their_up) = mine.vary(tail), theirs.vary(tail)
    moved = (their_down - down, up - their_up)  # both thresholds early, both late
    apart = float(np.sqrt(1 - alike**2))
    below = np.hypot(max(0.0, *(-one for one in moved)), apart * np.hypot(down, their_up))
    above = np.hypot(max(0.0, *moved), apart * np.hypot(up, their_down))
    return float(below), float(above)


def plan_null_exposure(n_records: int, n_classes: int, rate: float, level: float) -> float:
    """Upper limit of the exposure of a release that reveals nothing, beyond the rate itself.

    Parameters
    ----------
    n_records
        Test records, of classes of one size.
    n_classes, rate, level
        As `measure_exposure`.
    """
    n_negative = n_records * (n_classes - 1)
    steps = np.arange(n_negative + 1)
    claims = _Claims(
        np.asarray(np.round(steps * (n_records / n_negative)), np.int64),
        steps / n_negative,
        n_records,
        rate,
        float(n_records),
        float(n_negative),
        np.zeros(n_records, np.bool_),
    )
    return (claims.limits(level)[1] - rate) / (1 - rate)


@dataclass(frozen=True, eq=False)
class _Claims:
    """Positive claims above each negative one, and how many independent ones they are worth.

    Parameters
    ----------
    above : (n_negative + 1,)
        Positive claims above the j-th highest negative one; none above the 0-th.
    weight : (n_negative + 1,)
        Share of the negative claims down to the j-th.
    n_positive
        Positive claims.
    allowed
        False-positive rate.
    real_positive, real_negative
        Effective numbers of claims.
    shown : (n_records,)
        Whether the positive claim of a record is above the threshold.
    """

    above: IntArray
    weight: FloatArray
    n_positive: int
    allowed: float
    real_positive: float
    real_negative: float
    shown: BoolArray

    def rate(self, j: int) -> float:
        """True-positive rate with the threshold at the j-th highest negative claim."""
        return float(self.above[min(max(j, 0), len(self.above) - 1)]) / self.n_positive

    @property
    def estimate(self) -> float:
        return self.rate(int(np.searchsorted(self.weight, self.allowed + _ROUNDING, "right")))

    def vary(self, tail: float) -> tuple[float, float]:
        """How far below and above the estimate the rate lies where the threshold may be."""
        early, late = self._thresholds(tail)
        found = self.estimate
        return max(0.0, found - self.rate(early)), max(0.0, self.rate(late) - found)

    def limits(self, level: float) -> tuple[float, float]:
        found = self.estimate
        below, above = self.vary((1 - level) / 2)
        # Of an effective number of claims, which need not be whole.
        low, high = limit_exactly(found * self.real_positive, self.real_positive, level)
        lower = found - np.hypot(below, found - low)
        upper = found + np.hypot(above, high - found)
        return max(0.0, float(lower)), min(1.0, float(upper))

    def _thresholds(self, tail: float) -> tuple[int, int]:
        """Negative claims by which the rate is surely not yet, and surely reached."""
        n = max(1, int(self.real_negative))
        fewest = int(scipy.stats.binom.ppf(tail, n, self.allowed))
        if scipy.stats.binom.cdf(fewest, n, self.allowed) > tail:
            fewest -= 1  # the j-th lies beyond the rate when fewer than j negatives are within
        most = int(scipy.stats.binom.isf(tail, n, self.allowed)) + 1
        early = np.searchsorted(self.weight, (fewest + 1) / n + _ROUNDING, "right") - 1
        late = np.searchsorted(self.weight, min(most / n, 1.0) - _ROUNDING, "left")
        return int(early), int(late)


_ROUNDING = 1e-9
"""Of sums of weights."""


def _rank_claims(
    truth: IntArray, ranking: FloatArray, allowed: float, groups: IntArray | None, seed: int
) -> _Claims:
    """All claims of records of at least two classes."""
    n, k = ranking.shape
    if k == 2:
        margin = ranking[:, 1] - ranking[:, 0]
        # Of two classes one number ranks for both: who is surely not the one is surely the other.
        ranking = np.column_stack([-margin, margin])
    is_true = truth[:, None] == np.arange(k)
    sizes = is_true.sum(axis=0)
    place = _order(ranking - np.median(ranking, axis=0), seed)
    order = np.argsort(-place[~is_true])
    negative = place[~is_true][order]
    # The negative claims of a class weigh together as much as its positive ones.
    shares = np.broadcast_to(sizes / n / (n - sizes), (n, k))[~is_true][order]
    above = np.concatenate([[0], n - np.searchsorted(np.sort(place[is_true]), negative)])
    weight = np.concatenate([[0.0], np.cumsum(shares)])
    made = place > negative[np.searchsorted(weight[1:], allowed + _ROUNDING, "right")]
    # Kish's effective number of claims of unequal weight; the weights add up to 1.
    real = 1 / float(shares @ shares)
    claims = _Claims(above, weight, n, allowed, float(n), real, made[is_true])
    if groups is None:
        return claims
    codes, n_groups = code_groups(groups, n)
    subject = np.broadcast_to(codes[:, None], (n, k))[~is_true]
    # Records of one subject are alike: their claims are worth fewer independent ones.
    alike = plan_effective(made[~is_true], subject, n_groups) / len(negative)
    effective = plan_effective(made[is_true], codes, n_groups)
    return replace(claims, real_positive=effective, real_negative=real * alike)


def _order(values: FloatArray, seed: int) -> IntArray:
    """Place of every claim among all, the surest last, equal ones in random order."""
    flat = values.ravel()
    place = np.empty(flat.size, np.int64)
    # Ties in random order: in that of the records a sorted collection would seem exposed.
    place[np.lexsort((np.random.default_rng(seed).random(flat.size), flat))] = np.arange(flat.size)
    return place.reshape(values.shape)
