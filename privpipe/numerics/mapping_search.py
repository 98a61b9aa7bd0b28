"""The search for a near-optimal privacy mapping: choose the route, run it, say why it stopped."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from privpipe.numerics.anneal import AnnealState, anneal, start_state
from privpipe.numerics.exploring import OracleExplorer
from privpipe.numerics.line_pricing import bin_posteriors, is_line
from privpipe.numerics.mapping_problem import Duals, MappingProblem, Plan, thin_plan
from privpipe.numerics.ordered import search_line
from privpipe.numerics.polish import MOST_DENSE, polish
from privpipe.numerics.pricing import PriceOracle, Question, measure_bound, price_in_memory
from privpipe.numerics.progress import Progress

__all__ = ["search_mapping"]

_START_TEMPERATURE = 0.05
_POLISH_FROM = 2e-3
_TOP = 24


def search_mapping(
    problem: MappingProblem,
    *,
    gap: float,
    price: PriceOracle | None = None,
    start: tuple[Plan, Duals] | None = None,
    max_seconds: float = np.inf,
    on_round: Callable[[Progress], None] | None = None,
) -> tuple[Progress, str]:
    """Search until the certified gap is reached.

    Parameters
    ----------
    problem
        With positions of symbols and columns ascending, where the alphabet is ordered.
    gap
        Wanted gap, nats.
    price
        A pricing oracle; in memory when not given. An ordered alphabet is priced in linear
        time in memory, and a given oracle only prices the certificate.
    start
        A feasible plan and a dual point to begin from.
    max_seconds
        Time after which no new round begins.
    on_round
        Called after each round.

    Returns
    -------
    progress
        The best plan, the best dual point and its bound.
    reason
        "gap reached", "time limit" or "no further progress".
    """
    progress = Progress(problem, gap, max_seconds, on_round)
    duals = None
    if start is not None:
        plan, duals = start
        _offer_start(progress, plan, duals, price or price_in_memory)
    if not progress.stop:
        if is_line(problem) and bin_posteriors(problem.posterior, 2) is not None:
            search_line(progress, duals)
            if price is not None:
                _certify_by_oracle(progress, price)
        if not progress.stop:
            _search_any(progress, price or price_in_memory, duals)
    reason = progress.stop or "no further progress"
    slack = max(0.0, 0.9 * gap - progress.reached, 0.02 * progress.reached)
    progress.plan = thin_plan(problem, progress.plan, progress.plan.information + slack)
    return progress, reason


def _offer_start(progress: Progress, plan: Plan, duals: Duals, price: PriceOracle) -> None:
    bound = measure_bound(progress.problem, price(progress.problem, Question(duals)), duals)
    feasible = plan.distortion <= progress.problem.budget
    progress.offer(plan if feasible else progress.plan, duals, bound, 0, "start")


def _certify_by_oracle(progress: Progress, price: PriceOracle) -> None:
    prices = price(progress.problem, Question(progress.duals))
    bound = measure_bound(progress.problem, prices, progress.duals)
    progress.offer(progress.plan, progress.duals, bound, 0, "oracle")


def _search_any(progress: Progress, price: PriceOracle, start: Duals | None) -> None:
    """Anneal on pairs found by pricing, then an interior point where its matrix is small."""
    problem = progress.problem
    explore = OracleExplorer(price, min(_TOP, problem.n_symbols))
    temperature = _START_TEMPERATURE
    small = problem.n_symbols * (problem.n_private - 1) <= MOST_DENSE
    target = max(progress.gap, _POLISH_FROM) if small else progress.gap
    state: AnnealState = start_state(problem, explore, temperature, start)
    state = anneal(progress, explore, state, target)
    if small and not progress.stop:
        polish(progress, explore, state, max(progress.reached, 1e-3), sparse=False)
