"""Rounding to the grid is that of the exact prediction, whichever way it was found."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privpipe.numerics.null_space import prediction_grid as module
from privpipe.numerics.null_space.prediction_grid import (
    predict_on_grid,
    settle_entries,
    settle_exactly,
)
from privpipe.numerics.null_space.rounding_margin import FARTHEST, plan_grid
from privpipe.numerics.rounding import OFFSET, add_up, multiply_closely, multiply_in_order


def round_exactly(record, coefficients, grid):
    """The grid's definition, in rational arithmetic."""
    p = sum(
        (
            Fraction(float(v)) * Fraction(float(a))
            for v, a in zip(record, coefficients, strict=True)
        ),
        Fraction(0),
    )
    if p == 0:
        return 0.0
    exponent = math.floor(math.log2(abs(p.numerator)) - math.log2(p.denominator))
    exponent += (abs(p) >= Fraction(2) ** (exponent + 1)) - (abs(p) < Fraction(2) ** exponent)
    step = max(Fraction(grid.step), Fraction(2) ** (exponent - grid.digits))
    return float(round(p / step - Fraction(OFFSET)) * step)


@st.composite
def problems(draw):
    """Records whose predictions cancel, lie near boundaries, or are short binary numbers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, k = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    x = rng.normal(size=(12, n)) * 10.0 ** rng.integers(-6, 13, size=(12, n))
    predictor = rng.normal(size=(n, k))
    kind = draw(st.sampled_from(["any", "short", "cancelling", "boundary", "nothing"]))
    grid = plan_grid(draw(st.sampled_from([0.0, 1e-6, 0.1, 1e5])), k, n)
    if kind == "short":
        x, predictor = np.round(x * 16) / 16, np.round(predictor * 4) / 4
    if kind == "cancelling" and n > 1:
        predictor[-1] = predictor[0]
        x[:, -1] = -x[:, 0]
    if kind == "boundary" and grid.step:
        predictor[0] = 1.0
        x = np.zeros_like(x)
        place = np.arange(12) + 0.5 + OFFSET
        x[:, 0] = np.nextafter(place * grid.step, rng.choice([-np.inf, 0, np.inf], 12))
    if kind == "nothing":
        x[:] = 0.0
    return x, predictor, grid


@settings(max_examples=150, deadline=None)
@given(problems(), st.booleans())
def test_predict_on_grid__rounds_the_exact_prediction(problem, compiled):
    x, predictor, grid = problem
    weights = np.linalg.norm(predictor, axis=1)
    before, module.MANY = module.MANY, 1 if compiled else 10**9
    try:
        values = predict_on_grid(x, predictor, weights, grid)
    finally:
        module.MANY = before
    expected = [[round_exactly(row, a, grid) for a in predictor.T] for row in x]
    np.testing.assert_array_equal(values, expected)
    assert not np.signbit(values[values == 0]).any()


def test_settle_entries__leaves_nothing_to_whole_numbers_that_twice_the_digits_decide(monkeypatch):
    rng = np.random.default_rng(0)
    x, predictor = rng.normal(size=(400, 30)) * 1e9, rng.normal(size=(30, 1))
    grid, values = plan_grid(1e-6, 1, 30), np.full((400, 1), np.nan)
    monkeypatch.setattr(module, "settle_exactly", None)
    rows = np.arange(400)
    settle_entries(x, predictor, rows, np.zeros_like(rows), grid, values)
    expected = [round_exactly(row, predictor[:, 0], grid) for row in x]
    np.testing.assert_array_equal(values[:, 0], expected)


@pytest.mark.parametrize("root", [0.0, 1e-3])
def test_settle_exactly__keeps_extremes(root):
    grid = plan_grid(root, 1, 3)
    assert settle_exactly(np.array([1e300, 7.0, -1e300]), np.ones(3), grid) == 7.0
    assert settle_exactly(np.array([1e-320, 0.0, 0.0]), np.full(3, 1e-10), grid) == 0.0
    assert settle_exactly(np.array([1e308, 1e308, 0.0]), np.ones(3), grid) == math.inf
    assert math.isnan(settle_exactly(np.array([np.nan, 0.0, 0.0]), np.ones(3), grid))


@pytest.mark.parametrize("root", [1e-9, 0.1, 1e9])
@pytest.mark.parametrize("k", [1, 3, 40])
def test_plan_grid__gives_away_less_than_a_millionth_of_the_budget(root, k):
    grid = plan_grid(root, k, 1)
    moved = FARTHEST * grid.step * np.sqrt(k)
    assert 1 - (1 - 2 * moved / root) ** 2 <= 1e-6  # held back, and lost by chance
    assert moved > 1e-7 * root, "finer steps would be in doubt more often"


def test_fixed_order__is_that_of_its_definition():
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(50, 7)), rng.normal(size=(7, 3))
    product = multiply_in_order(left, right)
    np.testing.assert_allclose(product, left @ right, atol=1e-13)
    assert multiply_in_order(left[11:12], right).tobytes() == product[11:12].tobytes()
    np.testing.assert_allclose(add_up(left), left.sum(axis=0), atol=1e-13)


def test_multiply_closely__is_right_to_the_last_bit_where_plain_sums_cancel():
    rng = np.random.default_rng(0)
    left = rng.normal(size=(301, 2)) * 1e8
    right = rng.normal(size=(301, 2))
    right[-1] = -(left[:-1].T @ right[:-1]).diagonal() / left[-1]
    found = multiply_closely(left, right)
    exact = [
        [float(sum(Fraction(a) * Fraction(b) for a, b in zip(p, q, strict=True))) for q in right.T]
        for p in left.T
    ]
    np.testing.assert_allclose(found, exact, rtol=1e-13)
    assert (np.abs(left.T @ right / exact - 1) > 1e-9).any()
