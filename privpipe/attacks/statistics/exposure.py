"""True-positive rates at few false positives: the few records that are known for certain.

Averages hide them: here the adversary claims a class only where it is surest (Carlini et al. 2022,
Membership Inference Attacks From First Principles).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat, starmap

import numpy as np
import scipy

from privpipe.attacks.statistics import intervals
from privpipe.attacks.statistics.intervals import Confidence, Interval
from privpipe.protocols import BoolArray, FloatArray, IntArray


def measure_exposures(
    truth: IntArray,
    ranking: FloatArray,
    rates: Sequence[float],
    confidence: Confidence = intervals.USUAL,
    *,
    cells: IntArray | None = None,
    baseline: tuple[FloatArray, IntArray] | None = None,
) -> list[Interval]:
    """True-positive rates at false-positive rates, over all claims "this record is of class c".

    Every record is claimed for every class, most certainly where its ranking exceeds the class's
    median most. A claim of the true class is positive, any other negative; of two classes either
    may be the one that shows. The negative claims of a class weigh together as much as its
    positive ones, and what is unknown ranks in random order. So a release that reveals nothing has
    a rate equal to the false-positive rate, however uneven the classes.

    Parameters
    ----------
    truth : (n_records,)
        Codes of the true classes, 0 .. n_classes - 1.
    ranking : (n_records, n_classes)
        The larger, the likelier the class, on one scale but for an offset per class. Of two
        classes their difference counts.
    rates
        Shares of negative claims that may be made: claims are sorted once for all.
    confidence
        Level, and groups; numbers of claims of these become effective ones. Its seed orders ties.
    cells : (n_records,), optional
        Of records among which a ranking counts, as of one fold and target. Medians and weights are
        those of a cell, so that what sets cells apart claims nothing.
    baseline : (n_records, n_classes) and (n_records,), optional
        Another ranking, whose rate is subtracted, and codes of records that are compared as one;
        subjects are in any case.

    Returns
    -------
    intervals
        Of each rate; NaN where no cell holds two classes.

    Notes
    -----
    Two things are uncertain. One is where the threshold of the given rate lies (gamma limits of a
    sum of weights). The other is how many positive claims exceed it (Clopper and Pearson). The
    distances of both from the estimate are joined by their squares, as Zou and Donner do. Where one
    wrong claim of a rare class weighs more than the rate, nothing is known of the threshold and the
    lower limit is 0. The estimate is then too large.

    Rankings of cells stay on one scale: a few exposed records that share a cell are the surest
    claims of all.

    References
    ----------
    Zou and Donner 2008, Construction of Confidence Limits About Effect Measures; Fay and Feuer
    1997, Confidence Intervals for Directly Standardized Rates; Janes and Pepe 2009 (cells);
    Newcombe 1998 (limits of correlated rates).

    Examples
    --------
    >>> truth = np.arange(4000) % 2
    >>> sure = np.where(np.arange(4000) < 200, truth - 0.5, 0.0)
    >>> [found] = measure_exposures(truth, np.column_stack([-sure, sure]), [0.001])
    >>> 0.045 < found.estimate < 0.055, found.lower > 0.03, found.upper < 0.07
    (True, True, True)
    """
    if len(np.unique(truth)) < 2:
        return [_find_nothing(confidence) for _ in rates]
    where = np.zeros(len(truth), np.int64) if cells is None else cells
    ranked = _rank_claims(truth, ranking, where, rates, confidence)
    if not ranked[0].weight[-1]:  # every cell holds one class alone
        return [_find_nothing(confidence) for _ in rates]
    if baseline is None:
        return [confidence.find(one.estimate, one.limits, "ranks") for one in ranked]
    others = _rank_claims(truth, baseline[0], where, rates, confidence)
    groups = confidence.groups
    units = baseline[1] if groups is None else intervals.code_groups(groups, len(groups))[0]
    return [_subtract(*both, units, confidence) for both in zip(ranked, others, strict=True)]


def _subtract(
    claims: "_Claims", others: "_Claims", units: IntArray, confidence: Confidence
) -> Interval:
    """What one rate is above another of the same records."""
    mine, theirs = (np.bincount(units, one.made) for one in (claims, others))
    varies = np.ptp(mine) > 0 and np.ptp(theirs) > 0
    alike = max(0.0, float(np.corrcoef(mine, theirs)[0, 1])) if varies else 0.0

    def limits(level: float) -> tuple[float, float]:
        first, second = ((one.estimate, *one.limits(level)) for one in (claims, others))
        return intervals.limit_subtraction(first, second, alike)

    return confidence.find(claims.estimate - others.estimate, limits, "ranks")


def _find_nothing(confidence: Confidence) -> Interval:
    return confidence.find(np.nan, lambda _: (np.nan, np.nan), "ranks")


def plan_null_exposure(
    n_records: int, n_classes: int, rate: float, level: float, even: float = 1.0
) -> float:
    """Upper limit of the exposure of a release that reveals nothing, beyond the rate itself.

    Parameters
    ----------
    n_records
        Test records, of classes of one size.
    n_classes, rate, level
        As `measure_exposures`.
    even
        Share of the negative claims that this many count as, where classes or cells are uneven.
    """
    n_negative = max(2, round(n_records * (n_classes - 1) * even))
    steps, share = np.arange(n_negative + 1), 1 / n_negative
    above = np.asarray(np.round(steps * (n_records / n_negative)), np.int64)
    real = float(n_records), share
    spread, made = steps * share**2, np.zeros(0, np.bool_)
    claims = _Claims(above, steps * share, spread, n_records, rate, *real, made)
    return (claims.limits(level)[1] - rate) / (1 - rate)


@dataclass(frozen=True, eq=False)
class _Claims:
    """Positive claims above each negative one, and how many independent ones they are worth.

    Parameters
    ----------
    above : (n_negative + 1,)
        Positive claims above the j-th highest negative one; none above the 0-th.
    weight, spread : (n_negative + 1,)
        Share of the negative claims down to the j-th, and the sum of its squares by subject.
    n_positive
        Positive claims.
    allowed
        False-positive rate.
    real_positive
        Effective number of positive claims.
    heaviest
        What one independent negative claim weighs at most.
    made : (n_positive,)
        Which positive claims exceed the allowed rate.
    """

    above: IntArray
    weight: FloatArray
    spread: FloatArray
    n_positive: int
    allowed: float
    real_positive: float
    heaviest: float
    made: BoolArray

    def rate(self, j: int) -> float:
        """True-positive rate with the threshold at the j-th highest negative claim."""
        return float(self.above[min(j, len(self.above) - 1)]) / self.n_positive

    @property
    def estimate(self) -> float:
        return self.rate(int(np.searchsorted(self.weight, self.allowed + _ROUNDING, "right")))

    def limits(self, level: float) -> tuple[float, float]:
        found, tail = self.estimate, (1 - level) / 2
        # Negative claims by which the rate is surely not yet, and surely reached.
        places = range(len(self.weight))
        early = bisect_left(places, True, key=lambda j: self._share_above(j, tail) > self.allowed)
        late = bisect_left(places, True, key=lambda j: self._share_below(j, tail) >= self.allowed)
        # Of an effective number of claims, which need not be whole.
        low, high = intervals.limit_exactly(found * self.real_positive, self.real_positive, level)
        lower = found - np.hypot(max(0.0, found - self.rate(early)), found - low)
        upper = found + np.hypot(max(0.0, self.rate(late) - found), high - found)
        return max(0.0, float(lower)), min(1.0, float(upper))

    def _share_above(self, j: int, tail: float) -> float:
        """Largest share that may be behind so many negative claims (Fay and Feuer)."""
        # One claim more, the heaviest: none of a rare class may have been seen by chance.
        mean, spread = self.weight[j] + self.heaviest, self.spread[j] + self.heaviest**2
        return float(scipy.special.gammainccinv(mean**2 / spread, tail) * spread / mean)

    def _share_below(self, j: int, tail: float) -> float:
        """Smallest share that may be behind them."""
        if not self.weight[j]:
            return 0.0
        mean, spread = self.weight[j], self.spread[j]
        return float(scipy.special.gammaincinv(mean**2 / spread, tail) * spread / mean)


_ROUNDING = 1e-9
"""Of sums of weights."""


LEAST_NEAR = 20
"""Negative claims near the threshold whose subjects are looked at, at least."""


def _rank_claims(
    truth: IntArray,
    ranking: FloatArray,
    cells: IntArray,
    rates: Sequence[float],
    confidence: Confidence,
) -> list[_Claims]:
    """All claims of records of at least two classes, at each rate."""
    n, k = ranking.shape
    if k == 2:
        margin = ranking[:, 1] - ranking[:, 0]
        # Of two classes one number ranks for both: who is surely not the one is surely the other.
        ranking = np.column_stack([-margin, margin])
    is_true = truth[:, None] == np.arange(k)
    columns = zip(ranking.T, is_true.T, repeat(cells))
    centred, shares = map(np.column_stack, zip(*starmap(_centre, columns), strict=True))
    place = _order(centred, confidence.seed)
    order = np.argsort(-place[~is_true])
    negative = place[~is_true][order]
    # The negative claims of a class weigh together as much as its positive ones.
    shares = (shares / n)[~is_true][order]
    above = np.concatenate([[0], n - np.searchsorted(np.sort(place[is_true]), negative)])
    above = np.minimum(above, np.isfinite(centred[is_true]).sum())  # the others are not claimed
    weight = np.concatenate([[0.0], np.cumsum(shares)])
    spread = np.concatenate([[0.0], np.cumsum(shares**2)])
    ends = np.searchsorted(weight[1:], np.array(rates) + _ROUNDING, "right").tolist()
    made = [place[is_true] > negative[min(end, len(negative) - 1)] for end in ends]
    heaviest = float(shares.max(initial=0.0))
    pairs, law = zip(rates, made, strict=True), (above, weight, spread, n)
    found = [_Claims(*law, allowed, float(n), heaviest, one) for allowed, one in pairs]
    if confidence.groups is None:
        return found
    codes, n_groups = intervals.code_groups(confidence.groups, n)
    subject = np.broadcast_to(codes[:, None], (n, k))[~is_true][order]
    joint = np.concatenate([[0.0], np.cumsum(shares * (2 * _sum_before(shares, subject) + shares))])
    # Records of one subject are alike: their claims come together.
    near = [min(max(LEAST_NEAR, end), len(negative)) for end in ends]
    alike = [heaviest * joint[j] / max(spread[j], np.finfo(float).tiny) for j in near]
    effective = [intervals.plan_effective(one, codes, n_groups) for one in made]
    return [
        replace(one, spread=joint, real_positive=real, heaviest=float(weighs))
        for one, real, weighs in zip(found, effective, alike, strict=True)
    ]


def _sum_before(values: FloatArray, codes: IntArray) -> FloatArray:
    """Sum of the values of the same code before each."""
    order = np.argsort(codes, kind="stable")
    sums = np.cumsum(values[order]) - values[order]
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    found = np.empty(len(values))
    found[order] = sums - np.repeat(sums[starts], np.diff(np.append(starts, len(values))))
    return np.maximum(found, 0.0)


def _centre(value: FloatArray, true: BoolArray, cells: IntArray) -> tuple[FloatArray, FloatArray]:
    """Rankings for one class less the median of their cell, and what a negative claim weighs."""
    _, codes, sizes = np.unique(cells, return_inverse=True, return_counts=True)
    order, ends = np.lexsort([value, codes]), np.cumsum(sizes)
    low, high = (order[ends - sizes + half] for half in ((sizes - 1) // 2, sizes // 2))
    middle = (value[low] + value[high]) / 2
    positive = np.bincount(codes, true)
    odds = positive / np.maximum(sizes - positive, 1)
    # Where a cell holds one class alone nothing is claimed: it would be right for no reason.
    mixed = (positive > 0) & (positive < sizes)
    return np.where(mixed[codes], value - middle[codes], -np.inf), odds[codes]


def _order(values: FloatArray, seed: int) -> IntArray:
    """Place of every claim among all, the surest last, equal ones in random order."""
    flat = values.ravel()
    place = np.empty(flat.size, np.int64)
    # Ties in random order: in that of the records a sorted collection would seem exposed.
    place[np.lexsort((np.random.default_rng(seed).random(flat.size), flat))] = np.arange(flat.size)
    return place.reshape(values.shape)
