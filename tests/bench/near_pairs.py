"""Prices of an ordered alphabet from a guess, and lists of all pairs near a column's price.

Of a search that is not in the package yet; see `dual_ascent`.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from privpipe.numerics.compiler import njit
from privpipe.numerics.mapping.problem.ordered_pricing import (
    _NARROW,
    _RUNS,
    _away,
    _lowest,
    _mean,
    price_by_runs,
)
from privpipe.numerics.mapping.problem.programme import Duals, MappingProblem, Pairs
from privpipe.protocols import FloatArray, IntArray


@njit(cache=True, nogil=True)
def list_by_runs(
    xs: Any, g: Any, lam: Any, square: Any, xq: Any, p: Any, stay: Any, most: Any, found: Any
) -> Any:
    """Each column's symbols that cost at most `most`, and its own; how many, -1 for want of room.

    `found` holds where each column's begin, (n_columns + 1,), and room for the symbols.
    """
    pointers, symbols = found
    n, wide, count = len(xs), _NARROW * _RUNS, 0
    narrow_lows, wide_lows = _lowest(g, _NARROW), _lowest(g, wide)
    for j in range(len(xq)):
        for w in range(len(wide_lows)):
            start, stop = w * wide, min(n, (w + 1) * wide)
            away = _away(xq[j], xs[start], xs[stop - 1], lam, square)
            far = _mean(p[j], wide_lows[w]) + away > most[j]
            if far and not start <= stay[j] < stop:
                continue
            for first in range(start, stop, _NARROW):
                last = min(n, first + _NARROW)
                away = _away(xq[j], xs[first], xs[last - 1], lam, square)
                far = _mean(p[j], narrow_lows[first // _NARROW]) + away > most[j]
                if far and not first <= stay[j] < last:
                    continue
                for i in range(first, last):
                    away = _away(xq[j], xs[i], xs[i], lam, square)
                    if i == stay[j] or _mean(p[j], g[i]) + away <= most[j]:
                        if count == len(symbols):
                            return -1
                        symbols[count] = i
                        count += 1
        pointers[j + 1] = count
    return count


def price_from(problem: MappingProblem, duals: Duals, first: IntArray) -> FloatArray:
    """Exact prices of all columns, (n_columns,), nats.

    `first` names a symbol of each column that may be its cheapest, and is put right; the better
    the guess, the less is looked at.
    """
    xs, xq, p, square = _read_order(problem)
    g, values = np.ascontiguousarray(duals.potentials), _cost_at(problem, duals, first)
    search: Any = price_by_runs
    search(xs, g, duals.multiplier, square, xq, p, values, first)
    return values


def list_near(
    problem: MappingProblem, duals: Duals, values: FloatArray, near: float, most: int
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
    xs, xq, p, square = _read_order(problem)
    pointers, symbols = np.zeros(problem.n_columns + 1, np.int64), np.empty(most, np.int64)
    g, search = np.ascontiguousarray(duals.potentials), cast(Any, list_by_runs)
    here = xs, g, duals.multiplier, square, xq, p
    count = search(*here, problem.stay, values + near, (pointers, symbols))
    if count < 0:
        return None
    columns, symbols = np.repeat(np.arange(problem.n_columns), np.diff(pointers)), symbols[:count]
    return Pairs(pointers, symbols.copy(), columns, problem.distance.pairs(symbols, columns))


def _read_order(problem: MappingProblem) -> tuple[FloatArray, FloatArray, FloatArray, bool]:
    """What the searches by runs read: positions of symbols and of columns, posteriors, kind."""
    distance: Any = problem.distance
    xs, xq = (np.ascontiguousarray(x[:, 0]) for x in (distance.symbols, distance.columns))
    return xs, xq, np.ascontiguousarray(problem.posterior), distance.kind == "squared"


def _cost_at(problem: MappingProblem, duals: Duals, symbols: IntArray) -> FloatArray:
    """What a symbol costs each column, by the operations of the kernel, in their order."""
    xs, xq, p, square = _read_order(problem)
    step, g = xq - xs[symbols], duals.potentials[symbols]
    cost = np.zeros(len(p))
    for a in range(p.shape[1]):
        cost += p[:, a] * g[:, a]
    return np.asarray(cost + duals.multiplier * (step * step if square else np.abs(step)))
