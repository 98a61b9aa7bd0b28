"""Column generation around the interior point: high accuracy from a good start."""

from __future__ import annotations

import numpy as np

from privpipe.numerics.mapping.problem.interior_point import InteriorPoint, solve_interior_point
from privpipe.numerics.mapping.problem.programme import Duals, Pairs, make_feasible
from privpipe.numerics.mapping.problem.search_progress import SearchProgress
from privpipe.numerics.mapping.problem.smoothed_dual import logits_of, potentials_of
from privpipe.numerics.mapping.search.column_generation import AnnealState, Explorer
from privpipe.protocols import FloatArray

_NEAR = 0.02  # nats of slack of a pair worth adding


def polish(
    progress: SearchProgress,
    explore: Explorer,
    state: AnnealState,
    start_gap: float,
    max_rounds: int = 10,
) -> Pairs:
    """Alternate interior point and pricing until the certified gap is reached.

    Parameters
    ----------
    progress
    explore
    state
        A dual point whose gap is known to be about `start_gap`.
    start_gap
        Nats; the interior point begins that far from the boundary.
    max_rounds

    Returns
    -------
    pairs
        The last set of pairs.
    """
    problem, gap = progress.problem, progress.gap
    anchor = np.tile(problem.prior, (problem.n_symbols, 1)) * (1e-2 * gap / problem.n_symbols)
    pairs, logits, multiplier = state.pairs, state.logits, state.multiplier
    idle, before, stalled = False, np.inf, 0
    for _ in range(max_rounds):
        solved = _solve(progress, pairs, logits, multiplier, anchor, start_gap)
        if solved is None:
            if start_gap >= 1.0 or progress.stop:
                break
            start_gap = min(30 * start_gap, 1.0)
            continue
        duals = Duals(potentials_of(solved.logits, problem.prior), solved.multiplier)
        found = explore(problem, duals, solved.column_potentials, _NEAR)
        plan = make_feasible(problem, pairs, solved.weights, 1e-9)
        progress.offer(plan, found.duals, found.bound, len(pairs), "interior")
        if progress.stop:
            break
        grown = Pairs.of(
            problem,
            np.concatenate([pairs.symbols, found.symbols]),
            np.concatenate([pairs.columns, found.columns]),
        )
        if len(grown) == len(pairs) and idle:
            break
        pairs, idle = grown, len(grown) == len(pairs)
        here = plan.information - found.bound
        stalled = stalled + 1 if here > 0.9 * before else 0
        if stalled >= 2:
            break
        before = min(here, before)
        if here < 0.05:
            logits, multiplier = logits_of(found.duals.potentials, problem.prior), duals.multiplier
            start_gap = min(max(10 * gap, 3 * here), 1e-2)
        else:
            start_gap = min(10 * start_gap, 1.0)
    return pairs


def _solve(
    progress: SearchProgress,
    pairs: Pairs,
    logits: FloatArray,
    multiplier: float,
    anchor: FloatArray,
    start_gap: float,
) -> InteriorPoint | None:
    """One interior point; None when it did not come out, which a farther start fixes."""
    problem = progress.problem
    try:
        solved = solve_interior_point(
            problem,
            pairs,
            logits,
            multiplier,
            anchor,
            start_gap=start_gap,
            gap=0.2 * progress.gap,
            late=progress.is_late,
        )
    except (np.linalg.LinAlgError, RuntimeError):
        return None
    usable = np.isfinite(solved.bound) and np.isfinite(solved.weights).all()
    if not usable or not solved.converged:
        return None
    return solved
