"""The margin covers, one by one, what the lift, the centre, the grid and storing cost."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.numerics.null_space.factorisation import factor_predictor
from privpipe.numerics.null_space.knapsack import turn_predictions
from privpipe.numerics.null_space.rounding_margin import (
    FARTHEST,
    Grid,
    find_turn,
    measure_defects,
    plan_grid,
    plan_margin,
)
from tests.oracles import exact_loss

N_FEATURES, RANK = 8, 2
ERROR = 1e-6
FINEST = Grid(2.0**-80, 48, 1e-15)
"""Its steps cost nothing that these tests could see."""


def make_problem(case, seed=0):
    """Predictor, encoder, lift, centre and records that only one term of the margin covers."""
    rng = np.random.default_rng(seed)
    predictor = rng.normal(size=(N_FEATURES, RANK))
    x, centre = 100 * rng.normal(size=(40, N_FEATURES)), np.zeros(N_FEATURES)
    if case == "dependent":  # to the precision that the encoder is given
        last = predictor @ rng.normal(size=RANK) + ERROR * rng.normal(size=N_FEATURES)
        encoder, lift = factor_predictor(predictor)
        return np.column_stack([predictor, last]), encoder, lift, centre, x
    encoder, lift = factor_predictor(predictor)
    if case == "lift":
        lift = lift * (1 + ERROR * rng.normal(size=lift.shape))
    if case == "centre":
        centre, x = 100 * rng.normal(size=N_FEATURES), np.zeros_like(x)
        lift = lift * (1 + ERROR * rng.normal(size=lift.shape))
    return predictor, encoder, lift, centre, x


def release(predictor, defects, lift, centre, x):
    """Coordinates and records, with a rounding of the prediction that is known."""
    b, size, unexplained = turn_predictions(x @ predictor, defects.shift, defects.turn)
    released = centre + b.astype(np.longdouble) @ lift.T.astype(np.longdouble)
    return b, size, unexplained, released


@pytest.mark.parametrize("case", ["lift", "centre", "dependent"])
@pytest.mark.parametrize("seed", range(5))
def test_margin__covers_what_coordinates_and_lift_miss(case, seed):
    predictor, encoder, lift, centre, x = make_problem(case, seed)
    defects = measure_defects(predictor, encoder, lift, centre)
    b, size, unexplained, released = release(predictor, defects, lift, centre, x)
    loss = np.sqrt(exact_loss(predictor, x, released)).astype(float)
    found = plan_margin(defects, 1.0, FINEST, np.dtype("float64"))
    margin = found.measure(size, unexplained, b)
    assert loss.max() > 1e-8  # far above what rounding does
    assert (loss <= margin).all()
    assert margin.max() < 100 * loss.max()


@pytest.mark.parametrize("root", [1e-3, 1.0])
def test_margin__covers_the_grid(root):
    rng = np.random.default_rng(0)
    predictor = rng.normal(size=(N_FEATURES, RANK))
    encoder, lift = factor_predictor(predictor)
    defects = measure_defects(predictor, encoder, lift, np.zeros(N_FEATURES))
    grid = plan_grid(root, RANK, N_FEATURES)
    margin = plan_margin(defects, root, grid, np.dtype("float64"))
    farthest = FARTHEST * grid.step * np.sqrt(RANK)
    assert farthest <= margin.constant < 1.1 * farthest
    assert margin.constant <= 2.5e-7 * root


@pytest.mark.parametrize("condition", [0, 6, 12])
def test_find_turn__is_orthonormal_and_misses_most_in_small_coordinates(condition):
    rng = np.random.default_rng(0)
    u, w = np.linalg.svd(rng.normal(size=(30, 3)), full_matrices=False)[::2]
    predictor = (u * np.geomspace(1, 10.0**-condition, 3)) @ w
    encoder, lift = factor_predictor(predictor)
    turn = find_turn(predictor, encoder, lift)
    np.testing.assert_allclose(turn.T @ turn, np.eye(3), atol=1e-15)
    defects = measure_defects(predictor, encoder, lift, np.zeros(30))
    assert defects.lift[0] < 1e-15
    assert defects.encoder < 1e-15


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("size", ["subnormal", 1.0, 100.0])
def test_margin__covers_what_storing_rounds_away(dtype, size):
    rng = np.random.default_rng(0)
    size = 3 * float(np.finfo(dtype).smallest_subnormal) if size == "subnormal" else size
    x = size * rng.uniform(-1, 1, size=(500, 1))
    one = np.ones((1, 1))
    defects = measure_defects(one, one, one, np.zeros(1))
    cost = np.abs(x.astype(dtype).astype(float) - x)[:, 0]
    assert cost.any()
    margin = plan_margin(defects, 1.0, FINEST, np.dtype(dtype))
    assert (cost <= margin.measure(np.zeros(500), np.zeros(500), x)).all()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_margin__covers_a_centre_whose_features_are_all_rounded_down(dtype):
    centre = np.full(N_FEATURES, 1 + 0.49 * float(np.finfo(dtype).eps))
    predictor = np.ones((N_FEATURES, 1))
    cost = (centre - centre.astype(dtype)).sum()
    assert cost > 0
    defects = measure_defects(predictor, *factor_predictor(predictor), centre)
    stored, wide = (
        plan_margin(defects, 1.0, FINEST, np.dtype(dtype), storing=storing).constant
        for storing in (True, False)
    )
    assert cost <= stored < 1.1 * cost
    assert wide < cost / 1000
