"""How the coordinates of a tile's records shrink, compiled.

Everything here is a function of predictions on the grid and must give the bits that
`privpipe.numerics.null_space.shrinkage` gives: nothing is reordered or fused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

STRICT: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_strict = njit(nogil=True, error_model="numpy")


@_strict
def _shrink_in_order(b: Any, kept: Any, budget: Any, room: Any) -> None:
    """Remove coordinate by coordinate until the budget is spent; see `shrink_by_rule`."""
    before = room[0]
    for k in range(budget.size):
        before[k] = 0.0
    for j in range(b.shape[0]):
        for k in range(budget.size):
            own, left = b[j, k] * b[j, k], max(budget[k] - before[k], 0.0)
            rest = max(abs(b[j, k]) - np.sqrt(left), 0.0)
            kept[j, k] = (0.0 if own <= left else (rest if b[j, k] > 0 else -rest)) + 0.0
            before[k] += own


@_strict
def _shrink_evenly(b: Any, kept: Any, budget: Any, room: Any) -> None:
    """Smallest coordinates whole, every other one by ``mu / |b|``; see `shrink_evenly`."""
    rank = b.shape[0]
    size, order = np.empty(rank), np.empty(rank, np.int64)
    share, spent = np.empty(rank), np.empty(rank)
    for k in range(budget.size):
        for j in range(rank):
            kept[j, k] = b[j, k]
        if np.isfinite(budget[k]) and budget[k] > 0:  # else nothing is to be spent
            _sort_by_size(b[:, k], order)
            for j in range(rank):
                size[j] = abs(b[order[j], k])
            _share_evenly(size, budget[k], share, spent)
            for j in range(rank):
                rest = size[j] - min(share[j], size[j])
                kept[order[j], k] = rest if b[order[j], k] > 0 else -rest
        for j in range(rank):
            kept[j, k] += 0.0


@_strict
def _sort_by_size(b: Any, order: Any) -> None:
    """Place each by counting the smaller ones (ties by number): no branch to mispredict."""
    for j in range(b.size):
        size = abs(b[j])
        place = 0
        for i in range(j):
            place += abs(b[i]) <= size
        for i in range(j + 1, b.size):
            place += abs(b[i]) < size
        order[place] = j


@_strict
def _share_evenly(size: Any, budget: float, share: Any, spent: Any) -> None:
    """How much each coordinate loses; see `shrinkage._share_evenly`, operation by operation."""
    rank = size.size
    share[rank - 1] = 1.0  # q until it is known where the budget ends
    for k in range(rank - 2, -1, -1):
        larger = size[k + 1] * size[k + 1]
        ratio = (size[k] * size[k]) / larger if larger > 0 else 0.0
        share[k] = 1.0 + ratio * share[k + 1]
    total = 0.0
    for k in range(rank):
        spent[k] = total
        total += size[k] * size[k]
    n_whole = 0
    while n_whole < rank:
        cost = size[n_whole] * size[n_whole]
        if not spent[n_whole] + cost * share[n_whole] <= budget:
            break
        n_whole += 1
    first = min(n_whole, rank - 1)
    root = np.sqrt(max(budget - spent[first], 0.0) / share[first])
    start = size[first]
    for k in range(rank):
        lost = (root * start) / size[k] if size[k] > 0 else size[k]
        share[k] = size[k] if k < n_whole else lost


SHRINKING: dict[str, Callable[..., None]] = {"in_order": _shrink_in_order, "kkt": _shrink_evenly}
"""``shrink(b, kept, budget, room)`` by rule, with b and kept (rank, tile), budget (tile,), room
(2, tile)."""


def write_smallest(rank: int) -> str:
    """The same for "greedy": as `_shrink_in_order`, the smallest coordinate first.

    What a coordinate finds spent is summed up anew: nothing is sorted and nothing branches, so
    that many records are done at a time.
    """
    each = range(rank)
    rows = "; ".join(f"b{j} = b[{j}]; kept{j} = kept[{j}]" for j in each)
    lines = ["; ".join(f"t{j} = b{j}[k]; c{j} = t{j} * t{j}" for j in each)]
    for j in each:
        smaller = [f"(c{i} if c{i} {'<=' if i < j else '<'} c{j} else 0.0)" for i in each if i != j]
        lines += [
            f"left = max(budget[k] - ({' + '.join(smaller) or '0.0'}), 0.0)",
            f"rest = max(abs(t{j}) - np.sqrt(left), 0.0)",
            f"kept{j}[k] = (0.0 if c{j} <= left else (rest if t{j} > 0 else -rest)) + 0.0",
        ]
    body = "\n".join(f"        {line}" for line in lines)
    return f"""
def shrink(b, kept, budget, room):
    {rows}
    for k in range(budget.size):
{body}
"""
