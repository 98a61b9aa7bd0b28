"""The closed forms against the knapsack they solve, and against first-order conditions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flows.reproduce.augmented_knapsack import solve_augmented_knapsack
from privpipe.numerics.null_space.knapsack import (
    SMALLEST,
    shrink_by_rule,
    shrink_coordinates,
    shrink_evenly,
)
from tests.oracles import share_evenly

RULES = ("greedy", "in_order", "kkt")

coordinates = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.floats(-1e6, 1e6, allow_subnormal=False),
)
budgets = st.floats(0, 1e9, allow_subnormal=False)


@settings(deadline=None)
@given(coordinates, budgets, st.sampled_from(RULES))
def test_shrink_by_rule__spends_no_more_than_the_budget_nor_less_than_it_can(b, budget, rule):
    kept = shrink_by_rule(b, np.full(len(b), budget), rule)
    spent = ((b - kept) ** 2).sum(axis=1)
    total = (b * b).sum(axis=1)
    # kept is rounded at the size of b: that is the margin's business, and all that is tolerated.
    slack = 1e-15 * np.sqrt(total) + 1e-300
    assert (np.sqrt(spent) <= np.sqrt(budget) * (1 + 1e-14) + 4 * slack).all()
    assert (np.sqrt(spent) >= np.sqrt(np.minimum(total, budget)) * (1 - 1e-9) - 8 * slack).all()
    assert (np.abs(kept) <= np.abs(b)).all()
    assert ((kept == 0) | (np.sign(kept) == np.sign(b))).all()


@given(coordinates, budgets, st.sampled_from(RULES))
def test_shrink_by_rule__leaves_no_sign_of_what_was_removed_whole(b, budget, rule):
    kept = shrink_by_rule(b, np.full(len(b), budget), rule)
    assert not np.signbit(kept[kept == 0]).any()


@settings(deadline=None)
@given(coordinates, budgets)
def test_shrink_coordinates__is_the_knapsack_with_equal_gains(b, budget):
    b = np.where(np.abs(b) < 1e-150, 0.0, b)  # the knapsack's costs are squares, which vanish
    budget = budget if budget > SMALLEST else 0.0
    kept = shrink_coordinates(b, np.full(len(b), budget))
    alpha = solve_augmented_knapsack(np.ones_like(b), b * b, budget)
    np.testing.assert_allclose(kept, (1 - alpha) * b, rtol=1e-9, atol=1e-9 * np.abs(b).max())


def test_shrink_evenly__meets_the_conditions_of_theorem_2_where_the_greedy_does_not():
    rng = np.random.default_rng(2)
    b = rng.exponential(size=(400, 4)) * rng.choice([-1, 1], (400, 4))
    budget = rng.uniform(0.05, 0.9, 400) * (b * b).sum(axis=1)
    best = 1 - shrink_evenly(b, budget) / b
    expected = [share_evenly(np.abs(row), part) for row, part in zip(b, budget, strict=True)]
    np.testing.assert_allclose(best, expected, atol=1e-9)
    greedy = 1 - shrink_coordinates(b, budget) / b
    assert (best.sum(axis=1) >= greedy.sum(axis=1) - 1e-12).all()
    assert (best.sum(axis=1) > greedy.sum(axis=1) + 1e-3).mean() > 0.3
    assert ((greedy**2).sum(axis=1) >= (best**2).sum(axis=1) - 1e-12).all()


@pytest.mark.parametrize("rule", RULES)
def test_shrink_by_rule__keeps_extremes_in_range(rule):
    b = np.array([[1e-200, 0.0, 1e150], [0.0, 0.0, 0.0], [1e-160, 1e-160, 1e-160]])
    kept = shrink_by_rule(b, np.array([1.0, 1.0, 0.0]), rule)
    np.testing.assert_allclose(kept[1], 0)
    np.testing.assert_allclose(kept[2], b[2])
    assert np.isfinite(kept).all()
