"""Mappings under further linear constraints: bounded posterior odds and maximal leakage.

The information is a sum over released symbols of convex functions of the symbol's few masses,
homogeneous of degree 1. Each is ``f(m) = sup {<g, m> : sum_a p_a exp(g_a) <= 1}`` (see
`pair_pricing`). So a linear programme over pairs converges in a few rounds. It has a tangent g per
symbol wherever a solution lay (Kelley 1960, an epigraph per symbol). Its multipliers are a
certificate. Let kappa be no less than any ``sum_a nu_ia``. With
``h_i = g_i + sum mu_iab (e_a / p_a - odds e_b / p_b) + sum nu_ia e_a / p_a``,

    optimum >= sum_j p_j min_i [p(.|j) . h_i + lam d_ij] - lam budget - kappa exp(leakage).

The least is over all pairs, by the oracle that prices any mapping; pairs that undercut join the
programme. The programme itself is HiGHS's.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from privpipe.errors import ConvergenceError
from privpipe.numerics.mapping.problem import programme
from privpipe.numerics.mapping.problem.pair_pricing import PriceOracle, PricingQuestion, sum_prices
from privpipe.numerics.mapping.problem.programme import Duals, Pairs, Programme
from privpipe.numerics.mapping.problem.search_progress import Deadline
from privpipe.protocols import FloatArray, IntArray

# Pairs up to which a programme holds all of them, so that nothing must be priced in.
_ALL_PAIRS = 40_000
# Symbols priced in for a column at once, and symbols of a first programme that all may become.
_TOP = 8
_ROUNDS = 60
# Of the budget: what HiGHS may leave beyond a row's limit, so that the plan is within it.
_SHRINK = 1e-7
# Nats per unit of distortion beyond the budget: more than any information is worth.
_OUT_OF_BUDGET = 1e3
# How far from the prior to a column's posterior the first tangents lie.
_ENDS = (0.0, 0.1, 0.3, 0.6, 1.0)
# Nats: below it a tangent's potential is as good as none, and HiGHS scales worse.
_LEAST_RATIO = -60.0


@dataclass(frozen=True)
class Limits:
    """What a mapping must not exceed under the law given; None where there is no limit.

    Parameters
    ----------
    odds
        Largest ratio of posterior to prior odds of two private values, above 1.
    leakage
        Largest maximal leakage, nats, positive.
    """

    odds: float | None = None
    leakage: float | None = None


@dataclass(frozen=True, eq=False)
class ConstrainedPlan:
    """What was found.

    Parameters
    ----------
    pairs
    weights : (n_pairs,)
        Joint masses, feasible to the programme's rounding.
    duals
        Potentials ``g`` alone, normalised, and the multiplier: a bound without the limits.
    bound
        No mapping within budget and limits has less information, nats; over all pairs.
    excess
        Distortion beyond the budget that the limits need; 0 where they can be met.
    stopped
    """

    pairs: Pairs
    weights: FloatArray
    duals: Duals
    bound: float
    excess: float
    stopped: str


def search_constrained(
    problem: Programme, limits: Limits, *, gap: float, price: PriceOracle, deadline: Deadline
) -> ConstrainedPlan:
    """Cutting planes and columns until the bound over all pairs is near.

    Parameters
    ----------
    problem, limits
    gap
        Target of the gap, nats.
    price
        Prices all columns for given potentials.
    deadline
        After which no new round begins; the programme under way is given up.
    """
    best = -np.inf
    joined = pairs = _first_pairs(problem)
    tangents, stopped = _first_tangents(problem), "rounds"
    duals, solution = Duals(np.zeros((problem.n_symbols, problem.n_private)), 0.0), None
    for number in range(_ROUNDS):
        solved = _solve_programme(problem, limits, joined, tangents, deadline)
        if solved is None:
            stopped = "time limit"
            break
        pairs, solution = joined, solved
        bound, plain, joined = _price_all(problem, limits, solution, pairs, price)
        if bound > best:
            best, duals = bound, plain
        ratios = np.maximum(programme.log_ratios(solution.masses), _LEAST_RATIO)
        tangents.append(programme.normalise_potentials(ratios, problem.prior))
        # Three rounds, since the first tangents alone may leave a masses' row without any price.
        over = solution.excess > 1e-6 * max(problem.budget, 1e-9) and number >= 3
        if over and len(joined) == len(pairs):
            stopped = "no mapping within the limits"
            break
        if float(np.sum(solution.masses * tangents[-1])) - best <= gap:
            stopped = "gap reached"
            break
        if deadline.is_over:
            stopped = "time limit"
            break
    if solution is None:
        raise explain_time_limit()
    return ConstrainedPlan(pairs, solution.weights, duals, max(best, 0.0), solution.excess, stopped)


def explain_time_limit() -> ConvergenceError:
    """The error of a search whose time is over before it has anything to show."""
    problem = "max_seconds is over before any mapping within the limits was found."
    remedy = "Allow more seconds, or fewer profiles (most_frequent)."
    return ConvergenceError(problem, remedy=remedy, code="no-time")


def _holds_all(problem: Programme) -> bool:
    return problem.n_symbols * problem.n_columns <= _ALL_PAIRS


def _first_pairs(problem: Programme) -> Pairs:
    """All of a small problem; else every column's own symbol and the best for all."""
    n, columns = problem.n_symbols, np.arange(problem.n_columns)
    if _holds_all(problem):
        return Pairs.of(problem, np.tile(np.arange(n), problem.n_columns), np.repeat(columns, n))
    common = np.argsort(problem.distance.measure_means(problem.mass), kind="stable")[:_TOP]
    symbols = np.concatenate([problem.stay, np.repeat(common, problem.n_columns)])
    return Pairs.of(problem, symbols, np.tile(columns, 1 + len(common)))


def _first_tangents(problem: Programme) -> list[FloatArray]:
    """At the prior, and at posteriors on the way from it to those of each column group."""
    prior, found = problem.prior, []
    extremes = [problem.posterior[np.argmax(problem.posterior[:, a])] for a in range(len(prior))]
    for share in _ENDS:
        for extreme in extremes:
            posterior = (1 - share) * prior + share * (0.999 * extreme + 0.001 * prior)
            found.append(np.tile(np.log(posterior / prior), (problem.n_symbols, 1)))
    return found


@dataclass(frozen=True, eq=False)
class _Solution:
    """A solved programme.

    Parameters
    ----------
    weights : (n_pairs,)
    masses : (n_symbols, n_private)
        What the pairs bring to each symbol.
    excess
        Distortion beyond the budget.
    potentials, shift : (n_symbols, n_private)
        Mean of the tangents by their multipliers, and what the limits add to it, nats.
    multiplier
        Of the budget.
    paid
        Nats that the limit on leakage takes off the bound.
    """

    weights: FloatArray
    masses: FloatArray
    excess: float
    potentials: FloatArray
    shift: FloatArray
    multiplier: float
    paid: float


def _price_all(
    problem: Programme, limits: Limits, found: _Solution, pairs: Pairs, price: PriceOracle
) -> tuple[float, Duals, Pairs]:
    """The bound over all pairs, the duals without limits, and pairs with those that undercut."""
    plain = programme.normalise_potentials(found.potentials, problem.prior)
    shifted = plain + found.shift
    question = PricingQuestion(Duals(shifted, found.multiplier), top=min(_TOP, problem.n_symbols))
    prices = price(problem, question)
    size = float(np.sum(problem.mass * np.abs(prices.values))) + found.paid
    # The bound is promised: one rounding an addition, of numbers no larger than these, goes off.
    rounding = 2.0**-52 * (problem.n_columns + 64) * (size + float(np.abs(shifted).max()))
    spent = found.multiplier * problem.budget
    bound = sum_prices(problem.mass, prices) - spent - found.paid - rounding
    if not _holds_all(problem):
        columns, places = np.nonzero(prices.best >= 0)
        pairs = pairs.join(problem, prices.best[columns, places], columns)
    return bound, Duals(plain, found.multiplier), pairs


def _solve_programme(
    problem: Programme, limits: Limits, pairs: Pairs, cuts: list[FloatArray], deadline: Deadline
) -> _Solution | None:
    """Solve for masses of pairs, masses and epigraphs of symbols, peaks, excess; None if too late.

    A peak is the largest ``mass / prior`` of a symbol: their sum is exp of the maximal leakage.
    """
    used, place = np.unique(pairs.symbols, return_inverse=True)
    n, k, n_pairs = len(used), problem.n_private, len(pairs)
    stacked = np.stack(cuts)[:, used]
    upper, right = _inequalities(problem, limits, pairs, stacked)
    values = slice(n_pairs + n * k, n_pairs + n * k + n)
    cost, least = np.zeros((2, upper.shape[1]))
    cost[values], least[values], cost[-1] = 1.0, -np.inf, _OUT_OF_BUDGET
    found = linprog(
        cost,
        upper,
        right,
        *_equalities(problem, pairs, place, n, upper.shape[1]),
        bounds=np.stack([least, np.full(len(cost), np.inf)], axis=1),
        method="highs",
        options={} if deadline.seconds == np.inf else {"time_limit": deadline.left_on_wall},
    )
    if found.status == 1:
        return None
    if found.status != 0:
        raise ConvergenceError(
            "the linear programme of a constrained mapping was not solved.",
            remedy="Loosen max_posterior_odds, max_leakage or distortion_budget.",
            code="programme",
        )
    shares, rest = np.split(np.maximum(-found.ineqlin.marginals, 0.0), [len(stacked) * n])
    shares = shares.reshape(len(stacked), n)
    total = shares.sum(axis=0)
    potentials, masses, shift = np.zeros((3, problem.n_symbols, k))
    mixed = (shares[:, :, None] * stacked).sum(axis=0)
    potentials[used] = mixed / np.where(total > 0, total, 1.0)[:, None]
    masses[used] = np.maximum(found.x[n_pairs : values.start].reshape(n, k), 0.0)
    multiplier, rest, paid = float(rest[0]), rest[1:], 0.0
    if limits.odds is not None:
        odds, rest = np.split(rest, [n * k * (k - 1)])
        mu = np.zeros((n, k, k))
        mu[:, ~np.eye(k, dtype=bool)] = odds.reshape(n, -1)
        shift[used] += (mu.sum(axis=2) - limits.odds * mu.sum(axis=1)) / problem.prior
    if limits.leakage is not None:
        nu = rest[: n * k].reshape(n, k)
        shift[used] += nu / problem.prior
        # The multiplier of the leakage's own row is at least every sum: any such kappa bounds.
        paid = float(nu.sum(axis=1).max()) * float(np.exp(limits.leakage))
    weights, excess = np.maximum(found.x[:n_pairs], 0.0), float(found.x[-1])
    potentials = np.maximum(potentials, programme.LOWEST)
    return _Solution(weights, masses, excess, potentials, shift, multiplier, paid)


def _inequalities(
    problem: Programme, limits: Limits, pairs: Pairs, cuts: FloatArray
) -> tuple[sp.csr_array, FloatArray]:
    """Rows: a tangent under each epigraph, the budget, the odds, the peaks, the leakage."""
    n, k = cuts.shape[1:]
    each, prior = sp.eye_array(n), problem.prior
    edges = np.arange(0, n * k + 1, k), np.arange(n * k)
    blocks: list[list[object]] = [
        [None, sp.csr_array((one.ravel(), edges[1], edges[0]), shape=(n, n * k)), -each, None, None]
        for one in cuts
    ]
    blocks.append([sp.csr_array(pairs.distances[None]), None, None, None, -np.ones((1, 1))])
    right: list[FloatArray] = [np.zeros(len(cuts) * n), np.array([problem.budget * (1 - _SHRINK)])]
    if limits.odds is not None:
        a, b = np.nonzero(~np.eye(k, dtype=bool))
        ratios = np.zeros((len(a), k))
        ratios[np.arange(len(a)), a] = 1 / prior[a]
        ratios[np.arange(len(a)), b] = -limits.odds / prior[b]
        blocks.append([None, sp.kron(each, ratios), None, None, None])
        right.append(np.zeros(n * len(a)))
    if limits.leakage is not None:
        peaks = sp.kron(each, np.ones((k, 1)))
        blocks.append([None, sp.kron(each, np.diag(1 / prior)), None, -peaks, None])
        blocks.append([None, None, None, sp.csr_array(np.ones((1, n))), None])
        right += [np.zeros(n * k), np.array([np.exp(limits.leakage)])]
    else:
        blocks = [[*row[:3], row[4]] for row in blocks]
    return sp.csr_array(sp.block_array(blocks)), np.concatenate(right)


def _equalities(
    problem: Programme, pairs: Pairs, place: IntArray, n_used: int, n_variables: int
) -> tuple[sp.csr_array, FloatArray]:
    """Columns keep their probabilities; masses of symbols are what the pairs bring."""
    k, n_pairs, every = problem.n_private, len(pairs), np.arange(len(pairs))
    cells = (place[:, None] * k + np.arange(k)).ravel()
    sums = sp.csr_array((np.ones(n_pairs), (pairs.columns, every)))
    shares = problem.posterior[pairs.columns].ravel()
    brought = sp.csr_array((shares, (cells, np.repeat(every, k))), shape=(n_used * k, n_pairs))
    matrix = sp.csr_array(sp.block_array([[sums, None], [brought, -sp.eye_array(n_used * k)]]))
    matrix.resize(matrix.shape[0], n_variables)
    return matrix, np.concatenate([problem.mass, np.zeros(n_used * k)])
