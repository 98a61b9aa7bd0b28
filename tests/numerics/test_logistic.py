"""Losses of heads: slopes and curvature against differences, bases, bounds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from privpipe.numerics.logistic import (
    bound_softmax_curvature,
    make_class_basis,
    measure_entropy,
    measure_softmax,
    measure_squares,
    pack_symmetric,
    sum_softmax_curvature,
    unpack_symmetric,
)


@pytest.mark.parametrize("k", [2, 3, 7])
def test_make_class_basis__is_orthonormal_and_sums_to_zero(k: int) -> None:
    basis = make_class_basis(k)
    np.testing.assert_allclose(basis.T @ basis, np.eye(k - 1), atol=1e-14)
    np.testing.assert_allclose(basis.sum(axis=0), 0, atol=1e-14)


def _problem(k: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(40, 4))
    head = rng.normal(size=(4, k - 1))
    return inputs, head, rng.integers(0, k, 40), make_class_basis(k)


def test_measure_softmax__is_the_textbook_loss() -> None:
    inputs, head, classes, basis = _problem(5)
    logits = inputs @ head @ basis.T
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    losses, _, probabilities = measure_softmax(inputs @ head, classes, basis)
    np.testing.assert_allclose(losses, -np.log(p[np.arange(40), classes]), rtol=1e-12)
    np.testing.assert_allclose(probabilities, p, rtol=1e-12)


def test_measure_softmax__stays_finite_for_huge_scores() -> None:
    losses, slopes, p = measure_softmax(
        np.array([[1e5], [-1e5]]), np.array([1, 1]), make_class_basis(2)
    )
    assert np.isfinite(losses).all()
    assert np.isfinite(slopes).all()
    np.testing.assert_allclose(p.sum(axis=1), 1)


@pytest.mark.parametrize("k", [2, 3, 6])
def test_sum_softmax_curvature__agrees_with_differences(k: int) -> None:
    inputs, head, classes, basis = _problem(k)

    def total(v: np.ndarray) -> float:
        scores = inputs @ v.reshape(k - 1, 4).T
        return float(measure_softmax(scores, classes, basis)[0].sum())

    def slope(v: np.ndarray) -> np.ndarray:
        scores = inputs @ v.reshape(k - 1, 4).T
        return (inputs.T @ measure_softmax(scores, classes, basis)[1]).T.ravel()

    at = head.T.ravel()
    np.testing.assert_allclose(slope(at), approx_fprime(at, total, 1e-7), atol=2e-4)
    p = measure_softmax(inputs @ head, classes, basis)[2]
    hessian = sum_softmax_curvature(inputs, p, basis)
    np.testing.assert_allclose(hessian, approx_fprime(at, slope, 1e-7), atol=2e-4)
    bound = np.kron(np.eye(k - 1), bound_softmax_curvature(inputs.T @ inputs))
    assert np.linalg.eigvalsh(bound - hessian)[0] > -1e-10


def test_measure_squares__slope_agrees_with_differences() -> None:
    rng = np.random.default_rng(1)
    scores, targets = rng.normal(size=(2, 5, 3))
    slope = approx_fprime(
        scores.ravel(), lambda s: measure_squares(s.reshape(5, 3), targets)[0].sum(), 1e-7
    )
    np.testing.assert_allclose(measure_squares(scores, targets)[1].ravel(), slope, atol=1e-5)


def test_measure_entropy__ignores_empty_classes() -> None:
    assert measure_entropy(np.array([3, 0, 1])) == pytest.approx(
        -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    )


@pytest.mark.parametrize("n", [1, 2, 7, 84])
def test_unpack_symmetric__inverts_pack_symmetric(n: int) -> None:
    a = np.random.default_rng(n).normal(size=(n, n))
    a = a + a.T
    assert len(pack_symmetric(a)) == n * (n + 1) // 2
    np.testing.assert_array_equal(unpack_symmetric(pack_symmetric(a)), a)
