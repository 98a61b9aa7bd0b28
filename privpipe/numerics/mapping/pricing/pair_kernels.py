"""Kernels of the search over all pairs, and their tie rule: of equal costs the first."""

from __future__ import annotations

from typing import Any

import numpy as np

from privpipe.numerics.compiler import njit

# No contraction or reassociation: the same pair must give the same bits in every block.
_LOOSE = {"nnan", "ninf", "nsz"}
_LANES = 64


@njit(cache=True, nogil=True, fastmath=_LOOSE)
def count_differences(symbols: Any, column: Any, out: Any) -> Any:
    # One byte per attribute: fold each byte's bits to its lowest, then add the bytes up.
    for w in range(symbols.shape[0]):
        row, c = symbols[w], column[w]
        for i in range(row.shape[0]):
            x = row[i] ^ c
            x |= x >> np.uint64(4)
            x |= x >> np.uint64(2)
            x |= x >> np.uint64(1)
            x &= np.uint64(0x0101010101010101)
            count = (x * np.uint64(0x0101010101010101)) >> np.uint64(56)
            out[i] = np.float64(np.int32(count)) + (out[i] if w else 0.0)


@njit(cache=True, nogil=True, fastmath=_LOOSE)
def sum_distances(kind: Any, symbols: Any, column: Any, out: Any) -> Any:
    for k in range(symbols.shape[0]):
        row, c = symbols[k], column[k]
        for i in range(row.shape[0]):
            t = row[i] - c
            if kind == 1:
                step = t * t
            elif kind == 2:
                step = abs(t)
            else:
                step = 1.0 if t != 0.0 else 0.0
            out[i] = step + (out[i] if k else 0.0)


@njit(cache=True, nogil=True, fastmath=_LOOSE)
def find_cheapest(cost: Any, best: Any, values: Any) -> Any:
    """Indices of the smallest costs, in order; ties by index. Returns the least cost."""
    n, top = cost.shape[0], best.shape[0]
    values[:] = np.inf
    for start in range(0, n, _LANES):
        stop = min(start + _LANES, n)
        least = np.inf
        for i in range(start, stop):
            least = min(least, cost[i])
        if least >= values[top - 1]:
            continue
        for i in range(start, stop):
            c = cost[i]
            if c < values[top - 1]:
                k = top - 1
                while k > 0 and values[k - 1] > c:
                    values[k] = values[k - 1]
                    best[k] = best[k - 1]
                    k -= 1
                values[k] = c
                best[k] = i
    return values[0]


@njit(cache=True, nogil=True, fastmath=_LOOSE)
def price_columns_kernel(
    kind: Any,
    words_s: Any,
    words_c: Any,
    x_s: Any,
    x_c: Any,
    dense: Any,
    g: Any,
    posterior: Any,
    lam: Any,
    group: Any,
    first: Any,
    levels: Any,
    values: Any,
    best: Any,
    slack: Any,
    partner: Any,
) -> Any:
    n = g.shape[1]
    cost = np.empty(n)
    least = np.empty(best.shape[1])
    for j in range(posterior.shape[0]):
        if kind == 3:
            count_differences(words_s, words_c[j], cost)
        elif kind == 4:
            cost[:] = dense[j]
        else:
            sum_distances(kind, x_s, x_c[j], cost)
        for i in range(n):
            cost[i] *= lam
        for a in range(g.shape[0]):
            p, row = posterior[j, a], g[a]
            if p != 0.0:
                for i in range(n):
                    cost[i] += p * row[i]
        values[j] = find_cheapest(cost, best[j], least)
        if slack.shape[1]:
            low, who, v = slack[group[j]], partner[group[j]], values[j]
            if len(levels):
                v = levels[j]
            for i in range(n):
                c = cost[i] - v
                if c < low[i]:
                    low[i] = c
                    who[i] = first + j
