"""The least reduced cost of every column, for the certificate: written apart from the solvers.

A price computed in float64 is only evidence within its rounding error. What is summed here is
``cost - error``, where the error covers every operation that made the cost, so that the sum is
below the exact one whatever the sizes of potentials and distances.
"""

from typing import Any

import numpy as np

from privpipe.numerics.compiler import njit


@njit(cache=True, nogil=True)
def sum_block_prices(joint: Any, mass: Any, g: Any, lam: Any, d: Any, eps: Any) -> Any:
    """Columns (rows of `joint`) against all symbols, distances given, (n_columns, n_symbols)."""
    total, size = 0.0, 0.0
    for j in range(len(mass)):
        low, here = np.inf, 0.0
        for i in range(len(g)):
            far = lam * mass[j] * d[j, i]
            cost, scale = far, far
            for a in range(g.shape[1]):
                part = joint[j, a] * g[i, a]
                cost += part
                scale += abs(part)
            # The least of lowered costs, not the lowered least: another's error may be larger.
            if cost - eps * scale < low:
                low, here = cost - eps * scale, scale
        total += low
        size += here
    return total, size


@njit(cache=True, nogil=True)
def _measure(kind: Any, left: Any, right: Any) -> Any:
    total = 0.0
    for k in range(len(left)):
        if kind == 0:
            total += 1.0 if left[k] != right[k] else 0.0
        elif kind == 1:
            total += (left[k] - right[k]) ** 2
        else:
            total += abs(left[k] - right[k])
    return total


@njit(cache=True, nogil=True)
def sum_code_prices(joint: Any, mass: Any, g: Any, lam: Any, x: Any, kind: Any, eps: Any) -> Any:
    """All columns against all symbols; distances of the codes `x` are measured on the way."""
    total, size = 0.0, 0.0
    for j in range(len(mass)):
        # No mass, no price: a column without records adds nothing to the bound.
        if mass[j] == 0.0:
            continue
        low, here = np.inf, 0.0
        for i in range(len(g)):
            cost, scale = 0.0, 0.0
            for a in range(g.shape[1]):
                part = joint[j, a] * g[i, a]
                cost += part
                scale += abs(part)
            if cost - eps * scale >= low:  # a distance only adds
                continue
            far = lam * mass[j] * _measure(kind, x[j], x[i])
            if cost + far - eps * (scale + far) < low:
                low, here = cost + far - eps * (scale + far), scale + far
        total += low
        size += here
    return total, size


@njit(cache=True, nogil=True)
def _span(distance: Any, lowest: Any, highest: Any, square: Any) -> Any:
    """Least distance from a position to an interval."""
    away = max(lowest - distance, distance - highest, 0.0)
    return away * away if square else away


@njit(cache=True, nogil=True)
def _least(p: Any, lows: Any, far: Any, eps: Any) -> Any:
    """A number below the cost of every symbol whose potentials are at least `lows`."""
    cost, scale = far, far
    for a in range(len(p)):
        part = p[a] * lows[a]
        cost += part
        scale += abs(part)
    # Four errors: of this sum, of the symbol's own, of the run's distance and of the comparison.
    return cost - 4.0 * eps * scale


@njit(cache=True, nogil=True)
def _lowest(g: Any, width: Any) -> Any:
    """Least potential of each private value over each run of `width` symbols."""
    n_runs = (len(g) + width - 1) // width
    lows = np.full((n_runs, g.shape[1]), np.inf)
    for i in range(len(g)):
        for a in range(g.shape[1]):
            lows[i // width, a] = min(lows[i // width, a], g[i, a])
    return lows


@njit(cache=True, nogil=True)
def sum_ordered_prices(
    joint: Any, mass: Any, g: Any, lam: Any, x: Any, square: Any, narrow: Any, wide: Any, eps: Any
) -> Any:
    """As `sum_code_prices` for positions `x` that ascend; whole runs of symbols are passed over.

    A run is passed over where its least potentials and its nearest end already cost more than
    the best symbol found; `wide` is a multiple of `narrow`.
    """
    n, total, size = len(g), 0.0, 0.0
    wide_lows, narrow_lows = _lowest(g, wide), _lowest(g, narrow)
    for j in range(n):
        if mass[j] == 0.0:
            continue
        low, here = np.inf, 0.0
        rate = lam * mass[j]
        # Where the column is itself: its run goes first.
        home = j // wide
        for turn in range(len(wide_lows)):
            # The column's own run first: it holds the symbols most likely to be cheap.
            run = home if turn == 0 else (turn - 1 if turn <= home else turn)
            start, stop = run * wide, min((run + 1) * wide, n)
            away = rate * _span(x[j], x[start], x[stop - 1], square)
            if _least(joint[j], wide_lows[run], away, eps) > low:
                continue
            for first in range(start, stop, narrow):
                last = min(first + narrow, stop)
                away = rate * _span(x[j], x[first], x[last - 1], square)
                if _least(joint[j], narrow_lows[first // narrow], away, eps) > low:
                    continue
                for i in range(first, last):
                    step = abs(x[j] - x[i])
                    far = rate * (step * step if square else step)
                    cost, scale = far, far
                    for a in range(g.shape[1]):
                        part = joint[j, a] * g[i, a]
                        cost += part
                        scale += abs(part)
                    if cost - eps * scale < low:
                        low, here = cost - eps * scale, scale
        total += low
        size += here
    return total, size
