"""Whitening and generalised eigenvectors of covariances and scatters of classes.

Symmetric matrices in, eigenvectors out; signs are fixed by a rule so that results do not depend
on the BLAS build.
"""

import numpy as np
import scipy.linalg as sl

from privpipe.protocols import FloatArray

NO_VARIANCE = 1e-12
"""Variances below this share of what deviations could add up to are rounding."""

RANK = 1e-9
"""Singular values below this share of the largest are rounding."""

SPAN = 1e-10
"""Directions below this share of the largest are not in the span of some columns."""

EQUAL = 1 - 2.0**-20
"""Entries of at least this share of the largest count as equal to it: rounding decides nothing."""


def fix_signs(vectors: FloatArray) -> FloatArray:
    """Turn every column so that its entry of largest size is positive (the first of equals).

    >>> fix_signs(np.array([[1.0, 2.0], [-3.0, 1.0]]))
    array([[-1.,  2.],
           [ 3.,  1.]])
    """
    if vectors.size == 0:
        return vectors
    sizes = np.abs(vectors)
    largest = (sizes >= EQUAL * sizes.max(axis=0)).argmax(axis=0)
    signs = np.sign(vectors[largest, np.arange(vectors.shape[1])])
    return np.asarray(vectors * np.where(signs == 0, 1.0, signs))


def whiten(covariance: FloatArray, ridge: float) -> FloatArray:
    """Transform T for which ``T^T (C + ridge mean(eigenvalues) I) T = I``.

    Parameters
    ----------
    covariance : (n, n)
    ridge
        Relative to the mean eigenvalue; positive, so that constant and duplicated features
        get small finite weights.

    Returns
    -------
    transform : (n, n)
        Columns by decreasing eigenvalue.
    """
    values, vectors = sl.eigh(covariance, check_finite=False)
    values = np.maximum(values[::-1], 0.0)
    floor = ridge * values.mean() + 1e-300
    return np.asarray(fix_signs(vectors[:, ::-1]) / np.sqrt(values + floor))


def scale_to_unit_variance(directions: FloatArray, covariance: FloatArray) -> FloatArray:
    """Directions along which records have variance one; zero where they have none.

    Parameters
    ----------
    directions : (n, k)
    covariance : (n, n)

    Returns
    -------
    scaled : (n, k)

    Examples
    --------
    >>> scale_to_unit_variance(np.eye(2), np.diag([4.0, 0.0]))
    array([[0.5, 0. ],
           [0. , 0. ]])
    """
    variance = np.einsum("ij,ij->j", directions, covariance @ directions)
    # What the features' own deviations could add up to: a variance that is a rounding error of it
    # is none. Divided by its root, a constant feature once had a weight of 1e150.
    most = (np.abs(directions).T @ np.sqrt(np.maximum(np.diag(covariance), 0.0))) ** 2
    there = variance > NO_VARIANCE * most
    return np.asarray(directions * np.where(there, 1.0 / np.sqrt(np.where(there, variance, 1)), 0))


def solve_generalised(
    columns: FloatArray, signs: FloatArray, metric: FloatArray, ridge: float
) -> tuple[FloatArray, FloatArray]:
    """Generalised eigenpairs of ``F diag(signs) F^T v = w (metric + ridge I) v``, w not zero.

    F has few columns, so there are few such pairs. They are found in its range, with a Cholesky
    factor of the metric and a small eigenproblem. A solver for square matrices would return
    rounding errors of the zero eigenvalues as if they were small ones.

    Parameters
    ----------
    columns : (n, k)
        F.
    signs : (k,)
        Weights of its columns.
    metric : (n, n)
        Symmetric, positive semidefinite.
    ridge
        Relative to the mean eigenvalue of the metric; positive.

    Returns
    -------
    values : (r,)
        Ascending, r at most the rank of F.
    vectors : (n, r)
        ``V^T (metric + ridge I) V = I``.
    """
    n = len(metric)
    lifted = metric + (ridge * np.trace(metric) / n + 1e-300) * np.eye(n)
    lower = sl.cholesky(lifted, lower=True, check_finite=False)
    whitened = sl.solve_triangular(lower, columns, lower=True, check_finite=False)
    left, sizes, right = sl.svd(whitened, full_matrices=False, check_finite=False)
    retained = sizes > RANK * sizes.max(initial=1e-300)
    coupled = sizes[:, None] * right
    inner = (coupled * signs) @ coupled.T
    values, turned = sl.eigh(inner[np.ix_(retained, retained)], check_finite=False)
    vectors = sl.solve_triangular(lower, left[:, retained] @ turned, lower=True, trans="T")
    return values, fix_signs(vectors)


def count_directions(columns: FloatArray) -> int:
    """Number of directions that `guard_directions` closes for these columns."""
    return int(np.linalg.matrix_rank(columns, rtol=SPAN))


def guard_directions(
    covariance: FloatArray, guarded: FloatArray, taken: FloatArray, n_directions: int
) -> FloatArray:
    """Principal directions inside the complement of what must stay hidden or is there already.

    Parameters
    ----------
    covariance : (n, n)
    guarded : (n, k)
        Spans the directions along which the confidential classes differ.
    taken : (n, m)
        Directions already chosen.
    n_directions
        At most ``n - k - m``.

    Returns
    -------
    directions : (n, n_directions)
        Orthonormal, orthogonal to `guarded` and `taken`, by decreasing variance.

    Notes
    -----
    Guarantee: records projected on the result have equal means in all confidential classes of the
    training data, up to `SPAN` of the largest contrast. So no affine classifier of theirs beats the
    constant one there by more. Smaller contrasts are taken for rounding.
    """
    # Inside the complement itself: beside directions of no variance a solver for all features mixes
    # those that are closed, and which ones is for the last bit to say.
    left, sizes, _ = sl.svd(np.column_stack([guarded, taken]), check_finite=False)
    open_ = left[:, int((sizes > SPAN * sizes.max(initial=0.0)).sum()) :]
    inside = open_.T @ covariance @ open_
    _, vectors = sl.eigh((inside + inside.T) / 2, check_finite=False)
    return fix_signs(np.asarray(open_ @ vectors[:, ::-1][:, :n_directions]))
