"""Replies of a round of pricing: nothing is lost, and few bytes travel."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privpipe.cluster.passes.pricing_rounds import plan_columns
from privpipe.cluster.passes.replies import pack_prices, unpack_prices
from privpipe.numerics.mapping.pricing.pair_pricing import (
    Prices,
    Question,
    column_groups,
    merge_prices,
    price_block,
    price_in_memory,
)
from privpipe.numerics.mapping.problem.distortion import CodeDistance
from privpipe.numerics.mapping.problem.programme import Duals, MappingProblem
from privpipe.numerics.mapping.search.mapping_search import search_mapping
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
    question = Question(random_duals(problem, seed), top, partners, None, near)
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
    question = Question(duals, 6, True, levels)
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


def make_categorical(n: int, n_private: int) -> MappingProblem:
    """Profiles of six attributes with probabilities as uneven as counted ones."""
    rng = np.random.default_rng(3)
    codes = np.unique(rng.integers(0, 5, (3 * n, 6)), axis=0)
    codes = rng.permutation(codes)[:n].astype(np.float64)
    joint = rng.gamma(0.4, size=(n, n_private)) * rng.gamma(0.3, size=(n, 1)) + 1e-9
    mass = joint.sum(axis=1)
    distance = CodeDistance("hamming", codes, codes)
    return MappingProblem(mass / mass.sum(), joint / mass[:, None], distance, 0.3, np.arange(n))


def test_search__sends_few_bytes_a_round() -> None:
    """A whole search on 1,000 profiles; what each of its rounds would send, block by block."""
    problem = make_categorical(1000, 2)
    edges, groups = plan_columns(1000, 1000), column_groups(problem)
    packed: list[tuple[int, int, float]] = []

    def price(asked: MappingProblem, question: Question) -> Prices:
        parts = [price_block(asked, question, a, b, groups) for a, b in pairwise(edges)]
        replies = [pack_prices(part) for part in parts]
        packed.append((question.top, sum(reply.n_bytes for reply in replies), question.near))
        return merge_prices([unpack_prices(reply) for reply in replies], [0] * len(replies))

    progress, reason = search_mapping(problem, gap=1e-3, price=price)
    assert reason == "gap reached"
    assert isinstance(progress.duals, Duals)
    unit = 8 * problem.n_symbols * problem.n_private
    # Once the search has levels, what is far is not sent; at its start, everything is asked for.
    later = [size for _, size, near in packed if np.isfinite(near)]
    assert np.median(later) <= 3 * unit
    assert max(later) <= 5 * unit
    assert max(size for _, size, _ in packed) <= 9 * unit  # 20.5 units before they were packed
