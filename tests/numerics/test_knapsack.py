"""The augmented knapsack against a general linear program, and its bad input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privpipe.errors import InputError, OptionError
from privpipe.numerics.knapsack import check_budget, solve_augmented_knapsack
from tests.oracles import fill_knapsack, maximise_knapsack

# HiGHS is feasible to 1e-7 only: amounts of comparable size, so that this buys little.
amounts = st.just(0.0) | st.floats(0.1, 100)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(amounts, amounts), min_size=1, max_size=7),
    amounts,
)
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
