"""Sums and products whose bits depend on no library, processor or shape of a block.

Matrix products of BLAS add up in an order that changes with kernel, threads and the number of rows.
What decides the bytes of a release is summed here: element by element, which IEEE 754 rounds
correctly, in an order that the number of terms alone decides.
"""

from __future__ import annotations

import numpy as np

from privpipe.protocols import FloatArray

SPLITTER = 2.0**27 + 1
"""Times this, a float64 falls apart into two halves whose products are exact."""

OFFSET = 5734161139222659 * 2.0**-55
"""Boundaries lie this much of a step (1 / 2 pi) off the middle between values of the grid.

Records are made of short decimal or binary numbers, and the middle is one of them: predictions
would lie on it, where no bound decides. Values of the grid are short numbers all the same.
"""


def add_up(terms: FloatArray) -> FloatArray:
    """Sum over the first axis, by halves.

    Parameters
    ----------
    terms : (n_terms, ...)

    Examples
    --------
    >>> add_up(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    array([ 9., 12.])
    """
    total = np.asarray(terms, np.float64)
    if len(total) == 0:
        return np.zeros(total.shape[1:])
    while len(total) > 1:
        half = len(total) // 2
        total = np.concatenate([total[:half] + total[half : 2 * half], total[2 * half :]])
    first: FloatArray = total[0]
    return first


def measure_columns(matrix: FloatArray) -> FloatArray:
    """Norms of the columns of (n_rows, n_columns)."""
    norms: FloatArray = np.sqrt(add_up(matrix * matrix))
    return norms


def multiply_in_order(left: FloatArray, right: FloatArray) -> FloatArray:
    """``left @ right``, term by term from the first, so that no row depends on the others.

    Parameters
    ----------
    left : (n_rows, n_terms)
    right : (n_terms, n_columns)

    Returns
    -------
    product : (n_rows, n_columns)
    """
    product: FloatArray = left[:, :1] * right[:1]
    term = np.empty_like(product)
    for i in range(1, len(right)):
        np.multiply(left[:, i : i + 1], right[i : i + 1], out=term)
        product += term
    return product


def multiply_closely(left: FloatArray, right: FloatArray) -> FloatArray:
    """``left.T @ right`` as if summed in twice the digits and rounded once.

    Parameters
    ----------
    left : (n_terms, n_rows)
    right : (n_terms, n_columns)

    Returns
    -------
    product : (n_rows, n_columns)

    References
    ----------
    Ogita, Rump and Oishi 2005, Accurate sum and dot product, algorithm 5.3 (Dot2).
    """
    left, left_power = _scale_columns(left)
    right, right_power = _scale_columns(right)
    rows = [_add_up_closely(*_multiply_exactly(column[:, None], right)) for column in left.T]
    powers = left_power[:, None] + right_power
    product: FloatArray = np.ldexp(np.array(rows).reshape(powers.shape), powers)
    return product


def _scale_columns(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Columns below 1 and the powers of two taken out of them: splitting must not overflow."""
    power = np.frexp(np.abs(matrix).max(axis=0, initial=0.0))[1]
    return np.ldexp(matrix, -power), power


def _multiply_exactly(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Products and what rounding took from them (Dekker's TwoProduct)."""
    product = a * b
    a_high, b_high = (v * SPLITTER - (v * SPLITTER - v) for v in (a, b))
    a_low, b_low = a - a_high, b - b_high
    rest = ((product - a_high * b_high) - a_low * b_high) - a_high * b_low
    return product, a_low * b_low - rest


def _add_up_closely(terms: FloatArray, rest: FloatArray) -> FloatArray:
    """As `add_up`, of ``terms + rest``, with the rounding errors of the sums kept in `rest`."""
    while len(terms) > 1:
        half = len(terms) // 2
        a, b = terms[:half], terms[half : 2 * half]
        total = a + b
        part = total - a
        error = (a - (total - part)) + (b - part)
        rest = np.concatenate([rest[:half] + rest[half : 2 * half] + error, rest[2 * half :]])
        terms = np.concatenate([total, terms[2 * half :]])
    found: FloatArray = terms[0] + rest[0]
    return found
