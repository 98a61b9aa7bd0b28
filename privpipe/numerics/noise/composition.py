"""What several releases reveal together, also where each size is chosen by what was seen before.

Losses of a Renyi order add up (Feldman and Zrnic 2021), if the order is fixed. Here the limit fixes
it. Gaussian noise of deviation sigma at unit sensitivity loses ``alpha rho``, with
``rho = 1 / (2 sigma^2)``. The discrete one does as well (Canonne, Kamath and Steinke 2020, theorem
4). What has a pure epsilon loses at most what randomised response does (Kairouz, Oh and Viswanath
2015). The exact loss of Gaussian noise alone is a tenth less; see `gaussian.bound_epsilon`.
"""

import math
from collections.abc import Sequence

from scipy.optimize import brentq

ROUNDING = 1e-12
"""Of an epsilon, relative: more than its evaluation may be off."""


def find_rho(epsilon: float) -> float:
    """Half the square of an epsilon, or rho of noise of deviation 1 / epsilon, rounded up."""
    return math.nextafter(0.5 * epsilon * epsilon * (1 + ROUNDING), math.inf)


def convert_rho(
    rho: float, delta: float, pure: Sequence[tuple[float, float]] = (), ahead: float = 1.0
) -> float:
    """Least limit of epsilon that losses keep with delta; infinite where delta is not positive.

    Parameters
    ----------
    rho
        Sum over Gaussian draws, not negative.
    delta
        Chance with which the epsilon may fail.
    pure
        Of each class of other draws their number, and half the sum of their squared epsilons.
    ahead
        At least 1. The order less 1 is so many times the best one for Gaussian noise that uses the
        limit up. A larger one is better for few draws of large epsilons.

    Notes
    -----
    Guarantee: a loss of order alpha is an epsilon, at any delta (Canonne, Kamath and Steinke 2020,
    corollary 13). What is returned passes at its own order, and so does any larger limit: PROOF.md.
    Of a class with unequal epsilons the loss is concave in the squares: their mean bounds it.

    Examples
    --------
    >>> round(convert_rho(0.01, 1e-6), 3), convert_rho(0.01, 0.0)
    (0.622, inf)
    >>> round(convert_rho(0.0, 1e-6, [(365, 365 * 0.5 * 0.1**2)]), 1)
    11.0
    """
    drawn = [(n, math.sqrt(2 * half / n)) for n, half in pure if half > 0]
    if not (max([rho, *(epsilon for _, epsilon in drawn)]) < math.inf and delta > 0):
        return math.inf
    if rho == 0 and not drawn:
        return 0.0
    log = math.log(1 / delta)

    def add(more: float) -> float:  # more is alpha - 1
        return log / more + math.log(more) - (1 + 1 / more) * math.log1p(more)

    def bound(log_more: float) -> float:
        more = math.exp(log_more)
        return add(more) + (1 + more) * (log - math.log1p(more)) / more**2

    def exceed(log_more: float) -> float:
        more = ahead * math.exp(log_more)
        lost = (1 + more) * rho
        for n, epsilon in drawn:
            size, one = more * epsilon, epsilon
            if size < 700:
                ratio = 2 * math.sinh(size / 2) ** 2 + math.sinh(size) * math.tanh(epsilon / 2)
                one = math.log1p(ratio) / more
            lost += n * one
        return lost * (1 + ROUNDING) + add(more) - bound(log_more)

    most = math.log(math.expm1(log))
    found = most if exceed(most) <= 0 else float(brentq(exceed, -40.0, most)) - 1e-9
    least = bound(found)
    return max(0.0, math.nextafter(least + ROUNDING * (abs(least) + 1), math.inf))
