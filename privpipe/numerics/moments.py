"""Mergeable centred co-moments, least squares from them, and the target columns of variables.

Chan, Golub and LeVeque's pairwise update keeps the digits that a raw Gram matrix loses when means
are large against spreads. Columns are scaled to unit diagonal before solving. A numeric variable is
one target column as it is. A categorical one with two categories is one column, coded 0/1 or ±1.
One with more is one column per category (one against rest).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from privpipe.errors import InputError, OptionError, RankError
from privpipe.numerics.rounding import bound_rank_error
from privpipe.protocols import Column, FloatArray, IntArray

MOST_FEATURES = 30_000
"""Whose products a fit can hold: their matrix has 7 GB."""


def check_products(n_features: int) -> None:
    """Raise InputError where the products of features are too many to be held."""
    if n_features > MOST_FEATURES:
        raise InputError(
            f"Products of {n_features:,} features are a matrix of {8e-9 * n_features**2:,.0f} GB.",
            remedy=f"Train on at most {MOST_FEATURES:,} features: choose some, or project them "
            'first, with [method] name = "rand".',
            code="too_many_features",
        )


@dataclass(frozen=True, eq=False)
class CoMoments:
    """Count, mean and centred cross-products of the columns of some rows.

    Parameters
    ----------
    count
        Number of rows, or the sum of their weights.
    mean : (n_columns,), float64
    scatter : (n_columns, n_columns), float64
        Sum over rows of the outer products of the deviations from the mean.

    Examples
    --------
    >>> rows = np.array([[1.0, 2.0], [3.0, 6.0], [5.0, 7.0]])
    >>> both = CoMoments.of(rows[:1]).merge(CoMoments.of(rows[1:]))
    >>> both.count, both.scatter.round(12).tolist()
    (3, [[8.0, 10.0], [10.0, 14.0]])
    """

    count: float
    mean: FloatArray
    scatter: FloatArray

    @classmethod
    def of(
        cls, rows: FloatArray, weights: FloatArray | None = None, *, in_place: bool = False
    ) -> "CoMoments":
        """Summarise rows of shape (n_rows, n_columns); products are taken in float64.

        A row of weight w counts as w rows. `in_place` spares a copy and spoils float64 rows.
        """
        total = len(rows) if weights is None else float(weights.sum())
        if total == 0:
            return cls.empty(rows.shape[1])
        # Counted from a typical row: a constant column is exactly zero there, while its mean as
        # summed may be off by n * eps, and no kernel by the same.
        anchor = np.median(rows[[0, len(rows) // 2, -1]].astype(np.float64), axis=0)
        z = np.subtract(rows, anchor, out=rows if in_place else None, dtype=np.float64)
        shift = z.mean(axis=0) if weights is None else weights @ z / total
        z -= shift
        if weights is not None:
            z *= np.sqrt(weights)[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            scatter = z.T @ z
        return cls(total, anchor + shift, scatter)

    def check_squares(self) -> "CoMoments":
        """The same, of finite rows; InputError where the squares of a column are not."""
        if not np.isfinite(np.diag(self.scatter)).all():
            problem = "Squares of a column are beyond float64."
            remedy = "Divide columns of more than 1e150 by a number, or leave them out."
            raise InputError(problem, remedy=remedy, code="nonfinite")
        return self

    @classmethod
    def empty(cls, n_columns: int) -> "CoMoments":
        """Summary of no rows, neutral in merging."""
        return cls(0, np.zeros(n_columns), np.zeros((n_columns, n_columns)))

    def merge(self, other: "CoMoments") -> "CoMoments":
        """Summary of the rows of both."""
        if self.count == 0:
            return other
        if other.count == 0:
            return self
        count = self.count + other.count
        step = other.mean - self.mean
        weight = self.count * (other.count / count)
        scatter = self.scatter + other.scatter + weight * np.outer(step, step)
        return CoMoments(count, self.mean + step * (other.count / count), scatter)

    def select(self, columns: IntArray) -> "CoMoments":
        """Summary of some of the columns."""
        return CoMoments(self.count, self.mean[columns], self.scatter[np.ix_(columns, columns)])


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """A fitted linear predictor: the prediction of a record x is ``coefficients^T x + intercept``.

    Parameters
    ----------
    coefficients : (n_features, n_targets)
    intercept : (n_targets,)
    condition
        Condition number of the scaled Gram matrix that was solved, ridge included.
    solver
        "co-moments", or "tsqr" (see `privpipe.numerics.tsqr`).
    """

    coefficients: FloatArray
    intercept: FloatArray
    condition: float
    solver: str = "co-moments"

    def predict(self, x: FloatArray) -> FloatArray:
        """Predictions, (n_records, n_targets), in float64."""
        predictions: FloatArray = np.asarray(x, np.float64) @ self.coefficients
        predictions += self.intercept
        return predictions

    def select(self, targets: slice) -> "LeastSquares":
        """The predictor of some of the targets."""
        coefficients = self.coefficients[:, targets]
        return replace(self, coefficients=coefficients, intercept=self.intercept[targets])

    def sum_terms(self, x: FloatArray) -> FloatArray:
        """Magnitudes of all that `predict` adds up, (n_records, n_targets)."""
        return np.asarray(np.abs(x) @ np.abs(self.coefficients) + np.abs(self.intercept))


def solve_least_squares(
    moments: CoMoments,
    n_features: int,
    *,
    ridge: float = 0.0,
    with_intercept: bool = True,
    names: Sequence[str] = (),
) -> LeastSquares:
    """Least squares of the last columns on the first ones, from their co-moments.

    Features are scaled to unit variance (or unit mean square without intercept), `ridge` is added
    to the unit diagonal, and the symmetric system is solved. So `ridge` is relative to the mean
    square of a standardised feature and does not depend on the number of records.

    Parameters
    ----------
    moments
        Of rows ``[features, targets]``.
    n_features
        How many of the columns are features.
    ridge
        Non-negative. Zero requests the exact least squares solution.
    with_intercept
        Fit an intercept (not penalised).
    names
        Names of the features for messages; their numbers when empty.

    Returns
    -------
    LeastSquares

    Raises
    ------
    RankError
        With ``ridge = 0``, if the scaled Gram matrix has an eigenvalue of at most
        `bound_rank_error` times the largest. Then the features are dependent as far as float64 can
        show, and many predictors fit equally well.
    OptionError
        If `ridge` is negative or not finite.
    InputError
        If there are fewer than two records, or no features.
    """
    check_ridge(ridge)
    if n_features == 0:
        problem = "The records have no numeric features to predict from."
        remedy = "Use privacy_mapping for categorical variables, or ingest numeric features."
        raise InputError(problem, remedy=remedy, code="no-features")
    if moments.count < 2:
        problem = f"{moments.count:g} complete training records are too few for least squares."
        remedy = "Train on more records; records with missing labels do not count."
        raise InputError(problem, remedy=remedy)
    gram, cross, mean = _normal_equations(moments, n_features, with_intercept)
    scale = _column_scale(gram, mean)
    eigenvalues, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
    # Which eigenvalue comes out below zero differs from kernel to kernel; this bound does not.
    tiny = eigenvalues <= bound_rank_error(n_features) * eigenvalues[-1]
    if ridge == 0 and tiny.any():
        raise rank_error(vectors[:, tiny], moments.count, names)
    # A Gram matrix has no negative eigenvalue but by rounding.
    shifted = np.maximum(eigenvalues, 0.0) + ridge
    solution = vectors @ ((vectors.T @ (cross / scale[:, None])) / shifted[:, None])
    coefficients = solution / scale[:, None]
    intercept = moments.mean[n_features:] - mean @ coefficients
    if not with_intercept:
        intercept = np.zeros_like(intercept)
    return LeastSquares(coefficients, intercept, float(shifted[-1] / shifted[0]))


def _normal_equations(
    moments: CoMoments, n_features: int, with_intercept: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:
    products = moments.scatter / moments.count
    if not with_intercept:
        products = products + np.outer(moments.mean, moments.mean)
    mean = moments.mean[:n_features]
    return products[:n_features, :n_features], products[:n_features, n_features:], mean


def check_ridge(ridge: float) -> None:
    """Raise OptionError unless `ridge` is a finite number of at least 0."""
    if not np.isfinite(ridge) or ridge < 0:
        raise OptionError("ridge is negative or not finite.", remedy="Use a number >= 0.")


def measure_scale(moments: CoMoments, n_features: int, with_intercept: bool) -> FloatArray:
    """Deviation (or root mean square without intercept) of each feature; 1 where constant."""
    gram, _, mean = _normal_equations(moments, n_features, with_intercept)
    return _column_scale(gram, mean)


def rank_error(null: FloatArray, count: float, names: Sequence[str]) -> RankError:
    """Name the features that the directions `null` (n_features, n_null) are made of."""
    weight = np.linalg.norm(null, axis=1)
    involved = np.flatnonzero(weight > 0.1 * weight.max())
    shown = [names[j] if names else f"number {j}" for j in involved[:8]]
    more = f" and {len(involved) - 8} more" if len(involved) > 8 else ""
    return RankError(
        f"{null.shape[1]} of {len(null)} directions of the training features are constant or "
        f"combinations of others ({count:g} records); features involved: "
        f"{', '.join(shown)}{more}.",
        remedy="Drop those features, train on more records, or set [method] ridge = 1e-6.",
    )


def _column_scale(gram: FloatArray, mean: FloatArray) -> FloatArray:
    """Root of the diagonal; 1 where a column is constant but for rounding."""
    variance = np.diag(gram)
    constant = variance <= (8 * np.finfo(np.float64).eps * np.abs(mean)) ** 2
    return np.where(constant, 1.0, np.sqrt(np.where(constant, 1.0, variance)))


Coding = Literal["zero_one", "plus_minus"]


def code_targets(values: FloatArray, columns: Sequence[Column], coding: Coding) -> FloatArray:
    """Turn codes and numbers into target columns; a missing value makes its columns NaN.

    Parameters
    ----------
    values : (n_records, n_variables), float64
        Codes of categorical variables (missing: -1 or NaN), values of numeric ones.
    columns
        What each variable is.
    coding
        Values of the columns of categorical variables.

    Returns
    -------
    targets : (n_records, n_targets), float64

    Examples
    --------
    >>> code_targets(np.array([[0.0], [2.0]]), [Column("digit", 3)], "plus_minus")
    array([[ 1., -1., -1.],
           [-1., -1.,  1.]])
    """
    low = 0.0 if coding == "zero_one" else -1.0
    parts = [_code_one(values[:, j], column, low) for j, column in enumerate(columns)]
    return np.concatenate(parts, axis=1) if parts else np.empty((len(values), 0))


def name_targets(columns: Sequence[Column]) -> tuple[str, ...]:
    """Name each target column: the variable, or ``variable=k`` for its k-th category."""
    names: list[str] = []
    for column in columns:
        k = column.n_categories or 0
        names += [f"{column.name}={i}" for i in range(k)] if k > 2 else [column.name]
    return tuple(names)


def count_targets(columns: Sequence[Column]) -> int:
    """Number of target columns of these variables."""
    return len(name_targets(columns))


def _code_one(values: FloatArray, column: Column, low: float) -> FloatArray:
    if column.n_categories is None:
        return values[:, None].astype(np.float64)
    positive = [1] if column.n_categories <= 2 else range(column.n_categories)
    coded = np.where(values[:, None] == np.asarray(positive, np.float64), 1.0, low)
    # Missing is -1 or NaN: both fail this comparison.
    coded[~(values >= 0)] = np.nan
    return coded
