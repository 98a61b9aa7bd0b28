"""The compiled cleaner: a tile of records for their predictions, then to write what is released.

Predictions are summed in registers while a record streams by once, in any order; float32 records
are multiplied and summed in float64. Then they are put on the grid, where the order does not show
any more. All that follows is done in the order of `grid_coordinates`, without fused operations. So
`cleaning` gives the same bits in plain NumPy. What is decided of a record, and how its coordinates
shrink, is done for all records of a tile side by side. A tile is read whole before it is written,
so that records may be released into their own place.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any

import numpy as np

from privpipe.numerics.null_space import grid_kernels, kernel_store
from privpipe.numerics.null_space.grid_kernels import settle_tile, shrink_evenly, shrink_in_order
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
        lift_norms, limits, known_rows, known, out, spent, state, measured, missing)``. `predictor`
        (n_predictions, n_features_in or more) and `lift` (rank, n_features_out or more) are row by
        row. `weights`, `numbers`, `known_rows`, `known` and `missing` are as of `settle_tile`.
        `turned` is (n_predictions, rank), `shift` (n_predictions,) and `lift_norms` (rank,).
        `margin` (rank + 2,) has the margin's weights (per_unit, constant, per_coordinate ...).
        `limits` (3,) are the widest margin, the norm of the centre, and the largest released value.

        From record `first`, the first of a tile, on it fills `spent` (n_records,), `state`
        (n_records,) and `out`, which may be `x`. Of `measured` (n_records, rank + 2) it fills the
        rows of records that it withholds: coordinates, size and what they leave unexplained. It
        returns where it stopped, and how many records of that tile are `missing`: known, it resumes
        there.
    """
    # Text, because a record's coordinates stay in registers only where their number is written out.
    # It is made of numbers alone, never of what a caller wrote; how it reads for two predictions
    # and two coordinates is stored in tests/numerics/null_space/generated_kernel.txt.
    write = partial(write_kernel, n_predictions=n_predictions, rank=rank, lifted=lifted)
    texts = [write("read"), write("turn")]
    # Only the reading may reorder its sums; everything after the grid shows in the released bits.
    options = {"read": _READING, "turn": STRICT}
    # Functions in the order in which they call one another: numba resolves names when it compiles.
    space: dict[str, Any] = {"np": np, "settle": settle_tile}
    if rule == "greedy":
        # Sorting and stopping early cost .2 ms of .6 for a block of 8 MiB at three coordinates, in
        # mispredicted branches: r^2 additions without a branch are faster up to 12.
        texts.append(write("shrink"))
        options["shrink"] = STRICT
    else:
        space["shrink"] = {"in_order": shrink_in_order, "kkt": shrink_evenly}[rule]
    texts.append(write("kernel"))
    options["kernel"] = STRICT
    return kernel_store.compile_text(texts, space, options, (grid_kernels,))


@lru_cache(maxsize=64)
def make_lift(rank: int) -> Callable[..., None]:
    """Compile ``out = centre + b @ lift`` of one rank, written once in the dtype of `out`.

    Returns
    -------
    kernel
        ``kernel(b, lift, centre, out)`` with b (n_records, rank), lift (rank, n_features_out)
        row by row, centre (n_features_out,) and out (n_records, n_features_out).
    """
    text = write_kernel("lift", rank=rank, unrolled=rank <= UNROLLED)
    return kernel_store.compile_text([text], {"np": np}, {"kernel": STRICT})


UNROLLED = 12
"""Up to this rank all coordinates of a record are lifted at once."""


def write_kernel(function: str, **numbers: int) -> str:
    """A function of `cleaning_kernel.jinja` for so many predictions, coordinates and such."""
    from jinja2 import Environment, StrictUndefined

    text = files("privpipe.numerics.null_space").joinpath("cleaning_kernel.jinja").read_text()
    environment = Environment(undefined=StrictUndefined)
    environment.filters["each"] = _write_each
    module: Any = environment.from_string(text).make_module({"tile": TILE, **numbers})
    return str(getattr(module, function)())


def _write_each(text: str, stop: int, joint: str = "; ", start: int = 0) -> str:
    """A piece of text for every number."""
    return joint.join(text.format(j=j) for j in range(start, stop))
