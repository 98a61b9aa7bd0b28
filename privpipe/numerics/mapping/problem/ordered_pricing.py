"""Prices on an ordered alphabet in time nearly linear in the number of symbols.

For one posterior the search over all symbols is a distance transform. For absolute distance it
takes two sweeps. For squared distance the cheapest symbols ascend with the columns (Aggarwal et al.
1987, Geometric applications of a matrix-searching algorithm). Halving finds them. Columns with many
different posteriors (two private values) are priced at the ends of short intervals of the
posterior. The cheaper of the symbols found there is all but the cheapest of the column. So a search
over all symbols can pass over nearly all runs of them.
"""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from privpipe.numerics.compiler import njit
from privpipe.numerics.mapping.problem.pair_pricing import Prices, PricingQuestion
from privpipe.numerics.mapping.problem.programme import CodeDistance, Duals, Pairs, Programme
from privpipe.protocols import FloatArray, IntArray

# Symbols of a run that is looked at whole.
_NARROW = 16
# Runs of a wide one.
_RUNS = 64


@njit(cache=True, nogil=True)
def _lowest(g: Any, width: Any) -> Any:
    """Least potential of each private value over each run of `width` symbols."""
    lows = np.full(((len(g) + width - 1) // width, g.shape[1]), np.inf)
    for i in range(len(g)):
        for a in range(g.shape[1]):
            lows[i // width, a] = min(lows[i // width, a], g[i, a])
    return lows


@njit(cache=True, nogil=True)
def _away(at: Any, first: Any, last: Any, lam: Any, square: Any) -> Any:
    """What the nearest end of an interval costs in distortion."""
    step = max(at - last, first - at, 0.0)
    return lam * (step * step if square else step)


@njit(cache=True, nogil=True)
def transform_distance(xs: Any, h: Any, lam: Any, square: Any, xq: Any, out: Any, arg: Any) -> Any:
    """out[q] = min_k h[k] + lam d(xq[q], xs[k]) for ascending xs and xq, and arg[q] that k."""
    if square:
        _halve(xs, h, lam, xq, arg)
    else:
        _sweep(xs, h, lam, xq, arg)
    for q in range(len(xq)):
        out[q] = h[arg[q]] + _away(xq[q], xs[arg[q]], xs[arg[q]], lam, square)


@njit(cache=True, nogil=True)
def _sweep(xs: Any, h: Any, lam: Any, xq: Any, arg: Any) -> Any:
    """Cheapest symbols by absolute distance: the least ``h - lam x`` below a query, and above."""
    low, who, k = np.inf, 0, 0
    lows = np.empty(len(xq))
    for q in range(len(xq)):
        while k < len(xs) and xs[k] <= xq[q]:
            if h[k] - lam * xs[k] < low:
                low, who = h[k] - lam * xs[k], k
            k += 1
        lows[q], arg[q] = low + lam * xq[q], who
    low, who, k = np.inf, 0, len(xs) - 1
    for q in range(len(xq) - 1, -1, -1):
        while k >= 0 and xs[k] >= xq[q]:
            if h[k] + lam * xs[k] < low:
                low, who = h[k] + lam * xs[k], k
            k -= 1
        if low - lam * xq[q] < lows[q]:
            arg[q] = who


@njit(cache=True, nogil=True)
def _halve(xs: Any, h: Any, lam: Any, xq: Any, arg: Any) -> Any:
    """Cheapest symbols by squared distance; of equals the first.

    They ascend with the queries, as for any convex distance. So each lies between those of the
    queries on both sides, which the round before has found. Runs of symbols are passed over where
    their least `h` and nearest end cost more than either of these.
    """
    lows = _lowest(h.reshape(-1, 1), _NARROW)[:, 0]
    stride = 1
    while 2 * stride <= len(xq):
        stride *= 2
    while stride > 0:
        for q in range(stride - 1, len(xq), 2 * stride):
            first = arg[q - stride] if q >= stride else 0
            last = arg[q + stride] if q + stride < len(xq) else len(xs) - 1
            # Not `low`: of equals the first is taken, and this one may be the last.
            most = h[first] + _away(xq[q], xs[first], xs[first], lam, True)
            most = min(most, h[last] + _away(xq[q], xs[last], xs[last], lam, True))
            low, who = np.inf, first
            for run in range(first // _NARROW, last // _NARROW + 1):
                start, stop = max(first, run * _NARROW), min(last + 1, (run + 1) * _NARROW)
                least = lows[run] + _away(xq[q], xs[start], xs[stop - 1], lam, True)
                if least > most or least >= low:
                    continue
                for k in range(start, stop):
                    step = xq[q] - xs[k]
                    if h[k] + lam * (step * step) < low:
                        low, who = h[k] + lam * (step * step), k
            arg[q] = who
        stride //= 2


@njit(cache=True, nogil=True)
def _mean(p: Any, g: Any) -> Any:
    total = 0.0
    for a in range(len(p)):
        total += p[a] * g[a]
    return total


@njit(cache=True, nogil=True)
def search_by_runs(
    xs: Any, g: Any, lam: Any, square: Any, xq: Any, p: Any, low: Any, arg: Any, found: Any
) -> Any:
    """Lower `low` to the least cost over all symbols, and say by `arg` which has it.

    `low` and `arg` hold a symbol of each column that is (nearly) the cheapest. A run of symbols is
    passed over where its least potentials and its nearest end cost as much already.

    With room in `found` both stay as they are: all symbols that cost at most `low` are listed, and
    `arg`. `found` is where each column's list begins, (n_columns + 1,), and the symbols. Returns
    how many there are, -1 for want of room.
    """
    pointers, symbols = found
    n, wide, lists, count = len(xs), _NARROW * _RUNS, len(symbols) > 0, 0
    narrow_lows, wide_lows = _lowest(g, _NARROW), _lowest(g, wide)
    for j in range(len(xq)):
        for w in range(len(wide_lows)):
            start, stop = w * wide, min(n, (w + 1) * wide)
            least = _mean(p[j], wide_lows[w]) + _away(xq[j], xs[start], xs[stop - 1], lam, square)
            # Ties pass over: the first symbol found of equal cost stays, whatever the runs.
            far = least > low[j] or (not lists and least == low[j])
            if far and not (lists and start <= arg[j] < stop):
                continue
            for first in range(start, stop, _NARROW):
                last = min(n, first + _NARROW)
                away = _away(xq[j], xs[first], xs[last - 1], lam, square)
                least = _mean(p[j], narrow_lows[first // _NARROW]) + away
                far = least > low[j] or (not lists and least == low[j])
                if far and not (lists and first <= arg[j] < last):
                    continue
                for i in range(first, last):
                    step = abs(xq[j] - xs[i])
                    cost = _mean(p[j], g[i]) + lam * (step * step if square else step)
                    if lists and (cost <= low[j] or i == arg[j]):
                        if count == len(symbols):
                            return -1
                        symbols[count] = i
                        count += 1
                    elif cost < low[j] and not lists:
                        low[j], arg[j] = cost, i
        if lists:
            pointers[j + 1] = count
    return count


# Up to so many different posteriors are transformed one by one, which is exact.
_MOST_DISTINCT = 24


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
    # Even intervals bound the width of a bin, quantiles its share of the columns.
    even = np.linspace(value.min(), value.max(), n_bins + 1)
    edges = np.unique(np.concatenate([even, np.quantile(value, np.linspace(0, 1, n_bins + 1))]))
    # The largest value belongs to the last bin, not to one of its own.
    which = np.clip(np.searchsorted(edges, value, side="right") - 1, 0, len(edges) - 2)
    used, compact = np.unique(which, return_inverse=True)
    low, high = edges[used], edges[used + 1]
    share = (value - low[compact]) / (high - low)[compact]
    lows, highs = (np.stack([1 - one, one], 1) for one in (low, high))
    return PosteriorBins(compact.ravel(), lows, highs, share)


def is_ordered(problem: Programme) -> bool:
    """Whether the alphabet is ordered: one attribute and squared or absolute distance."""
    distance = problem.distance
    if not isinstance(distance, CodeDistance):
        return False
    return distance.kind != "hamming" and distance.symbols.shape[1] == 1


def is_squared(problem: Programme) -> bool:
    """Whether distances of an ordered alphabet are squared."""
    return bool(cast(CodeDistance, problem.distance).kind == "squared")


def price_ordered(problem: Programme, question: PricingQuestion, bins: PosteriorBins) -> Prices:
    """Price all columns; `best` holds the cheapest symbols and their neighbours.

    Parameters
    ----------
    problem
        Of an ordered alphabet, see `is_ordered`; positions of symbols and of columns ascend.
    question
        `top` is the number of neighbours on each side of a cheapest symbol that are named.
    bins
        From `bin_posteriors`.

    Returns
    -------
    prices
        Exact to the rounding of their costs; groups of partners are the bins.
    """
    g, lam = question.duals.potentials, question.duals.multiplier
    xs, xq, square = _read_order(problem)

    def transform(xs: FloatArray, h: FloatArray, xq: FloatArray) -> tuple[FloatArray, IntArray]:
        out, arg = np.empty(len(xq)), np.empty(len(xq), np.int64)
        kernel: Any = transform_distance
        kernel(xs, h, lam, square, xq, out, arg)
        return out, arg

    values: FloatArray = np.empty(problem.n_columns)
    best = np.empty((problem.n_columns, 2), np.int64)
    members = [np.flatnonzero(bins.bin == b) for b in range(len(bins.low))]
    for b, js in enumerate(members):
        values[js], best[js, 0] = transform(xs, g @ bins.low[b], xq[js])
        best[js, 1] = best[js, 0]
        if (bins.low[b] != bins.high[b]).any():
            best[js, 1] = transform(xs, g @ bins.high[b], xq[js])[1]
    if not bins.exact:
        values = _price_exactly(problem, question.duals, best)
    shifts = np.arange(-question.top, question.top + 1)
    near = np.clip(best[:, :, None] + shifts, 0, len(xs) - 1).reshape(problem.n_columns, -1)
    shape = problem.n_symbols if question.partners else 0, len(members)
    slack, partner = np.empty(shape), np.empty(shape, np.int64)
    levels = values if question.levels is None else question.levels
    for b, js in enumerate(members if question.partners else ()):
        # The same transform the other way: for a symbol the cheapest column, at its bin's middle.
        low, who = transform(xq[js], -levels[js], xs)
        slack[:, b] = low + g @ (0.5 * (bins.low[b] + bins.high[b]))
        partner[:, b] = js[who]
    return Prices(values, near, slack, partner)


def _price_exactly(problem: Programme, duals: Duals, best: IntArray) -> FloatArray:
    """The least costs, given symbols that may have them; `best` is put right."""
    costs = np.stack([_cost_at(problem, duals, at) for at in best.T], axis=1)
    # `best` names the cheaper end of the chord first.
    dearer = np.flatnonzero(costs[:, 1] < costs[:, 0])
    best[dearer] = best[dearer, ::-1]
    first = best[:, 0].copy()
    values = price_from(problem, duals, first)
    best[:, 0] = first
    return values


def price_from(problem: Programme, duals: Duals, first: IntArray) -> FloatArray:
    """Exact prices of all columns, (n_columns,), nats.

    `first` names a symbol of each column that may be its cheapest, and is put right; the better
    the guess, the less is looked at.
    """
    values, none = _cost_at(problem, duals, first), np.zeros(0, np.int64)
    _search(problem, duals, values, first, (none, none))
    return values


def list_near(
    problem: Programme, duals: Duals, values: FloatArray, near: float, most: int
) -> Pairs | None:
    """All pairs within `near` nats of their column's price, and the columns' own.

    Parameters
    ----------
    problem, duals
    values : (n_columns,)
        Prices at the duals.
    near
    most
        Pairs for which there is room; None where there are more.
    """
    pointers, symbols = np.zeros(problem.n_columns + 1, np.int64), np.empty(most, np.int64)
    count = _search(problem, duals, values + near, problem.stay, (pointers, symbols))
    if count < 0:
        return None
    columns, symbols = np.repeat(np.arange(problem.n_columns), np.diff(pointers)), symbols[:count]
    return Pairs(pointers, symbols.copy(), columns, problem.distance.pairs(symbols, columns))


def _search(problem: Programme, duals: Duals, low: FloatArray, arg: IntArray, found: Any) -> int:
    xs, xq, square = _read_order(problem)
    p, g = (np.ascontiguousarray(one) for one in (problem.posterior, duals.potentials))
    search: Any = search_by_runs
    return int(search(xs, g, duals.multiplier, square, xq, p, low, arg, found))


def _read_order(problem: Programme) -> tuple[FloatArray, FloatArray, bool]:
    """Positions of symbols and of columns, and whether distance is squared."""
    distance: Any = problem.distance
    xs, xq = (np.ascontiguousarray(x[:, 0]) for x in (distance.symbols, distance.columns))
    return xs, xq, is_squared(problem)


def _cost_at(problem: Programme, duals: Duals, symbols: IntArray) -> FloatArray:
    """What a symbol costs each column, by the operations of the kernel, in their order."""
    xs, xq, square = _read_order(problem)
    step, cost = xq - xs[symbols], np.zeros(problem.n_columns)
    for a in range(problem.n_private):
        cost += problem.posterior[:, a] * duals.potentials[symbols, a]
    return np.asarray(cost + duals.multiplier * (step * step if square else np.abs(step)))
