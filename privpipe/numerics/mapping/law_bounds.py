"""Bounds about the law behind the counts: means, shares, and the worst law of a ball.

**Likelihood ball.** The ball holds every law p with ``KL(counts / n || p) <= radius``, whatever
mapping was chosen after the records were seen. Its radius comes from the number of cells and
records (Agrawal 2020, Theorem 1.2: ``E exp(t n KL) <= (1 - t)**(1 - cells)``).

With ``c = counts / n`` seen through the mapping as masses ``m``, the information under p is at
most the mean of known gains, as above, and a divergence ``sum m phi(p / m)``.
The largest mean of the gains has the dual ``min_v v - exp(sum m log(v - gain) - radius)``, of
which any v above all gains is a bound (Bertsimas, Gupta and Kallus 2018, on likelihood balls).
The divergence is at most ``k * radius``, since each cell has ``phi(x) <= k psi(x)``, ``psi(x) = x -
1 - log x``, wherever x can be: ``m psi(x) <= radius`` in every cell alone, and ``phi / psi`` grows
with x.

**Means** are bounded from counts of values by betting (Waudby-Smith and Ramdas 2024), which adapts
to the variance and to the range on the side that matters, and by Chernoff's bound in relative
entropy (Hoeffding 1963, Theorem 1) for many shares at once.
"""

import math

import numpy as np
from scipy.optimize import minimize_scalar

from privpipe.protocols import FloatArray

_EXCESS_BISECTIONS = 200
# Cells below such a share of all may count as rare: the least of the bounds is taken.
_SHARES = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
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
    is mu, the wealth ``prod(1 + stake (mu - value))`` is never negative and has expectation 1, and
    so has a mixture over stakes: by Markov's inequality it reaches ``1 / miss`` so rarely. It grows
    with mu; bisection ends on the safe side.

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


def _log_wealth(
    y: FloatArray, counts: FloatArray, mean: float, highest: float, stake: float
) -> float:
    """Logarithm of the mixed wealth of bets that the mean is smaller than `mean`."""
    # 1 + stake (mean - highest) must not reach 0, or one record could end the game.
    most = _MOST_STAKED / max(highest - mean, 1e-300)
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


def measure_gains(masses: FloatArray, prior: FloatArray) -> FloatArray:
    """Log of posterior over prior; where there is no mass, of 1 over prior.

    Parameters
    ----------
    masses : (n_private, n_symbols)
    prior : (n_private,)
        All positive.

    Returns
    -------
    gains : (n_private, n_symbols)
        Nats.
    """
    # A cell without reference counts as if the symbol gave its value away: log of 1 over prior.
    with np.errstate(divide="ignore", invalid="ignore"):
        posterior = np.log(masses / masses.sum(axis=0))
    return np.asarray(np.where(masses > 0, posterior, 0.0) - np.log(prior)[:, None])


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
    for _ in range(_EXCESS_BISECTIONS):
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
