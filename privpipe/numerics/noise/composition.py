"""What several releases reveal together: zero-concentrated differential privacy.

Losses of rho add up (Bun and Steinke 2016, lemma 1.8), also where each size is chosen by what was
seen before (Feldman and Zrnic 2021). Gaussian noise of deviation sigma at sensitivity 1 has rho = 1
/ (2 sigma^2), the discrete one as well (Canonne, Kamath and Steinke 2020, theorem 4). Whatever has
(epsilon, delta) has epsilon^2 / 2, but for a chance of delta (Bun and Steinke, lemma 8.8). The
exact loss of Gaussian noise alone is a tenth less; see `gaussian.bound_epsilon`.
"""

import math

from scipy.optimize import minimize_scalar

ROUNDING = 1e-12
"""Of an epsilon, relative: more than its evaluation may be off."""


def find_rho(epsilon: float) -> float:
    """Rho of what has pure epsilon, or of noise whose deviation is 1 / epsilon, rounded up."""
    return math.nextafter(0.5 * epsilon * epsilon * (1 + ROUNDING), math.inf)


def convert_rho(rho: float, delta: float) -> float:
    """An epsilon that holds with delta, of a loss of rho; infinite where delta is not positive.

    Parameters
    ----------
    rho
        Not negative.
    delta
        Chance with which the epsilon may fail.

    Notes
    -----
    Guarantee: each order alpha above 1 gives an epsilon that holds, ``alpha rho + (log(1 / delta) +
    (alpha - 1) log(alpha - 1) - alpha log alpha) / (alpha - 1)``; the best of them is looked for,
    and where the search stops it holds as well.

    References
    ----------
    Canonne, Kamath and Steinke 2020, The Discrete Gaussian for Differential Privacy, corollary 13.

    Examples
    --------
    >>> round(convert_rho(0.01, 1e-6), 3), convert_rho(0.01, 0.0)
    (0.622, inf)
    """
    if not (rho < math.inf and delta > 0):
        return math.inf
    if rho == 0:
        return 0.0
    log = math.log(1 / delta)

    def bound(log_order: float) -> float:
        more = math.exp(log_order)  # alpha - 1
        rest = log / more + log_order - (1 + 1 / more) * math.log1p(more)
        return (1 + more) * rho + rest

    # Near the root of log(1 / delta) / rho, at which the simpler bound is least.
    middle = 0.5 * math.log(max(log, 1e-3) / rho)
    found = minimize_scalar(bound, bounds=(middle - 4, middle + 4), method="bounded")
    least = bound(float(found.x))
    return max(0.0, math.nextafter(least + ROUNDING * (abs(least) + 1), math.inf))
