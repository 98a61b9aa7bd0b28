"""Desired predictions on a grid: all that a cleaned record may be a function of.

A release must not reveal what the desired prediction does not: not in its last digits, and not by
its rounding. So a prediction is rounded to a grid that knows nothing of the record, and rounded
*correctly*. The grid's value is that of the exact prediction, however it was summed. A float64 sum
within its error bound of a boundary of the grid decides nothing. It is summed again, with twice the
digits, and at last in whole numbers.
"""

import math
from fractions import Fraction

import numpy as np

from privpipe.numerics import compiler, rounding
from privpipe.numerics.null_space.rounding_margin import Grid
from privpipe.protocols import BoolArray, FloatArray, IntArray

MANY = 300
"""From this many values on compiling pays; whole numbers take a tenth of a millisecond each."""


def predict_on_grid(
    x: FloatArray, predictor: FloatArray, weights: FloatArray, grid: Grid
) -> FloatArray:
    """Values on the grid of the exact predictions ``A^T x``.

    Parameters
    ----------
    x : (n_records, n_features), float64
    predictor : (n_features, n_predictions)
        ``A``.
    weights : (n_features,)
        At least the size of every coefficient of the feature.
    grid

    Returns
    -------
    values : (n_records, n_predictions)
        NaN for records that are not finite, infinity beyond what can be stored. A function of the
        exact predictions alone.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        # In whatever order BLAS likes: the error bound holds for any, and the grid hides which it
        # was.
        predictions = x @ predictor
        # Weighed feature by feature: large features with small coefficients cost little.
        error = grid.uncertainty * (np.abs(x) @ weights) + 2.0**-1040
        values, sure = snap_predictions(predictions, error[:, None], grid)
    # With a budget hardly any; without one half of the records at 294 features.
    rows, columns = np.nonzero(~sure)
    if len(rows):
        settle_entries(x, predictor, rows, columns, grid, values)
    return values


def snap_predictions(
    predictions: FloatArray, error: FloatArray, grid: Grid
) -> tuple[FloatArray, BoolArray]:
    """Values on the grid of predictions known to within an error, and where that decides.

    Parameters
    ----------
    predictions : (n_records, n_predictions)
    error : as the predictions, or (n_records, 1)
        Bound on their distance from the exact ones.
    grid

    Returns
    -------
    values, sure : (n_records, n_predictions)
        Where not `sure` the value means nothing.
    """
    size = np.abs(predictions)
    exponent = np.frexp(size)[1]
    fixed = size + error < grid.limit
    # In proportion: nothing within the error may have another exponent.
    low = np.ldexp(1.0, exponent - 1)
    alike = (size - error >= np.maximum(low, grid.limit)) & (size + error < 2 * low)
    alike &= np.abs(exponent) < 900
    step = np.where(fixed, grid.step, np.ldexp(1.0, exponent - 1 - grid.digits))
    scaled = predictions / step - rounding.OFFSET
    place = np.rint(scaled)
    # Dividing is exact, taking the offset away is not; the units are those of the step.
    error_bound = error / step + 2.0**-51 * (1 + np.abs(scaled))
    # Zero has no exponent: in proportion to it there is no step, and it is its own value.
    nothing = (size == 0) & (error <= 2.0**-1000) & (grid.step == 0)
    sure = (fixed | alike) & (np.abs(scaled - place) + error_bound < 0.5)
    return np.where(nothing, 0.0, place * step) + 0.0, sure


def settle_entries(
    x: FloatArray, a: FloatArray, rows: IntArray, cols: IntArray, grid: Grid, values: FloatArray
) -> None:
    """Put exact values in the places of `values` that no float64 sum decides."""
    # Imported only here: the library loads without the compiler, and most calls never need it.
    if len(rows) >= MANY and compiler.can_compile():
        from privpipe.numerics.null_space.grid_kernels import settle_closely

        some = np.zeros(len(rows), np.bool_)
        numbers = np.array([grid.step, grid.digits])
        settle_closely(x, np.ascontiguousarray(a.T), rows, cols, numbers, values, some)
        rows, cols = rows[~some], cols[~some]
    for i, j in zip(rows.tolist(), cols.tolist(), strict=True):
        values[i, j] = settle_exactly(x[i], a[:, j], grid)


def settle_exactly(record: FloatArray, coefficients: FloatArray, grid: Grid) -> float:
    """Value on the grid of ``coefficients . record``, in whole numbers.

    Parameters
    ----------
    record, coefficients : (n_features,)
    grid

    Returns
    -------
    value
        NaN if the record is not finite, infinity if the value is beyond ``2**1000``. Where steps
        are in proportion only, it is 0 below ``2**-900``.

    Examples
    --------
    >>> from privpipe.numerics.null_space.rounding_margin import plan_grid
    >>> grid = plan_grid(root=1.0, n_predictions=1, n_terms=3)
    >>> settle_exactly(np.array([1e300, 2.0, -1e300]), np.ones(3), grid)
    2.0
    """
    if not np.isfinite(record).all():
        return math.nan
    total, power = _sum_products(np.asarray(record, np.float64), coefficients)
    if total == 0:
        return 0.0
    exponent = abs(total).bit_length() - 1 + power
    # No float64 grid there; the record is withheld as out of range.
    if exponent >= 1000:
        return math.copysign(math.inf, total)
    if exponent < -900 and not grid.step:
        return 0.0
    step = exponent - grid.digits
    if grid.step:
        step = max(step, math.frexp(grid.step)[1] - 1)
    # (total * 2**power) / 2**step - OFFSET, over a common denominator, rounded half to even.
    scale = power - step + 55
    top = (total << max(scale, 0)) - (int(rounding.OFFSET * 2**55) << max(-scale, 0))
    return math.ldexp(float(round(Fraction(top, 1 << (55 + max(-scale, 0))))), step) + 0.0


def _sum_products(a: FloatArray, b: FloatArray) -> tuple[int, int]:
    """``a . b`` as a whole number times a power of two."""
    (a_part, a_power), (b_part, b_power) = np.frexp(a), np.frexp(b)
    # 53 bits each: the product of two mantissas is a whole number of 106.
    power = (a_power.astype(np.int64) + b_power - 106)[(a != 0) & (b != 0)]
    if len(power) == 0:
        return 0, 0
    lowest = int(power.min())
    whole = ((part[(a != 0) & (b != 0)] * 2.0**53).astype(np.int64) for part in (a_part, b_part))
    factors = zip(*(part.tolist() for part in whole), (power - lowest).tolist(), strict=True)
    return sum((m * n) << shift for m, n, shift in factors), lowest
