"""The search for a near-optimal privacy mapping: choose the route, run it, say why it stopped."""

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from privpipe.numerics.mapping.problem import pair_pricing
from privpipe.numerics.mapping.problem.ordered_pricing import bin_posteriors, is_ordered
from privpipe.numerics.mapping.problem.pair_pricing import PriceOracle, PricingQuestion
from privpipe.numerics.mapping.problem.programme import Duals, Programme, thin_plan
from privpipe.numerics.mapping.problem.search_progress import OutOfTime, Search
from privpipe.numerics.mapping.search import coarse_to_fine_search, column_generation
from privpipe.numerics.mapping.search.column_generation import TimedPricing
from privpipe.numerics.mapping.search.interior_point import polish
from privpipe.numerics.mapping.search.smoothed_dual_search import anneal, start_state

_START_TEMPERATURE = 0.05
# Below 1e-6 nats annealing stalls on most problems. Above, it took a third to a twentieth of the
# interior point's time on 80 random ones, so that the latter only serves smaller targets, and only
# where its matrix, of symbols times free private values, is small. It then begins at 1e-3, which
# takes half the time of a beginning at 1e-6 (which follows where that did not do).
_ANNEALED, _HANDED_OVER = 1e-6, 1e-3
_MOST_UNKNOWNS = 2600
_BREAKDOWNS = (np.linalg.LinAlgError, ArithmeticError)


def search_mapping(
    problem: Programme,
    *,
    gap: float,
    price: PriceOracle | None = None,
    start: Duals | None = None,
    max_seconds: float = np.inf,
    on_round: Callable[[Search], None] | None = None,
) -> tuple[Search, str]:
    """Search until the certified gap is reached.

    Parameters
    ----------
    problem
        With positions of symbols and columns ascending, where the alphabet is ordered.
    gap
        Target of the gap, nats.
    price
        A pricing oracle; in memory when not given. An ordered alphabet is priced in linear
        time in memory, and a given oracle only prices the certificate.
    start
        A dual point to begin from, normalised.
    max_seconds
        Time after which nothing new begins, rounds over all pairs included; see `time_limit`.
    on_round
        Called after each round.

    Returns
    -------
    progress
        The best plan, the best dual point and its bound.
    reason
        "gap reached", "time limit" or "no further progress".
    """
    progress = Search(problem, gap, max_seconds, on_round)
    try:
        _search(progress, price, start)
    except OutOfTime:
        reason = "time limit"
    else:
        reason = progress.stop or "no further progress"
    # A fiftieth more information, or what is left of a tenth of the target, for fewer symbols.
    slack = max(0.02 * progress.reached, 0.9 * gap - progress.reached)
    if progress.reached <= gap:  # thinning must not undo what was reached
        slack = min(slack, 0.99 * gap - progress.reached)
    progress.plan = thin_plan(problem, progress.plan, progress.plan.information + max(0.0, slack))
    return progress, reason


def _search(progress: Search, price: PriceOracle | None, start: Duals | None) -> None:
    """From the start, if there is one, and anew where that did not lead to the gap."""
    timed = TimedPricing(progress, price)
    if start is not None and not progress.stop:
        _offer_bound(progress, start, timed, "start")
        if not progress.stop:
            _take_route(progress, price, timed, start)
    if not progress.stop:  # a start may mislead
        _take_route(progress, price, timed, None)


def _take_route(
    progress: Search, price: PriceOracle | None, timed: TimedPricing, start: Duals | None
) -> None:
    """The route for the problem; arithmetic that breaks down ends it with the best so far."""
    problem = progress.problem
    # What a route found before its arithmetic broke down is certified as anything else is.
    with suppress(*_BREAKDOWNS):
        if is_ordered(problem) and bin_posteriors(problem.posterior, 2) is not None:
            coarse_to_fine_search.search_ordered(progress, start)
            if price is not None:
                _offer_bound(progress, progress.duals, timed, "oracle")
    if not progress.stop:
        with suppress(*_BREAKDOWNS):
            _search_any(progress, timed, start)


def _offer_bound(progress: Search, duals: Duals, price: PriceOracle, stage: str) -> None:
    prices = price(progress.problem, PricingQuestion(duals, values=False))
    bound = pair_pricing.measure_bound(progress.problem, prices, duals)
    progress.offer(progress.plan, duals, bound, 0, stage)


def _search_any(progress: Search, price: PriceOracle, start: Duals | None) -> None:
    """Anneal on pairs found by pricing; an interior point where that is not near enough."""
    problem = progress.problem
    explore = column_generation.OracleExplorer(price, column_generation.most_named(problem))
    state = start_state(problem, explore, _START_TEMPERATURE, start, progress.is_late)
    small = problem.n_symbols * (problem.n_private - 1) <= _MOST_UNKNOWNS
    far = progress.gap < _ANNEALED and small
    for target in (_HANDED_OVER, _ANNEALED) if far else (max(progress.gap, _ANNEALED),):
        state = anneal(progress, explore, state, target)
        if not progress.stop and small:
            polish(progress, explore, state, max(progress.reached, 1e-3))
        if progress.stop:
            return
