"""A linear filter whose bits depend on the record alone: no library, processor or chunking.

Matrix products of BLAS add up in an order that changes with kernel, threads and number of rows. A
released number that moved by one step of the grid under the same noise would show the step.
"""

from __future__ import annotations

import numpy as np

from privpipe.numerics.random.elementary import compiled
from privpipe.protocols import FloatArray

_LANES = 4
"""Records that share a pass over the weights."""


@compiled
def _project(x: FloatArray, weights: FloatArray, offset: FloatArray, out: FloatArray) -> None:
    n, n_terms, width = x.shape[0], x.shape[1], weights.shape[1]
    whole = n - n % 4
    for i in range(0, whole, 4):
        for j in range(width):
            out[i, j] = offset[j]
            out[i + 1, j] = offset[j]
            out[i + 2, j] = offset[j]
            out[i + 3, j] = offset[j]
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
        for j in range(width):
            out[i, j] = offset[j]
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
    out = np.empty((len(rows), weights.shape[1]))
    _project(rows, np.ascontiguousarray(weights, np.float64), offset.astype(np.float64), out)
    return out
