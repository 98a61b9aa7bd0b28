"""What is rounding and what is not: ranks that no kernel decides, sums that no library reorders.

A matrix product sums in an order of its own on every processor. So what is zero in exact arithmetic
comes out as some multiple of the unit roundoff, a different one everywhere. A decision that
compares with zero, or two equal numbers with one another, needs a bound on that multiple. See
Higham 2002, Accuracy and Stability of Numerical Algorithms, chapters 3 and 19. What decides the
bytes of a release is summed here instead, element by element, which IEEE 754 rounds correctly. The
number of terms alone decides the order.
"""

import numpy as np

from privpipe.protocols import BoolArray, FloatArray

ROUNDINGS = 32.0
"""Multiple of ``n * eps`` that a chain of factorisations and products may lose.

One Householder factorisation or one sum loses a small multiple of ``n * eps`` at worst. Centring,
scaling, merging some dozens of shards and the final decomposition together stayed below 4 on all
kernels tried (Nehalem, Sandybridge, Haswell, SkylakeX). What lies below this bound could not be
used if it were retained: no digit of it is known.
"""


def bound_rank_error(n_columns: int) -> float:
    """Relative size below which a singular value of `n_columns` columns may be rounding.

    Relative to the largest singular value of the factor (or eigenvalue of the Gram matrix). That
    was computed in float64 from columns scaled to equal size.

    >>> 0 < bound_rank_error(3) < 1e-13
    True
    """
    return ROUNDINGS * max(n_columns, 1) * float(np.finfo(np.float64).eps)


def exceeds(left: FloatArray, right: FloatArray, terms: FloatArray, n_terms: int) -> BoolArray:
    """Whether left is larger than right by more than the rounding of the sums that made them.

    Parameters
    ----------
    left, right : (n_records, n_targets)
    terms : (n_records, n_targets)
        Sum of the magnitudes of all that was added up in either.
    n_terms
        Number of terms of the longer sum.

    Returns
    -------
    larger : (n_records, n_targets)
        False where the two are equal as far as the sums can show, whatever the order of summation.

    Examples
    --------
    >>> exceeds(np.array([[0.1 + 0.2]]), np.array([[0.3]]), np.array([[0.6]]), 2)
    array([[False]])
    """
    slack = 4 * (n_terms + 2) * float(np.finfo(np.float64).eps) * terms
    return np.asarray(left - right > slack)


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
    return np.asarray(total[0])


def measure_columns(matrix: FloatArray) -> FloatArray:
    """Norms of the columns of (n_rows, n_columns)."""
    return np.asarray(np.sqrt(add_up(matrix * matrix)))


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
    return np.asarray(np.ldexp(np.array(rows).reshape(powers.shape), powers))


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
    """As `add_up`, of ``terms + rest``, with the rounding errors of the sums added to `rest`."""
    while len(terms) > 1:
        half = len(terms) // 2
        a, b = terms[:half], terms[half : 2 * half]
        total = a + b
        part = total - a
        error = (a - (total - part)) + (b - part)
        rest = np.concatenate([rest[:half] + rest[half : 2 * half] + error, rest[2 * half :]])
        terms = np.concatenate([total, terms[2 * half :]])
    return np.asarray(terms[0] + rest[0])
