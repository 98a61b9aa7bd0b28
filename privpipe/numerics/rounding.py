"""What is rounding and what is not: ranks that no kernel decides, ties that no last bit breaks.

A matrix product sums in an order of its own on every processor, so that what is zero in exact
arithmetic comes out as some multiple of the unit roundoff, a different one everywhere. A decision
that compares with zero, or two equal numbers with one another, needs a bound on that multiple
(Higham 2002, Accuracy and Stability of Numerical Algorithms, chapters 3 and 19).
"""

from __future__ import annotations

import numpy as np

from privpipe.protocols import BoolArray, FloatArray

ROUNDINGS = 32.0
"""Multiple of ``n * eps`` that a chain of factorisations and products may lose.

One Householder factorisation or one sum loses a small multiple of ``n * eps`` at worst; centring,
scaling, merging some dozens of shards and the final decomposition together stayed below 4 on all
kernels tried (Nehalem, Sandybridge, Haswell, SkylakeX). What lies below this bound could not be
used if it were kept: no digit of it is known.
"""


def bound_rank_error(n_columns: int) -> float:
    """Relative size below which a singular value of `n_columns` columns may be rounding.

    Relative to the largest singular value of the factor (or eigenvalue of the Gram matrix) that
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
        False where the two are equal as far as the sums can tell, whatever the order of summation.

    Examples
    --------
    >>> exceeds(np.array([[0.1 + 0.2]]), np.array([[0.3]]), np.array([[0.6]]), 2)
    array([[False]])
    """
    slack = 4 * (n_terms + 2) * float(np.finfo(np.float64).eps) * terms
    larger: BoolArray = left - right > slack
    return larger
