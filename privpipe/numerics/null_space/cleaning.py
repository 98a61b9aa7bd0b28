"""Clean a block of records in low-rank form: predictions, coordinates, shrinking, lift.

``x~ = c + D shrink(W^T (q - A^T c))``, O(n r) per record (Xu et al. 2017, Figures 2 and 3). Here q
is the desired prediction ``A^T x`` on a grid (`prediction_grid`). What is released, and whether, is
a function of q alone, to the last bit. Large blocks of few coordinates go through the compiled
kernel. All others (and all where no compiler loads) go through NumPy in tiles that stay in the
cache. The two give the same bytes, and memory beyond the result is that of one tile. Records of a
narrow dtype whose rounding may cost too much of their budget are stored with care
(`rounding_margin.store_within`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from privpipe.numerics.compiler import can_compile
from privpipe.numerics.null_space import knapsack, rounding_margin
from privpipe.numerics.null_space.prediction_grid import predict_on_grid, settle_exactly
from privpipe.protocols import BoolArray, DTypeLike, FloatArray, IntArray

KERNEL_VALUES = 2**18
"""From this many values in a block on compiling pays."""

KERNEL_RANK = knapsack.FEW
"""Up to so many predictions the kernel is faster than a matrix product."""

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
    predictor : (n_features_in, n_desired)
        ``A``, of the features as they are given.
    weights : (n_features_in,)
        Norms of its rows.
    grid
        That predictions are rounded to.
    lift : (n_features_out, rank)
    centre : (n_features_out,)
    defects
        Of the lift; with what turns predictions into coordinates.
    root
        Root of the budget, in units of the desired prediction; 0 removes nothing but the
        exact null space.
    rule
        "greedy", "in_order" or "kkt".
    margin
        Of rounding.
    balance
        How to store records of a narrow dtype whose margin is too wide; None withholds them.
    """

    predictor: FloatArray
    weights: FloatArray
    grid: rounding_margin.Grid
    lift: FloatArray
    centre: FloatArray
    defects: rounding_margin.Defects
    root: float
    rule: str
    margin: rounding_margin.RoundingMargin
    balance: rounding_margin.Balance | None = None

    @property
    def rank(self) -> int:
        return int(self.lift.shape[1])

    @property
    def n_predictions(self) -> int:
        return len(self.defects.shift)

    def of_target(self) -> "LinearForm":
        """The same for records that are target predictions on the grid: each its own rounding."""
        n = self.n_predictions
        return replace(self, predictor=np.eye(n), weights=np.ones(n))

    def bound_norms(self, coordinates: FloatArray) -> FloatArray:
        """Bounds on the norms of any records made of coordinates, (n_records,)."""
        # The triangle inequality over the columns of the lift.
        bound = np.full(len(coordinates), self.defects.centre_norm)
        for j, length in enumerate(self.defects.lift_norms):
            bound = bound + length * np.abs(coordinates[:, j])
        return bound

    def widest(self, lifted: bool) -> float:
        """Margin up to which a record is simply rounded."""
        return self.root * (WIDEST_MARGIN if lifted and self.balance is not None else 1.0)


@dataclass(frozen=True, eq=False)
class CleanedBlock:
    """A cleaned block.

    Parameters
    ----------
    released : (n_records, n_features_out) or (n_records, rank)
        Records, or retained coordinates; NaN where `withheld`.
    spent : (n_records,), float64
        Loss of utility; 0 where withheld.
    withheld : (n_records,)
        Rounding alone may cost more than the budget, or the record leaves the dtype's range.
    measured : (n_withheld, rank + 2), optional
        Of each withheld record, for correction: its coordinates, the size of its predictions, and
        what coordinates leave unexplained of them.
    """

    released: FloatArray
    spent: FloatArray
    withheld: BoolArray
    measured: FloatArray = field(default_factory=lambda: np.empty((0, 2)))


def clean_block(
    x: FloatArray, form: LinearForm, dtype: DTypeLike, *, lifted: bool, out: FloatArray | None
) -> CleanedBlock:
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
        Return records; otherwise the retained coordinates.
    out : as the released records, optional
        Where to put them; may be `x` itself, which is then overwritten.
    """
    # Both give the same bytes, so that which one pays may depend on the size of a block.
    pays = _is_large(x) and form.n_predictions <= KERNEL_RANK
    clean = clean_with_kernel if pays else clean_with_numpy
    found = clean(x, form, dtype, lifted=lifted, out=out)
    # Only what plain rounding could not promise: balancing takes 20 to 40 us a record of 294
    # features.
    if lifted and form.balance is not None and found.withheld.any():
        _correct(found, form)
    return found


def clean_with_kernel(
    x: FloatArray, form: LinearForm, dtype: DTypeLike, *, lifted: bool, out: FloatArray | None
) -> CleanedBlock:
    """See `clean_block`; float32 and float64 only.

    Leaves to `clean_block` what is to be stored in balance: such records are NaN and withheld.
    """
    from privpipe.numerics.null_space import cleaning_kernel as compiled

    if out is None:
        out = np.empty((len(x), len(form.lift)), dtype) if lifted else np.empty((len(x), form.rank))
    # The kernel walks along rows; a strided block would miss the cache at every value.
    x = np.ascontiguousarray(x)
    spent, state = np.empty(len(x)), np.empty(len(x), np.uint8)
    measured = np.empty((len(x), form.rank + 2))  # hardly ever touched, hence hardly there
    kernel = compiled.make_kernel(form.n_predictions, form.rank, form.rule, lifted)
    given = (
        compiled.align_rows(form.predictor.T),
        compiled.align_rows(form.weights[None])[0],
        np.array([form.grid.step, form.grid.digits, form.grid.uncertainty]),
        form.defects.turn,
        form.defects.shift,
        compiled.align_rows(form.lift.T),
        compiled.align_rows(form.centre[None])[0],
        form.root,
        np.r_[form.margin.per_unit, form.margin.constant, form.margin.per_coordinate],
        form.defects.lift_norms,
        np.array([form.widest(lifted), form.defects.centre_norm, _largest(dtype)]),
    )
    missing = np.empty(compiled.TILE, np.int64)
    first = lost = 0
    # The kernel stops at a tile with a record that twice the digits do not decide; it is summed in
    # whole numbers here, and the kernel resumes at that tile, so that no tier shows in the release.
    while first < len(x):
        known = _settle(x, missing[:lost].copy(), form)
        first, lost = kernel(x, first, *given, *known, out, spent, state, measured, missing)
    # Not finite or too wide a margin: both are NaN in the release, and both are counted.
    withheld = state >= compiled.UNREPRESENTABLE
    return CleanedBlock(out, spent, withheld, measured[withheld])


def _settle(x: FloatArray, rows: IntArray, form: LinearForm) -> tuple[IntArray, FloatArray]:
    """Those records, and their predictions on the grid in whole numbers."""
    known = [[settle_exactly(x[i], a, form.grid) for a in form.predictor.T] for i in rows]
    return rows, np.array(known, np.float64).reshape(len(rows), form.n_predictions)


def clean_with_numpy(
    x: FloatArray, form: LinearForm, dtype: DTypeLike, *, lifted: bool, out: FloatArray | None
) -> CleanedBlock:
    """As `clean_with_kernel`, with the same bytes, for any floating dtype and rank."""
    retained: FloatArray = np.empty((len(x), form.rank))
    spent, withheld = np.empty(len(x)), np.empty(len(x), np.bool_)
    measured: list[FloatArray] = [np.empty((0, form.rank + 2))]
    # One float64 tile for all: memory beyond the result does not grow with the block.
    wide = np.empty((_tile_rows(x.shape[1]), x.shape[1]))
    for rows in _tiles(*x.shape):
        tile = wide[: rows.stop - rows.start]
        tile[...] = x[rows]
        retained[rows], spent[rows], withheld[rows], some = _clean_tile(tile, form, dtype, lifted)
        measured.append(some)
    # NaN coordinates lift to NaN records: what is withheld never shows its other features.
    retained[withheld] = np.nan
    if lifted:
        retained = reconstruct_records(retained, form.lift, form.centre, dtype, out=out)
    elif out is not None:
        out[...] = retained
        retained = out
    return CleanedBlock(retained, spent, withheld, np.vstack(measured))


def reconstruct_records(
    coordinates: FloatArray,
    lift: FloatArray,
    centre: FloatArray,
    dtype: DTypeLike,
    *,
    out: FloatArray | None = None,
) -> FloatArray:
    """Records of retained coordinates: ``centre + lift @ b``, summed in float64, stored in `dtype`.

    In a fixed order: the same coordinates give the same bytes, alone or in a block.

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
    if _is_large(released):
        from privpipe.numerics.null_space import cleaning_kernel as compiled

        b, d = np.ascontiguousarray(coordinates), compiled.align_rows(lift.T)
        zero_point = compiled.align_rows(centre[None] + 0.0)[0]
        compiled.make_lift(lift.shape[1])(b, d, zero_point, released)
        return released
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for rows in _tiles(*released.shape):
            # Adding zero turns -0.0 into 0.0.
            released[rows] = knapsack.lift_coordinates(coordinates[rows], lift, centre + 0.0)
    return released


def _is_large(records: FloatArray) -> bool:
    """Whether compiling pays, in a dtype that the kernel knows."""
    known = records.dtype in (np.float32, np.float64) and records.dtype.isnative
    return known and records.size >= KERNEL_VALUES and can_compile()


def _correct(found: CleanedBlock, form: LinearForm) -> None:
    """Store in balance what was withheld for its wide margin, in place, tile by tile."""
    assert form.balance is not None, "only narrow dtypes are corrected"
    dtype, rows = found.released.dtype, np.flatnonzero(found.withheld)
    shrink = partial(knapsack.shrink_by_rule, rule=form.rule)
    lift = partial(knapsack.lift_coordinates, lift=form.lift, centre=form.centre)
    for part in _tiles(len(rows), len(form.lift), MENDED_TILES):
        measured = found.measured[part]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            b = np.ascontiguousarray(measured[:, :-2])
            margin = form.balance.margin.measure(measured[:, -2], measured[:, -1], b)
            # Checked from coordinates alone, so that a withheld record shows nothing but its
            # prediction.
            near = form.bound_norms(b) <= _largest(dtype)
            # A margin of the whole root leaves nothing to spend: such a record cannot be promised.
            possible = np.flatnonzero(near & (margin < form.root))
            stored, loss, within = rounding_margin.store_within(
                b[possible], form.root - margin[possible], shrink, lift, form.balance, dtype
            )
        some = rows[part][possible[within]]
        found.released[some], found.withheld[some] = stored[within], False
        # Measured on the stored record, rounding included: receipts say what the audit finds.
        found.spent[some] = loss[within] ** 2


def _clean_tile(
    x: FloatArray, form: LinearForm, dtype: DTypeLike, lifted: bool
) -> tuple[FloatArray, FloatArray, BoolArray, FloatArray]:
    """Retained coordinates, what was spent, what is withheld, and what was measured of that."""
    values = predict_on_grid(x, form.predictor, form.weights, form.grid)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        b, size, rest = knapsack.turn_predictions(values, form.defects.shift, form.defects.turn)
        # Written with "not (... <= ...)": a NaN bound must withhold.
        withheld = ~(form.bound_norms(b) <= _largest(dtype))
        spent = np.zeros(len(x))
        # Without a budget nothing is promised per record, hence nothing withheld for rounding.
        if form.root > 0:
            margin = form.margin.measure(size, rest, b)
            withheld |= ~(margin <= form.widest(lifted))
        measured = np.column_stack([b, size, rest])[withheld]
        if form.root == 0:
            return b + 0.0, spent, withheld, measured
        # The triangle inequality on roots: |loss| <= |b - b~| + margin, so root - margin is left
        # (PROOF 4, 5).
        budget = np.where(withheld, 0.0, form.root - margin) ** 2
        # An infinite coordinate would make the block warn, and is released as NaN anyway.
        b[withheld] = 0.0
        retained = knapsack.shrink_by_rule(b, budget, form.rule)
        for j in range(form.rank):
            lost = b[:, j] - retained[:, j]
            spent = spent + lost * lost
    return retained, spent, withheld, measured


def _largest(dtype: DTypeLike) -> float:
    limit: Any = np.finfo(np.dtype(dtype)).max
    # A thousandth below the largest number: the sum that makes a record rounds, too.
    return float(limit) * (1 - 2.0**-10)


def _tile_rows(n_features: int) -> int:
    return max(1, TILE_VALUES // max(1, n_features))


def _tiles(n_records: int, n_features: int, n_tiles: int = 1) -> Iterator[slice]:
    step = n_tiles * _tile_rows(n_features)
    for start in range(0, n_records, step):
        yield slice(start, min(start + step, n_records))
