"""`prediction_grid`, compiled: many predictions at a time, and undecided ones summed again.

Nothing here may be reordered or fused: what rounding takes from a sum is computed from it.
"""

import math
from typing import Any

import numpy as np

from privpipe.numerics.compiler import njit
from privpipe.numerics.rounding import OFFSET, SPLITTER

_strict = njit(nogil=True, error_model="numpy")

MARGIN = 2.0**-49
"""Of a step: what forming the distance from a boundary may miss."""

SMALLEST_PRODUCT = 1e-280
"""Below, what rounding took from a product may itself be rounded."""


@_strict
def _snap(total: float, rest: float, error: float, step: float, digits: int) -> Any:
    """Value on the grid of ``total + rest``, known to within `error`, and whether that decides.

    The same function of the exact prediction as `grid.settle_exactly`; see `snap_predictions`.
    """
    value = total + rest
    part = value - total
    rest = (total - (value - part)) + (rest - part)  # now below the last place of the value
    size = abs(value)
    # An overflowed sum decides nothing; whole numbers do.
    if not (np.isfinite(value) and error < np.inf):
        return 0.0, False
    # With a rest, rounding the sum of both to one number may itself be off by half a last place.
    slack = error if rest == 0.0 else error + 2.0**-52 * size
    limit = math.ldexp(step, digits)
    # Beyond the limit steps are in proportion to the prediction: the exponent must be certain, too.
    if not size + slack < limit:
        if size == 0.0:
            return 0.0, slack == 0.0
        exponent = math.frexp(size)[1]
        low = math.ldexp(1.0, exponent - 1)
        # Near a power of two the error might cross it, and with it the step.
        if not (abs(exponent) < 900 and size - slack >= max(low, limit)):
            return 0.0, False
        if not size + slack < 2.0 * low:
            return 0.0, False
        step = math.ldexp(low, -digits)
    scaled = value / step
    place = np.rint(scaled)
    distance = (scaled - place) + rest / step - OFFSET
    further = np.rint(distance)
    # Certain only where no boundary, half a step away, lies within the error.
    sure = abs(distance) < 2.0 and abs(distance - further) + error / step + MARGIN < 0.5
    return (place + further) * step + 0.0, sure


@_strict
def _multiply_closely(record: Any, coefficients: Any) -> Any:
    """``record . coefficients`` as total and rest, and a bound on what both miss."""
    total = rest = size = missed = 0.0
    for i in range(record.size):
        a, b = np.float64(record[i]), coefficients[i]
        # Zero features are common, and exact: they add nothing to the error either.
        if a == 0.0 or b == 0.0:
            continue
        product = a * b
        a_high, b_high = a * SPLITTER, b * SPLITTER
        a_high, b_high = a_high - (a_high - a), b_high - (b_high - b)
        a_low, b_low = a - a_high, b - b_high
        # What rounding took from the product (Dekker), and below from the sum (Knuth): both exact.
        lost = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
        after = total + product
        part = after - total
        error = (total - (after - part)) + (product - part)
        total = after
        rest += error + lost
        size += abs(error) + abs(lost)
        # Near the smallest numbers the splitting itself underflows: counted, not assumed away.
        if abs(product) < SMALLEST_PRODUCT:
            missed += 1e-320
    return total, rest, 1.01 * (2.0 * record.size + 4.0) * 2.0**-53 * size + missed


@_strict
def settle_closely(
    x: Any, predictor: Any, rows: Any, columns: Any, numbers: Any, values: Any, sure: Any
) -> None:
    """Values of the predictions ``x[rows] . predictor[columns]``, and where they are sure."""
    for k in range(rows.size):
        i, j = rows[k], columns[k]
        total, rest, error = _multiply_closely(x[i], predictor[j])
        value, found = _snap(total, rest, error, numbers[0], int(numbers[1]))
        sure[k] = found
        if found:
            values[i, j] = value


@_strict
def settle_tile(
    x: Any, start: int, n: int, predictor: Any, tile: Any, numbers: Any, known: Any, missing: Any
) -> int:
    """Put the predictions of a tile on the grid; see `predict_on_grid`.

    Parameters
    ----------
    x, start, n
        Records, and which of them are in the tile.
    predictor : (n_predictions, n_features or more)
    tile
        Arrays of the tile. The sums (n_predictions, tile) are the predictions as float64 sums, in
        any order; weighed (tile,) is ``sum_i weight_i |x_i|``. Then n_sure (tile,) is room to count
        the predictions that are decided. Last, values (n_predictions, tile) takes the values, NaN
        for records that are not finite.
    numbers : (3,)
        Of the grid: step, digits, uncertainty.
    known : (n_known,), (n_known, n_predictions)
        Records of which the values are known, and these.
    missing : (tile,)
        Takes the records that only whole numbers decide.

    Returns
    -------
    n_missing
    """
    sums, weighed, n_sure, values = tile
    step, digits, uncertainty = numbers[0], int(numbers[1]), numbers[2]
    # Adding and subtracting 1.5 * 2**52 steps rounds to whole steps without a call of rint, for
    # many records in vector registers; strict compilation keeps the compiler from cancelling it.
    magic, offset, half = step * 1.5 * 2.0**52, step * OFFSET, 0.5 * step
    # Two steps inside the limit: rounding must not carry a value across it.
    limit, slack = step * (math.ldexp(1.0, digits) - 2.0), step * 2.0**-49
    for k in range(n_sure.size):
        n_sure[k] = 0.0
    for j in range(sums.shape[0]):
        for k in range(n_sure.size):
            shifted = sums[j, k] - offset
            value = (shifted + magic) - magic
            near = abs(shifted - value) + (uncertainty * weighed[k] + slack) < half
            n_sure[k] += 1.0 if near and abs(sums[j, k]) < limit else 0.0
            values[j, k] = value + 0.0
    n_missing = 0
    # A second look only at the few that are undecided, or not finite.
    for k in range(n):
        if n_sure[k] != sums.shape[0] and not _settle_record(
            x[start + k], start + k, k, predictor, tile, numbers, known
        ):
            missing[n_missing] = start + k
            n_missing += 1
    return n_missing


@_strict
def _settle_record(
    record: Any, number: int, k: int, predictor: Any, tile: Any, numbers: Any, known: Any
) -> bool:
    """Values of one undecided record; False where nothing here decides."""
    sums, weighed, _, values = tile
    known_rows, known_values = known
    for i in range(known_rows.size):
        if known_rows[i] == number:
            values[:, k] = known_values[i]
            return True
    step, digits = numbers[0], int(numbers[1])
    # The smallest subnormals are no rounding of anything: an absolute error covers them.
    error = numbers[2] * weighed[k] + 2.0**-1040
    if not np.isfinite(weighed[k]):
        for c in range(record.size):
            if not np.isfinite(record[c]):
                values[:, k] = np.nan
                return True
        return False
    for j in range(sums.shape[0]):
        value, sure = _snap(sums[j, k], 0.0, error + 2.0**-51 * weighed[k], step, digits)
        if not sure:
            total, rest, missed = _multiply_closely(record, predictor[j])
            value, sure = _snap(total, rest, missed, step, digits)
        if not sure:
            return False
        values[j, k] = value
    return True


@_strict
def shrink_in_order(b: Any, retained: Any, budget: Any, room: Any) -> None:
    """Remove coordinate by coordinate until the budget is spent; as in `knapsack`."""
    before = room[0]
    for k in range(budget.size):
        before[k] = 0.0
    for j in range(b.shape[0]):
        for k in range(budget.size):
            cost, left = b[j, k] * b[j, k], max(budget[k] - before[k], 0.0)
            rest = max(abs(b[j, k]) - np.sqrt(left), 0.0)
            # Adding zero turns -0.0 into 0.0: the sign of what was removed whole must not remain.
            retained[j, k] = (0.0 if cost <= left else (rest if b[j, k] > 0 else -rest)) + 0.0
            before[k] += cost


@_strict
def shrink_evenly(b: Any, retained: Any, budget: Any, room: Any) -> None:
    """Smallest coordinates whole, every other one by ``mu / |b|`` ("kkt"); as in `knapsack`."""
    rank = b.shape[0]
    size, order = np.empty(rank), np.empty(rank, np.int64)
    share, spent = np.empty(rank), np.empty(rank)
    for k in range(budget.size):
        for j in range(rank):
            retained[j, k] = b[j, k]
        if np.isfinite(budget[k]) and budget[k] > 0:  # else nothing is to be spent
            _sort_by_size(b[:, k], order)
            for j in range(rank):
                size[j] = abs(b[order[j], k])
            _share_evenly(size, budget[k], share, spent)
            for j in range(rank):
                rest = size[j] - min(share[j], size[j])
                retained[order[j], k] = rest if b[order[j], k] > 0 else -rest
        for j in range(rank):
            retained[j, k] += 0.0


@_strict
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


@_strict
def _share_evenly(size: Any, budget: float, share: Any, spent: Any) -> None:
    """How much each coordinate loses; see `knapsack._share_evenly`, operation by operation."""
    rank = size.size
    share[rank - 1] = 1.0  # q until it is known where the budget ends
    for k in range(rank - 2, -1, -1):
        larger = size[k + 1] * size[k + 1]
        share[k] = 1.0 + (size[k] * size[k] / larger if larger > 0 else 0.0) * share[k + 1]
    total = 0.0
    for k in range(rank):
        spent[k] = total
        total += size[k] * size[k]
    n_whole = 0
    while n_whole < rank:
        if not spent[n_whole] + size[n_whole] * size[n_whole] * share[n_whole] <= budget:
            break
        n_whole += 1
    first = min(n_whole, rank - 1)
    root = np.sqrt(max(budget - spent[first], 0.0) / share[first])
    start = size[first]
    for k in range(rank):
        # The product first, as in NumPy: (root * start) / size and root * (start / size) differ.
        lost = (root * start) / size[k] if size[k] > 0 else size[k]
        share[k] = size[k] if k < n_whole else lost
