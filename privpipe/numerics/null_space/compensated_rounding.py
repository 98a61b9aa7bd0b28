"""Records rounded to a narrow dtype so that their rounding errors cancel in the prediction.

Plain rounding of a record may cost its prediction the sum of the errors of all its features. Each
feature may as well be rounded the other way: taken one after the other, the largest errors first,
each is rounded to the side that leaves the smaller error of the prediction so far.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.numerics.null_space.rounding_margin import RoundingMargin
from privpipe.numerics.rounding import add_up, measure_columns
from privpipe.protocols import BoolArray, FloatArray

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


def round_in_balance(wide: FloatArray, encoder: FloatArray, dtype: npt.DTypeLike) -> FloatArray:
    """Round records to a narrow dtype, up or down, so that ``E^T e`` of their errors e is small.

    Each feature becomes one of the two neighbours of its value, so that no error exceeds a unit
    in the last place; features follow in the order of the largest error they may cause. Sums are
    taken in a fixed order: equal records are stored equal, whatever their block.

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
    order = np.argsort(-np.abs(steps) * measure_columns(encoder.T)[:, None], axis=0, kind="stable")
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
    stored: FloatArray = np.ascontiguousarray(np.where(turned, far, near).T) + narrow.type(0)
    return stored


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
    dtype: npt.DTypeLike,
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Shrink, lift and store records so that what is stored stays within the budget.

    What storing cost is measured, not bounded; a record that comes out above is shrunk again
    with as much less to spend, and if need be with twice, four times as much less.

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
        errors = np.array([add_up(missed * column[:, None]) for column in balance.encoder.T])
        loss[above] = np.sqrt(_square((b - retained).T - errors))
        worst[above] = np.maximum(worst[above], np.sqrt(_square(errors)))
        # Rounding differs after every shrinking: more room each time, so that this ends.
        room[above] = allowed[above] - worst[above] * 2**attempt
    return stored, loss, loss <= allowed
