"""The augmented knapsack against a general linear program, and its bad input."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.reproduce.augmented_knapsack import solve_augmented_knapsack
from privpipe.errors import InputError, OptionError
from privpipe.numerics.null_space.knapsack import check_budget
from tests.oracles import fill_knapsack, maximise_knapsack

# HiGHS is feasible to 1e-7 only: amounts of comparable size, so that this buys little.
amounts = st.just(0.0) | st.floats(0.1, 100)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(amounts, amounts), min_size=1, max_size=7), amounts)
def test_solve_augmented_knapsack__is_optimal_within_the_budget(pairs, budget):
    gain, cost = np.array(pairs).T
    alpha = solve_augmented_knapsack(gain[None, :], cost[None, :], budget)[0]
    assert ((alpha >= 0) & (alpha <= 1)).all()
    assert (alpha**2 * cost).sum() <= budget * (1 + 1e-12)
    best = maximise_knapsack(gain, cost, budget)
    assert (alpha**2 * gain).sum() >= best - 1e-3


def test_solve_augmented_knapsack__is_the_printed_one_and_rows_do_not_meet():
    rng = np.random.default_rng(1)
    gain, cost = rng.exponential(size=(2, 50, 6))
    cost[::7, 2] = 0.0
    together = solve_augmented_knapsack(gain, cost, 1.7)
    one_by_one = [fill_knapsack(g, c, 1.7) for g, c in zip(gain, cost, strict=True)]
    np.testing.assert_allclose(together, one_by_one, rtol=0, atol=1e-12)


def test_solve_augmented_knapsack__removes_only_what_is_free_at_budget_zero():
    alpha = solve_augmented_knapsack(np.ones((1, 3)), np.array([[0.0, 1.0, 1e-300]]), 0.0)
    np.testing.assert_array_equal(alpha, [[1.0, 0.0, 0.0]])


@pytest.mark.parametrize("budget", [-1e-9, np.nan, np.inf])
def test_check_budget__refuses_what_is_no_budget(budget):
    with pytest.raises(OptionError, match="utility_budget is"):
        check_budget(budget)


def test_solve_augmented_knapsack__counts_bad_components():
    with pytest.raises(InputError, match=r"gain has shape \(1, 2\) and cost \(1, 3\)"):
        solve_augmented_knapsack(np.ones((1, 2)), np.ones((1, 3)), 1.0)
    with pytest.raises(InputError, match="cost holds 2 negative or non-finite"):
        solve_augmented_knapsack(np.ones((1, 3)), np.array([[1.0, -1.0, np.nan]]), 1.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-1070, 1000), st.integers(-1070, 1000), st.integers(1, 9)),
        min_size=1,
        max_size=6,
    ),
    st.integers(-930, 863),
)
def test_solve_augmented_knapsack__is_optimal_at_any_scale(exponents, budget_exponent):
    """Against rational arithmetic: quotients of such floats overflow and vanish."""
    gain = np.array([np.ldexp(float(m), g) for g, _, m in exponents])
    cost = np.array([np.ldexp(1.0, c) for _, c, _ in exponents])
    budget = float(np.ldexp(1.0, budget_exponent))
    alpha = solve_augmented_knapsack(gain[None, :], cost[None, :], budget)[0]
    left, expected = Fraction(budget), np.zeros(len(gain))
    ratios = [Fraction(g) / Fraction(c) for g, c in zip(gain, cost, strict=True)]
    for j in sorted(range(len(gain)), key=lambda j: -ratios[j]):  # stable: ties as they stand
        share = min(Fraction(1), left / Fraction(cost[j]))
        expected[j] = float(share) ** 0.5
        left -= share * Fraction(cost[j])
    # Shares below what a float can hold, and remainders below its precision, are no matter.
    np.testing.assert_allclose(alpha, expected, rtol=0, atol=1e-7)


def test_solve_augmented_knapsack__orders_ratios_that_overflow():
    alpha = solve_augmented_knapsack(np.array([[1e29, 1e30]]), np.array([[1e-280, 1e-280]]), 1e-280)
    np.testing.assert_array_equal(alpha, [[0.0, 1.0]])
