"""Clean a block of records in low-rank form: coordinates, shrinking, lift, within a margin.

``x~ = c + D shrink(E^T (x - c))``, O(n r) per record (Xu et al. 2017, Figures 2 and 3). Large
blocks of few coordinates go through the compiled kernel, all others (and all where no compiler
loads) through NumPy in tiles that stay in the cache; the two agree to rounding, and memory beyond
the result is that of one tile. Records of a narrow dtype whose rounding may cost too much of
their budget are stored with care (`privpipe.numerics.balance`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.numerics.balance import Balance, store_within
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

TILE_VALUES = 2**17
"""Values of a tile: its float64 copy fits a cache."""

MENDED_TILES = 4
"""Tiles of records that are stored in balance at once: it goes feature by feature."""

WIDEST_MARGIN = 0.02
"""Records whose margin is a larger share of the budget's root are stored in balance, if at all."""


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
    balance
        How to store records of a narrow dtype whose margin is too wide; None withholds them.
    """

    encoder: FloatArray
    shift: FloatArray
    lift: FloatArray
    centre: FloatArray
    root: float
    rule: str
    margin: RoundingMargin
    reach: FloatArray
    balance: Balance | None = None

    @property
    def rank(self) -> int:
        return len(self.shift)

    def widest(self, lifted: bool) -> float:
        """Margin up to which a record is simply rounded."""
        return self.root * (WIDEST_MARGIN if lifted and self.balance is not None else 1.0)


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
    measured : (n_withheld, rank + 1), optional
        Of each withheld record its coordinates, and the square of its norm, for mending.
    """

    released: FloatArray
    spent: FloatArray
    withheld: BoolArray
    measured: FloatArray = field(default_factory=lambda: np.empty((0, 1)))


def clean_block(
    x: FloatArray,
    form: LinearForm,
    dtype: npt.DTypeLike,
    *,
    lifted: bool = True,
    out: FloatArray | None = None,
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
    out : as the released records, optional
        Where to put them; may be `x` itself, which is then overwritten.
    """
    clean = clean_with_kernel if _kernel_pays(x, form.rank) else clean_with_numpy
    found = clean(x, form, dtype, lifted=lifted, out=out)
    if lifted and form.balance is not None and found.withheld.any():
        _mend(found, form)
    return found


def clean_with_kernel(
    x: FloatArray,
    form: LinearForm,
    dtype: npt.DTypeLike,
    *,
    lifted: bool = True,
    out: FloatArray | None = None,
) -> Cleaned:
    """See `clean_block`; float32 and float64 only.

    Leaves to `clean_block` what is to be stored in balance: such records are NaN and withheld.
    """
    from privpipe.numerics.kernel import UNREPRESENTABLE, align_rows, make_kernel

    if out is None:
        out = np.empty((len(x), len(form.lift)), dtype) if lifted else np.empty((len(x), form.rank))
    spent, state = np.empty(len(x)), np.empty(len(x), np.uint8)
    measured = np.empty((len(x), form.rank + 1))  # hardly ever touched, hence hardly there
    weights = np.r_[form.margin.per_record, form.margin.constant, form.margin.per_coordinate]
    limits = np.array([form.widest(lifted), np.linalg.norm(form.centre), _largest(dtype)])
    make_kernel(form.rank, form.rule, lifted)(
        np.ascontiguousarray(x),
        align_rows(form.encoder.T),
        form.shift,
        align_rows(form.lift.T),
        align_rows(form.centre[None])[0],
        form.root,
        weights,
        form.reach,
        limits,
        out,
        spent,
        state,
        measured,
    )
    withheld = state >= UNREPRESENTABLE
    return Cleaned(out, spent, withheld, measured[withheld])


def clean_with_numpy(
    x: FloatArray,
    form: LinearForm,
    dtype: npt.DTypeLike,
    *,
    lifted: bool = True,
    out: FloatArray | None = None,
) -> Cleaned:
    """As `clean_with_kernel`, for any floating dtype and rank."""
    kept = np.empty((len(x), form.rank))
    spent, withheld = np.empty(len(x)), np.empty(len(x), np.bool_)
    measured: list[FloatArray] = [np.empty((0, form.rank + 1))]
    wide = np.empty((_tile_rows(x.shape[1]), x.shape[1]))
    for rows in _tiles(*x.shape):
        tile = wide[: rows.stop - rows.start]
        tile[...] = x[rows]
        kept[rows], spent[rows], withheld[rows], some = _clean_tile(tile, form, dtype, lifted)
        measured.append(some)
    kept[withheld] = np.nan
    if lifted:
        released = reconstruct_records(kept, form.lift, form.centre, dtype, out=out)
    elif out is None:
        released = kept
    else:
        released = out
        released[...] = kept
    return Cleaned(released, spent, withheld, np.vstack(measured))


def reconstruct_records(
    coordinates: FloatArray,
    lift: FloatArray,
    centre: FloatArray,
    dtype: npt.DTypeLike,
    *,
    out: FloatArray | None = None,
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
    out : (n_records, n_features_out), in `dtype`, optional
        Where to put them.

    Returns
    -------
    released : (n_records, n_features_out)
    """
    released = np.empty((len(coordinates), len(lift)), dtype) if out is None else out
    if _kernel_pays(released, lift.shape[1]):
        from privpipe.numerics.kernel import align_rows, make_lift

        b, d = np.ascontiguousarray(coordinates), align_rows(lift.T)
        make_lift(lift.shape[1])(b, d, align_rows(centre[None] + 0.0)[0], released)
        return released
    wide = np.empty((_tile_rows(len(lift)), len(lift)))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for rows in _tiles(*released.shape):
            tile = wide[: rows.stop - rows.start]
            np.matmul(coordinates[rows], lift.T, out=tile)
            tile += centre + 0.0  # adding zero turns -0.0 into 0.0
            released[rows] = tile
    return released


def _kernel_pays(records: FloatArray, rank: int) -> bool:
    """Large blocks of few coordinates, in a dtype that the kernel knows."""
    known = records.dtype in (np.float32, np.float64) and records.dtype.isnative
    large = records.size >= KERNEL_VALUES and rank <= KERNEL_RANK
    return known and large and _can_compile()


@cache
def _can_compile() -> bool:
    """Whether the compiler is there; where it does not load, NumPy does all the work."""
    try:
        importlib.import_module("privpipe.numerics.kernel")
    except ImportError:
        return False
    return True


def _mend(found: Cleaned, form: LinearForm) -> None:
    """Store in balance what was withheld for its wide margin, in place, tile by tile."""
    rows = np.flatnonzero(found.withheld)
    step = MENDED_TILES * _tile_rows(len(form.lift))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        measured = found.measured[start : start + step]
        stored, spent, within = _clean_narrow(measured, form, found.released)
        found.released[some[within]] = stored[within]
        found.spent[some[within]] = spent[within]
        found.withheld[some[within]] = False


def _clean_narrow(
    measured: FloatArray, form: LinearForm, released: FloatArray
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Stored records, what they cost, and whether they may be released."""
    assert form.balance is not None, "only narrow dtypes are mended"
    n = len(measured)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        b = measured[:, :-1]
        margin = form.balance.margin.measure(np.sqrt(measured[:, -1]), b)
        near = _bound_norms(b, form) <= _largest(released.dtype)
        possible = np.flatnonzero(near & (margin < form.root))
        stored, spent = np.empty((n, len(form.lift)), released.dtype), np.zeros(n)
        within = np.zeros(n, np.bool_)
        stored[possible], loss, within[possible] = store_within(
            b[possible],
            form.root - margin[possible],
            lambda coordinates, budget: shrink_by_rule(coordinates, budget, form.rule),
            lambda kept: kept @ form.lift.T + form.centre,
            form.balance,
            released.dtype,
        )
        spent[possible] = loss**2
    return stored, spent, within


def _bound_norms(b: FloatArray, form: LinearForm) -> FloatArray:
    """Bounds on the norms of any records made of coordinates."""
    bound: FloatArray = np.abs(b) @ form.reach + np.linalg.norm(form.centre)
    return bound


def _clean_tile(
    x: FloatArray, form: LinearForm, dtype: npt.DTypeLike, lifted: bool
) -> tuple[FloatArray, FloatArray, BoolArray, FloatArray]:
    """Kept coordinates, what was spent, what is withheld, and what was measured of that."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        b, square = x @ form.encoder + form.shift, np.einsum("ij,ij->i", x, x)
        withheld = ~(_bound_norms(b, form) <= _largest(dtype))
        spent = np.zeros(len(x))
        if form.root > 0:
            margin = form.margin.measure(np.sqrt(square), b)
            withheld |= ~(margin <= form.widest(lifted))
        measured = np.column_stack([b, square])[withheld]
        if form.root == 0:
            return b + 0.0, spent, withheld, measured
        budget = np.where(withheld, 0.0, form.root - margin) ** 2
        b[withheld] = 0.0
        kept = shrink_by_rule(b, budget, form.rule)
        spent = np.einsum("ij,ij->i", b - kept, b - kept)
    return kept, spent, withheld, measured


def _largest(dtype: npt.DTypeLike) -> float:
    limit: Any = np.finfo(np.dtype(dtype)).max
    return float(limit) * (1 - 2.0**-10)


def _tile_rows(n_features: int) -> int:
    return max(1, TILE_VALUES // max(1, n_features))


def _tiles(n_records: int, n_features: int) -> Iterator[slice]:
    step = _tile_rows(n_features)
    for start in range(0, n_records, step):
        yield slice(start, min(start + step, n_records))
