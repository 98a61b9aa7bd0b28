"""Coordinates ordered by confidential gain: diagonal, unique, and exact where theory says so."""

from __future__ import annotations

import numpy as np
import pytest

from flows.reproduce.printed_cleaner import diagonalise_printed
from privpipe.numerics.null_space.factorisation import factor_predictor, order_by_gain, tilt_lift


def make_predictors(n=12, n_desired=4, n_confidential=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, n_desired)), rng.normal(size=(n, n_confidential))


@pytest.mark.parametrize("n_confidential", [1, 3, 6])
def test_order_by_gain__makes_the_gain_diagonal_and_decreasing(n_confidential):
    desired, secret = make_predictors(n_confidential=n_confidential)
    encoder, lift, gain = order_by_gain(*factor_predictor(desired), secret)
    seen = secret.T @ lift
    np.testing.assert_allclose(seen.T @ seen, np.diag(gain), atol=1e-12)
    assert (np.diff(gain) <= 1e-12).all()
    np.testing.assert_allclose(encoder.T @ lift, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(encoder @ (encoder.T @ lift), encoder, atol=1e-10)


def test_order_by_gain__does_not_depend_on_signs_and_order_of_labels():
    desired, secret = make_predictors()
    first = order_by_gain(*factor_predictor(desired), secret)
    turned = order_by_gain(*factor_predictor(desired[:, ::-1] * -1), secret[:, ::-1])
    for a, b in zip(first[1:], turned[1:], strict=True):
        np.testing.assert_allclose(np.abs(a), np.abs(b), atol=1e-10)


def test_tilt_lift__keeps_the_desired_and_hides_most_of_the_confidential():
    desired, secret = make_predictors()
    encoder, lift = factor_predictor(desired)
    tilted = tilt_lift(encoder, lift, secret)
    np.testing.assert_allclose(desired.T @ tilted, desired.T @ lift, atol=1e-12)
    # Here the null space has room enough to hide everything.
    np.testing.assert_allclose(secret.T @ tilted, 0, atol=1e-12)
    assert np.abs(secret.T @ lift).max() > 0.1


def test_tilt_lift__makes_theorem_4_additive():
    desired, secret = make_predictors(n_confidential=10, n=11)
    encoder, lift, gain = order_by_gain(*_tilted(desired, secret), secret)
    x = np.random.default_rng(1).normal(size=(30, 11))
    b = x @ encoder
    alpha = np.random.default_rng(2).uniform(size=b.shape)
    removed = ((x - b @ lift.T) @ secret) @ (secret.T @ lift)
    np.testing.assert_allclose(removed, 0, atol=1e-9)  # null part and coordinates do not mix
    change = ((x - ((1 - alpha) * b) @ lift.T) @ secret) ** 2
    null = ((x - b @ lift.T) @ secret) ** 2
    expected = null.sum(axis=1) + (gain * (alpha * b) ** 2).sum(axis=1)
    np.testing.assert_allclose(change.sum(axis=1), expected, rtol=1e-9)


def test_tilt_lift__leaves_a_confidential_predictor_within_the_desired_one():
    desired, _ = make_predictors()
    encoder, lift = factor_predictor(desired)
    np.testing.assert_array_equal(tilt_lift(encoder, lift, desired[:, :2]), lift)


@pytest.mark.parametrize("apart", [1e-9, 1e-11, 1e-13])
def test_tilt_lift__takes_nothing_for_unseen_that_a_coordinate_carries(apart):
    """Of two targets that differ by so little the second coordinate was lifted to nothing."""
    one, other, secret = np.random.default_rng(0).normal(size=(3, 4))
    encoder, lift = factor_predictor(np.column_stack([one, -1.4 * one + apart * other]))
    tilted = tilt_lift(encoder, lift, secret[:, None])
    assert encoder.shape == (4, 2)
    np.testing.assert_allclose(encoder.T @ tilted, np.eye(2), atol=1e-3 * max(1, 1e-12 / apart))


def test_diagonalise_printed__diagonalises_both_predictors():
    desired, secret = make_predictors()
    v, dual, cost, gain = diagonalise_printed(desired, secret)
    np.testing.assert_allclose(v.T @ dual, np.eye(v.shape[1]), atol=1e-10)
    for predictor, values in ((desired, cost), (secret, gain)):
        seen = predictor.T @ v
        np.testing.assert_allclose(seen.T @ seen, np.diag(values), atol=1e-9)
    assert (cost[:3] == 0).all()


def _tilted(desired, secret):
    encoder, lift = factor_predictor(desired)
    return encoder, tilt_lift(encoder, lift, secret)
