"""Kernels of pricing on an ordered alphabet: envelopes for one posterior, runs for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from privpipe.numerics.compiler import njit

_NARROW = 16
"""Symbols of a run that is looked at whole."""
_RUNS = 64
"""Runs of a wide one."""


@njit(cache=True, nogil=True)
def squared_transform(xs: Any, h: Any, lam: Any, xq: Any, out: Any, arg: Any) -> Any:
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
def absolute_transform(xs: Any, h: Any, lam: Any, xq: Any, out: Any, arg: Any) -> Any:
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
def _mean(p: Any, g: Any) -> Any:
    total = 0.0
    for a in range(len(p)):
        total += p[a] * g[a]
    return total


@njit(cache=True, nogil=True)
def price_by_runs(
    xs: Any, g: Any, lam: Any, square: Any, xq: Any, p: Any, low: Any, arg: Any
) -> Any:
    """Lower `low` to the least cost over all symbols, and say by `arg` which has it.

    `low` and `arg` hold a symbol of each column that is (nearly) the cheapest; a run of symbols is
    passed over where its least potentials and its nearest end cost as much already.
    """
    n, wide = len(xs), _NARROW * _RUNS
    narrow_lows, wide_lows = _lowest(g, _NARROW), _lowest(g, wide)
    for j in range(len(xq)):
        for w in range(len(wide_lows)):
            start, stop = w * wide, min(n, (w + 1) * wide)
            away = _away(xq[j], xs[start], xs[stop - 1], lam, square)
            if _mean(p[j], wide_lows[w]) + away >= low[j]:
                continue
            for first in range(start, stop, _NARROW):
                last = min(n, first + _NARROW)
                away = _away(xq[j], xs[first], xs[last - 1], lam, square)
                if _mean(p[j], narrow_lows[first // _NARROW]) + away >= low[j]:
                    continue
                for i in range(first, last):
                    step = abs(xq[j] - xs[i])
                    cost = _mean(p[j], g[i]) + lam * (step * step if square else step)
                    if cost < low[j]:
                        low[j], arg[j] = cost, i
