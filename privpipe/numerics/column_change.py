"""How much each column changed between two tables of the same records: sums over chunks."""

from dataclasses import dataclass

import numpy as np

from privpipe.protocols import FloatArray


@dataclass(frozen=True, eq=False)
class ColumnChange:
    """Moments of pairs of columns; merged as Chan, Golub and LeVeque (1983) merge variances.

    Parameters
    ----------
    n_records
        Records in which all columns of both tables are finite.
    n_same : (n_columns,)
        Of these, records in which a column has the very same value.
    mean : (2, n_columns)
        Means, before and after.
    scatter : (3, n_columns)
        Sums of squared deviations before and after, and of their products.
    """

    n_records: int
    n_same: FloatArray
    mean: FloatArray
    scatter: FloatArray

    @classmethod
    def of(cls, before: FloatArray, after: FloatArray) -> "ColumnChange":
        """Sums of a chunk, both tables (n_records, n_columns); incomplete records are left out."""
        whole = np.isfinite(before).all(axis=1) & np.isfinite(after).all(axis=1)
        x, y = before[whole].astype(np.float64), after[whole].astype(np.float64)
        n, width = x.shape
        if n == 0:
            return cls(0, np.zeros(width), np.zeros((2, width)), np.zeros((3, width)))
        mean = np.stack([x.mean(axis=0), y.mean(axis=0)])
        dx, dy = x - mean[0], y - mean[1]
        scatter = np.stack([(dx * dx).sum(axis=0), (dy * dy).sum(axis=0), (dx * dy).sum(axis=0)])
        return cls(n, (x == y).sum(axis=0).astype(np.float64), mean, scatter)

    def merge(self, other: "ColumnChange") -> "ColumnChange":
        """Sums of both chunks."""
        n = self.n_records + other.n_records
        if n == 0:
            return self
        step = other.mean - self.mean
        weight = self.n_records * other.n_records / n
        between = weight * np.stack([step[0] ** 2, step[1] ** 2, step[0] * step[1]])
        mean = self.mean + step * (other.n_records / n)
        scatter = self.scatter + other.scatter + between
        return ColumnChange(n, self.n_same + other.n_same, mean, scatter)

    @property
    def correlation(self) -> FloatArray:
        """Of each column before and after, in [-1, 1]; NaN where one of them does not vary."""
        return _divide(self.scatter[2], np.sqrt(self.scatter[0] * self.scatter[1]))

    @property
    def spread(self) -> FloatArray:
        """Standard deviation after, as a multiple of the one before; NaN where that is 0."""
        return np.asarray(np.sqrt(_divide(self.scatter[1], self.scatter[0])))

    @property
    def shift(self) -> FloatArray:
        """Change of the mean, in standard deviations before; NaN where that is 0."""
        deviation = np.sqrt(self.scatter[0] / max(self.n_records, 1))
        return _divide(self.mean[1] - self.mean[0], deviation)

    @property
    def share_same(self) -> FloatArray:
        """Share of records whose value did not change at all."""
        return self.n_same / max(self.n_records, 1)


def _divide(above: FloatArray, below: FloatArray) -> FloatArray:
    """Quotients; NaN where nothing is below."""
    found: FloatArray = np.full(len(below), np.nan)
    return np.divide(above, below, out=found, where=below > 0)
