"""What an adversary reads: released columns standardised, or the r coordinates they span.

A release of low numerical rank is attacked in an orthonormal basis of its span. That is the same
information, and the rounding noise of the other directions stays out of the fit.
"""

from dataclasses import dataclass

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.finite import bring_near
from privpipe.protocols import ArrayLike, BoolArray, FloatArray, IntArray

_SAMPLE = 4096
"""Records whose singular values decide the rank."""

_MARGIN = 16.0
"""Singular values count above this multiple of what rounding alone can reach."""

_ROWS_AT_ONCE = 16_384


@dataclass(frozen=True, eq=False)
class TrainingMatrix:
    """The matrix adversaries train on.

    Parameters
    ----------
    values : (n_records, n_coordinates)
        Columns of mean 0 and variance 1; float32 where float64 would be large. A single
        column of zeros where every column given is constant.
    n_features
        Number of columns given.
    rank
        Numerical rank of the columns where it was used; None when it is full.
    n_constant
        Number of columns without any variation, left out.
    """

    values: FloatArray
    n_features: int
    rank: int | None
    n_constant: int


def measure_coordinates(
    x: ArrayLike, *, name: str = "released", max_bytes: int = 1 << 30, seed: int = 0
) -> TrainingMatrix:
    """Standardise columns, and reduce them to the coordinates they span when rank is low.

    The rank is that of the standardised columns, so that a column of tiny scale counts like
    any other. A singular value counts when it exceeds what rounding the stored values can produce.
    Columns whose whole variation is near their rounding stay as they are. Every record must then
    lie in the span found on a sample, or all columns stay.

    Parameters
    ----------
    x : (n_records, n_features)
        Released or raw records, finite.
    name
        Name of the array, for messages.
    max_bytes
        Bytes above which the result is float32.
    seed
        Seed of the sample.

    Raises
    ------
    InputError
        If the array is not a matrix of finite numbers.

    Notes
    -----
    Departure: least squares on a full-width low-rank release fits directions of rounding
    (2.4e6 against 5.6e6 squared error where the records were identical, oes97). Fitted on these
    coordinates it is the minimum-norm solution.

    References
    ----------
    Xu et al. 2017, Figure 5 (the attack).

    Examples
    --------
    >>> basis = np.random.default_rng(0).normal(size=(2, 9))
    >>> found = measure_coordinates(np.random.default_rng(1).normal(size=(50, 2)) @ basis)
    >>> found.rank, found.values.shape
    (2, (50, 2))
    """
    columns = _Columns.of(_check_matrix(x, name))
    n_records, n_features = columns.table.shape
    n_constant = int(np.count_nonzero(~columns.varies))
    if n_constant == n_features:  # nothing to learn from, which is for the attacks to find
        return TrainingMatrix(np.zeros((n_records, 1)), n_features, 0, n_constant)
    basis = columns.find_basis(seed)
    if basis is not None and not columns.lie_in(basis):
        basis = None
    rank = None if basis is None else basis.shape[1]
    near_rounding = columns.varies & ~columns.steady
    width = n_features - n_constant if rank is None else rank + int(near_rounding.sum())
    dtype = np.float32 if columns.table.size * 8 > max_bytes else np.float64
    values = np.empty((n_records, width), dtype)
    for rows in columns.list_blocks():
        if basis is None:
            values[rows] = columns.standardise(rows, columns.varies)
        else:
            values[rows, :rank] = columns.standardise(rows, columns.steady) @ basis
            values[rows, rank:] = columns.standardise(rows, near_rounding)
    # Of variance 1, so that a ridge weighs every direction alike.
    if rank is not None:
        spread = values[:, :rank].std(axis=0, dtype=np.float64)
        values[:, :rank] /= np.where(spread > 0, spread, 1.0)
    return TrainingMatrix(values, n_features, rank, n_constant)


def measure_sizes(x: FloatArray) -> FloatArray:
    """How large records are, whatever their direction: what shells around a point are made of.

    Parameters
    ----------
    x : (n_records, n_features)

    Returns
    -------
    sizes : (n_records, 5), in the dtype of `x`
        Norm, norm about the mean, the same of standardised columns, sum, and largest magnitude.
    """
    wide = bring_near(x.astype(np.float64))
    # Shells around a point carry a class that no direction sees: five lengths of every record.
    centred = wide - wide.mean(axis=0)
    spread = wide.std(axis=0)
    scaled = centred / np.where(spread > 0, spread, 1.0)
    norms = [np.linalg.norm(one, axis=1) for one in (wide, centred, scaled)]
    return np.column_stack([*norms, wide.sum(axis=1), np.abs(wide).max(axis=1)]).astype(x.dtype)


def _check_matrix(x: ArrayLike, name: str) -> FloatArray:
    table = np.asarray(x)
    if table.ndim != 2 or 0 in table.shape:
        problem = f"{name} has shape {table.shape}."
        raise InputError(problem, remedy="Give (n_records, n_features), not empty.")
    if not np.issubdtype(table.dtype, np.floating):
        if not (np.issubdtype(table.dtype, np.integer) or table.dtype == np.bool_):
            problem = f"{name} has dtype {table.dtype}."
            raise InputError(problem, remedy="Give numbers; code categories first.")
        table = table.astype(np.float64)
    broken = int(np.count_nonzero(~np.isfinite(table)))
    if broken:
        problem = f"{name} holds {broken} values that are not finite."
        remedy = "Leave withheld records out, or mend the release."
        raise InputError(problem, remedy=remedy, code="not_finite")
    return table


@dataclass(frozen=True, eq=False)
class _Columns:
    """The columns of a table, which are standardised block by block: the table may be large.

    Parameters
    ----------
    table : (n_records, n_features)
    mean, scale, noise : (n_features,)
        Mean; standard deviation, exactly 0 for a constant column; and what rounding does to a
        standardised value.
    """

    table: FloatArray
    mean: FloatArray
    scale: FloatArray
    noise: FloatArray

    @classmethod
    def of(cls, table: FloatArray) -> "_Columns":
        table = bring_near(table)
        mean = table.mean(axis=0, dtype=np.float64)
        square = np.zeros(table.shape[1])
        for start in range(0, len(table), _ROWS_AT_ONCE):
            square += ((table[start : start + _ROWS_AT_ONCE] - mean) ** 2).sum(axis=0)
        low, high = table.min(axis=0).astype(np.float64), table.max(axis=0).astype(np.float64)
        scale = np.where(low == high, 0.0, np.sqrt(square / len(table)))
        # A float64 release carries the rounding of the products that made it, not one rounding.
        unit = float(np.finfo(table.dtype).eps) * (8.0 if table.dtype == np.float64 else 1.0)
        largest = unit * np.maximum(np.abs(low), np.abs(high))
        return cls(table, mean, scale, np.divide(largest, scale, out=0 * scale, where=scale > 0))

    @property
    def varies(self) -> BoolArray:
        return np.asarray(self.scale > 0)

    @property
    def steady(self) -> BoolArray:
        """Columns whose variation is far above their rounding."""
        return self.varies & (self.noise < 1e-3)

    @property
    def margin(self) -> float:
        """What rounding can do to the length of a standardised record."""
        return _MARGIN * float(np.sqrt((self.noise[self.steady] ** 2).sum()))

    def list_blocks(self) -> list[slice]:
        n = len(self.table)
        return [slice(start, start + _ROWS_AT_ONCE) for start in range(0, n, _ROWS_AT_ONCE)]

    def standardise(self, rows: slice | IntArray, some: BoolArray) -> FloatArray:
        """Some columns of some rows."""
        return np.asarray((self.table[rows][:, some] - self.mean[some]) / self.scale[some])

    def find_basis(self, seed: int) -> FloatArray | None:
        """Right singular vectors of a sample beyond its rounding; None when rank is full."""
        width, n_records = int(self.steady.sum()), len(self.table)
        if width < 2:
            return None
        rows = np.arange(n_records)
        if n_records > _SAMPLE:
            rows = np.sort(np.random.default_rng(seed).choice(n_records, _SAMPLE, replace=False))
        _, values, vectors = np.linalg.svd(self.standardise(rows, self.steady), full_matrices=False)
        floor = self.margin * np.sqrt(len(rows))
        rank = int(np.count_nonzero(values > max(floor, values[0] * 1e-13)))
        # As many directions as sampled records say nothing of the others; and a rank near full is
        # better left to the ridges, since a rotation blinds adversaries that look along columns.
        if rank == 0 or rank > width // 2 or (rank >= len(rows) - 1 and len(rows) < n_records):
            return None
        basis = vectors[:rank].T
        # The sign of a singular vector is any: the largest entry decides it.
        return np.asarray(basis * np.sign(basis[np.argmax(np.abs(basis), axis=0), range(rank)]))

    def lie_in(self, basis: FloatArray) -> bool:
        """Whether every record lies in the span up to the rounding of its size."""
        for rows in self.list_blocks():
            z = self.standardise(rows, self.steady)
            rest = np.linalg.norm(z - (z @ basis) @ basis.T, axis=1)
            if np.any(rest > self.margin + 1e-12 * np.linalg.norm(z, axis=1)):
                return False
        return True
