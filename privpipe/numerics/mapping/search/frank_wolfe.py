"""SPPM verbatim: Frank-Wolfe steps whose linear programmes are solved by column generation.

Salamatian et al., Algorithms 1 and 2. In joint masses the linear programme (4) is a multiple choice
knapsack with one coupling row. So its dual is a search over the one multiplier of the distortion,
exact and without a general solver. The reduced-cost searches (7) go through the pricing oracle.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privpipe.numerics.mapping.problem import pair_pricing, programme
from privpipe.numerics.mapping.problem.pair_pricing import PriceOracle, PricingQuestion
from privpipe.numerics.mapping.problem.programme import Duals, Pairs, Plan, Programme
from privpipe.numerics.mapping.problem.search_progress import OutOfTime, Search
from privpipe.numerics.mapping.search.column_generation import TimedPricing, repair_potentials
from privpipe.protocols import FloatArray, IntArray

_RATIO_FLOOR = float(np.log(1e-12))
_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class LinearSolution:
    """An optimal solution of the linear programme on some pairs.

    Parameters
    ----------
    weights : (n_pairs,)
        Masses; at most two pairs of a column are used.
    multiplier
        Of the distortion, not negative.
    levels : (n_columns,)
        Dual of each column's sum: its least ``cost + multiplier * distance``.
    """

    weights: FloatArray
    multiplier: float
    levels: FloatArray


def solve_coupled_choice(
    pairs: Pairs, cost: FloatArray, mass: FloatArray, budget: float
) -> LinearSolution:
    """Minimise ``sum y cost`` over masses of each column within one budget of distance.

    Parameters
    ----------
    pairs
        Holds a pair of distance 0 for every column.
    cost : (n_pairs,)
    mass : (n_columns,)
        Mass of each column.
    budget
        Positive.

    Returns
    -------
    solution

    Notes
    -----
    At a multiplier every column takes its cheapest pair, of equals the nearest; the distance
    spent falls as the multiplier grows. The optimal multiplier is where it crosses the budget;
    there the far and the near choices are mixed to spend it exactly.
    """
    low, far = 0.0, _cheapest(pairs, cost, 0.0)
    middle, spends_all = 0.0, pairs.distances[far] @ mass > budget
    # At an infinite multiplier every column stays at distance 0, and nothing is spent.
    high, near = np.inf, _cheapest(pairs, np.where(pairs.distances > 0, np.inf, cost), 0.0)
    while spends_all:
        # The lines of the two choices cross at the next multiplier to look at.
        gain = float((cost[near] - cost[far]) @ mass)
        middle = gain / float((pairs.distances[far] - pairs.distances[near]) @ mass)
        if not low < middle < high:
            middle = min(max(middle, low), high)
            break
        # The dual is piecewise linear: where no choice lies below the two lines, their crossing
        # is its top. Within rounding, or equal choices would alternate for ever.
        choice = _cheapest(pairs, cost, middle)
        value = float((cost[choice] + middle * pairs.distances[choice]) @ mass)
        reached = float((cost[far] + middle * pairs.distances[far]) @ mass)
        if value >= reached - 1e-15 * max(1.0, abs(reached)):
            break
        if pairs.distances[choice] @ mass > budget:
            low, far = middle, choice
        else:
            high, near = middle, choice
    d_far, d_near = pairs.distances[far] @ mass, pairs.distances[near] @ mass
    share = float((d_far - budget) / (d_far - d_near)) if spends_all else 0.0
    weights = np.zeros(len(pairs))
    weights[far] += (1 - share) * mass
    weights[near] += share * mass
    levels = np.minimum.reduceat(cost + middle * pairs.distances, pairs.pointers[:-1])
    return LinearSolution(weights, middle, levels)


def _cheapest(pairs: Pairs, cost: FloatArray, multiplier: float) -> IntArray:
    """Cheapest pair of each column at a multiplier; of equals the nearest."""
    total = cost + multiplier * pairs.distances
    # Of equals the nearest: the far choice of the next bracket must spend less.
    return np.asarray(np.lexsort((pairs.distances, total, pairs.columns))[pairs.pointers[:-1]])


def search_frank_wolfe(
    problem: Programme,
    *,
    n_steps: int,
    gap: float,
    price: PriceOracle | None = None,
    max_seconds: float = np.inf,
    on_round: Callable[[Search], None] | None = None,
) -> tuple[Search, str]:
    """Algorithm 1 from the identity, with the bound that its own numbers give at each step.

    Parameters
    ----------
    problem
    n_steps
        L.
    gap
        Certified gap at which to stop early, nats.
    price
    max_seconds
    on_round

    Returns
    -------
    progress, reason
    """
    progress = Search(problem, gap, max_seconds, on_round)
    timed = TimedPricing(progress, price)
    try:
        return progress, _take_steps(progress, n_steps, timed)
    except OutOfTime:
        return progress, "time limit"


def _take_steps(progress: Search, n_steps: int, price: PriceOracle) -> str:
    problem, current = progress.problem, progress.plan
    for _ in range(n_steps):
        # The gradient is infinite where a posterior is 0; a linear programme needs numbers.
        ratios = np.maximum(programme.log_ratios(_masses(problem, current)), _RATIO_FLOOR)
        pairs, solution = _generate_columns(progress, ratios, price)
        current = _line_search(problem, current, pairs, solution.weights)
        duals = Duals(programme.normalise_potentials(ratios, problem.prior), solution.multiplier)
        bound, duals = _best_bound(problem, duals, solution.levels, price)
        plan = programme.draw_into_budget(problem, current)
        progress.offer(plan, duals, bound, len(pairs), "frank_wolfe")
        if progress.stop:
            return progress.stop
    return f"{n_steps} steps"


def _generate_columns(
    progress: Search, ratios: FloatArray, price: PriceOracle
) -> tuple[Pairs, LinearSolution]:
    """Algorithm 2: grow the active pairs until no reduced cost is negative, or time is up."""
    problem = progress.problem
    pairs = Pairs.of(problem, problem.stay, np.arange(problem.n_columns))
    while True:
        cost = np.einsum("ka,ka->k", problem.posterior[pairs.columns], ratios[pairs.symbols])
        solution = solve_coupled_choice(pairs, cost, problem.mass, problem.budget)
        prices = price(problem, PricingQuestion(Duals(ratios, solution.multiplier)))
        reduced = prices.values - solution.levels
        # In nats: what all columns together could still win is below the tolerance.
        new = np.flatnonzero(problem.mass * reduced < -_TOLERANCE / problem.n_columns)
        grown = pairs.join(problem, prices.best[new, 0], new)
        if len(grown) == len(pairs) or progress.is_late():
            return pairs, solution
        pairs = grown


def _masses(problem: Programme, plan: Plan) -> FloatArray:
    posterior = problem.posterior[plan.columns]
    return programme.released_masses(plan.symbols, plan.weights, posterior, problem.n_symbols)


def _line_search(problem: Programme, current: Plan, pairs: Pairs, mass: FloatArray) -> Plan:
    """Equation (5), by the sign of the derivative, which costs no pairs."""
    here = _masses(problem, current)
    used = np.flatnonzero(mass > 0)
    posterior = problem.posterior[pairs.columns[used]]
    there = programme.released_masses(pairs.symbols[used], mass[used], posterior, problem.n_symbols)
    share = _best_share(here, there)
    symbols = np.concatenate([current.symbols, pairs.symbols[used]])
    columns = np.concatenate([current.columns, pairs.columns[used]])
    masses = np.concatenate([(1 - share) * current.weights, share * mass[used]])
    return programme.add_up(problem, symbols, columns, masses)


def _best_share(here: FloatArray, there: FloatArray) -> float:
    """Where the information along the segment is least: bisection on its derivative."""
    change = there - here
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        if float((change * programme.log_ratios(here + middle * change)).sum()) > 0:
            high = middle
        else:
            low = middle
    return 0.5 * (low + high)


def _best_bound(
    problem: Programme, duals: Duals, levels: FloatArray, price: PriceOracle
) -> tuple[float, Duals]:
    """Bound of the step's own numbers, or of the same repaired where that is better."""
    # Of partners only those are repaired that undercut their column.
    prices = price(problem, PricingQuestion(duals, 1, True, levels, 0.0, False))
    plain = pair_pricing.measure_bound(problem, prices, duals)
    repaired = repair_potentials(problem, prices, duals)
    prices = price(problem, PricingQuestion(repaired, values=False))
    better = pair_pricing.measure_bound(problem, prices, repaired)
    return (plain, duals) if plain >= better else (better, repaired)
