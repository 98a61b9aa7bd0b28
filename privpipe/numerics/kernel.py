"""The compiled cleaner: one pass over a record for its coordinates, one to write what is released.

The rank is unrolled, so that all coordinates of a record grow in registers while it streams by
once; float32 records are multiplied and summed in float64. `privpipe.numerics.cleaning` holds the
same arithmetic in plain NumPy, and the two agree to rounding (bitwise they need not).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit

__all__ = ["UNREPRESENTABLE", "WRONG", "make_kernel", "make_lift"]

UNREPRESENTABLE, WRONG = 1, 2
"""What a kernel says of a record beside 0: its margin is too wide; it is not finite."""

_compiled = njit(
    nogil=True,
    # Sums may be reordered (the margin allows any order), NaN and infinity keep their meaning.
    fastmath={"reassoc", "contract", "arcp", "nsz"},
    error_model="numpy",
)


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
def _shrink(b: Any, order: Any, budget: float) -> float:
    """Remove in the given order until the budget is spent; returns what was spent."""
    left = budget
    for k in range(b.size):
        j = order[k]
        cost = b[j] * b[j]
        if cost <= left:
            left -= cost
            b[j] = 0.0
            continue
        part = np.sqrt(left)
        b[j] = max(abs(b[j]) - part, 0.0) * (1.0 if b[j] > 0 else -1.0)
        return budget
    return budget - left


@_compiled
def _shrink_evenly(b: Any, order: Any, budget: float) -> float:
    """Smallest coordinates whole, every other one by ``mu / |b|``; see `shrink_evenly`."""
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
        ``kernel(x, encoder, shift, lift, centre, root, weights, reach, limits, out, spent, state)``
        with encoder (rank, n_features_in) and lift (rank, n_features_out) row by row, shift
        (rank,), the margin's weights (rank + 2,) as (per_record, constant, per_coordinate ...),
        reach (rank,), and limits (3,): the widest margin, the norm of the centre, and the
        largest released value. It fills out, spent (n_records,)
        and state (n_records,).
    """
    space: dict[str, Any] = {
        "np": np,
        "sort": _sort_by_size,
        "shrink": _shrink_evenly if rule == "kkt" else _shrink,
    }
    # The text is made of numbers alone; the loop below is the only thing that depends on them.
    exec(_write_source(rank, rule != "in_order", lifted), space)
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


def _write_source(rank: int, sorted_first: bool, lifted: bool) -> str:
    each = range(rank)
    rows = "\n".join(f"    e{j} = encoder[{j}]; d{j} = lift[{j}]" for j in each)
    zeros = "; ".join(f"s{j} = 0.0" for j in each)
    sums = "\n".join(f"            s{j} += v * e{j}[c]" for j in each)
    keep = "\n".join(f"        b[{j}] = s{j} + shift[{j}]; order[{j}] = {j}" for j in each)
    take = "; ".join(f"t{j} = b[{j}]" for j in each)
    if lifted:
        total = " + ".join(f"t{j} * d{j}[c]" for j in each)
        write = f"        for c in range(y.size):\n            y[c] = centre[c] + ({total})"
    else:
        write = "\n".join(f"        y[{j}] = t{j}" for j in each)
    return f"""
def kernel(x, encoder, shift, lift, centre, root, weights, reach, limits, out, spent, state):
{rows}
    b = np.zeros({rank}); order = np.zeros({rank}, np.int64)
    for i in range(x.shape[0]):
        row = x[i]; y = out[i]; square = 0.0
        {zeros}
        for c in range(row.size):
            v = np.float64(row[c])
            square += v * v
{sums}
{keep}
        margin = weights[0] * np.sqrt(square) + weights[1]
        far = limits[1]
        for j in range({rank}):
            margin += weights[2 + j] * abs(b[j])
            far += reach[j] * abs(b[j])
        state[i] = 0; spent[i] = 0.0
        if not np.isfinite(square):
            state[i] = {WRONG}
        elif not far <= limits[2] or (root > 0 and not margin <= limits[0]):
            state[i] = {UNREPRESENTABLE}
        if state[i] != 0:
            for c in range(y.size):
                y[c] = np.nan
            continue
        if root > 0:
            {"sort(b, order)" if sorted_first else "pass"}
            spent[i] = shrink(b, order, (root - margin) * (root - margin))
        {take}
{write}
"""
