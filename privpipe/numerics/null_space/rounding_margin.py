"""How much rounding may add to a record's loss of utility, bounded before it happens.

The bound of Xu et al. 2017, Theorem 1, holds in exact arithmetic. What is stored is rounded, and so
is the prediction it is made from (`prediction_grid`). A cleaner spends that much less, so that the
bound holds for the record as stored. The margin is a function of the prediction on the grid. One
that grew with the record would reveal, in what is left, features that must vanish.

Where the margin of a narrow dtype is too wide, records are rounded so that their errors cancel in
the prediction. Plain rounding may cost it the sum of the errors of all features. Each of them may
as well be rounded the other way. Taken one after the other, the largest errors first, each is
rounded to the side that leaves the smaller error of the prediction so far.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from privpipe.numerics import rounding
from privpipe.protocols import BoolArray, DTypeLike, FloatArray

UNIT = 2.0**-53

SHARE = 2.3e-7
"""Largest share of the root of the budget that the grid may cost: of the budget, less than 1e-6.

As much is held back, and as much again a record may happen to lose less than was meant.
"""

DIGITS = 48
"""A prediction beyond ``2**DIGITS`` steps has steps in proportion to its size."""

DIGITS_UNBOUNDED = 34
"""Binary digits of predictions without a budget; few enough that float64 sums mostly decide."""

FARTHEST = 0.5 + rounding.OFFSET
"""Largest distance of a prediction from its value on the grid, in steps."""


@dataclass(frozen=True)
class Grid:
    """Steps, and how well a float64 sum knows a prediction.

    Parameters
    ----------
    step
        A power of two, in units of the prediction; 0 where all steps are in proportion.
    digits
        The step of a prediction p is at least ``2**(exponent of p - digits)``.
    uncertainty
        Error of any float64 sum for a prediction, per unit of ``sum_i weight_i |x_i|``.
    """

    step: float
    digits: int
    uncertainty: float

    @property
    def limit(self) -> float:
        """From this size on steps are in proportion."""
        return math.ldexp(self.step, self.digits)

    @property
    def relative(self) -> float:
        """Bound on the distance of a prediction from its value, per unit of that value."""
        return FARTHEST * math.ldexp(1.0, -self.digits) * (1 + 1e-9)


def plan_grid(root: float, n_predictions: int, n_terms: int) -> Grid:
    """The grid of a budget: predictions move by at most `SHARE` of its root.

    Parameters
    ----------
    root
        Root of the budget, in units of the desired prediction.
    n_predictions
        How many predictions share the budget.
    n_terms
        Features that are summed for a prediction.
    """
    uncertainty = 1.01 * (n_terms + 12) * UNIT
    if root == 0:
        return Grid(0.0, DIGITS_UNBOUNDED, uncertainty)
    # Each of n predictions moves by at most FARTHEST steps, all of them by the root of n times
    # that.
    widest = SHARE * root / (FARTHEST * math.sqrt(n_predictions))
    # The power of two below: steps must be exact in float64.
    return Grid(math.ldexp(1.0, math.frexp(widest)[1] - 1), DIGITS, uncertainty)


@dataclass(frozen=True, eq=False)
class Defects:
    """What a lift misses of the exact one, and the sizes that rounding scales with.

    A vector v weighs ``sum_i |A_i| |v_i|``, with A_i the rows of ``A``. That is what an error in
    proportion to each of its features costs. Where large features have small coefficients this is
    far below ``|A| |v|``. All numbers are summed in a fixed order: what is released follows from
    them to the last bit.

    Parameters
    ----------
    turn : (n_desired, rank)
        ``W``, with orthonormal columns: the coordinates of a prediction p are ``W^T p``.
    shift : (n_desired,)
        Added to the prediction of a record as given: that of the appended one, less the centre's.
    weights : (n_features,)
        Norms of the rows of ``A``.
    predictor_norm, encoder
        Frobenius norms of ``A`` and of ``A - E W^T``.
    lift : (rank,)
        Norms of the columns of ``A^T D - W``.
    lift_norms : (rank,)
        Norms of the columns of ``D``.
    lift_weights : (rank,)
        Weights of the columns of ``D``.
    centre_norm, weighed_centre
        Norm and weight of the centre.
    coefficient_sum
        Sum of the norms of the rows of ``A``.
    length
        Bound on the number of terms in any sum after the prediction.
    """

    turn: FloatArray
    shift: FloatArray
    weights: FloatArray
    predictor_norm: float
    encoder: float
    lift: FloatArray
    lift_norms: FloatArray
    lift_weights: FloatArray
    centre_norm: float
    weighed_centre: float
    coefficient_sum: float
    length: int


@dataclass(frozen=True, eq=False)
class RoundingMargin:
    """Margin of a record: ``constant + per_unit |p| + |u| + per_coordinate . |b|``.

    |p| is the sum of the sizes of its shifted predictions, u what coordinates leave of them.

    Parameters
    ----------
    per_unit
        Per unit of the sizes of the shifted predictions.
    per_coordinate : (rank,)
        Per unit of each coordinate.
    constant
        In units of the prediction.
    """

    per_unit: float
    per_coordinate: FloatArray
    constant: float

    def measure(self, size: FloatArray, rest: FloatArray, coordinates: FloatArray) -> FloatArray:
        """Margins of records, (n_records,), in units of the desired prediction."""
        with np.errstate(over="ignore", invalid="ignore"):
            margin: FloatArray = (self.constant + self.per_unit * size) + rest
            for j, weight in enumerate(self.per_coordinate):
                margin = margin + weight * np.abs(coordinates[:, j])
        return margin


def find_turn(predictor: FloatArray, encoder: FloatArray, lift: FloatArray) -> FloatArray:
    """``W`` with orthonormal columns and ``A^T D = W`` but for the defects of the lift.

    Gram and Schmidt, twice, the largest coordinates first: errors in small ones stay there.

    Parameters
    ----------
    predictor : (n_features, n_desired)
        ``A``.
    encoder, lift : (n_features, rank)
        ``E`` and ``D``.

    Returns
    -------
    turn : (n_desired, rank)
    """
    turn = rounding.multiply_closely(predictor, lift)
    # Largest coordinates first: each error stays with the smaller ones that come after.
    order = np.argsort(-rounding.measure_columns(encoder), kind="stable")
    for place, j in enumerate(order):
        earlier = turn[:, order[:place]]
        # Twice is enough (Kahan): a second pass takes what the first one's rounding left.
        for _ in range(2):
            shares = rounding.multiply_closely(earlier, turn[:, [j]])
            turn[:, [j]] -= rounding.multiply_in_order(earlier, shares) if place else 0.0
        turn[:, j] /= rounding.measure_columns(turn[:, [j]])[0]
    return turn


def measure_defects(
    predictor: FloatArray, encoder: FloatArray, lift: FloatArray, centre: FloatArray, ones: int = 0
) -> Defects:
    """Measure what an encoder and a lift of a predictor miss.

    Parameters
    ----------
    predictor : (n_features, n_desired)
        ``A``.
    encoder, lift : (n_features, rank)
        ``E`` and ``D``, with ``A = E W^T`` and ``A^T D = W`` in exact arithmetic.
    centre : (n_features,)
        Zero point of the coordinates.
    ones
        How many of the last features are ones that cleaning appends to a record.
    """
    turn = find_turn(predictor, encoder, lift)
    weights = rounding.measure_columns(predictor.T)
    tail = (np.arange(len(predictor)) >= len(predictor) - ones).astype(np.float64)
    # What the stored encoder and W do not give back of A: zero but for rounding, and counted.
    missed = predictor - rounding.multiply_in_order(encoder, turn.T)
    return Defects(
        turn=turn,
        shift=rounding.multiply_closely(predictor, (tail - centre)[:, None])[:, 0],
        weights=weights,
        predictor_norm=float(rounding.measure_columns(weights[:, None])[0]),
        encoder=float(rounding.measure_columns(missed.reshape(-1, 1))[0]),
        lift=rounding.measure_columns(rounding.multiply_closely(predictor, lift) - turn),
        lift_norms=rounding.measure_columns(lift),
        lift_weights=rounding.add_up(weights[:, None] * np.abs(lift)),
        centre_norm=float(rounding.measure_columns(centre[:, None])[0]),
        weighed_centre=float(rounding.add_up(weights * (np.abs(centre) + tail))),
        coefficient_sum=float(rounding.add_up(weights)),
        # Terms of the longest sum after the prediction, and eight operations around it.
        length=predictor.shape[1] + encoder.shape[1] + 8,
    )


def plan_margin(
    defects: Defects, root: float, grid: Grid, dtype: np.dtype[Any], *, storing: bool = True
) -> RoundingMargin:
    """Bound what rounding adds to the root of a record's loss of utility.

    Parameters
    ----------
    defects
        Of the cleaner.
    root
        Root of the utility budget.
    grid
        That predictions are rounded to.
    dtype
        Floating dtype of the released record.
    storing
        Include the rounding of the stored record. Without it the margin is that of the grid and of
        the float64 arithmetic, for those who measure by ``E`` what storing cost.

    Returns
    -------
    RoundingMargin
        Spending ``max(0, root - margin)**2`` keeps every stored record within the budget.

    Notes
    -----
    Let q be the prediction on the grid, ``p = q + shift`` and ``b = W^T p``. Let b~ be what is left
    of b, and ``u = p - W b``.

    Guarantee: the stored record loses at most
    ``|A^T x - q| + |u| + |b - b~| + |(A^T D - W) b~| + |A^T e|``. Here e is the rounding of the
    record, and ``|A^T e| <= sum |A_i| |e_i|``. Storing adds to e, of each feature, the unit
    roundoff of the released dtype (and half its smallest subnormal). The sum that makes the record
    adds ``length * 2**-53`` relative to ``|c| + sum(|D_j| |b_j|)``. The sums that make p, b and u,
    and those of the shrinking, err by as much relative to |p|. They are covered by the 4, with what
    W misses of orthonormal columns. Nothing here depends on x but through q.
    """
    info = np.finfo(dtype)
    # Four sums of that length: p, b, u and the shrinking, with what W misses of orthonormal
    # columns.
    arithmetic = 4 * defects.length * UNIT
    # Rounding to nearest: half a last place.
    unit = float(info.eps) / 2
    # Below the smallest normal number the error is absolute, of every feature.
    subnormal = float(info.smallest_subnormal) * defects.coefficient_sum
    # Step 1 of PROOF.md: |A'x - q| <= FARTHEST * step for each of the predictions.
    steps = FARTHEST * grid.step * float(np.sqrt(len(defects.turn)))
    # Who measures by E what storing cost does not see what A - E W^T makes of such errors.
    unmeasured = 0.0 if storing else 2 * unit * defects.encoder
    measured = unit if storing else 0.0
    slack = 1 + 1e-9  # of the margin's own arithmetic
    fixed = (2 * arithmetic + measured) * defects.weighed_centre + unmeasured * defects.centre_norm
    # Steps in proportion are of the prediction before the shift: the shift counts in full.
    distance = float(rounding.add_up(np.abs(defects.shift)))
    along = (arithmetic + measured) * defects.lift_weights + unmeasured * defects.lift_norms
    constant = steps + fixed + subnormal + arithmetic * root + grid.relative * distance
    per_unit, per_coordinate = slack * (arithmetic + grid.relative), slack * (along + defects.lift)
    return RoundingMargin(per_unit, per_coordinate=per_coordinate, constant=slack * constant)


ATTEMPTS = 6
"""How often a record is shrunk anew to make room for what storing it cost."""


@dataclass(frozen=True, eq=False)
class Balance:
    """What it takes to store records of a narrow dtype within their budget.

    Parameters
    ----------
    encoder : (n_features_out, rank)
        ``E``: an error e of the released record costs ``|E^T e|``.
    margin
        Of the grid and of the float64 arithmetic alone.
    """

    encoder: FloatArray
    margin: RoundingMargin


def round_in_balance(wide: FloatArray, encoder: FloatArray, dtype: DTypeLike) -> FloatArray:
    """Round records to a narrow dtype, up or down, so that ``E^T e`` of their errors e is small.

    Each feature becomes one of the two neighbours of its value, so that no error exceeds a unit in
    the last place. Features follow in the order of the largest error they may cause. Sums are taken
    in a fixed order: equal records are stored equal, whatever their block.

    Parameters
    ----------
    wide : (n_records, n_features), float64
    encoder : (n_features, rank)
        ``E``.
    dtype
        Narrower than float64.

    Returns
    -------
    stored : (n_records, n_features)
        In `dtype`. Rows do not influence one another.

    Examples
    --------
    >>> wide = np.full((1, 4), 1 + 2.0**-12)  # halfway between neighbours in float16
    >>> (round_in_balance(wide, np.ones((4, 1)), "f2") - wide).sum()
    np.float64(0.0)
    """
    narrow: np.dtype[Any] = np.dtype(dtype)
    exact = wide.T  # features as rows, each of them read and written whole
    near = exact.astype(narrow)
    far = np.nextafter(near, np.where(exact > near, np.inf, -np.inf).astype(narrow))
    # Never to infinity, and nothing is moved that is exact already.
    far = np.where((exact == near) | ~np.isfinite(far), near, far)
    errors, steps = near - exact, far.astype(np.float64) - near
    # Largest first, so that the many small ones at the end can cancel what is left.
    sizes = rounding.measure_columns(encoder.T)[:, None]
    order = np.argsort(-np.abs(steps) * sizes, axis=0, kind="stable")
    records, turned = np.arange(len(wide)), np.zeros(exact.shape, np.bool_)
    total = np.zeros((encoder.shape[1], len(wide)))
    for i in order:
        row = encoder[i].T
        plain = total + row * errors[i, records]
        other = plain + row * steps[i, records]
        # Strictly: of equal errors the nearer neighbour stays, whatever the order of the records.
        better = _square(other) < _square(plain)
        total = np.where(better, other, plain)
        turned[i, records] = better
    # Adding zero turns -0.0 into 0.0: no sign of what was rounded to nothing may remain.
    return np.asarray(np.ascontiguousarray(np.where(turned, far, near).T) + narrow.type(0))


def _square(components: FloatArray) -> FloatArray:
    """Squared norms of vectors of which each row is a component, in the order of the rows."""
    total: FloatArray = components[0] * components[0]
    for row in components[1:]:
        total = total + row * row
    return total


def store_within(
    coordinates: FloatArray,
    allowed: FloatArray,
    shrink: Callable[[FloatArray, FloatArray], FloatArray],
    lift: Callable[[FloatArray], FloatArray],
    balance: Balance,
    dtype: DTypeLike,
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Shrink, lift and store records so that what is stored stays within the budget.

    What storing cost is measured, not bounded. A record that comes out above is shrunk again with
    as much less to spend. If need be it is shrunk with twice, four times as much less.

    Parameters
    ----------
    coordinates : (n_records, rank)
        ``b``.
    allowed : (n_records,)
        Largest ``|b - E^T (stored - centre)|``, positive.
    shrink
        Retained coordinates, from coordinates and budgets (n_records,).
    lift
        Records of retained coordinates, float64.
    balance
        How to round.
    dtype
        Narrower than float64.

    Returns
    -------
    stored : (n_records, n_features)
        In `dtype`.
    loss : (n_records,)
        ``|b - E^T (stored - centre)|``; the rounding of these sums is the caller's margin.
    within : (n_records,)
        Whether it is within `allowed`.
    """
    stored = np.empty((len(coordinates), len(balance.encoder)), dtype)
    loss = np.full(len(coordinates), np.inf)
    # The digits of |b - retained| are those of b: room for them is needed where all else cancels.
    room, worst = allowed.copy(), 2.0**-50 * np.sqrt(_square(coordinates.T))
    for attempt in range(ATTEMPTS):
        # First all of them: their loss is infinite until it is measured.
        above = np.flatnonzero((loss > allowed) & (room > 0))
        b = coordinates[above]
        retained = shrink(b, room[above] ** 2)
        wide = lift(retained)
        stored[above] = round_in_balance(wide, balance.encoder, dtype)
        missed = (stored[above] - wide).T
        # In a fixed order, as what is released follows from whether this is within the budget.
        errors = np.array([rounding.add_up(missed * one[:, None]) for one in balance.encoder.T])
        loss[above] = np.sqrt(_square((b - retained).T - errors))
        worst[above] = np.maximum(worst[above], np.sqrt(_square(errors)))
        # Rounding differs after every shrinking: more room each time, so that this ends.
        room[above] = allowed[above] - worst[above] * 2**attempt
    return stored, loss, loss <= allowed
