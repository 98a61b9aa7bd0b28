"""Prices on an ordered alphabet in time linear in the number of symbols.

For one posterior the search over all symbols is a distance transform: the lower envelope of
parabolas (Felzenszwalb and Huttenlocher) for squared distance, two sweeps for absolute
distance. Columns with many different posteriors (two private values) are priced at the ends of
short intervals of the posterior; the minimum is concave in it, so the chord is a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privpipe.numerics.compiler import njit
from privpipe.numerics.mapping.pricing.pair_pricing import Prices, Question
from privpipe.numerics.mapping.problem.distortion import CodeDistance
from privpipe.numerics.mapping.problem.programme import MappingProblem
from privpipe.protocols import FloatArray, IntArray

__all__ = ["PosteriorBins", "bin_posteriors", "is_line", "price_line"]

_MOST_DISTINCT = 24


@njit(cache=True, nogil=True)
def _squared_transform(xs: Any, h: Any, lam: Any, xq: Any, out: Any, arg: Any) -> Any:
    """out[q] = min_k h[k] + lam (xq[q] - xs[k])**2 for ascending xs and xq."""
    n = len(xs)
    vertex, start = np.empty(n, np.int64), np.empty(n)
    top = -1
    for q in range(n):
        cut = -np.inf
        skip = False
        while top >= 0:
            k = vertex[top]
            if xs[q] == xs[k]:
                if h[q] >= h[k]:
                    skip = True
                    break
                top -= 1
                continue
            cut = (h[q] - h[k]) / (2.0 * lam * (xs[q] - xs[k])) + 0.5 * (xs[q] + xs[k])
            if cut > start[top]:
                break
            top -= 1
        if skip:
            continue
        top += 1
        vertex[top] = q
        start[top] = cut if top > 0 else -np.inf
    c = 0
    for q in range(len(xq)):
        while c < top and start[c + 1] < xq[q]:
            c += 1
        arg[q] = vertex[c]
        out[q] = h[vertex[c]] + lam * (xq[q] - xs[vertex[c]]) ** 2


@njit(cache=True, nogil=True)
def _absolute_transform(xs: Any, h: Any, lam: Any, xq: Any, out: Any, arg: Any) -> Any:
    """out[q] = min_k h[k] + lam |xq[q] - xs[k]| for ascending xs and xq."""
    low, who, k = np.inf, 0, 0
    for q in range(len(xq)):
        while k < len(xs) and xs[k] <= xq[q]:
            if h[k] - lam * xs[k] < low:
                low, who = h[k] - lam * xs[k], k
            k += 1
        out[q], arg[q] = low + lam * xq[q], who
    low, k = np.inf, len(xs) - 1
    for q in range(len(xq) - 1, -1, -1):
        while k >= 0 and xs[k] >= xq[q]:
            if h[k] + lam * xs[k] < low:
                low, who = h[k] + lam * xs[k], k
            k -= 1
        if low - lam * xq[q] < out[q]:
            out[q], arg[q] = low - lam * xq[q], who


def _transform(
    kind: str, xs: FloatArray, h: FloatArray, lam: float, xq: FloatArray
) -> tuple[FloatArray, IntArray]:
    out, arg = np.empty(len(xq)), np.empty(len(xq), np.int64)
    if lam <= 0.0:
        k = int(np.argmin(h))
        return np.full(len(xq), h[k]), np.full(len(xq), k)
    kernel = _squared_transform if kind == "squared" else _absolute_transform
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


def price_line(problem: MappingProblem, question: Question, bins: PosteriorBins) -> Prices:
    """Price all columns; `best` holds the neighbours of the cheapest symbols.

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
        Lower bounds of the prices, exact where a bin has one posterior; groups of partners
        are the bins.
    """
    distance = problem.distance
    if not isinstance(distance, CodeDistance):
        raise TypeError("an ordered alphabet has codes")
    g, lam = question.duals.potentials, question.duals.multiplier
    x_s, x_c = distance.symbols[:, 0], distance.columns[:, 0]
    order = np.argsort(x_s, kind="stable")
    xs = x_s[order]
    values, best = np.empty(problem.n_columns), np.empty((problem.n_columns, 2), np.int64)
    members = [np.flatnonzero(bins.bin == b) for b in range(len(bins.low))]
    for b, inside in enumerate(members):
        js = inside[np.argsort(x_c[inside], kind="stable")]
        lower, first = _transform(distance.kind, xs, (g @ bins.low[b])[order], lam, x_c[js])
        upper, second = lower, first
        if (bins.low[b] != bins.high[b]).any():
            upper, second = _transform(distance.kind, xs, (g @ bins.high[b])[order], lam, x_c[js])
        values[js] = lower + bins.share[js] * (upper - lower)
        best[js, 0], best[js, 1] = first, second
    reach = np.arange(-question.top, question.top + 1)
    near = np.clip(best[:, :, None] + reach, 0, len(xs) - 1).reshape(problem.n_columns, -1)
    if not question.partners:
        none = np.empty((0, len(members)))
        return Prices(values, order[near], none, none.astype(np.int64))
    levels = values if question.levels is None else question.levels
    slack, partner = _partners(problem, question, bins, members, levels)
    return Prices(values, order[near], slack, partner)


def _partners(
    problem: MappingProblem,
    question: Question,
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
