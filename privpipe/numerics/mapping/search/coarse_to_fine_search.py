"""Default search on an ordered alphabet: solve coarse cells, carry back, refine, certify.

Where many columns have posteriors of their own, `full_alphabet_search` or `mass_exchange` comes
first. Else, and then, the coarsest problem is solved on all its pairs. Each finer one starts from
the interpolated potentials with pairs on both sides of every price. After each level the mapping
and the potentials are carried to the full alphabet and measured there. The search stops as soon as
that gap is small enough. The last level is the full alphabet itself.
"""

from dataclasses import replace

import numpy as np

from privpipe.numerics.mapping.problem import smoothed_dual
from privpipe.numerics.mapping.problem.ordered_pricing import bin_posteriors, is_squared
from privpipe.numerics.mapping.problem.programme import Duals, Pairs, Plan, dot, make_feasible
from privpipe.numerics.mapping.problem.search_progress import Explorer, Search
from privpipe.numerics.mapping.problem.smoothed_dual import DualPoint, Late
from privpipe.numerics.mapping.search import full_alphabet_search, interior_point, mass_exchange
from privpipe.numerics.mapping.search.coarsening import CoarseAlphabet, coarsen_alphabet
from privpipe.numerics.mapping.search.column_generation import OrderedExplorer
from privpipe.numerics.mapping.search.smoothed_dual_search import anneal, start_logits

_COARSEST = 256
_REFINEMENT = 4
_FINE_BINS = 128
_CERTIFYING_BINS = 64
_LEVEL_BINS = 64
# Columns of a cell: with 8, noisy posteriors are averaged so much that the duals lag by 1e-4.
_COLUMN_BINS = 24
_MANY_SYMBOLS = 2**12
# Cells and groups of posteriors where every column has a posterior of its own: first, where few
# symbols are near a price, and where many are. There groups matter more than cells: at 65,537
# symbols 128 cells and 64 groups bring the bound to 2e-5 of the optimum, 256 and 24 to 6e-5.
_NOISY, _NOISY_THIN, _NOISY_THICK = (128, 24), (256, 24), (128, 64)
# Gaps from which half the cells' width will do instead of a quarter, and ever finer cells suffice.
_NEARLY = 5.0
# Nats at which annealing all pairs hands over to the interior point.
_START_GAP = 5e-3
_MOST_FACTORED = 200_000
# Pairs, and pairs per column, above which factors fill in and conjugate gradients are faster.
_THICK_COLUMNS = 16


def search_ordered(progress: Search, start: Duals | None = None) -> None:
    """Search for a mapping of an ordered alphabet.

    Parameters
    ----------
    progress
        Of a problem whose positions ascend and whose posteriors have bins.
    start
        A dual point on the full alphabet from a like problem.
    """
    problem = progress.problem
    n_cells, coarser = min(_COARSEST, problem.n_symbols), start
    noisy = problem.n_symbols >= _MANY_SYMBOLS
    noisy = noisy and mass_exchange.measure_noise(problem) > progress.gap
    if noisy:
        coarser = _search_noisy(progress, start)
    while not progress.stop:
        if n_cells >= problem.n_symbols:
            _search_level(progress, coarser, OrderedExplorer(_FINE_BINS))
            return
        level, plan, coarser = _search_cells(progress, n_cells, _COLUMN_BINS, coarser)
        if noisy and not (progress.stop or is_squared(problem)):
            mass_exchange.exchange_masses(progress, level, plan, coarser)
        finer = 2 if progress.reached < _NEARLY * progress.gap else _REFINEMENT
        n_cells = min(finer * n_cells, problem.n_symbols)
        # No level between half the symbols and all of them.
        n_cells = problem.n_symbols if 2 * n_cells > problem.n_symbols else n_cells


def _search_noisy(progress: Search, duals: Duals | None) -> Duals | None:
    """Cells to begin with; the full alphabet where few symbols are near a price, or neighbours."""
    *_, duals = _search_cells(progress, *_NOISY, duals)
    most = _NEARLY * progress.gap
    # Nearer than that neighbours are faster.
    thin = progress.reached > most and full_alphabet_search.is_thin(progress)
    if not progress.stop:
        shape = _NOISY_THIN if thin and not is_squared(progress.problem) else _NOISY_THICK
        level, plan, duals = _search_cells(progress, *shape, duals)
    if progress.stop:
        return duals
    # By squared distance neighbours alone are often near enough, in a tenth of the time.
    if not (thin and progress.reached > most) or is_squared(progress.problem):
        mass_exchange.exchange_masses(progress, level, plan, duals)
    if thin and progress.reached > most and not progress.is_late():
        full_alphabet_search.search_full(progress)
        return progress.duals
    return duals


def _search_cells(
    progress: Search, n_cells: int, n_bins: int, start: Duals | None
) -> tuple[CoarseAlphabet, Plan, Duals]:
    """A level, its plan, and its duals on the full alphabet, where both are offered."""
    bins = bin_posteriors(progress.problem.posterior, n_bins)
    assert bins is not None, "ordered solves are only planned where the posteriors have bins"
    level = coarsen_alphabet(progress.problem, bins, n_cells)
    # A fifth of the target for the level: carrying back takes the rest.
    inner = Search(level.problem, 0.2 * progress.gap, progress.max_seconds - progress.seconds)
    here = None if start is None else level.coarsen_duals(start)
    n_pairs = _search_level(inner, here, OrderedExplorer(_LEVEL_BINS))
    duals = level.refine_duals(inner.duals)
    found = OrderedExplorer(_CERTIFYING_BINS, width=0)(progress.problem, duals, None, -np.inf)
    plan = _refine_plan(level, inner.plan, progress.is_late)
    progress.offer(plan, found.duals, found.bound, n_pairs, "cells")
    return level, inner.plan, duals


def _refine_plan(level: CoarseAlphabet, plan: Plan, late: Late) -> Plan:
    """The best way back: with posteriors that differ within a group, wider spacings."""
    best, spacing = level.refine_plan(plan), _REFINEMENT
    while not (level.bins.exact or spacing > level.fine.n_symbols // _COARSEST or late()):
        wider = level.refine_plan(plan, spacing)
        # Not at the first: information may rise once before it falls.
        if wider.information >= best.information and spacing > _REFINEMENT**2:
            break
        best = min(best, wider, key=lambda found: found.information)
        spacing *= _REFINEMENT
    return best


def _search_level(progress: Search, start: Duals | None, explore: Explorer) -> int:
    """Solve one level; returns the number of pairs it ended with."""
    problem, gap = progress.problem, progress.gap
    if start is None:  # the coarsest level: its pairs are few
        return len(interior_point.polish(progress, explore, *_solve_all_pairs(progress)))
    home = Pairs.of(problem, problem.stay, np.arange(problem.n_columns))
    found = explore(problem, start, None, 0.02)
    pairs = home.join(problem, found.symbols, found.columns)
    logits = smoothed_dual.logits_of(start.potentials, problem.prior)
    point = DualPoint(pairs, logits, start.multiplier, 0.0)
    if len(pairs) <= max(_MOST_FACTORED, _THICK_COLUMNS * problem.n_columns):
        return len(interior_point.polish(progress, explore, point, 1e-3))
    # Low temperatures from a good start, on the pairs that carry mass there.
    cost, level = smoothed_dual.column_minima(problem, pairs, point.duals(problem))
    tau = 4 * gap
    pairs = pairs.keep_near(problem, cost - level[pairs.columns], 10 * tau)
    point = replace(point, pairs=pairs, temperature=tau)
    return len(anneal(progress, explore, point, gap).pairs)


def _solve_all_pairs(progress: Search) -> tuple[DualPoint, float]:
    """Smoothed duals at falling temperatures on all pairs of a small problem."""
    problem = progress.problem
    n, width = problem.n_symbols, problem.n_columns
    pairs = Pairs.of(problem, np.tile(np.arange(n), width), np.repeat(np.arange(width), n))
    point = smoothed_dual.spend_budget(problem, DualPoint(pairs, start_logits(problem), 0.0, 0.1))
    reference = np.tile(problem.prior, (n, 1)) / n
    target = max(_START_GAP, progress.gap)
    while True:
        tau = point.temperature
        point, masses, _ = smoothed_dual.maximise_smoothed_dual(
            problem, point, anchor=reference * (1e-2 * tau), late=progress.is_late
        )
        duals = point.duals(problem)
        cost, level = smoothed_dual.column_minima(problem, pairs, duals)
        bound = max(0.0, dot(problem.mass, level) - duals.multiplier * problem.budget)
        plan = make_feasible(problem, pairs, masses, 1e-9)
        progress.offer(plan, duals, bound, len(pairs), "anneal")
        if plan.information - bound <= target or tau < 0.1 * target or progress.is_late():
            break
        point = replace(point, temperature=0.5 * tau)
    fewer = pairs.keep_near(problem, cost - level[pairs.columns], 10 * tau)
    return replace(point, pairs=fewer), max(plan.information - bound, target)
