"""X P for random signs P, on a grid on which no sum has a rounding error.

Records are rounded to integers so small that every sum of all of them, with any signs, is an
integer that float64 holds exactly. So the order of the sums, the cut into chunks and the kernel of
the matrix product cannot change a bit of the result. Its last digits reveal nothing of them.
"""

import math

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.random.draws import draw_signs
from privpipe.protocols import FloatArray, WordArray

EXACT = 2.0**52
"""Integers up to here, and sums of two of them, are exact in float64."""

BLOCK_RECORDS = 256
"""Records whose signs are in memory at once, in float64."""


def plan_grid(largest: float, n_records: int) -> tuple[float, float]:
    """Bound of the values and step of the grid, both powers of two.

    Parameters
    ----------
    largest
        Largest magnitude of a value, positive and finite.
    n_records
        How many are summed up.

    Returns
    -------
    bound, step
        ``n_records * bound / step`` is at most 2**52.

    Examples
    --------
    >>> plan_grid(5.0, 2**20)
    (8.0, 1.862645149230957e-09)
    """
    if not 0 < largest < math.inf or n_records < 1:
        problem = "The largest value or the number of records to be summed up is not positive."
        raise InputError(problem, remedy="Give finite records that are not all zero.")
    # Powers of two: dividing by the step is exact but for the rounding to whole numbers.
    bound = 2.0 ** math.ceil(math.log2(largest))
    return bound, bound * 2.0 ** math.ceil(math.log2(n_records)) / EXACT


def round_to_grid(values: FloatArray, bound: float, step: float) -> FloatArray:
    """Integers nearest to ``values / step``, in float64.

    Raises
    ------
    InputError
        If a value is above the bound: sums would not be exact.
    """
    if values.size and float(np.abs(values).max()) > bound:
        problem = "A record lies beyond all records of the fit."
        remedy = "The records changed since: `privpipe purge`, then run again."
        raise InputError(problem, remedy=remedy, code="beyond-fit")
    return np.asarray(np.rint(values / step))


def sum_with_signs(integers: FloatArray, words: WordArray, n_signs: int) -> FloatArray:
    """Sum records with the signs of their own words, once per sign: exact.

    Parameters
    ----------
    integers : (n_records, n_columns)
        Of `round_to_grid`.
    words : (n_records, sign_words(n_signs))
    n_signs

    Returns
    -------
    sums : (n_signs, n_columns)

    Examples
    --------
    >>> sum_with_signs(np.array([[2.0], [5.0]]), np.array([[1], [2]], np.uint64), 3)
    array([[-3.],
           [ 3.],
           [-7.]])
    """
    total = np.zeros((n_signs, integers.shape[1]))
    for start in range(0, len(integers), BLOCK_RECORDS):
        rows = slice(start, start + BLOCK_RECORDS)
        # Every partial sum is a whole number below 2**52, so that BLAS may add in any order.
        total += draw_signs(words[rows], n_signs).astype(np.float64).T @ integers[rows]
    return total
