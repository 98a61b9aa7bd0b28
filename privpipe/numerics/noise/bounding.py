"""Filter and bound: any record into the ball of norm 1, so that two differ by at most 2.

Hamm 2017, Noisy Minimax Filters, section 2.2.1. The soft bound is printed there as tanh(a|x|) x,
which is unbounded; meant is tanh(a|x|) x / |x|. The linear filter before it multiplies in an order
that no library, processor or chunking changes. A released number that moved by one step of the grid
under the same noise would show the step.
"""

import math
from typing import Literal

import numpy as np

from privpipe.errors import OptionError
from privpipe.numerics.compiler import compiled
from privpipe.protocols import FloatArray, IntArray

Bound = Literal["hard", "soft", "normalise"]
Norm = Literal["l1", "l2"]

_KINDS: dict[str, int] = {"hard": 0, "soft": 1, "normalise": 2}
_NORMS: dict[str, int] = {"l1": 1, "l2": 2}
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10


@compiled
def tanh_of(y: float) -> float:
    """tanh of y >= 0, within 2**-50 of the truth: + - * / alone, so the same bits everywhere.

    ``(1 - e) / (1 + e)`` with ``e = exp(-2 y)``. Where that cancels, below 2**-9, it is the series.
    """
    if y < 2.0**-9:
        square = y * y
        return y - y * square * (1.0 / 3.0 - square * (2.0 / 15.0))
    # 1 - tanh(30) is below 2**-85: 1 is the nearest number.
    if y > 30.0:
        return 1.0
    t = 2.0 * y
    power = np.floor(t * 1.4426950408889634 + 0.5)
    rest = -((t - power * _LN2_HIGH) - power * _LN2_LOW)
    series = 1.0
    # |rest| <= ln 2 / 2: the terms beyond the 18th are below 2**-80.
    for k in range(18, 0, -1):
        series = 1.0 + series * rest / k
    e = series * np.int64((1023 - np.int64(power)) << 52).view(np.float64)
    return (1.0 - e) / (1.0 + e)


@compiled
def _measure(row: FloatArray, norm: int) -> tuple[float, float]:
    """Largest coordinate, and the norm in units of it; both 0 for a record of zeros."""
    largest = 0.0
    for j in range(row.size):
        size = abs(row[j])
        if not size < np.inf:  # NaN is not, either
            return np.inf, 0.0
        largest = max(largest, size)
    # The norm is taken in units of the largest coordinate: squares neither overflow nor vanish.
    if largest == 0.0:
        return 0.0, 0.0
    total = 0.0
    for j in range(row.size):
        part = abs(row[j]) / largest
        total += part if norm == 1 else part * part
    return largest, total if norm == 1 else math.sqrt(total)


@compiled
def _bound(x: FloatArray, kind: int, norm: int, threshold: float, counts: IntArray) -> None:
    for i in range(x.shape[0]):
        row = x[i]
        largest, relative = _measure(row, norm)
        # A record that is not finite becomes zero, as any other it is protected; the count is
        # reported.
        if relative == 0.0:  # zeros, or not finite
            if largest != 0.0:
                counts[1] += 1
            for j in range(row.size):
                row[j] = 0.0
            continue
        size = largest * relative  # may be infinite: then it is above the threshold
        if kind != 2 and size > threshold:
            counts[0] += 1
        # Inside the ball hard bounding only changes the unit.
        if kind == 0 and size <= threshold:
            for j in range(row.size):
                row[j] = row[j] / threshold
            continue
        factor = tanh_of(size / threshold) if kind == 1 else 1.0
        for j in range(row.size):
            # Two divisions, since their product may overflow where the record does not.
            row[j] = factor * (row[j] / largest / relative)


@compiled
def _norms(x: FloatArray, norm: int, out: FloatArray) -> None:
    for i in range(x.shape[0]):
        largest, relative = _measure(x[i], norm)
        out[i] = largest * relative if relative > 0.0 else largest


def bound_records(
    x: FloatArray, kind: Bound, norm: Norm, threshold: float
) -> tuple[FloatArray, int, int]:
    """Bring records into the ball of norm 1, scaled before the norm, so that none overflows.

    Parameters
    ----------
    x : (n_records, width), float64
        Any values; changed in place.
    kind
        "hard": ``x / max(threshold, |x|)``. "soft": ``tanh(|x| / threshold) x / |x|``.
        "normalise": ``x / |x|``. Zero stays zero, and a record that is not finite becomes zero.
    norm
        "l1" or "l2".
    threshold
        Positive; not used by "normalise".

    Returns
    -------
    bounded : (n_records, width)
        Norm at most 1 but for rounding, which `Lattice` takes care of.
    n_clipped, n_overflowing
        Records beyond the threshold, and those that were not finite.

    Raises
    ------
    OptionError
        If the kind or norm is unknown, or the threshold not positive and finite.

    Examples
    --------
    >>> bound_records(np.array([[3.0, 4.0], [0.0, 0.5]]), "hard", "l2", 1.0)
    (array([[0.6, 0.8],
           [0. , 0.5]]), 1, 0)
    """
    if kind not in _KINDS or norm not in _NORMS:
        problem = f"The bound {kind!r} in the norm {norm!r} is not known."
        raise OptionError(problem, remedy='Use "hard", "soft" or "normalise", and "l1" or "l2".')
    if not 0 < threshold < math.inf:
        raise OptionError(f"The threshold is {threshold}.", remedy="Use a number above 0.")
    counts = np.zeros(2, np.int64)
    _bound(x, _KINDS[kind], _NORMS[norm], threshold, counts)
    return x, int(counts[0]), int(counts[1])


def measure_norms(x: FloatArray, norm: Norm) -> FloatArray:
    """Norms of records, (n_records,); infinite where they overflow.

    >>> measure_norms(np.array([[3e300, -4e300]]), "l2")
    array([5.e+300])
    """
    out = np.empty(len(x))
    _norms(np.ascontiguousarray(x, np.float64), _NORMS[norm], out)
    return out


_LANES = 4
"""Records that share a pass over the weights."""


@compiled
def _project(x: FloatArray, weights: FloatArray, out: FloatArray) -> None:
    n, n_terms, width = x.shape[0], x.shape[1], weights.shape[1]
    # Four records share a pass over the weights; each sum is its own, so that the rest differs in
    # nothing but speed.
    whole = n - n % 4
    for i in range(0, whole, 4):
        for k in range(n_terms):
            a, b = np.float64(x[i, k]), np.float64(x[i + 1, k])
            c, d = np.float64(x[i + 2, k]), np.float64(x[i + 3, k])
            for j in range(width):
                w = weights[k, j]
                out[i, j] += a * w
                out[i + 1, j] += b * w
                out[i + 2, j] += c * w
                out[i + 3, j] += d * w
    for i in range(whole, n):
        for k in range(n_terms):
            a = np.float64(x[i, k])
            for j in range(width):
                out[i, j] += a * weights[k, j]


def project_in_order(x: FloatArray, weights: FloatArray, offset: FloatArray) -> FloatArray:
    """``x @ weights + offset`` in float64, each sum from the offset on, term by term.

    Parameters
    ----------
    x : (n_records, n_features)
        float32 is widened number by number, not copied.
    weights : (n_features, n_filtered)
    offset : (n_filtered,)

    Returns
    -------
    z : (n_records, n_filtered), float64
        The same bits for a record in any block, on any processor: products and sums are single
        operations of IEEE 754, never fused. Not finite where a sum overflows.

    Examples
    --------
    >>> project_in_order(np.array([[1.0, 2.0]]), np.array([[1.0], [10.0]]), np.array([0.5]))
    array([[21.5]])
    """
    narrow = x.dtype == np.float32
    rows: FloatArray = np.ascontiguousarray(x, np.float32 if narrow else np.float64)
    out = np.tile(offset.astype(np.float64), (len(rows), 1))
    _project(rows, np.ascontiguousarray(weights, np.float64), out)
    return out
