"""Least squares by mergeable triangular factors (TSQR), for designs that a Gram matrix cannot bear.

The Gram matrix of a design has the square of its condition number; a QR factor has the condition
number itself. Factors of shards merge by factoring them on top of one another (Demmel, Grigori,
Hoemmen and Langou 2012), at about 3.5 times the cost of co-moments.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from privpipe.numerics.moments import LeastSquares, check_ridge, rank_error
from privpipe.numerics.rounding import bound_rank_error
from privpipe.protocols import FloatArray


@dataclass(frozen=True, eq=False)
class Frame:
    """Where rows are centred and how they are scaled before they are factored.

    Parameters
    ----------
    centre : (n_features + n_targets,)
        Subtracted; about the mean, so that little cancels. Zero without an intercept.
    scale : (n_features,)
        Features are divided by it.
    with_intercept
        Put a column of ones first.
    """

    centre: FloatArray
    scale: FloatArray
    with_intercept: bool


@dataclass(frozen=True, eq=False)
class TriangularFactor:
    """Count of some rows and the triangular factor ``R`` of their QR decomposition.

    Parameters
    ----------
    count
        Number of rows, or the sum of their weights.
    r : (n_kept, n_columns), float64
        At most as many rows as columns.

    Examples
    --------
    >>> rows = np.array([[3.0, 1.0], [4.0, 2.0], [0.0, 5.0]])
    >>> both = TriangularFactor.of(rows[:1]).merge(TriangularFactor.of(rows[1:]))
    >>> np.allclose(both.r.T @ both.r, rows.T @ rows)
    True
    """

    count: float
    r: FloatArray

    @classmethod
    def of(cls, rows: FloatArray, weights: FloatArray | None = None) -> "TriangularFactor":
        """Factor rows of shape (n_rows, n_columns); a row of weight w counts as w rows."""
        if weights is None:
            return cls(len(rows), _factor(rows))
        return cls(float(weights.sum()), _factor(rows * np.sqrt(weights)[:, None]))

    @classmethod
    def of_design(
        cls, x: FloatArray, targets: FloatArray, frame: Frame, weights: FloatArray | None = None
    ) -> "TriangularFactor":
        """Factor ``[1, (x - centre) / scale, targets - centre]``."""
        n, k = x.shape[1], int(frame.with_intercept)
        rows = np.ones((len(x), k + n + targets.shape[1]))
        rows[:, k : k + n] = (x - frame.centre[:n]) / frame.scale
        rows[:, k + n :] = targets - frame.centre[n:]
        return cls.of(rows, weights)

    def merge(self, other: "TriangularFactor") -> "TriangularFactor":
        """Factor of the rows of both."""
        return TriangularFactor(self.count + other.count, _factor(np.vstack([self.r, other.r])))


def solve_triangular(
    factor: TriangularFactor, frame: Frame, *, ridge: float = 0.0, names: Sequence[str] = ()
) -> LeastSquares:
    """Least squares of the targets on the features, from their triangular factor.

    Parameters
    ----------
    factor
        Of `TriangularFactor.of_design` with the same frame.
    frame
        How the rows were centred and scaled.
    ridge
        As in `solve_least_squares`: added to the unit diagonal of the scaled Gram matrix.
    names
        Names of the features for messages.

    Returns
    -------
    LeastSquares
        Its condition is that of the scaled Gram matrix, so that both solvers report alike.

    Raises
    ------
    RankError
        With ``ridge = 0``, if a singular value is at most `bound_rank_error` times the largest.
    """
    check_ridge(ridge)
    n, k = len(frame.scale), int(frame.with_intercept)
    square = np.zeros((factor.r.shape[1],) * 2)
    # Of fewer rows than columns the factor is not square: the rest is zero.
    square[: len(factor.r)] = factor.r
    # Per record, so that ridge means the same as in the solve from co-moments.
    root = np.sqrt(factor.count)
    u, s, vt = scipy.linalg.svd(square[k : k + n, k : k + n] / root)
    tiny = s <= bound_rank_error(n) * s[0]
    if ridge == 0 and tiny.any():
        raise rank_error(vt[tiny].T, factor.count, names)
    targets = u.T @ square[k : k + n, k + n :] / root
    solution = vt.T @ ((s / (s**2 + ridge))[:, None] * targets)
    coefficients = solution / frame.scale[:, None]
    intercept = np.zeros(targets.shape[1])
    if k:
        rest = (square[0, k + n :] - square[0, k : k + n] @ solution) / square[0, 0]
        intercept = frame.centre[n:] + rest - frame.centre[:n] @ coefficients
    condition = float((s[0] ** 2 + ridge) / (s[-1] ** 2 + ridge))
    return LeastSquares(coefficients, intercept, condition, "tsqr")


def _factor(rows: FloatArray) -> FloatArray:
    return np.asarray(np.asarray(np.linalg.qr(rows, mode="r")))
