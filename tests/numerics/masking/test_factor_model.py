"""Factors with missing entries: patterns give the sums of rows, and moments are not shrunk."""

from __future__ import annotations

from functools import partial

import numpy as np

from privpipe.numerics.masking.factor_model import (
    expect_pattern,
    expect_rows,
    fit_covariance,
    fit_factors,
)
from privpipe.records.memory import add_sums


def make_rows(n: int, missing: float) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    truth = random.normal(size=(9, 2))
    rows = random.normal(size=(n, 2)) @ truth.T + 0.3 * random.normal(size=(n, 9))
    rows[random.random(rows.shape) < missing] = np.nan
    return rows, truth


def test_fit_factors__finds_the_moments_behind_missing_entries() -> None:
    rows, truth = make_rows(4000, 0.6)
    parts = np.array_split(rows, 3)

    def ask(loadings: np.ndarray, variance: float):
        return add_sums([expect_rows(part, loadings, variance) for part in parts])

    start = np.random.default_rng(1).normal(size=(9, 2))
    found = fit_factors(ask, start, 1.0, len(rows))
    assert found.converged
    assert abs(np.sqrt(found.variance) - 0.3) < 0.02
    exact = truth @ truth.T
    error = np.linalg.norm(found.gram / len(rows) - exact) / np.linalg.norm(exact)
    assert error < 0.08


def test_expect_pattern__gives_the_sums_of_the_rows() -> None:
    rows, _ = make_rows(200, 0.0)
    rows[:50, 0] = np.nan
    rows[50:90, 3:6] = np.nan
    patterns: dict[bytes, tuple[np.ndarray, float]] = {}
    for row in rows:
        known = np.isfinite(row)
        values = np.where(known, row, 0.0)
        gram, count = patterns.get(known.tobytes(), (np.zeros((9, 9)), 0.0))
        patterns[known.tobytes()] = (gram + np.outer(values, values), count + 1)
    loadings = np.random.default_rng(2).normal(size=(9, 3))
    pairs = zip(
        expect_pattern(patterns, loadings, 0.2), expect_rows(rows, loadings, 0.2), strict=True
    )
    for mine, expected in pairs:
        np.testing.assert_allclose(mine, expected, rtol=1e-9, atol=1e-9)


def test_fit_covariance__of_complete_records_is_their_moments() -> None:
    rows, _ = make_rows(500, 0.0)
    found = fit_covariance(partial(expect_rows, rows), 9, len(rows), tolerance=1e-9)
    assert found.converged
    np.testing.assert_allclose(found.gram, rows.T @ rows, rtol=1e-3, atol=1e-3 * len(rows))


def test_fit_covariance__keeps_the_regression_on_indicators_that_a_low_rank_loses() -> None:
    """Indicators of classes have no noise and no low rank; half of all entries are missing."""
    random = np.random.default_rng(3)
    n = 6000
    codes = random.integers(0, 4, n)
    x = np.column_stack([np.eye(4)[codes][:, :3], random.normal(size=(n, 3)), np.ones(n)])
    model = np.array([3.0, -2.0, 1.0, 1.0, 0.0, 0.5, 4.0])
    y = x @ model + random.normal(size=n)
    rows = np.column_stack([y, x])
    rows[:, :-1][random.random((n, 7)) < 0.5] = np.nan

    def regress(gram: np.ndarray) -> np.ndarray:
        return np.linalg.lstsq(gram[1:, 1:], gram[1:, 0], rcond=1e-8)[0]

    def measure(found: np.ndarray) -> float:
        return float(np.sqrt(np.mean((x @ (found - model)) ** 2)))

    ask = partial(expect_rows, rows)
    whole = fit_covariance(ask, 8, n)
    low = fit_factors(ask, random.normal(size=(8, 4)), 0.5, n, tolerance=1e-4)
    assert measure(regress(whole.gram)) < 0.25
    assert measure(regress(low.gram)) > 2 * measure(regress(whole.gram))
