"""The last level of an ordered alphabet whose columns all have posteriors of their own.

The duals of a coarse problem are right to the gap wanted long before its mapping is: carried back,
columns of like posterior are spread over all symbols of their cell, which costs distortion, and the
noise of single posteriors is only averaged where neighbours are released together. What remains is
a local question (who joins whom) with a global answer known: so the pairs are the coarse mapping's
couplings onto every 8th and 32nd symbol, each column's cheapest symbols and its neighbours, and the
smoothed dual on them, from the coarse duals on, decides.
"""

from __future__ import annotations

import numpy as np

from privpipe.numerics.mapping.dual.smoothed_dual import potentials_of
from privpipe.numerics.mapping.pricing.line_pricing import bin_posteriors, price_line
from privpipe.numerics.mapping.pricing.pair_pricing import Question, measure_bound
from privpipe.numerics.mapping.problem.incumbent import Progress
from privpipe.numerics.mapping.problem.programme import Duals, Pairs, Plan, make_feasible
from privpipe.numerics.mapping.search.ordered.coarsening import CoarseLine
from privpipe.numerics.mapping.search.pairs.recalled_steps import find_smoothed_dual
from privpipe.numerics.mapping.search.pairs.smoothed_dual_search import logits_of
from privpipe.protocols import IntArray

__all__ = ["mix_neighbours"]

_SPACINGS = (8, 32)
_REACH = 2
_PRICING_BINS = 256
_FIRST_TEMPERATURE = 1e-3
_COOLING = 0.3
_SMALLEST_SHARE = 1e-9


def mix_neighbours(progress: Progress, level: CoarseLine, plan: Plan, duals: Duals) -> None:
    """Offer mappings of the full alphabet made from a coarse one.

    Parameters
    ----------
    progress
        Of the full alphabet.
    level, plan
        The coarse problem and its mapping.
    duals
        Of the coarse problem, on the full alphabet.
    """
    problem = progress.problem
    pairs = _collect_pairs(level, plan, duals)
    logits, multiplier = logits_of(duals.potentials, problem.prior), duals.multiplier
    reference = np.tile(problem.prior, (problem.n_symbols, 1)) / problem.n_symbols
    tau = _FIRST_TEMPERATURE
    while not progress.stop and tau > 0.1 * progress.gap:
        solved = find_smoothed_dual(
            progress, pairs, tau, logits, multiplier, reference * (1e-2 * tau)
        )
        logits, multiplier = solved.logits, solved.multiplier
        found = make_feasible(problem, pairs, solved.weights, _SMALLEST_SHARE)
        here = Duals(potentials_of(logits, problem.prior), multiplier)
        bins = bin_posteriors(problem.posterior, _PRICING_BINS)
        assert bins is not None, "ordered solves are only planned where the posteriors have bins"
        bound = measure_bound(problem, price_line(problem, Question(here), bins), here)
        progress.offer(found, here, bound, len(pairs), "neighbours")
        tau *= _COOLING


def _collect_pairs(level: CoarseLine, plan: Plan, duals: Duals) -> Pairs:
    """Couplings of the coarse mapping, cheapest symbols, and the nearest symbols of each column."""
    problem = level.fine
    columns = np.arange(problem.n_columns)
    bins = bin_posteriors(problem.posterior, _PRICING_BINS)
    assert bins is not None, "ordered solves are only planned where the posteriors have bins"
    best = price_line(problem, Question(duals), bins).best
    reach = np.arange(-_REACH, _REACH + 1)
    near = np.clip(problem.stay[:, None] + reach, 0, problem.n_symbols - 1)
    parts: list[tuple[IntArray, IntArray]] = [
        (best.ravel(), np.repeat(columns, best.shape[1])),
        (near.ravel(), np.repeat(columns, len(reach))),
    ]
    for spacing in _SPACINGS:
        wide = level.refine_plan(plan, spacing)
        parts.append((wide.symbols, wide.columns))
    symbols = np.concatenate([part[0] for part in parts])
    return Pairs.of(problem, symbols, np.concatenate([part[1] for part in parts]))
