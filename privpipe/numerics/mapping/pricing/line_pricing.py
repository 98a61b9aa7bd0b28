"""Prices on an ordered alphabet in time linear in the number of symbols.

For one posterior the search over all symbols is a distance transform: the lower envelope of
parabolas (Felzenszwalb and Huttenlocher) for squared distance, two sweeps for absolute
distance. Columns with many different posteriors (two private values) are priced at the ends of
short intervals of the posterior. The cheaper of the symbols found there is all but the cheapest
of the column, so that a search over all symbols can pass over nearly all runs of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privpipe.numerics.mapping.pricing.line_kernels import (
    absolute_transform,
    price_by_runs,
    squared_transform,
)
from privpipe.numerics.mapping.pricing.pair_pricing import Prices, PricingQuestion
from privpipe.numerics.mapping.problem.distortion import CodeDistance
from privpipe.numerics.mapping.problem.programme import MappingProblem
from privpipe.protocols import FloatArray, IntArray

_MOST_DISTINCT = 24


def _transform(
    kind: str, xs: FloatArray, h: FloatArray, lam: float, xq: FloatArray
) -> tuple[FloatArray, IntArray]:
    out, arg = np.empty(len(xq)), np.empty(len(xq), np.int64)
    if lam <= 0.0:
        k = int(np.argmin(h))
        return np.full(len(xq), h[k]), np.full(len(xq), k)
    kernel: Any = squared_transform if kind == "squared" else absolute_transform
    kernel(xs, np.ascontiguousarray(h), lam, xq, out, arg)
    return out, arg


@dataclass(frozen=True, eq=False)
class PosteriorBins:
    """Columns grouped by posterior.

    Parameters
    ----------
    bin : (n_columns,)
    low, high : (n_bins, n_private)
        Ends of each bin's interval; equal where its columns share one posterior.
    share : (n_columns,)
        Where a column lies between its bin's ends, 0 to 1.
    """

    bin: IntArray
    low: FloatArray
    high: FloatArray
    share: FloatArray

    @property
    def exact(self) -> bool:
        """Whether all columns of each bin share one posterior."""
        return bool((self.low == self.high).all())


def bin_posteriors(posterior: FloatArray, n_bins: int) -> PosteriorBins | None:
    """Group columns by posterior: exactly while few differ, else by intervals (two values).

    Parameters
    ----------
    posterior : (n_columns, n_private)
    n_bins
        Number of intervals where there are too many different posteriors.

    Returns
    -------
    bins
        None when more than two private values have many different posteriors.
    """
    distinct, inverse = np.unique(posterior, axis=0, return_inverse=True)
    if len(distinct) <= _MOST_DISTINCT:
        return PosteriorBins(inverse.ravel(), distinct, distinct, np.zeros(len(posterior)))
    if posterior.shape[1] != 2:
        return None
    value = posterior[:, 1]
    edges = np.unique(
        np.concatenate(
            [
                np.linspace(value.min(), value.max(), n_bins + 1),
                np.quantile(value, np.linspace(0, 1, n_bins + 1)),
            ]
        )
    )
    which = np.clip(np.searchsorted(edges, value, side="right") - 1, 0, len(edges) - 2)
    used, compact = np.unique(which, return_inverse=True)
    low, high = edges[used], edges[used + 1]
    share = (value - low[compact]) / (high - low)[compact]
    return PosteriorBins(
        compact.ravel(), np.stack([1 - low, low], 1), np.stack([1 - high, high], 1), share
    )


def is_line(problem: MappingProblem) -> bool:
    """Whether the alphabet is ordered: one attribute and squared or absolute distance."""
    distance = problem.distance
    return (
        isinstance(distance, CodeDistance)
        and distance.kind != "hamming"
        and distance.symbols.shape[1] == 1
    )


def price_line(problem: MappingProblem, question: PricingQuestion, bins: PosteriorBins) -> Prices:
    """Price all columns; `best` holds the cheapest symbols and their neighbours.

    Parameters
    ----------
    problem
        Of an ordered alphabet, see `is_line`.
    question
        `top` is the number of neighbours on each side of a cheapest symbol that are named.
    bins
        From `bin_posteriors`.

    Returns
    -------
    prices
        Exact to the rounding of their costs; groups of partners are the bins.
    """
    distance = problem.distance
    if not isinstance(distance, CodeDistance):
        raise TypeError("an ordered alphabet has codes")
    g, lam = question.duals.potentials, question.duals.multiplier
    x_s, x_c = distance.symbols[:, 0], distance.columns[:, 0]
    order = np.argsort(x_s, kind="stable")
    xs = x_s[order]
    values: FloatArray = np.empty(problem.n_columns)
    best = np.empty((problem.n_columns, 2), np.int64)
    members = [np.flatnonzero(bins.bin == b) for b in range(len(bins.low))]
    for b, inside in enumerate(members):
        js = inside[np.argsort(x_c[inside], kind="stable")]
        values[js], best[js, 0] = _transform(
            distance.kind, xs, (g @ bins.low[b])[order], lam, x_c[js]
        )
        best[js, 1] = best[js, 0]
        if (bins.low[b] != bins.high[b]).any():
            h = (g @ bins.high[b])[order]
            best[js, 1] = _transform(distance.kind, xs, h, lam, x_c[js])[1]
    if not bins.exact:
        values = _price_exactly(problem, question, order, best)
    reach = np.arange(-question.top, question.top + 1)
    near = np.clip(best[:, :, None] + reach, 0, len(xs) - 1).reshape(problem.n_columns, -1)
    if not question.partners:
        none = np.empty((0, len(members)))
        return Prices(values, order[near], none, none.astype(np.int64))
    levels = values if question.levels is None else question.levels
    slack, partner = _partners(problem, question, bins, members, levels)
    return Prices(values, order[near], slack, partner)


def _price_exactly(
    problem: MappingProblem, question: PricingQuestion, order: IntArray, best: IntArray
) -> FloatArray:
    """The least costs, given places in `order` that may have them; `best` is put right."""
    distance: Any = problem.distance
    g = np.ascontiguousarray(question.duals.potentials[order])
    lam, square = question.duals.multiplier, distance.kind == "squared"
    xs, xq = distance.symbols[order, 0], np.ascontiguousarray(distance.columns[:, 0])
    p = np.ascontiguousarray(problem.posterior)
    costs = np.stack([_cost(p, g[at], lam, square, xq - xs[at]) for at in best.T], axis=1)
    dearer = np.flatnonzero(costs[:, 1] < costs[:, 0])
    best[dearer] = best[dearer, ::-1]
    values, first = costs.min(axis=1), best[:, 0].copy()
    search: Any = price_by_runs
    search(np.ascontiguousarray(xs), g, lam, square, xq, p, values, first)
    best[:, 0] = first
    return np.asarray(values)


def _cost(p: FloatArray, g: FloatArray, lam: float, square: bool, step: FloatArray) -> FloatArray:
    """What a symbol costs each column, by the operations of the kernel, in their order."""
    cost = np.zeros(len(p))
    for a in range(p.shape[1]):
        cost += p[:, a] * g[:, a]
    return np.asarray(cost + lam * (step * step if square else np.abs(step)))


def _partners(
    problem: MappingProblem,
    question: PricingQuestion,
    bins: PosteriorBins,
    members: Sequence[IntArray],
    levels: FloatArray,
) -> tuple[FloatArray, IntArray]:
    distance = problem.distance
    assert isinstance(distance, CodeDistance)
    x_s, x_c = distance.symbols[:, 0], distance.columns[:, 0]
    order = np.argsort(x_s, kind="stable")
    slack = np.empty((problem.n_symbols, len(members)))
    partner = np.empty((problem.n_symbols, len(members)), np.int64)
    for b, inside in enumerate(members):
        js = inside[np.argsort(x_c[inside], kind="stable")]
        middle = 0.5 * (bins.low[b] + bins.high[b])
        low, who = _transform(
            distance.kind, x_c[js], -levels[js], question.duals.multiplier, x_s[order]
        )
        slack[order, b] = low + (question.duals.potentials @ middle)[order]
        partner[order, b] = js[who]
    return slack, partner
