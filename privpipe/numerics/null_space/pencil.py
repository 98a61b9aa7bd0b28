"""Coordinates of a desired predictor ordered by what removing them costs the confidential one.

Xu et al. 2017, Figure 3: the generalised eigenvectors of ``A_d A_d^T v = gamma A_c A_c^T v``. The
pencil is singular, so it is solved inside the ranges of the predictors; a general eigensolver
on the whole of it breaks even the bound on utility.
"""

from __future__ import annotations

import numpy as np

from privpipe.numerics.null_space.factorisation import make_unique
from privpipe.protocols import FloatArray

SAME_RANGE = 1e-10
"""Directions smaller than this, relative to the largest, are rounding."""


def order_by_gain(
    encoder: FloatArray, lift: FloatArray, confidential: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Turn the coordinates so that the confidential gain is diagonal, largest first.

    In the turned coordinates removing the share alpha of coordinate j costs
    ``alpha**2 b_j**2`` and changes the confidential prediction by ``alpha**2 g_j b_j**2``: the
    gain per cost is ``g_j`` for every record, so that one order serves all.

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
    turn = make_unique(right.T, s) if s[0] > 0 else np.eye(rank)
    return encoder @ turn, lift @ turn, s**2


def tilt_lift(predictor: FloatArray, lift: FloatArray, confidential: FloatArray) -> FloatArray:
    """Add to the lift what the desired predictor does not see and the confidential one does.

    Parameters
    ----------
    predictor : (n_features, n_desired)
        ``A_d``.
    lift : (n_features, rank)
        ``P``, with ``A_d^T P`` of orthonormal columns.
    confidential : (n_features, n_confidential)
        ``A_c``.

    Returns
    -------
    lift : (n_features, rank)
        ``P - N t`` with ``N`` a basis of the null space of ``A_d^T`` inside the range of both
        predictors and t by least squares, so that ``A_c^T (P - N t)`` is smallest. The columns
        and N then diagonalise both predictors at once, as Theorem 4 supposes.

    References
    ----------
    Xu et al. 2017, Theorem 4.
    """
    null = _null_basis(predictor, confidential)
    if null.shape[1] == 0:
        return lift
    t = np.linalg.lstsq(confidential.T @ null, confidential.T @ lift, rcond=None)[0]
    tilted: FloatArray = lift - null @ t
    return tilted


def diagonalise_printed(
    predictor: FloatArray, confidential: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """The generalised eigenvectors of Figure 3, and their dual basis.

    Parameters
    ----------
    predictor, confidential : (n_features, n_desired), (n_features, n_confidential)
        ``A_d`` and ``A_c``; both are diagonalised inside the range of the two together, and
        vectors are scaled to ``v^T (A_d A_d^T + A_c A_c^T) v = 1``.

    Returns
    -------
    vectors : (n_features, q)
        ``V``, by decreasing ratio of confidential to desired.
    dual : (n_features, q)
        ``V^T dual`` is the identity.
    desired, confidential : (q,)
        ``|A_d^T v_j|**2`` (0 in its null space) and ``|A_c^T v_j|**2``.
    """
    u, s, zt = np.linalg.svd(np.hstack([predictor, confidential]), full_matrices=False)
    rank = int(np.count_nonzero(s > SAME_RANGE * s[0]))
    u, s, zt = u[:, :rank], s[:rank], zt[:rank]
    # In the whitened range both sums of squares add up to one: one SVD diagonalises both.
    _, shares, right = np.linalg.svd(zt[:, : predictor.shape[1]].T, full_matrices=True)
    shares = np.pad(shares, (0, rank - len(shares)))[::-1] ** 2
    turn = right[::-1].T
    cost = np.where(shares > 1e-12, shares, 0.0)
    return u @ (turn / s[:, None]), u @ (turn * s[:, None]), cost, np.maximum(1.0 - shares, 0.0)


def _range_basis(matrix: FloatArray) -> FloatArray:
    """Orthonormal basis of the columns' span, at the rank of the data's own precision."""
    scale = np.linalg.norm(matrix, axis=0)
    u, s, _ = np.linalg.svd(matrix / np.where(scale > 0, scale, 1.0), full_matrices=False)
    basis: FloatArray = u[:, s > SAME_RANGE * s[0]]
    return basis


def _null_basis(predictor: FloatArray, confidential: FloatArray) -> FloatArray:
    """Basis of what the confidential predictor sees outside the range of the desired one."""
    u = _range_basis(predictor)
    scale = np.linalg.norm(confidential, axis=0)
    c = confidential[:, scale > 0] / scale[scale > 0]
    rest = c - u @ (u.T @ c)
    rest -= u @ (u.T @ rest)
    if rest.size == 0:
        return np.empty((len(predictor), 0))
    left, s, _ = np.linalg.svd(rest, full_matrices=False)
    basis: FloatArray = left[:, s > SAME_RANGE]
    return basis
