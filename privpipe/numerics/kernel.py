"""The compiled cleaner: a tile of records for their coordinates, then to write what is released.

The rank is unrolled, so that all coordinates of a record grow in registers while it streams by
once; float32 records are multiplied and summed in float64. What is decided of a record, and how its
coordinates shrink, is done for all records of a tile side by side. A tile is read whole before it
is written, so that records may be released into their own place.
`privpipe.numerics.cleaning` holds the same arithmetic in plain NumPy, and the two agree to rounding
(bitwise they need not).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit

from privpipe.protocols import FloatArray

__all__ = ["UNREPRESENTABLE", "WRONG", "align_rows", "make_kernel", "make_lift"]

UNREPRESENTABLE, WRONG = 1, 2
"""What a kernel says of a record beside 0: its margin is too wide; it is not finite."""

TILE = 128
"""Records of a tile: what is decided of them takes no time beside reading and writing them."""

LINE_VALUES = 8
"""Float64 values in a line of the cache, and in the widest register."""

_compiled = njit(
    nogil=True,
    # Sums may be reordered (the margin allows any order), NaN and infinity keep their meaning.
    fastmath={"reassoc", "contract", "arcp", "nsz"},
    error_model="numpy",
)


@_compiled
def _judge(
    b: Any,
    square: Any,
    root: float,
    weights: Any,
    reach: Any,
    limits: Any,
    state: Any,
    left: Any,
    room: Any,
) -> None:
    """State of each record of a tile, and the budget that its margin leaves."""
    margin, far = room[0], room[1]
    for k in range(square.size):
        margin[k] = weights[0] * np.sqrt(square[k]) + weights[1]
        far[k] = limits[1]
    for j in range(b.shape[0]):
        for k in range(square.size):
            margin[k] += weights[2 + j] * abs(b[j, k])
            far[k] += reach[j] * abs(b[j, k])
    for k in range(square.size):
        wide = not far[k] <= limits[2] or (root > 0 and not margin[k] <= limits[0])
        state[k] = WRONG if not np.isfinite(square[k]) else (UNREPRESENTABLE if wide else 0)
        rest = 0.0 if state[k] != 0 else root - margin[k]
        left[k] = rest * rest


@_compiled
def _shrink_in_order(b: Any, kept: Any, budget: Any, spent: Any, room: Any) -> None:
    """Remove coordinate by coordinate until the budget is spent; see `shrink_by_rule`."""
    before = room[0]
    for k in range(budget.size):
        before[k] = 0.0
    for j in range(b.shape[0]):
        for k in range(budget.size):
            own, left = b[j, k] * b[j, k], max(budget[k] - before[k], 0.0)
            rest = max(abs(b[j, k]) - np.sqrt(left), 0.0)
            kept[j, k] = 0.0 if own <= left else (rest if b[j, k] > 0 else -rest)
            spent[k] += min(own, left)
            before[k] += own


@_compiled
def _shrink_smallest(b: Any, kept: Any, budget: Any, spent: Any, room: Any) -> None:
    """As `_shrink_in_order`, the smallest first: what a coordinate finds spent is summed up anew.

    Nothing is sorted and nothing branches, so that many records are done at a time.
    """
    before = room[0]
    for j in range(b.shape[0]):
        for k in range(budget.size):
            before[k] = 0.0
        for i in range(b.shape[0]):
            for k in range(budget.size):
                cost, own = b[i, k] * b[i, k], b[j, k] * b[j, k]
                earlier = cost < own or (cost == own and i < j)
                before[k] += cost if earlier else 0.0
        for k in range(budget.size):
            own, left = b[j, k] * b[j, k], max(budget[k] - before[k], 0.0)
            rest = max(abs(b[j, k]) - np.sqrt(left), 0.0)
            kept[j, k] = 0.0 if own <= left else (rest if b[j, k] > 0 else -rest)
            spent[k] += min(own, left)


@_compiled
def _shrink_evenly(b: Any, kept: Any, budget: Any, spent: Any, room: Any) -> None:
    """Smallest coordinates whole, every other one by ``mu / |b|``; see `shrink_evenly`."""
    one, order = np.empty(b.shape[0]), np.empty(b.shape[0], np.int64)
    for k in range(budget.size):
        for j in range(one.size):
            one[j] = b[j, k]
        if budget[k] > 0:  # else nothing is to be spent, or what is not finite has no order
            _sort_by_size(one, order)
            spent[k] = _shrink_record_evenly(one, order, budget[k])
        for j in range(one.size):
            kept[j, k] = one[j]


@_compiled
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


@_compiled
def _shrink_record_evenly(b: Any, order: Any, budget: float) -> float:
    rank = b.size
    spent = 0.0
    for k in range(rank):
        size = abs(b[order[k]])
        q = 0.0
        for i in range(k, rank):
            ratio = size / abs(b[order[i]]) if size > 0 else 0.0
            q += ratio * ratio
        if spent + size * size * q <= budget:
            spent += size * size
            b[order[k]] = 0.0
            continue
        mu = np.sqrt(max(budget - spent, 0.0) / q) * size
        for i in range(k, rank):
            v = b[order[i]]
            b[order[i]] = max(abs(v) - mu / abs(v), 0.0) * (1.0 if v > 0 else -1.0)
        return budget
    return spent


SHRINKING = {
    "greedy": _shrink_smallest,
    "in_order": _shrink_in_order,
    "kkt": _shrink_evenly,
}


def align_rows(rows: FloatArray) -> FloatArray:
    """A copy whose rows begin where lines of the cache do, filled up with zeros.

    Values that straddle two lines take twice the time to load.

    Parameters
    ----------
    rows : (n_rows, n_columns)

    Returns
    -------
    aligned : (n_rows, n_columns and up to 7 more), float64
    """
    width = -(-rows.shape[1] // LINE_VALUES) * LINE_VALUES
    memory = np.zeros(len(rows) * width + LINE_VALUES)
    first = -(memory.ctypes.data // memory.itemsize) % LINE_VALUES
    aligned = memory[first : first + len(rows) * width].reshape(len(rows), width)
    aligned[:, : rows.shape[1]] = rows
    return aligned


@lru_cache(maxsize=64)
def make_kernel(rank: int, rule: str, lifted: bool) -> Callable[..., None]:
    """Compile the cleaner of one rank.

    Parameters
    ----------
    rank
        Number of coordinates, at least 1.
    rule
        "greedy", "in_order" or "kkt".
    lifted
        Write records; otherwise the kept coordinates.

    Returns
    -------
    kernel
        ``kernel(x, encoder, shift, lift, centre, root, weights, reach, limits, out, spent, state,
        measured)`` with encoder (rank, n_features_in or more) and lift (rank, n_features_out or
        more) row by row, shift (rank,), the margin's weights (rank + 2,) as (per_record, constant,
        per_coordinate ...), reach (rank,), and limits (3,): the widest margin, the norm of the
        centre, and the largest released value. It fills out, which may be x, spent (n_records,),
        state (n_records,), and of measured (n_records, rank + 1) the rows of records that it
        withholds: their coordinates and squared norms.
    """
    space: dict[str, Any] = {"np": np, "judge": _judge, "shrink": SHRINKING[rule]}
    # The text is made of numbers alone; the loops below are the only thing that depends on them.
    exec(_write_source(rank, lifted), space)
    kernel: Callable[..., None] = _compiled(space["kernel"])
    return kernel


@lru_cache(maxsize=64)
def make_lift(rank: int) -> Callable[..., None]:
    """Compile ``out = centre + b @ lift`` of one rank, written once in the dtype of `out`.

    Returns
    -------
    kernel
        ``kernel(b, lift, centre, out)`` with b (n_records, rank), lift (rank, n_features_out)
        row by row, centre (n_features_out,) and out (n_records, n_features_out).
    """
    space: dict[str, Any] = {}
    exec(_write_lift(rank), space)
    kernel: Callable[..., None] = _compiled(space["kernel"])
    return kernel


def _write_lift(rank: int) -> str:
    rows = "; ".join(f"d{j} = lift[{j}]" for j in range(rank))
    take = "; ".join(f"t{j} = b[i, {j}]" for j in range(rank))
    total = " + ".join(f"t{j} * d{j}[c]" for j in range(rank))
    return f"""
def kernel(b, lift, centre, out):
    {rows}
    for i in range(out.shape[0]):
        y = out[i]
        {take}
        for c in range(y.size):
            y[c] = centre[c] + ({total})
"""


def _write_source(rank: int, lifted: bool) -> str:
    each = range(rank)
    rows = "\n".join(f"    e{j} = encoder[{j}]; d{j} = lift[{j}]" for j in each)
    zeros = "; ".join(f"s{j} = 0.0" for j in each)
    sums = "\n".join(f"                s{j} += v * e{j}[c]" for j in each)
    hold = "; ".join(f"b[{j}, k] = s{j} + shift[{j}]" for j in each)
    leave = "; ".join(f"measured[i, {j}] = b[{j}, k]" for j in each)
    take = "; ".join(f"t{j} = (kept[{j}, k] if root > 0 else b[{j}, k])" for j in each)
    if lifted:
        total = " + ".join(f"t{j} * d{j}[c]" for j in each)
        write = f"            for c in range(y.size):\n                y[c] = centre[c] + ({total})"
    else:
        write = "\n".join(f"            y[{j}] = t{j}" for j in each)
    return f"""
def kernel(
    x, encoder, shift, lift, centre, root, weights, reach, limits, out, spent, state, measured
):
{rows}
    b = np.zeros(({rank}, {TILE})); kept = np.zeros(({rank}, {TILE}))
    square = np.zeros({TILE}); left = np.zeros({TILE}); cost = np.zeros({TILE})
    judged = np.zeros({TILE}, np.uint8); room = np.zeros((2, {TILE}))
    for start in range(0, x.shape[0], {TILE}):
        n = min({TILE}, x.shape[0] - start)
        for k in range(n):
            row = x[start + k]; total = 0.0
            {zeros}
            for c in range(row.size):
                v = np.float64(row[c])
                total += v * v
{sums}
            square[k] = total
            {hold}
        judge(b, square, root, weights, reach, limits, judged, left, room)
        for k in range({TILE}):
            cost[k] = 0.0
        if root > 0:
            shrink(b, kept, left, cost, room)
        for k in range(n):
            i = start + k; y = out[i]
            state[i] = judged[k]
            if judged[k] != 0:
                spent[i] = 0.0
                {leave}; measured[i, {rank}] = square[k]
                for c in range(y.size):
                    y[c] = np.nan
                continue
            spent[i] = cost[k]
            {take}
{write}
"""
