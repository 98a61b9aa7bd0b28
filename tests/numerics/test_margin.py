"""The margin covers, one by one, what encoder, lift, centre, appended ones and storing cost."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.numerics.lowrank import factor_predictor
from privpipe.numerics.margin import _find_turn, measure_defects, plan_margin
from tests.oracles import exact_loss

N_FEATURES, RANK = 8, 2
ERROR = 1e-6


def make_problem(case, seed=0):
    """Predictor, encoder, lift, centre and records that only one term of the margin covers."""
    rng = np.random.default_rng(seed)
    predictor = rng.normal(size=(N_FEATURES, RANK))
    encoder, lift = factor_predictor(predictor)
    x, centre = 100 * rng.normal(size=(40, N_FEATURES)), np.zeros(N_FEATURES)
    if case == "lift":
        return predictor, encoder, lift * (1 + ERROR * rng.normal(size=lift.shape)), centre, x
    if case == "appended":  # records of nothing but the ones that cleaning appends
        encoder[-1] += ERROR * rng.normal(size=RANK)
        x = np.zeros_like(x)
        x[:, -1] = 1.0
    else:
        encoder = encoder + ERROR * rng.normal(size=encoder.shape)
    lift = fit_lift(predictor, encoder)
    null = np.linalg.svd(encoder.T)[2][RANK:]  # what the encoder does not see
    if case == "centre":
        return predictor, encoder, lift, 100 * rng.normal(size=len(null)) @ null, np.zeros_like(x)
    return predictor, encoder, lift, centre, x @ null.T @ null if case == "encoder" else x


def fit_lift(predictor, encoder):
    """``D`` that makes the best of an encoder with errors: ``A^T D`` is orthonormal."""
    w = _find_turn(predictor, encoder)
    return predictor @ np.linalg.solve(predictor.T @ predictor, w)


@pytest.mark.parametrize("case", ["encoder", "lift", "centre", "appended"])
@pytest.mark.parametrize("seed", range(5))
def test_margin__covers_what_encoder_and_lift_miss(case, seed):
    predictor, encoder, lift, centre, x = make_problem(case, seed)
    n_appended = int(case == "appended")
    defects = measure_defects(predictor, encoder, lift, centre, n_appended=n_appended)
    b = (x - centre) @ encoder
    released = centre + b.astype(np.longdouble) @ lift.T.astype(np.longdouble)
    loss = np.sqrt(exact_loss(predictor, x, released)).astype(float)
    given = np.linalg.norm(x[:, : N_FEATURES - n_appended], axis=1)
    margin = plan_margin(defects, 1.0, np.dtype("float64")).measure(given, b)
    assert loss.max() > 1e-8  # far above what rounding does
    assert (loss <= margin).all()
    assert margin.max() < 100 * loss.max()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("size", ["subnormal", 1.0, 100.0])
def test_margin__covers_what_storing_rounds_away(dtype, size):
    rng = np.random.default_rng(0)
    size = 3 * float(np.finfo(dtype).smallest_subnormal) if size == "subnormal" else size
    predictor = np.ones((1, 1))
    x = size * rng.uniform(-1, 1, size=(500, 1))
    defects = measure_defects(predictor, np.ones((1, 1)), np.ones((1, 1)), np.zeros(1))
    cost = np.abs(x.astype(dtype).astype(float) - x)[:, 0]
    assert cost.any()
    margin = plan_margin(defects, 1.0, np.dtype(dtype))
    assert (cost <= margin.measure(np.zeros(500), x)).all()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_margin__covers_a_centre_whose_features_are_all_rounded_down(dtype):
    centre = np.full(N_FEATURES, 1 + 0.49 * float(np.finfo(dtype).eps))
    predictor = np.ones((N_FEATURES, 1))
    cost = (centre - centre.astype(dtype)).sum()
    assert cost > 0
    defects = measure_defects(predictor, *factor_predictor(predictor), centre)
    stored, wide = (
        plan_margin(defects, 1.0, np.dtype(dtype), storing=storing).constant
        for storing in (True, False)
    )
    assert cost <= stored < 1.1 * cost
    assert wide < cost / 1000


def test_margin__covers_coordinates_whose_digits_cancel():
    predictor = np.ones((40, 1))
    encoder, lift = factor_predictor(predictor)
    x = 1e8 * np.random.default_rng(0).normal(size=(500, 40))
    x[:, -1] -= x.sum(axis=1)
    b = x @ encoder  # of products of 1e8 that add up to hardly anything
    released = b.astype(np.longdouble) @ lift.T.astype(np.longdouble)
    loss = np.sqrt(exact_loss(predictor, x, released)).astype(float)
    defects = measure_defects(predictor, encoder, lift, np.zeros(40))
    margin = plan_margin(defects, 1.0, np.dtype("float64"))
    norms = np.linalg.norm(x, axis=1)
    assert (loss <= margin.measure(norms, b)).all()
    assert (loss > 1.1 * defects.given_encoder * norms).any()  # it is not the encoder's error
