"""A robust bound on information: the worst law of a ball around the counts, by its dual.

The ball holds every law p with ``KL(counts / n || p) <= radius``, whatever mapping was chosen after
the records were seen. Its radius comes from the number of cells and records (Agrawal 2020, Theorem
1.2: ``E exp(t n KL) <= (1 - t)**(1 - cells)``).

With ``c = counts / n`` seen through the mapping as masses ``m``, the information under p is at
most the mean of known gains (see `held_out_information`) and a divergence ``sum m phi(p / m)``.
The largest mean of the gains has the dual ``min_v v - exp(sum m log(v - gain) - radius)``, of
which any v above all gains is a bound (Bertsimas, Gupta and Kallus 2018, on likelihood balls).
The divergence is at most ``k * radius``, since each cell has ``phi(x) <= k psi(x)``, ``psi(x) = x -
1 - log x``, wherever x can be: ``m psi(x) <= radius`` in every cell alone, and ``phi / psi`` grows
with x.
"""

import math

import numpy as np
from scipy.optimize import minimize_scalar

from privpipe.numerics.mapping.held_out_information import measure_gains
from privpipe.protocols import FloatArray

_BISECTIONS = 200
# Cells below such a share of all may count as rare: the least of the bounds is taken.
_SHARES = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)


def find_radius(n_cells: int, n_records: float, miss: float) -> float:
    """Radius in nats of a ball around the counts that misses the true law so rarely.

    Parameters
    ----------
    n_cells
        Cells that the law may give mass to, fixed before the records are seen.
    n_records
        Independent records.
    miss
        Probability that the law is outside.

    References
    ----------
    Agrawal 2020, Finite-sample concentration of the multinomial in relative entropy, Theorem 1.2.

    Examples
    --------
    >>> round(10_000 * find_radius(2, 10_000, 0.05), 2)
    5.74
    """
    free = max(n_cells - 1, 1)
    return _solve_excess(math.log(1 / miss) / free) * free / n_records


# Agrawal 2020: log P(n KL > x free) <= -free (x - 1 - log x) once its t is the best, 1 - 1 / x.
def _solve_excess(target: float) -> float:
    """The x above 1 with ``x - 1 - log x = target``, from above: a larger x is a wider bound."""
    low, high = 1.0, 2.0
    while high - 1 - math.log(high) < target:
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        short = middle - 1 - math.log(middle) < target
        low, high = (middle, high) if short else (low, middle)
    return high


def bound_over_ball(masses: FloatArray, prior: FloatArray, radius: float) -> float:
    """Upper bound on the information of every law of a ball, nats.

    Parameters
    ----------
    masses : (n_private, n_symbols)
        Released masses of the centre: the counts seen through the mapping.
    prior : (n_private,)
        All positive, of sum at most 1: entropies are counted from it.
    radius
        Largest divergence of the counts from a law, nats; it may only shrink through the mapping.

    Returns
    -------
    bound
        At most the logarithm of the number of private values.
    """
    # Every share gives a bound, fixed before the records: the least of them holds, too.
    most = math.log(len(masses))
    return min([most, *(_bound(masses, prior, radius, share) for share in _SHARES)])


def find_needed_records_of_ball(
    masses: FloatArray, prior: FloatArray, target: float, n_cells: float, miss: float
) -> float:
    """About how many records bring the bound over the ball down to a target.

    Parameters
    ----------
    masses, prior
        As of `bound_over_ball`.
    target
        Nats.
    n_cells
        That the law may give mass to.
    miss
        Probability that the law is outside.

    Returns
    -------
    n_records
        At least the cells, within a tenth; infinite where the masses themselves reveal more, or the
        cells are not counted.
    """
    if not math.isfinite(n_cells):
        return math.inf
    for n in np.geomspace(max(100.0, n_cells), 1e12 * max(1.0, n_cells / 100), 243):
        if bound_over_ball(masses, prior, find_radius(int(n_cells), n, miss)) <= target:
            return float(math.ceil(n))
    return math.inf


def _bound(masses: FloatArray, prior: FloatArray, radius: float, least: float) -> float:
    """The bound where cells of less than `least` of the mass count as rare."""
    common = np.where((masses > least) & (masses > 0), masses, 0.0)
    gains = measure_gains(common, prior)
    mean = bound_mean_over_ball(gains, masses, radius)
    # psi of a cell is at most radius / mass: the smallest cell has the widest ratio.
    cells = common[common > 0]
    return mean + (_largest_ratio(radius / float(cells.min())) * radius if len(cells) else 0.0)


def bound_mean_over_ball(values: FloatArray, centre: FloatArray, radius: float) -> float:
    """Largest mean of a function over the ball, by its dual: every point of it is a bound.

    Parameters
    ----------
    values, centre : (n_private, n_symbols)
        The function and the centre's masses, cell by cell; a law may have mass in any cell.
    radius
        Largest divergence of the centre from a law, nats.

    References
    ----------
    Bertsimas, Gupta and Kallus 2018, Robust sample average approximation, on likelihood balls.
    """
    top, used = float(values.max()), centre > 0
    inside, shares = values[used], centre[used]

    def dual(log_step: float) -> float:
        v = top + math.exp(log_step)
        return v - math.exp(float(shares @ np.log(v - inside)) - radius)

    # On a log scale from the largest value on: the best v nears it as the radius grows. scipy's
    # minimiser may stop anywhere; any v is a bound, and the largest value is one as well.
    found = minimize_scalar(dual, bounds=(-25.0, 15.0), method="bounded")
    return float(min(dual(found.x), top))


def _largest_ratio(target: float) -> float:
    """``phi(x) / psi(x)`` at the largest x with ``psi(x) <= target``; it grows with x."""
    x = _solve_excess(target)
    if x - 1 < 1e-4:  # phi / psi = 1 + (x - 1) / 3 + ..., which is lost in differences near 1
        return 1 + (x - 1)
    return (x * math.log(x) - x + 1) / (x - 1 - math.log(x))
