"""Masked data as Yi et al. 2014 make them, and what they are compared with; records are rows.

The arithmetic of the product on arrays in memory, without its refusals: the paper's sizes are not
safe ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from privpipe.numerics.masking.completion import Solver, solve_masked_regression
from privpipe.numerics.masking.missing import (
    FactorModel,
    fit_covariance,
    fit_factors,
    solve_scores,
    sum_rows,
)
from privpipe.protocols import FloatArray


@dataclass(frozen=True, eq=False)
class Masked:
    """Masked features with the bias feature last, and responses; rank and noise that were found."""

    features: FloatArray
    responses: FloatArray
    rank: int
    noise: float


def append_ones(x: FloatArray) -> FloatArray:
    """Records with the bias feature."""
    return np.column_stack([x, np.ones(len(x))])


def mask(
    x: FloatArray,
    y: FloatArray,
    n_surrogates: int,
    random: Any,
    *,
    noise: float | None = None,
    solver: Solver = "scaled",
) -> Masked:
    """Problem (3) on complete records, with the signs that were drawn."""
    mean, scale = _measure(x)
    centre, spread = _measure(y)
    rows = append_ones((x - mean) / scale)
    gram = _cross(np.column_stack([(y - centre) / spread, rows]))
    sums = rows.T @ random.choice([-1.0, 1.0], (len(x), n_surrogates)) / np.sqrt(n_surrogates)
    found = solve_masked_regression(
        gram,
        y.shape[1],
        len(x),
        n_surrogates,
        noise=noise,
        solver=solver,
        surrogate_gram=sums @ sums.T,
    )
    a = (found.mixing @ sums).T
    b = a @ found.coefficients.T
    return Masked(
        _restore(a, mean, scale), _restore_responses(a, b, centre, spread), found.rank, found.noise
    )


@dataclass(frozen=True, eq=False)
class Completed:
    """Records whose missing entries are completed, in standardised units with ones as last column.

    Parameters
    ----------
    rows : (n_records, n_responses + n_features + 1)
        NaN where an entry is missing.
    model
        Of the rows.
    gram
        Expected sum of their products.
    shift, size : (n_responses + n_features,)
        By which they were standardised.
    """

    rows: FloatArray
    model: FactorModel
    gram: FloatArray
    shift: FloatArray
    size: FloatArray


def complete(x: FloatArray, y: FloatArray, *, rank: int | None = None) -> Completed:
    """Problem (5), refitted: by a factor model of a rank, or by a covariance; NaN is missing."""
    both = np.column_stack([y, x])
    shift, size = _measure(both)
    rows = append_ones((both - shift) / size)
    if rank is None:
        model = fit_covariance(partial(sum_rows, rows), rows.shape[1], len(rows))
        return Completed(rows, model, model.gram, shift, size)
    known = np.isfinite(rows)
    filled = np.where(known, rows, 0.0) / known.mean(axis=0)
    _, values, directions = np.linalg.svd(filled, full_matrices=False)
    start = directions[:rank].T * values[:rank] / np.sqrt(len(rows))
    model = fit_factors(partial(sum_rows, rows), start, 0.5, len(rows), tolerance=1e-4)
    return Completed(rows, model, model.gram, shift, size)


def mask_completed(done: Completed, n_responses: int, n_surrogates: int, random: Any) -> Masked:
    """Problem (3) on completed records."""
    t, rows, model = n_responses, done.rows, done.model
    # A tenth of the noise: completed records have none left, and without any the solve is long.
    noise = 0.1 * float(np.sqrt(model.ridge))
    solved = solve_masked_regression(done.gram, t, len(rows), n_surrogates, noise=noise)
    scores = solve_scores(rows, model.loadings, model.ridge)
    signs = random.choice([-1.0, 1.0], (len(rows), n_surrogates)) / np.sqrt(n_surrogates)
    sums = model.loadings[t:] @ (scores.T @ signs)
    a = (solved.mixing @ sums).T
    b = a @ solved.coefficients.T
    return Masked(
        _restore(a, done.shift[t:], done.size[t:]),
        _restore_responses(a, b, done.shift[:t], done.size[:t]),
        solved.rank,
        float(np.sqrt(model.ridge)),
    )


def _measure(table: FloatArray) -> tuple[FloatArray, FloatArray]:
    mean, scale = np.nanmean(table, axis=0), np.nanstd(table, axis=0)
    return mean, np.where(scale > 0, scale, 1.0)


def _cross(rows: FloatArray) -> FloatArray:
    product: FloatArray = rows.T @ rows
    return product


def _restore(a: FloatArray, mean: FloatArray, scale: FloatArray) -> FloatArray:
    bias = a[:, -1:]
    return np.column_stack([a[:, :-1] * scale + bias * mean, bias])


def _restore_responses(
    a: FloatArray, b: FloatArray, centre: FloatArray, spread: FloatArray
) -> FloatArray:
    restored: FloatArray = b * spread + a[:, -1:] * centre
    return restored


def learn_ridge(features: FloatArray, responses: FloatArray, ridge: float = 1e-6) -> FloatArray:
    """Ridge regression without an intercept of its own, relative to each feature's size."""
    gram = features.T @ features
    size = np.diag(gram)
    scale = np.sqrt(np.where(size > 1e-16 * size.max(), size, np.inf))  # what is never seen: zero
    inner = gram / np.outer(scale, scale) + ridge * np.eye(len(gram))
    found: FloatArray = np.linalg.solve(inner, (features.T @ responses) / scale[:, None])
    return found / scale[:, None]


def project(x: FloatArray, y: FloatArray, n_projected: int, random: Any) -> FloatArray:
    """Random projection of the features (Liu et al. 2006), and its model carried back."""
    rows = append_ones(x)
    projection = random.normal(size=(rows.shape[1], n_projected)) / np.sqrt(n_projected)
    model: FloatArray = projection @ learn_ridge(rows @ projection, y)
    return model


def add_noise(x: FloatArray, y: FloatArray, size: float, random: Any) -> FloatArray:
    """Model of records with Gaussian noise of this many deviations on every feature."""
    noisy = x + size * x.std(axis=0) * random.normal(size=x.shape)
    return learn_ridge(append_ones(noisy), y)


def draw_gaussian(
    x: FloatArray, y: FloatArray, n_surrogates: int, random: Any
) -> tuple[FloatArray, FloatArray]:
    """Coefficients alone: Gaussian records with the Gram matrix, and responses by the model."""
    rows = append_ones(x)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    root = vectors * np.sqrt(np.maximum(values, 0.0) / n_surrogates)
    made = random.normal(size=(n_surrogates, len(values))) @ root.T
    return made, made @ learn_ridge(rows, y)


def measure_eta(one: FloatArray, other: FloatArray) -> float:
    """``|W_m - W_s| / max(|W_m|, |W_s|)`` in Frobenius norm."""
    largest = max(float(np.linalg.norm(one)), float(np.linalg.norm(other)))
    return float(np.linalg.norm(one - other)) / largest


def measure_rmse(model: FloatArray, x: FloatArray, y: FloatArray) -> float:
    """Root mean squared error over records and responses."""
    return float(np.sqrt(np.mean((append_ones(x) @ model - y) ** 2)))
