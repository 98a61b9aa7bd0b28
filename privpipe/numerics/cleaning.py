"""Clean a block of records in low-rank form: coordinates, shrinking, lift, within a margin.

``x~ = c + D shrink(E^T (x - c))``, O(n r) per record (Xu et al. 2017, Figures 2 and 3). Large
blocks of few coordinates go through the compiled kernel, all others through NumPy in tiles that
stay in the cache; the two agree to rounding, and memory beyond the result is that of one tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.numerics.margin import RoundingMargin
from privpipe.numerics.shrinkage import shrink_by_rule
from privpipe.protocols import BoolArray, FloatArray

__all__ = [
    "Cleaned",
    "LinearForm",
    "clean_block",
    "clean_with_kernel",
    "clean_with_numpy",
    "reconstruct_records",
]

KERNEL_VALUES = 2**18
"""From this many values in a block on compiling pays."""

KERNEL_RANK = 12
"""Up to this rank the kernel is faster than a matrix product."""

TILE_VALUES = 2**18
"""Values of a tile: its float64 copy fits a cache."""


@dataclass(frozen=True, eq=False)
class LinearForm:
    """All that cleaning a block needs, ready for use.

    Parameters
    ----------
    encoder : (n_features_in, rank)
        Of the features as they are given.
    shift : (rank,)
        Added to ``x @ encoder``: what centre and appended columns contribute.
    lift : (n_features_out, rank)
    centre : (n_features_out,)
    root
        Root of the budget, in units of the desired prediction; 0 removes nothing but the
        exact null space.
    rule
        "greedy", "in_order" or "kkt".
    margin
        Of rounding.
    reach : (rank,)
        Norms of the columns of the lift.
    appended
        Squared norm of what is appended to each record.
    """

    encoder: FloatArray
    shift: FloatArray
    lift: FloatArray
    centre: FloatArray
    root: float
    rule: str
    margin: RoundingMargin
    reach: FloatArray
    appended: float

    @property
    def rank(self) -> int:
        return len(self.shift)


@dataclass(frozen=True, eq=False)
class Cleaned:
    """A cleaned block.

    Parameters
    ----------
    released : (n_records, n_features_out) or (n_records, rank)
        Records, or kept coordinates; NaN where `withheld`.
    spent : (n_records,), float64
        Loss of utility; 0 where withheld.
    withheld : (n_records,)
        Rounding alone may cost more than the budget, or the record leaves the dtype's range.
    """

    released: FloatArray
    spent: FloatArray
    withheld: BoolArray


def clean_block(
    x: FloatArray, form: LinearForm, dtype: npt.DTypeLike, *, lifted: bool = True
) -> Cleaned:
    """Clean records, by the kernel where it pays.

    Parameters
    ----------
    x : (n_records, n_features_in), floating
        Finite records.
    form
        What to do.
    dtype
        Of the released records. Coordinates are float64 always.
    lifted
        Return records; otherwise the kept coordinates.
    """
    pays = x.size >= KERNEL_VALUES and form.rank <= KERNEL_RANK
    if pays and x.dtype in (np.float32, np.float64):
        return clean_with_kernel(x, form, dtype, lifted=lifted)
    return clean_with_numpy(x, form, dtype, lifted=lifted)


def clean_with_kernel(
    x: FloatArray,
    form: LinearForm,
    dtype: npt.DTypeLike,
    *,
    lifted: bool = True,
    out: FloatArray | None = None,
) -> Cleaned:
    """See `clean_block`; float32 and float64 only, optionally into an array of the caller's."""
    from privpipe.numerics.kernel import UNREPRESENTABLE, make_kernel

    released = _empty(x, form, dtype, lifted) if out is None else out
    spent, state = np.empty(len(x)), np.empty(len(x), np.uint8)
    weights = np.r_[form.margin.per_record, form.margin.constant, form.margin.per_coordinate]
    limits = np.array([form.appended, np.linalg.norm(form.centre), _largest(dtype)])
    make_kernel(form.rank, form.rule, lifted)(
        np.ascontiguousarray(x),
        np.ascontiguousarray(form.encoder.T),
        form.shift,
        np.ascontiguousarray(form.lift.T),
        form.centre,
        form.root,
        weights,
        form.reach,
        limits,
        released,
        spent,
        state,
    )
    return Cleaned(released, spent, state >= UNREPRESENTABLE)


def clean_with_numpy(
    x: FloatArray, form: LinearForm, dtype: npt.DTypeLike, *, lifted: bool = True
) -> Cleaned:
    """See `clean_block`; any floating dtype and rank."""
    released = _empty(x, form, dtype, lifted)
    spent, withheld = np.empty(len(x)), np.empty(len(x), np.bool_)
    for rows in _tiles(*x.shape):
        kept, spent[rows], withheld[rows] = _clean_tile(x[rows].astype(np.float64), form, dtype)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            released[rows] = form.centre + kept @ form.lift.T if lifted else kept
    released[withheld] = np.nan
    return Cleaned(released, spent, withheld)


def reconstruct_records(
    coordinates: FloatArray, lift: FloatArray, centre: FloatArray, dtype: npt.DTypeLike
) -> FloatArray:
    """Records of kept coordinates: ``centre + lift @ b``, summed in float64, stored in `dtype`.

    Parameters
    ----------
    coordinates : (n_records, rank), float64
        NaN rows stay NaN.
    lift : (n_features_out, rank)
    centre : (n_features_out,)
    dtype
        Floating dtype of the records.

    Returns
    -------
    released : (n_records, n_features_out)
    """
    released = np.empty((len(coordinates), len(lift)), dtype)
    for rows in _tiles(*released.shape):
        released[rows] = (centre + 0.0) + coordinates[rows] @ lift.T
    return released


def _clean_tile(
    x: FloatArray, form: LinearForm, dtype: npt.DTypeLike
) -> tuple[FloatArray, FloatArray, BoolArray]:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        b = x @ form.encoder + form.shift
        far = np.abs(b) @ form.reach + np.linalg.norm(form.centre)
        withheld = ~(far <= _largest(dtype))
        if form.root == 0:
            return b + 0.0, np.zeros(len(x)), withheld
        norm = np.sqrt(np.einsum("ij,ij->i", x, x) + form.appended)
        margin = form.margin.measure(norm, b)
        withheld |= ~(margin <= form.root)
        budget = np.where(withheld, 0.0, form.root - margin) ** 2
        b[withheld] = 0.0
        kept = shrink_by_rule(b, budget, form.rule)
        spent = np.einsum("ij,ij->i", b - kept, b - kept)
    return kept, spent, withheld


def _empty(x: FloatArray, form: LinearForm, dtype: npt.DTypeLike, lifted: bool) -> FloatArray:
    if not lifted:
        return np.empty((len(x), form.rank))
    return np.empty((len(x), len(form.lift)), dtype)


def _largest(dtype: npt.DTypeLike) -> float:
    limit: Any = np.finfo(np.dtype(dtype)).max
    return float(limit) * (1 - 2.0**-10)


def _tiles(n_records: int, n_features: int) -> Iterator[slice]:
    step = max(1, TILE_VALUES // max(1, n_features))
    for start in range(0, n_records, step):
        yield slice(start, min(start + step, n_records))
