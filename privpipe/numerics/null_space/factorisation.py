"""The low-rank form of a linear predictor, and its coordinates ordered by confidential gain.

With ``A = U S W^T`` of rank r, cleaning needs only ``b = E^T x`` and ``D b``. Here ``E = U S`` and
``D = U S^-1``. That takes O(n r) per record instead of O(n^2) (Xu et al. 2017, Figure 2, in r
coordinates). Figure 3 orders them by the generalised eigenvectors of
``A_d A_d^T v = gamma A_c A_c^T v``. That pencil is singular, so it is solved inside the ranges of
the predictors. A general eigensolver on the whole of it breaks even the bound on utility.
"""

import numpy as np
import scipy.linalg

from privpipe.errors import InputError, RankError
from privpipe.numerics.rounding import bound_rank_error
from privpipe.protocols import FloatArray

SAME_SINGULAR_VALUE = 1e-9
"""Singular values this close, relative to the largest, share one subspace."""


def factor_predictor(predictor: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Split a predictor into an encoder and a lift of its numerical rank.

    The rank counts the singular values above ``max(shape) * 2**-52`` times the largest. The basis
    is made unique. Singular values are in decreasing order, and each right vector has its entry of
    largest size positive. Where singular values coincide, the right vectors are those of
    Gram-Schmidt on the projections of the unit vectors in their order. So the result does not
    depend on the linear algebra library.

    Parameters
    ----------
    predictor : (n_features, n_desired)
        ``A``; the desired prediction of a record is ``A^T x``.

    Returns
    -------
    encoder : (n_features, rank)
        ``E = U S``; ``|E^T x|`` equals ``|A^T x|``.
    lift : (n_features, rank)
        ``D = U S^-1``; ``E^T D`` is the identity.

    Raises
    ------
    InputError
        If the predictor is not a matrix of values below 1e150, or is zero.

    Examples
    --------
    >>> encoder, lift = factor_predictor(np.array([[1.0], [-1.0]]))
    >>> (lift @ encoder.T @ np.array([3.0, 1.0])).round(12)
    array([ 1., -1.])
    """
    a = np.asarray(predictor, np.float64)
    # The bound of what rounding costs adds up squares, which are to be finite.
    if a.ndim != 2 or a.size == 0 or not (np.abs(a) < 1e150).all():
        problem = f"The predictor has shape {a.shape}, or holds values that are not below 1e150."
        remedy = "Give a matrix of shape (n_features, n_desired); scale what it predicts."
        raise InputError(problem, remedy=remedy, code="predictor")
    _, s, right = np.linalg.svd(a, full_matrices=False)
    rank = int(np.count_nonzero(s > max(a.shape) * np.finfo(np.float64).eps * s[0]))
    if rank == 0:
        raise InputError(
            "The predictor is zero: it predicts the same for every record.",
            remedy="A target needs two values, that the features show in part: name another, "
            "or give a predictor that uses at least one feature.",
            code="predictor",
        )
    encoder = a @ make_unique(right[:rank].T, s[:rank])
    # D = E (E^T E)^-1 by QR: E / s**2 would lose the square of the condition number.
    q, r = np.linalg.qr(encoder)
    return encoder, scipy.linalg.solve_triangular(r, q.T).T


def lift_likely(encoder: FloatArray, covariance: FloatArray) -> FloatArray:
    """Lift coordinates to the most likely record that has them, given a covariance.

    Parameters
    ----------
    encoder : (n_features, rank)
        ``E``.
    covariance : (n_features, n_features)
        ``C``, of the training features.

    Returns
    -------
    lift : (n_features, rank)
        ``C E (E^T C E)^-1``, the regression of the record on its coordinates. ``E^T lift`` is the
        identity, so desired predictions and budget are those of the closest lift.

    Raises
    ------
    RankError
        If some coordinate does not vary in the training records.
    """
    spread = covariance @ encoder
    inner = encoder.T @ spread
    # Standardised first: eigenvalues of coordinates in different units say nothing of rank.
    scale = np.sqrt(np.maximum(np.diag(inner), 0.0))
    low = np.finfo(np.float64).eps * np.linalg.norm(encoder, axis=0) * np.sqrt(np.trace(covariance))
    if (scale <= low).any():
        problem = "A desired prediction does not vary in the training records."
        remedy = 'Use representative = "closest", or another training collection.'
        raise RankError(problem, remedy=remedy)
    correlation = inner / np.outer(scale, scale)
    # Whether the last pivot of a singular matrix comes out negative is for each kernel another
    # matter: Cholesky's failure is no test of rank.
    sizes = np.linalg.eigvalsh(correlation)
    if sizes[0] <= bound_rank_error(len(covariance)) * sizes[-1]:
        problem = "The desired predictions are linearly dependent in the training records."
        remedy = 'Use representative = "closest", or another training collection.'
        raise RankError(problem, remedy=remedy)
    factor = scipy.linalg.cho_factor(correlation)
    return np.asarray(scipy.linalg.cho_solve(factor, (spread / scale).T).T / scale)


def make_unique(w: FloatArray, s: FloatArray) -> FloatArray:
    """Fix signs and, within equal singular values, the basis, by the rule of `factor_predictor`.

    Parameters
    ----------
    w : (n_rows, rank)
        Orthonormal columns.
    s : (rank,)
        Their singular values, decreasing.
    """
    # Within a group any rotation is as good; each library returns another one.
    groups = np.flatnonzero(np.diff(s) < -SAME_SINGULAR_VALUE * s[0]) + 1
    parts = [_echelon(part) if part.shape[1] > 1 else part for part in np.split(w, groups, 1)]
    w = np.concatenate(parts, axis=1)
    return w * np.where(w[np.abs(w).argmax(axis=0), np.arange(w.shape[1])] < 0, -1.0, 1.0)


def _echelon(basis: FloatArray) -> FloatArray:
    """Gram-Schmidt on the projections of e_0, e_1, ... onto the span of `basis`."""
    found: list[FloatArray] = []
    projector = basis @ basis.T
    # A direction counts when at least this much of it is new; half the average share is
    # always reached, so exactly as many are found as the basis has columns.
    enough = 0.5 / np.sqrt(len(basis))
    for row in projector:
        rest = row - sum((v * (v @ row) for v in found), np.zeros_like(row))
        rest = rest - sum((v * (v @ rest) for v in found), np.zeros_like(row))
        size = np.linalg.norm(rest)
        if size > enough and len(found) < basis.shape[1]:
            found.append(rest / size)
    return np.column_stack(found)


SAME_RANGE = 1e-10
"""Directions smaller than this, relative to the largest, are rounding."""


def order_by_gain(
    encoder: FloatArray, lift: FloatArray, confidential: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Turn the coordinates so that the confidential gain is diagonal, largest first.

    In the turned coordinates removing the share alpha of coordinate j costs ``alpha**2 b_j**2``. It
    changes the confidential prediction by ``alpha**2 g_j b_j**2``. So the gain per cost is ``g_j``
    for every record, and one order serves all.

    Parameters
    ----------
    encoder, lift : (n_features, rank)
        ``E`` and ``D`` of the desired predictor; see `factor_predictor`.
    confidential : (n_features, n_confidential)
        ``A_c``.

    Returns
    -------
    encoder, lift : (n_features, rank)
        ``E R`` and ``D R`` with ``R`` orthogonal, unique by the rule of `factor_predictor`.
    gain : (rank,)
        ``g``, decreasing, in squared units of the confidential per those of the desired
        prediction.

    References
    ----------
    Xu et al. 2017, Figure 3, steps 2 and 3.
    """
    rank = encoder.shape[1]
    _, s, right = np.linalg.svd(confidential.T @ lift, full_matrices=True)
    s = np.pad(s, (0, rank - len(s)))
    # Nothing confidential in any coordinate: they stay in the order of algorithm 1.
    turn = make_unique(right.T, s) if s[0] > 0 else np.eye(rank)
    return encoder @ turn, lift @ turn, s**2


def tilt_lift(encoder: FloatArray, lift: FloatArray, confidential: FloatArray) -> FloatArray:
    """Add to the lift what the desired predictor does not see and the confidential one does.

    Parameters
    ----------
    encoder, lift : (n_features, rank)
        ``E`` and ``P`` of the desired predictor ``A_d``; see `factor_predictor`, whose rank counts.
        Of what a coordinate carries, however little, nothing may be taken for unseen.
    confidential : (n_features, n_confidential)
        ``A_c``.

    Returns
    -------
    lift : (n_features, rank)
        ``P - N t``. The columns of ``N`` are a basis of the null space of ``E^T`` inside the range
        of both predictors. The t of least squares makes ``A_c^T (P - N t)`` smallest. The
        columns and N then diagonalise both predictors at once, as Theorem 4 supposes.

    References
    ----------
    Xu et al. 2017, Theorem 4.
    """
    null = _null_basis(encoder, confidential)
    if null.shape[1] == 0:
        return lift
    t = np.linalg.lstsq(confidential.T @ null, confidential.T @ lift, rcond=None)[0]
    return np.asarray(lift - null @ t)


def _null_basis(encoder: FloatArray, confidential: FloatArray) -> FloatArray:
    """Basis of what the confidential predictor sees outside the range of the desired one."""
    u = np.linalg.qr(encoder)[0]
    scale = np.linalg.norm(confidential, axis=0)
    c = confidential[:, scale > 0] / scale[scale > 0]
    rest = c - u @ (u.T @ c)
    # A second time: one pass leaves rounding in the direction that must vanish.
    rest -= u @ (u.T @ rest)
    if rest.size == 0:
        return np.empty((len(encoder), 0))
    left, s, _ = np.linalg.svd(rest, full_matrices=False)
    return np.asarray(left[:, s > SAME_RANGE])
