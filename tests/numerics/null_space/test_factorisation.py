"""Encoder and lift: accurate for ill-conditioned predictors, unique for degenerate ones."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.errors import InputError, RankError
from privpipe.numerics.null_space.factorisation import factor_predictor, lift_likely
from privpipe.numerics.null_space.rounding_margin import measure_defects


def make_ill_conditioned(condition, n=15, k=4, seed=0):
    rng = np.random.default_rng(seed)
    u, w = np.linalg.qr(rng.normal(size=(n, k)))[0], np.linalg.qr(rng.normal(size=(k, k)))[0]
    return u @ np.diag(np.geomspace(1, 1 / condition, k)) @ w.T


@pytest.mark.parametrize("condition", [1, 1e6, 1e12])
def test_factor_predictor__keeps_the_desired_prediction_to_rounding(condition):
    a = make_ill_conditioned(condition)
    encoder, lift = factor_predictor(a)
    x = np.random.default_rng(1).normal(size=(100, 15))
    loss = np.linalg.norm((x - x @ encoder @ lift.T) @ a, axis=1)
    # E / s**2 as the lift loses 1e-16 * condition**2 / condition = 1e-4 at 1e12.
    assert loss.max() < 1e-13
    assert measure_defects(a, encoder, lift, np.zeros(15)).encoder < 1e-14


def test_factor_predictor__drops_what_is_no_direction():
    a = make_ill_conditioned(10)
    encoder, _ = factor_predictor(np.column_stack([a, a[:, 0] + a[:, 1], 0 * a[:, 0]]))
    assert encoder.shape == (15, 4)
    np.testing.assert_allclose(
        encoder @ encoder.T, a @ a.T + np.outer(a[:, 0] + a[:, 1], a[:, 0] + a[:, 1]), atol=1e-12
    )


def test_factor_predictor__is_unique_where_singular_values_coincide():
    eye = np.eye(6)[:, :3]
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    plain, turned = factor_predictor(eye)[0], factor_predictor(eye @ turn)[0]
    np.testing.assert_allclose(np.abs(plain).sum(axis=0), 1)
    np.testing.assert_allclose(turned @ turned.T, plain @ plain.T, atol=1e-12)


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (np.zeros((3, 2)), "predicts the same for every record"),
        (np.full((3, 2), np.nan), "not below"),
        # No bound could be stated of them, and `.guarantee` said that somebody had changed it.
        (np.full((3, 2), 1e155), "not below 1e150"),
        (np.ones(3), r"shape \(3,\)"),
        (np.empty((3, 0)), r"shape \(3, 0\)"),
    ],
)
def test_factor_predictor__refuses_what_is_no_predictor(bad, match):
    with pytest.raises(InputError, match=match):
        factor_predictor(bad)


def test_lift_likely__needs_predictions_that_vary():
    encoder, _ = factor_predictor(make_ill_conditioned(10))
    with pytest.raises(RankError, match="does not vary"):
        lift_likely(encoder, np.zeros((15, 15)))
    one = np.ones((15, 15))
    with pytest.raises(RankError, match="linearly dependent"):
        lift_likely(encoder, one)
