"""How much one table of features can say of another, given a third: HSIC and maximal correlation.

Features of a bounded kernel span what a reader may compute of a release. The Hilbert-Schmidt norm
of their covariance with the classes is HSIC (Gretton et al. 2005), the largest canonical
correlation the maximal correlation within that span (Hirschfeld, Gebelein, Renyi). Sums alone are
needed: products of all columns, then two moments of what each record adds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg as sl
from scipy.special import chdtrc, ndtri

from privpipe.protocols import FloatArray

SPAN = 1e-9
"""Directions of less than this share of the largest variance are not there."""


@dataclass(frozen=True, eq=False)
class PartialCovariance:
    """Covariance of left and right columns once what given columns explain linearly is taken off.

    Parameters
    ----------
    left_by, right_by : (n_given, n_left), (n_given, n_right)
        Coefficients of the given columns.
    left, cross, right
        Covariances of the residuals: (n_left, n_left), (n_left, n_right), (n_right, n_right).
    """

    left_by: FloatArray
    right_by: FloatArray
    left: FloatArray
    cross: FloatArray
    right: FloatArray

    @classmethod
    def of(cls, products: FloatArray, n: float, n_given: int, n_left: int) -> PartialCovariance:
        """From ``sum_i r_i r_i^T`` of records ``r = (given, left, right)``."""
        given, both = products[:n_given, :n_given], products[:n_given, n_given:]
        # Classes of several variables are dependent: of equal solutions the least.
        by = sl.pinvh(given) @ both
        rest = (products[n_given:, n_given:] - both.T @ by) / n
        one, other = slice(None, n_left), slice(n_left, None)
        return cls(by[:, one], by[:, other], rest[one, one], rest[one, other], rest[other, other])

    @property
    def norm(self) -> float:
        """Hilbert-Schmidt norm of the covariance, the root of HSIC."""
        return float(np.linalg.norm(self.cross))

    def correlate(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Canonical correlations, descending, and the first pair of directions, unit variance."""
        left, right = _whiten(self.left), _whiten(self.right)
        if not left.size or not right.size:
            return np.zeros(1), np.zeros(len(self.left)), np.zeros(len(self.right))
        u, sizes, v = sl.svd(left.T @ self.cross @ right, full_matrices=False)
        return np.minimum(sizes, 1.0), left @ u[:, 0], right @ v[0]

    def measure_influences(self, records: tuple[FloatArray, FloatArray, FloatArray]) -> FloatArray:
        """What each record adds to the norm and to the first correlation, (n_records, 2).

        Parameters
        ----------
        records
            Given (n_records, n_given), left and right columns.
        """
        given, left, right = records
        left, right = left - given @ self.left_by, right - given @ self.right_by
        direction = self.cross / max(self.norm, 1e-300)
        by_norm = np.einsum("ij,jk,ik->i", left, direction, right)
        found, u, v = self.correlate()
        a, b = left @ u, right @ v
        return np.column_stack([by_norm, a * b - found[0] / 2 * (a**2 + b**2)])


def _whiten(covariance: FloatArray) -> FloatArray:
    values, vectors = sl.eigh(covariance)
    there = values > SPAN * max(float(values[-1]), 1e-300)
    return np.asarray(vectors[:, there] / np.sqrt(values[there]))


def limit_dependence(
    covariance: PartialCovariance, influences: FloatArray, n: float, confidence: float
) -> tuple[float, float]:
    """Upper confidence limits of HSIC and of the maximal correlation in the span.

    Parameters
    ----------
    influences : (2, 2)
        Sum and sum of squares of `PartialCovariance.measure_influences`, one column each.
    confidence
        Of each limit, below one.

    Notes
    -----
    Guarantee (asymptotic, independent records): both are largest values over directions. The
    largest in the sample is at least the sample's value at the direction that is best in truth,
    and that one is an average, normal around the truth; so the sample's largest value, which fits
    noise too, plus the quantile of such an average covers the truth at least as often as said.
    """
    mean, square = influences / n
    error = np.sqrt(np.maximum(square - mean**2, 0.0) / n)
    norm, correlation = np.array([covariance.norm, covariance.correlate()[0][0]])
    upper = np.array([norm, correlation]) + ndtri(confidence) * error
    return float(upper[0] ** 2), float(min(upper[1], 1.0))


def measure_chance(correlations: FloatArray, n: float, n_left: int, n_right: int) -> float:
    """Probability of canonical correlations as large where there is no dependence (Bartlett)."""
    squares = np.minimum(correlations**2, 1 - 1e-12)
    statistic = -(n - 1 - (n_left + n_right + 1) / 2) * np.log1p(-squares).sum()
    return float(chdtrc(n_left * n_right, statistic))
