"""Replies of a round of pricing: nothing is lost, and few bytes travel."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.pricing_rounds import (
    ClusterPricing,
    answer_round,
    pack_prices,
    plan_columns,
    unpack_prices,
)
from privpipe.numerics.mapping.mapping_search import search_mapping
from privpipe.numerics.mapping.problem.pair_pricing import (
    Prices,
    PricingQuestion,
    column_groups,
    price_block,
    price_in_memory,
    sum_prices,
)
from privpipe.numerics.mapping.problem.programme import CodeDistance, Programme
from privpipe.numerics.mapping.search.frank_wolfe import search_frank_wolfe
from tests.numerics.test_mapping_pricing import dense_costs, make_problem, random_duals


@given(
    n=st.integers(1, 40),
    top=st.integers(1, 5),
    partners=st.booleans(),
    near=st.sampled_from([0.0, 0.01, 0.3, np.inf]),
    seed=st.integers(0, 99),
)
@settings(deadline=None)  # the kernel is compiled once
def test_pack_prices__loses_nothing(
    n: int, top: int, partners: bool, near: float, seed: int
) -> None:
    problem = make_problem("hamming", max(n, 2), seed=seed)
    question = PricingQuestion(random_duals(problem, seed), top, partners, None, near)
    prices = price_in_memory(problem, question)
    found = unpack_prices(pack_prices(prices))
    for name in ("values", "best", "slack", "partner"):
        expected = getattr(prices, name)
        np.testing.assert_array_equal(getattr(found, name), expected)
        assert getattr(found, name).dtype == expected.dtype


@pytest.mark.parametrize("kind", ["hamming", "squared", "absolute", "wide", "matrix"])
def test_price_block__names_what_is_near_and_nothing_else(kind: str) -> None:
    problem = make_problem(kind)
    duals = random_duals(problem, 5)
    costs = dense_costs(problem, duals)
    levels = costs.min(axis=1) + 0.05
    question = PricingQuestion(duals, 6, True, levels)
    whole, near = price_in_memory(problem, question), 0.02
    cut = price_in_memory(problem, replace(question, near=near))
    np.testing.assert_array_equal(cut.values, whole.values)
    kept = whole.slack <= near
    np.testing.assert_array_equal(cut.slack[kept], whole.slack[kept])
    np.testing.assert_array_equal(cut.partner, np.where(kept, whole.partner, -1))
    rows = np.arange(problem.n_columns)[:, None]
    close = costs[rows, whole.best] - levels[:, None] <= near
    close[:, 0] = True
    np.testing.assert_array_equal(cut.best, np.where(close, whole.best, -1))
    assert 0 < (cut.best < 0).sum() < cut.best.size


def make_categorical(n: int, n_private: int) -> Programme:
    """Profiles of six attributes with probabilities as uneven as counted ones."""
    rng = np.random.default_rng(3)
    codes = np.unique(rng.integers(0, 5, (3 * n, 6)), axis=0)
    codes = rng.permutation(codes)[:n].astype(np.float64)
    joint = rng.gamma(0.4, size=(n, n_private)) * rng.gamma(0.3, size=(n, 1)) + 1e-9
    mass = joint.sum(axis=1)
    distance = CodeDistance("hamming", codes, codes)
    return Programme(mass / mass.sum(), joint / mass[:, None], distance, 0.3, np.arange(n))


@pytest.mark.slow
@pytest.mark.parametrize(("n", "n_private"), [(1000, 2), (250, 2), (600, 7)])
def test_search__sends_at_most_8_bytes_per_symbol_and_value_a_round(n: int, n_private: int) -> None:
    """A whole search by the rounds of a cluster, in this process: real answers, weighed."""
    problem = make_categorical(n, n_private)
    pricing = ClusterPricing(Executor(), place="cluster")
    sizes: list[int] = []

    def price(asked: Programme, question: PricingQuestion) -> Prices:
        before = pricing.n_bytes
        prices = pricing(asked, question)
        sizes.append(pricing.n_bytes - before)
        return prices

    there, reason = search_mapping(problem, gap=1e-3, price=price)
    here, _ = search_mapping(problem, gap=1e-3)
    assert reason == "gap reached"
    assert len(sizes) >= 7
    assert pricing.n_sent == 4 * len(sizes)
    assert max(sizes) <= 8 * n * n_private  # 68 when every block told all that it had found
    for name in ("symbols", "columns", "weights"):
        np.testing.assert_array_equal(getattr(there.plan, name), getattr(here.plan, name))
    np.testing.assert_array_equal(there.duals.potentials, here.duals.potentials)
    assert [r.lower_bound for r in there.rounds] == [r.lower_bound for r in here.rounds]


def test_frank_wolfe__sends_at_most_8_bytes_per_symbol_and_value_a_round() -> None:
    problem = make_categorical(300, 2)
    pricing = ClusterPricing(Executor(), place="cluster")
    sizes: list[int] = []

    def price(asked: Programme, question: PricingQuestion) -> Prices:
        before = pricing.n_bytes
        prices = pricing(asked, question)
        sizes.append(pricing.n_bytes - before)
        return prices

    there, _ = search_frank_wolfe(problem, n_steps=3, gap=1e-3, price=price)
    here, _ = search_frank_wolfe(problem, n_steps=3, gap=1e-3, price=price_in_memory)
    assert max(sizes) <= 8 * 300 * 2
    assert there.bound == here.bound
    np.testing.assert_array_equal(there.plan.weights, here.plan.weights)


@given(
    n=st.integers(2, 40),
    top=st.integers(1, 5),
    partners=st.booleans(),
    values=st.booleans(),
    shift=st.floats(-0.3, 0.3),
    seed=st.integers(0, 99),
)
@settings(deadline=None)  # the kernel is compiled once
def test_answer_round__holds_what_is_used(
    n: int, top: int, partners: bool, values: bool, shift: float, seed: int
) -> None:
    problem = make_problem("hamming", n, seed=seed)
    duals = random_duals(problem, seed)
    levels = price_in_memory(problem, PricingQuestion(duals)).values + shift
    question = PricingQuestion(duals, top, partners, levels, 0.2, values)
    edges, groups = plan_columns(n, n), column_groups(problem)
    parts = [price_block(problem, question, a, b, groups) for a, b in pairwise(edges)]
    answer = answer_round([pack_prices(part) for part in parts], problem.mass, question)
    found, whole = unpack_prices(answer), price_in_memory(problem, question)
    assert found.total == sum_prices(problem.mass, whole)
    np.testing.assert_array_equal(found.values, whole.values if values else [])
    if partners or values:
        np.testing.assert_array_equal(found.best, whole.best)
    near = whole.partner >= 0
    np.testing.assert_array_equal(found.partner, whole.partner)
    np.testing.assert_array_equal(found.slack, np.where(near, np.minimum(whole.slack, 0), np.inf))
