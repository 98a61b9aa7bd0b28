"""Whitening, generalised eigenvectors and guarded directions."""

from __future__ import annotations

import numpy as np
import scipy.linalg as sl

from privpipe.numerics.minimax.spectra import fix_signs, guard_directions, solve_generalised, whiten


def _covariance(n: int, rank: int, seed: int = 0) -> np.ndarray:
    a = np.random.default_rng(seed).normal(size=(n, rank))
    return a @ a.T


def test_whiten__makes_the_ridged_covariance_the_identity() -> None:
    c = _covariance(6, 4)
    t = whiten(c, 1e-3)
    ridged = c + 1e-3 * np.trace(c) / 6 * np.eye(6)
    np.testing.assert_allclose(t.T @ ridged @ t, np.eye(6), atol=1e-10)


def test_whiten__of_nothing_is_finite() -> None:
    assert np.isfinite(whiten(np.zeros((3, 3)), 1e-3)).all()


def test_solve_generalised__satisfies_the_equation_in_order() -> None:
    rng = np.random.default_rng(1)
    columns, signs = rng.normal(size=(7, 4)), np.array([1.0, 1.0, -2.0, 1.0])
    columns[:, 3] = columns[:, 0]
    c = _covariance(7, 3, 3)
    values, v = solve_generalised(columns, signs, c, 1e-3)
    metric = c + 1e-3 * np.trace(c) / 7 * np.eye(7)
    matrix = (columns * signs) @ columns.T
    np.testing.assert_allclose(matrix @ v, metric @ v * values, atol=1e-9)
    np.testing.assert_allclose(v.T @ metric @ v, np.eye(3), atol=1e-9)
    assert (np.diff(values) >= 0).all()
    expected = sl.eigh(matrix, metric, eigvals_only=True)
    np.testing.assert_allclose(values, expected[np.abs(expected) > 1e-8], rtol=1e-8)


def test_guard_directions__avoids_what_is_closed_and_takes_the_most_variance() -> None:
    c = _covariance(7, 7)
    closed = np.random.default_rng(1).normal(size=(7, 2))
    found = guard_directions(c, closed[:, :1], closed[:, 1:], 5)
    np.testing.assert_allclose(found.T @ found, np.eye(5), atol=1e-10)
    np.testing.assert_allclose(found.T @ closed, 0, atol=1e-10)
    variance = np.diag(found.T @ c @ found)
    assert (np.diff(variance) <= 1e-9).all()
    # All of the complement is taken, so the variance inside it is, too.
    q = np.linalg.qr(closed)[0]
    p = np.eye(7) - q @ q.T
    np.testing.assert_allclose(variance.sum(), np.trace(p @ c @ p), rtol=1e-10)


def test_fix_signs__does_not_depend_on_the_sign_given() -> None:
    v = np.random.default_rng(2).normal(size=(5, 3))
    np.testing.assert_array_equal(fix_signs(v), fix_signs(-v))
