"""The least squares adversary of Xu et al., fitted from co-moments of released records.

Xu et al. 2017, algorithm 3. Released records of a low-rank map lie in a subspace but for
rounding; fitted in all coordinates, least squares would fit the rounding. So the adversary works
in the coordinates that the release itself shows to carry more than rounding.
"""

from __future__ import annotations

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.regression.moments import CoMoments, LeastSquares
from privpipe.protocols import FloatArray

ROUNDINGS = 32.0
"""A direction counts when its deviation exceeds this many units of rounding."""


def find_coordinates(moments: CoMoments, n_features: int, unit_roundoff: float) -> FloatArray:
    """Directions of released records that carry more than the rounding of their dtype.

    Parameters
    ----------
    moments
        Of rows ``[released features, ...]``.
    n_features
        Number of released features.
    unit_roundoff
        Of the released dtype: ``2**-24`` for float32, ``2**-53`` for float64.

    Returns
    -------
    directions : (n_features, rank)
        Orthonormal, by decreasing variance.
    """
    covariance = moments.scatter[:n_features, :n_features] / max(moments.count, 1)
    squares = np.diag(covariance) + moments.mean[:n_features] ** 2
    floor = (ROUNDINGS * unit_roundoff) ** 2 * squares.max(initial=0.0)
    # Moments themselves are float64 sums: nothing below their own rounding is a direction.
    floor = max(floor, n_features * 2.0**-52 * np.diag(covariance).max(initial=0.0))
    eigenvalues, vectors = np.linalg.eigh(covariance)
    # The decomposition errs in proportion to the largest eigenvalue, on each processor its own way.
    floor = max(floor, ROUNDINGS * 2.0**-52 * eigenvalues.max(initial=0.0))
    directions: FloatArray = vectors[:, eigenvalues > floor][:, ::-1]
    return directions


def fit_linear_attack(moments: CoMoments, n_features: int, unit_roundoff: float) -> LeastSquares:
    """Least squares of confidential targets on the coordinates of released records.

    Parameters
    ----------
    moments
        Of rows ``[released features, targets]`` of the records the adversary trains on.
    n_features
        Number of released features.
    unit_roundoff
        Of the released dtype.

    Returns
    -------
    LeastSquares
        In the released features, so that it applies to released records as they are; zero
        coefficients when nothing varies.

    Raises
    ------
    InputError
        If there are fewer than two records.

    References
    ----------
    Xu et al. 2017, Figure 5 (algorithm 3).
    """
    if moments.count < 2:
        raise InputError(
            f"{moments.count} records are too few to train an attack on.",
            remedy="Hold out more records for the audit.",
            code="audit-too-small",
        )
    directions = find_coordinates(moments, n_features, unit_roundoff)
    scatter, mean = moments.scatter, moments.mean
    inner = directions.T @ scatter[:n_features, :n_features] @ directions
    cross = directions.T @ scatter[:n_features, n_features:]
    variances = np.diag(inner)
    weights = cross / variances[:, None] if len(variances) else cross
    coefficients = directions @ weights
    intercept = mean[n_features:] - mean[:n_features] @ coefficients
    condition = float(variances[0] / variances[-1]) if len(variances) else 1.0
    return LeastSquares(coefficients, intercept, condition)


def widen(fitted: LeastSquares, n_released: int) -> LeastSquares | None:
    """A raw predictor for released records: as it is, or with the column of ones they have.

    None where released records have other features.
    """
    n = len(fitted.coefficients)
    if n_released == n:
        return fitted
    if n_released == n + 1:
        rows = np.vstack([fitted.coefficients, fitted.intercept])
        return LeastSquares(rows, np.zeros_like(fitted.intercept), fitted.condition)
    return None
