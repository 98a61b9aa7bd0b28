"""The compiled cleaner: a tile of records for their predictions, then to write what is released.

Predictions are summed in registers while a record streams by once, in any order; float32 records
are multiplied and summed in float64. Then they are put on the grid, where the order does not show
any more, and all that follows is done in the order of `grid_coordinates`, without
fused operations: `cleaning` gives the same bits in plain NumPy. What is decided
of a record, and how its coordinates shrink, is done for all records of a tile side by side. A tile
is read whole before it is written, so that records may be released into their own place.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from privpipe.numerics.null_space import grid_kernels
from privpipe.numerics.null_space.grid_kernels import settle_tile, shrink_evenly, shrink_in_order
from privpipe.numerics.null_space.kernel_store import compile_text
from privpipe.protocols import FloatArray

STRICT: dict[str, Any] = {"nogil": True, "error_model": "numpy"}

UNREPRESENTABLE, WRONG = 1, 2
"""What a kernel says of a record beside 0: its margin is too wide; it is not finite."""

TILE = 128
"""Records of a tile: what is decided of them takes no time beside reading and writing them."""

LINE_VALUES = 8
"""Float64 values in a line of the cache, and in the widest register."""

_READING: dict[str, Any] = {
    **STRICT,
    # Sums may be reordered (the grid allows any order), NaN and infinity keep their meaning.
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
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
    # Padding is zero, and so adds nothing to any sum over a padded row.
    width = -(-rows.shape[1] // LINE_VALUES) * LINE_VALUES
    memory = np.zeros(len(rows) * width + LINE_VALUES)
    first = -(memory.ctypes.data // memory.itemsize) % LINE_VALUES
    aligned = memory[first : first + len(rows) * width].reshape(len(rows), width)
    aligned[:, : rows.shape[1]] = rows
    return aligned


@lru_cache(maxsize=64)
def make_kernel(n_predictions: int, rank: int, rule: str, lifted: bool) -> Callable[..., Any]:
    """Compile the cleaner of one rank.

    Parameters
    ----------
    n_predictions, rank
        Number of predictions and of coordinates, at least 1.
    rule
        "greedy", "in_order" or "kkt".
    lifted
        Write records; otherwise the retained coordinates.

    Returns
    -------
    kernel
        ``kernel(x, first, predictor, weights, numbers, turned, shift, lift, centre, root, margin,
        lift_norms, limits, known_rows, known, out, spent, state, measured, missing)`` with
        predictor (n_predictions, n_features_in or more) and lift (rank, n_features_out or more) row
        by row; weights, numbers, known_rows, known, missing as of `settle_tile`; turned
        (n_predictions, rank), shift (n_predictions,); the margin's weights (rank + 2,) as
        (per_unit, constant, per_coordinate ...), lift_norms (rank,), and limits (3,): the widest
        margin, the norm of the
        centre, and the largest released value. From record `first`, the first of a tile, on it
        fills out, which may be x, spent (n_records,), state (n_records,), and of measured
        (n_records, rank + 2) the rows of records that it withholds: coordinates, size and what they
        leave unexplained. It returns where it stopped, and how many records of that tile are
        `missing`: known, it resumes there.
    """
    # Text, because a record's coordinates stay in registers only where their number is written out.
    # It is made of numbers alone, never of what a caller wrote; how it reads for two predictions
    # and two coordinates is stored in tests/numerics/null_space/generated_kernel.txt.
    texts = [_write_reading(n_predictions), _write_turning(n_predictions, rank)]
    # Only the reading may reorder its sums; everything after the grid shows in the released bits.
    options = {"read": _READING, "turn": STRICT}
    # Functions in the order in which they call one another: numba resolves names when it compiles.
    space: dict[str, Any] = {"np": np, "settle": settle_tile}
    if rule == "greedy":
        # Sorting and stopping early cost .2 ms of .6 for a block of 8 MiB at three coordinates, in
        # mispredicted branches: r^2 additions without a branch are faster up to 12.
        texts.append(_write_smallest(rank))
        options["shrink"] = STRICT
    else:
        space["shrink"] = {"in_order": shrink_in_order, "kkt": shrink_evenly}[rule]
    texts.append(_write_source(n_predictions, rank, lifted))
    options["kernel"] = STRICT
    return compile_text(texts, space, options, (grid_kernels,))


@lru_cache(maxsize=64)
def make_lift(rank: int) -> Callable[..., None]:
    """Compile ``out = centre + b @ lift`` of one rank, written once in the dtype of `out`.

    Returns
    -------
    kernel
        ``kernel(b, lift, centre, out)`` with b (n_records, rank), lift (rank, n_features_out)
        row by row, centre (n_features_out,) and out (n_records, n_features_out).
    """
    text = _write_lift(rank) if rank <= UNROLLED else LONG_LIFT
    return compile_text([text], {"np": np}, {"kernel": STRICT})


UNROLLED = 12
"""Up to this rank all coordinates of a record are lifted at once."""

LONG_LIFT = """
def kernel(b, lift, centre, out):
    total = np.empty(out.shape[1])
    for i in range(out.shape[0]):
        for c in range(total.size):
            total[c] = b[i, 0] * lift[0, c]
        for j in range(1, b.shape[1]):
            t = b[i, j]; d = lift[j]
            for c in range(total.size):
                total[c] += t * d[c]
        for c in range(total.size):
            out[i, c] = centre[c] + total[c]
"""


def _write_lift(rank: int) -> str:
    rows = "; ".join(f"d{j} = lift[{j}]" for j in range(rank))
    take = "; ".join(f"t{j} = b[i, {j}]" for j in range(rank))
    # One sum per feature, in the order of the coordinates: NumPy adds them in the same order.
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


def _write_reading(n_predictions: int) -> str:
    each = range(n_predictions)
    rows = "; ".join(f"a{j} = predictor[{j}]" for j in each)
    zeros = "; ".join(f"s{j} = 0.0" for j in each)
    # All predictions while the record streams by once: reading it is what takes the time.
    add = "\n".join(f"            s{j} += v * a{j}[c]" for j in each)
    hold = "; ".join(f"sums[{j}, k] = s{j}" for j in each)
    return f"""
def read(x, start, n, predictor, weights, sums, weighed):
    {rows}
    for k in range(n):
        row = x[start + k]; total = 0.0
        {zeros}
        for c in range(row.size):
            v = np.float64(row[c])
            total += abs(v) * weights[c]
{add}
        weighed[k] = total
        {hold}
"""


def _write_turning(n_predictions: int, rank: int) -> str:
    """As `coordinates.turn_predictions`, and the state and budget of each record, in registers."""
    each, some = range(n_predictions), range(rank)
    rows = "\n".join(
        [f"    v{i} = values[{i}]; h{i} = shift[{i}]" for i in each]
        + [f"    b{j} = b[{j}]; m{j} = margin[{j} + 2]; f{j} = lift_norms[{j}]" for j in some]
        + [f"    w{i}_{j} = turned[{i}, {j}]" for i in each for j in some]
    )
    lines = ["; ".join(f"p{i} = v{i}[k] + h{i}" for i in each)]
    lines += ["all = " + " + ".join(f"abs(p{i})" for i in each), "size[k] = all"]
    lines += [f"t{j} = " + " + ".join(f"p{i} * w{i}_{j}" for i in each) for j in some]
    lines += [f"b{j}[k] = t{j}" for j in some] + ["hidden = 0.0"]
    # Of more predictions than coordinates a part may lie outside their span: no lift gives it back.
    if n_predictions > rank:
        for i in each:
            explained = " + ".join(f"t{j} * w{i}_{j}" for j in some)
            lines.append(f"r{i} = p{i} - ({explained})")
        lines.append(f"hidden = np.sqrt({' + '.join(f'r{i} * r{i}' for i in each)})")
    # What a record spends before anything is shrunk: rounding, the grid, and what no coordinate
    # explains. The budget is the square of a norm, so its root less this much is left to shrink
    # by: the triangle inequality, which every per-record bound rests on.
    lines += ["unexplained[k] = hidden"]
    lines += ["wide = constant + per_unit * all + hidden"]
    lines += ["wide = wide + " + " + ".join(f"m{j} * abs(t{j})" for j in some)]
    # A bound on the norm of the released record, from coordinates: it may leave the dtype's range.
    lines += ["far = limits[1] + " + " + ".join(f"f{j} * abs(t{j})" for j in some)]
    body = "\n".join(f"        {line}" for line in lines)
    return f"""
def turn(
    values, shift, turned, margin, lift_norms, limits, root, b, size, unexplained, judged, left
):
{rows}
    per_unit = margin[0]; constant = margin[1]
    widest = limits[0] if root > 0 else np.inf
    for k in range(size.size):
{body}
        fits = far <= limits[2] and wide <= widest
        judged[k] = 0.0 if fits else (1.0 if all < np.inf else 2.0)
        rest = root - wide if fits else 0.0
        left[k] = rest * rest
"""


def _write_smallest(rank: int) -> str:
    """As `shrink_in_order`, the smallest coordinate first ("greedy").

    What a coordinate finds spent is summed up anew: nothing is sorted and nothing branches, so
    that many records are done at a time.
    """
    each = range(rank)
    rows = "; ".join(f"b{j} = b[{j}]; retained{j} = retained[{j}]" for j in each)
    lines = ["; ".join(f"t{j} = b{j}[k]; c{j} = t{j} * t{j}" for j in each)]
    for j in each:
        smaller = [f"(c{i} if c{i} {'<=' if i < j else '<'} c{j} else 0.0)" for i in each if i != j]
        lines += [
            f"left = max(budget[k] - ({' + '.join(smaller) or '0.0'}), 0.0)",
            f"rest = max(abs(t{j}) - np.sqrt(left), 0.0)",
            f"retained{j}[k] = (0.0 if c{j} <= left else (rest if t{j} > 0 else -rest)) + 0.0",
        ]
    body = "\n".join(f"        {line}" for line in lines)
    return f"""
def shrink(b, retained, budget, room):
    {rows}
    for k in range(budget.size):
{body}
"""


def _write_source(n_predictions: int, rank: int, lifted: bool) -> str:
    each = range(rank)
    rows = "; ".join(f"d{j} = lift[{j}]" for j in each)
    # What is withheld may be corrected later, from its coordinates: the record itself may already
    # be overwritten, since a block is released into its own place.
    leave = "; ".join(f"measured[i, {j}] = b[{j}, k]" for j in each)
    take = "; ".join(f"t{j} = retained[{j}, k]" for j in each)
    if lifted:
        total = " + ".join(f"t{j} * d{j}[c]" for j in each)
        write = f"            for c in range(y.size):\n                y[c] = centre[c] + ({total})"
    else:
        write = "\n".join(f"            y[{j}] = t{j}" for j in each)
    return f"""
def kernel(
    x, first, predictor, weights, numbers, turned, shift, lift, centre, root, margin,
    lift_norms, limits, known_rows, known, out, spent, state, measured, missing
):
    {rows}
    sums = np.zeros(({n_predictions}, {TILE})); values = np.zeros(({n_predictions}, {TILE}))
    b = np.zeros(({rank}, {TILE})); retained = np.zeros(({rank}, {TILE}))
    weighed = np.zeros({TILE}); size = np.zeros({TILE}); unexplained = np.zeros({TILE})
    left = np.zeros({TILE}); cost = np.zeros({TILE})
    judged = np.zeros({TILE}); n_sure = np.zeros({TILE})
    room = np.zeros((2, {TILE}))
    for start in range(first, x.shape[0], {TILE}):
        n = min({TILE}, x.shape[0] - start)
        read(x, start, n, predictor, weights, sums, weighed)
        lost = settle(
            x, start, n, predictor, (sums, weighed, n_sure, values), numbers, (known_rows, known),
            missing
        )
        if lost > 0:
            return start, lost
        turn(
            values, shift, turned, margin, lift_norms, limits, root, b, size, unexplained,
            judged, left
        )
        if root > 0:
            shrink(b, retained, left, room)
        else:
            for j in range({rank}):
                for k in range({TILE}):
                    retained[j, k] = b[j, k] + 0.0
        for k in range({TILE}):
            cost[k] = 0.0
        for j in range({rank}):
            for k in range({TILE}):
                lost_size = b[j, k] - retained[j, k]
                cost[k] += lost_size * lost_size
        for k in range(n):
            i = start + k; y = out[i]
            state[i] = np.uint8(judged[k])
            if judged[k] != 0:
                spent[i] = 0.0
                {leave}; measured[i, {rank}] = size[k]; measured[i, {rank} + 1] = unexplained[k]
                for c in range(y.size):
                    y[c] = np.nan
                continue
            spent[i] = cost[k]
            {take}
{write}
    return x.shape[0], 0
"""
