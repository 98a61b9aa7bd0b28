"""Problem (5) in factors: against the literal iteration, its optimum, patterns and cuts."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privpipe.numerics.masking.missing import (
    FactorModel,
    complete_rows,
    fit_covariance,
    fit_factors,
    fit_loadings,
    solve_scores,
    sum_patterns,
    sum_rows,
)
from privpipe.records.memory import add_sums
from tests.oracles import complete_literally, measure_completion


def make_rows(seed: int, n: int = 40, p: int = 6, missing: float = 0.3) -> np.ndarray:
    """Records of rank two and noise, NaN where an entry is missing."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(n, 2)) @ random.normal(size=(2, p)) + 0.2 * random.normal(
        size=(n, p)
    )
    hidden = random.random(rows.shape) < missing
    hidden[:, -1] = False
    rows[hidden] = np.nan
    return rows


def fit(rows: np.ndarray, penalty: float, cuts: tuple[int, ...] = ()) -> FactorModel:
    parts = np.split(rows, cuts)
    start = np.random.default_rng(0).normal(size=(rows.shape[1], min(rows.shape)))

    def ask(loadings: np.ndarray, ridge: float, expected: bool):
        return add_sums([sum_rows(part, loadings, ridge, expected) for part in parts])

    return fit_loadings(ask, start, penalty, tolerance=1e-11, most=1500)


def complete(found: FactorModel, rows: np.ndarray) -> np.ndarray:
    return solve_scores(rows, found.loadings, found.ridge) @ found.loadings.T


@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(12, 40),
    p=st.integers(4, 7),
    missing=st.sampled_from([0.1, 0.5]),
    cuts=st.lists(st.integers(0, 12), max_size=3).map(sorted),
)
def test_fit_loadings__is_the_literal_completion(
    seed: int, n: int, p: int, missing: float, cuts: list[int]
) -> None:
    rows = make_rows(seed, n, p, missing=missing)
    weights = np.isfinite(rows).astype(float)
    found = fit(rows, 2.0, tuple(cuts))
    expected = complete_literally(np.nan_to_num(rows).T, weights.T, 2.0, 150).T
    mine = complete(found, rows)
    best = measure_completion(expected, np.nan_to_num(rows), weights, 2.0)
    assert measure_completion(mine, np.nan_to_num(rows), weights, 2.0) <= best * (1 + 1e-6)
    assert found.objective == pytest.approx(best, rel=1e-6)
    np.testing.assert_allclose(mine, expected, atol=2e-2 * np.nanmax(np.abs(rows)))


@pytest.mark.parametrize(("seed", "missing"), [(7, 0.3), (8, 0.5), (9, 0.0)])
def test_fit_loadings__meets_first_order_conditions_and_the_interior_point(
    seed: int, missing: float
) -> None:
    import cvxpy as cp

    rows = make_rows(seed, n=18, missing=missing)
    weights = np.isfinite(rows).astype(float)
    filled = np.nan_to_num(rows)
    found = fit(rows, 1.0)
    z = cp.Variable(rows.shape)
    loss = cp.sum_squares(cp.multiply(weights, z - filled)) / 2
    best = cp.Problem(cp.Minimize(cp.normNuc(z) + loss)).solve(solver=cp.CLARABEL)
    assert found.objective == pytest.approx(best, rel=1e-6)
    made = complete(found, rows)
    residual = weights * (filled - made)
    assert np.linalg.norm(residual, 2) <= 1 + 1e-3
    # It is a subgradient of the nuclear norm: the sum of u v^T on the range.
    u, s, vt = np.linalg.svd(made, full_matrices=False)
    rank = int((s > 1e-3 * s[0]).sum())
    np.testing.assert_allclose(u[:, :rank].T @ residual @ vt[:rank].T, np.eye(rank), atol=2e-3)


@pytest.mark.parametrize("expected", [False, True])
def test_sum_patterns__gives_the_sums_of_the_rows(expected: bool) -> None:
    rows = make_rows(1, n=60, missing=0.0)
    rows[:20, 0] = np.nan
    rows[20:45, 1:3] = np.nan
    patterns: dict[bytes, tuple[np.ndarray, np.ndarray, float]] = {}
    for row in rows:
        known = np.isfinite(row)
        values = np.where(known, row, 0.0)
        _, gram, count = patterns.get(known.tobytes(), (known, np.zeros((6, 6)), 0.0))
        patterns[known.tobytes()] = (known, gram + np.outer(values, values), count + 1)
    assert len(patterns) == 3
    loadings = np.random.default_rng(2).normal(size=(6, 3))
    found = sum_patterns(list(patterns.values()), loadings, 0.4, expected)
    for mine, exact in zip(found, sum_rows(rows, loadings, 0.4, expected), strict=True):
        np.testing.assert_allclose(mine, exact, rtol=1e-9, atol=1e-9)


def test_gram__is_that_of_the_completed_records() -> None:
    rows = make_rows(4)
    found = fit(rows, 1.0)
    made = complete(found, rows)
    np.testing.assert_allclose(found.gram, made.T @ made, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_complete_rows__each_depends_on_itself_alone_to_the_last_bit(rank: int) -> None:
    rows = make_rows(9, n=700)
    loadings = np.random.default_rng(1).normal(size=(6, rank))
    whole = complete_rows(rows, loadings, 0.1)
    scores = solve_scores(rows, loadings, 0.1)
    np.testing.assert_allclose(whole, scores @ loadings.T, rtol=1e-12, atol=1e-12)
    for cut in (1, 2, 3, 5, 13, 64, 511, 699):
        parts = [complete_rows(rows[a : a + cut], loadings, 0.1) for a in range(0, 700, cut)]
        assert np.concatenate(parts).tobytes() == whole.tobytes(), cut


def make_factors(n: int, missing: float) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    truth = random.normal(size=(9, 2))
    rows = random.normal(size=(n, 2)) @ truth.T + 0.3 * random.normal(size=(n, 9))
    rows[random.random(rows.shape) < missing] = np.nan
    return rows, truth


def test_fit_factors__finds_the_moments_behind_missing_entries() -> None:
    rows, truth = make_factors(4000, 0.6)
    parts = np.array_split(rows, 3)

    def ask(loadings: np.ndarray, variance: float, expected: bool):
        return add_sums([sum_rows(part, loadings, variance, expected) for part in parts])

    start = np.random.default_rng(1).normal(size=(9, 2))
    found = fit_factors(ask, start, 1.0, len(rows))
    assert found.converged
    assert abs(np.sqrt(found.ridge) - 0.3) < 0.02
    exact = truth @ truth.T
    error = np.linalg.norm(found.gram / len(rows) - exact) / np.linalg.norm(exact)
    assert error < 0.08


def test_fit_covariance__of_complete_records_is_their_moments() -> None:
    rows, _ = make_factors(500, 0.0)
    found = fit_covariance(partial(sum_rows, rows), 9, len(rows), tolerance=1e-9)
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

    ask = partial(sum_rows, rows)
    whole = fit_covariance(ask, 8, n)
    low = fit_factors(ask, random.normal(size=(8, 4)), 0.5, n, tolerance=1e-4)
    assert measure(regress(whole.gram)) < 0.25
    assert measure(regress(low.gram)) > 2 * measure(regress(whole.gram))
