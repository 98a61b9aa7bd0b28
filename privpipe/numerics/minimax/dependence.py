"""How much one table of features can say of another, given a third: HSIC and maximal correlation.

Features of a bounded kernel span what a reader may compute of a release. The Hilbert-Schmidt norm
of their covariance with the classes is HSIC (Gretton et al. 2005). The largest canonical
correlation is the maximal correlation within that span (Hirschfeld, Gebelein, Renyi). Sums alone
are needed: products of all columns, then two moments of what each record adds.
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
        """What each record adds to the norm and to the first correlation, (n_records, 4).

        Parameters
        ----------
        records
            Given (n_records, n_given), left and right columns.

        Returns
        -------
        influences
            Of the norm, of the correlation, and what other directions of the left columns, and of
            the right, fit by chance. That is as many as there are where all records are alike.
        """
        given, left, right = records
        left, right = left - given @ self.left_by, right - given @ self.right_by
        by_norm = np.einsum("ij,jk,ik->i", left, self.cross / max(self.norm, 1e-300), right)
        found, u, v = self.correlate()
        a, b, r = left @ u, right @ v, found[0]
        # What other directions of a side may fit: all that the first one leaves of the other.
        rest = max(1 - r**2, 1e-12)
        noise = [
            (((side @ _whiten(within)) ** 2).sum(axis=1) - mine**2) * (other - r * mine) ** 2 / rest
            for side, within, mine, other in ((left, self.left, a, b), (right, self.right, b, a))
        ]
        return np.column_stack([by_norm, a * b - r / 2 * (a**2 + b**2), *noise])


def _whiten(covariance: FloatArray) -> FloatArray:
    values, vectors = sl.eigh(covariance)
    there = values > SPAN * max(float(values[-1]), 1e-300)
    return np.asarray(vectors[:, there] / np.sqrt(values[there]))


def limit_dependence(
    covariance: PartialCovariance, influences: FloatArray, n: float, confidence: float
) -> tuple[float, float, float, float]:
    """Upper limit of HSIC; maximal correlation in the span without noise; its upper, lower limit.

    Parameters
    ----------
    influences : (2, 4)
        Sum and sum of squares of `PartialCovariance.measure_influences`, a column each.
    confidence
        Of each limit, below one.

    Notes
    -----
    Guarantee (asymptotic, independent records): both are largest values over directions. The
    largest in the sample is at least the sample's value at the direction that is best in truth.
    That one is an average, normal around the truth. So the sample's largest value, which fits noise
    too, plus the quantile of such an average covers the truth at least as often as said. Where the
    correlation shows mostly noise of k directions, its square is about a noncentral chi-square
    ``k + a``. The variance of that is ``2 k + 4 a``. The root of the square has
    ``1 - k / (2 k + 2 a)`` of a normal's variance, and so much of it is taken.

    What the largest correlation fits of the noise is then taken off. If the true correlation has
    square s, with many directions the sample shows the square
    ``(s (1 - c) + c) (s (1 - d) + d) / s``. There c and d are the directions of a side for each
    record. Here they are measured record by record, since the noise of some records may be larger
    than that of others.

    References
    ----------
    Bao, Hu, Pan and Zhou 2019, Canonical correlation coefficients of high-dimensional Gaussian
    vectors: finite rank case.
    """
    mean, square = influences / n
    error = np.sqrt(np.maximum(square - mean**2, 0.0) / n)[:2]
    norm, correlation = np.array([covariance.norm, covariance.correlate()[0][0]])
    upper = np.array([norm, correlation]) + ndtri(confidence) * error
    # Squares of noise add up to a chi-square, whose root spreads less than one direction's value.
    noise = min(mean[2] / n / max(2 * upper[1] ** 2, 1e-300), 0.5)
    upper[1] = correlation + ndtri(confidence) * error[1] * np.sqrt(1 - noise)
    shown = (correlation, upper[1], correlation - ndtri(confidence) * error[1])
    found, limit, least = (remove_noise(min(max(one, 0), 1), *(mean[2:] / n)) for one in shown)
    # What noise alone may show is nothing, however much that is.
    return float(upper[0] ** 2), found, limit, least * (least > remove_noise(0, *(mean[2:] / n)))


def remove_noise(correlation: float, left: float, right: float) -> float:
    """The true correlation that shows as so much, with noise of so many directions a record.

    >>> round(remove_noise(0.5, 0.0, 0.0), 3), round(remove_noise(0.5, 0.1, 0.0), 3)
    (0.5, 0.408)
    """
    left, right = (float(np.clip(share, 0.0, 0.5)) for share in (left, right))
    scale = (1 - left) * (1 - right)
    rest = scale * left * right
    half = (correlation**2 - left * (1 - right) - right * (1 - left)) / 2
    # The larger root; of what noise alone would show, the least that would be seen above it.
    half = max(half, np.sqrt(rest))
    return float(np.sqrt((half + np.sqrt(max(half**2 - rest, 0.0))) / scale))


def measure_chance(correlations: FloatArray, n: float, n_left: int, n_right: int) -> float:
    """Probability of canonical correlations as large where there is no dependence (Bartlett)."""
    squares = np.minimum(correlations**2, 1 - 1e-12)
    statistic = -(n - 1 - (n_left + n_right + 1) / 2) * np.log1p(-squares).sum()
    return float(chdtrc(n_left * n_right, statistic))
