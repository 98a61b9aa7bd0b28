"""Privacy amplification by shuffling: what a random order adds to local differential privacy."""

import math

import numpy as np
import scipy

from privpipe.protocols import FloatArray, IntArray

LARGEST = 30.0
"""Epsilon beyond which no number of records hides one."""

MOST_COUNTS = 4096
"""Numbers of clones that are summed over, at most; of a run of them the least counts."""


def amplify_by_shuffling(
    epsilon: float, n_records: int, delta: float, *, draw_delta: float = 0.0
) -> float:
    """Least epsilon of the whole release, of records that are shuffled and then randomised.

    Parameters
    ----------
    epsilon
        Of each record's own draw, by the same law for all.
    n_records
        Records of the release, all in one random order.
    delta
        Of the whole.
    draw_delta
        Of each record's own draw, 0 where it is pure.

    Returns
    -------
    central
        Epsilon with `delta` about replacing one record, for whoever sees the whole release and does
        not know the order; never above `epsilon`.

    Notes
    -----
    Guarantee: Feldman, McMillan and Talwar 2023 (Stronger Privacy Amplification by Shuffling,
    theorem 3.1). Each other record is with probability ``2 / (e**epsilon + 1)`` a clone of one of
    the two records that are to be distinguished. So the pair of releases is a post-processing of
    two pairs of counts. They are ``(A + D, C - A + 1 - D)`` and ``(A + 1 - D, C - A + D)``. There C
    is binomial of the others, A of C and 1/2, and D is 1 with odds ``e**epsilon``. Their divergence
    is summed here, not bounded. `draw_delta` costs at most ``1.5 (e**epsilon + 1)`` times itself
    for each record. That is theorem 3.8 of their paper of 2021.

    Examples
    --------
    >>> round(amplify_by_shuffling(2.0, 100_000, 1e-7), 3)
    0.039
    """
    if n_records < 2 or epsilon > LARGEST:
        return epsilon
    left = delta - 1.5 * (math.exp(epsilon) + 1) * n_records * draw_delta

    def exceeds(central: float) -> float:
        return _measure_divergence(central, epsilon, n_records) - left

    if exceeds(epsilon) > 0:
        return epsilon
    if exceeds(0.0) <= 0:
        return 0.0
    return min(epsilon, float(scipy.optimize.brentq(exceeds, 0.0, epsilon, xtol=1e-9)) + 1e-9)


def _measure_divergence(central: float, epsilon: float, n_records: int) -> float:
    """Delta at an epsilon of the whole: an upper bound, of which rounding over counts is all."""
    others = scipy.stats.binom(n_records - 1, 2 / (math.exp(epsilon) + 1))
    low, high = others.ppf(1e-18), others.isf(1e-18)
    edges = np.unique(np.linspace(low, high + 1, MOST_COUNTS + 1).astype(np.int64))
    # Fewer clones hide less: all of a run count as its least.
    masses = np.diff(others.cdf(edges - 1))
    return float(masses @ _diverge(edges[:-1], central, epsilon) + others.cdf(low - 1) + 1e-18)


def _diverge(clones: IntArray, central: float, epsilon: float) -> FloatArray:
    """Divergence of the two counts, given how many clones there are."""
    # Apart: what is left of 1 by a difference is rounding, from epsilon 20.
    total, high, low = clones + 1, 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    # The ratio of the two laws at count k rises with k: it is above e**central beyond one count.
    rate = math.exp(central)
    first = np.floor(total * ((high * rate - low) / ((high - low) * (1 + rate))))
    above = scipy.stats.binom.sf(first - 1, clones, 0.5), scipy.stats.binom.sf(first, clones, 0.5)
    one, other = (p * above[0] + q * above[1] for p, q in ((high, low), (low, high)))
    return np.asarray(np.maximum(0.0, one - rate * other))
