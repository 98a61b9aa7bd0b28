"""Bounds about the law behind the counts: means and shares.

Means are bounded from counts of values by betting (Waudby-Smith and Ramdas 2024). Betting adapts
to the variance and to the range on the side that matters. Many shares at once are bounded by
Chernoff's bound in relative entropy (Hoeffding 1963, Theorem 1).
"""

import math

import numpy as np

from privpipe.protocols import FloatArray

_BISECTIONS = 60
# Multiples of the stake that is best for the expected variance, and their shares.
_STAKES = ((1.0, 0.5), (0.5, 0.25), (2.0, 0.25))
# Of the largest stake with which the wealth cannot become negative.
_MOST_STAKED = 0.75


def bound_mean(
    values: FloatArray, counts: FloatArray, highest: float, variance: float, miss: float
) -> float:
    """Upper bound on a mean by betting against every smaller one.

    Parameters
    ----------
    values : any shape
        What the variable takes.
    counts : the same shape
        Independent records of each value.
    highest
        No record has a larger value; known before the records.
    variance
        A guess of the variance, made before the records; a bad one widens the bound alone.
    miss
        Probability with which the bound may fail.

    Returns
    -------
    bound
        At most `highest`.

    Notes
    -----
    Guarantee: the mean is at most the bound with probability ``1 - miss``, for any law. If the mean
    is mu, the wealth ``prod(1 + stake (mu - value))`` is never negative and has expectation 1. So
    has a mixture over stakes. By Markov's inequality this reaches ``1 / miss`` with probability at
    most `miss`. It grows with mu; bisection ends on the safe side.

    References
    ----------
    Waudby-Smith and Ramdas 2024, Estimating means of bounded random variables by betting, section 4
    (here with stakes that are fixed in advance, so that the order of records is of no account).
    """
    used = counts > 0
    y, n_each = values[used], counts[used]
    n, log = float(n_each.sum()), math.log(1 / miss)
    if n == 0:
        return highest
    # The stake that is best for a normal law of this variance; a bad guess only widens the bound.
    stake = math.sqrt(2 * log / (n * max(variance, 1e-300)))
    low, high = float(min(y.min(), highest)), highest
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        # A mean at which the bets win so much is refuted. Ends at `high`, which is not: safe.
        rich = _log_wealth(y, n_each, middle, highest, stake) >= log
        low, high = (low, middle) if rich else (middle, high)
    return high


def _log_wealth(y: FloatArray, counts: FloatArray, mean: float, top: float, stake: float) -> float:
    """Logarithm of the mixed wealth of bets that the mean is smaller than `mean`."""
    # 1 + stake (mean - top) must not reach 0, or one record could end the game.
    most = _MOST_STAKED / max(top - mean, 1e-300)
    logs = [
        math.log(share) + float((counts * np.log1p(min(stake * factor, most) * (mean - y))).sum())
        for factor, share in _STAKES
    ]
    return float(np.logaddexp.reduce(logs))


def bound_shares(shares: FloatArray, n_records: float, miss: float, *, upper: bool) -> FloatArray:
    """Bounds on means of variables between 0 and 1, each with its own chance to fail.

    Parameters
    ----------
    shares : any shape
        Means of ``n_records`` independent records.
    n_records
    miss
        Probability with which any one bound may fail.
    upper
        Upper or lower bounds.

    Notes
    -----
    Guarantee: by Hoeffding 1963, Theorem 1 (first line): ``n kl(share, mean) > log(1 / miss)`` on
    either side has at most that probability. Bisection ends on the side that is safe.
    """
    farthest = math.log(1 / miss) / n_records
    near, far = shares.astype(np.float64), np.full(shares.shape, 1.0 if upper else 0.0)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (near + far)
        inside = _relative_entropy(shares, middle) <= farthest
        # `far` stays outside: a bound must not be too near.
        near, far = np.where(inside, middle, near), np.where(inside, far, middle)
    return far


def _relative_entropy(p: FloatArray, q: FloatArray) -> FloatArray:
    """Of Bernoulli variables, nats."""
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(p > 0, p * np.log(p / q), 0.0)
        second = np.where(p < 1, (1 - p) * np.log((1 - p) / (1 - q)), 0.0)
    return np.asarray(np.nan_to_num(first + second, nan=np.inf))
