"""Prices against dense arithmetic: every distance, ties, blocks, ordered alphabets, repair."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privpipe.numerics.mapping.problem.ordered_pricing import bin_posteriors, price_ordered
from privpipe.numerics.mapping.problem.pair_pricing import (
    PricingQuestion,
    column_groups,
    measure_bound,
    merge_prices,
    price_block,
    price_in_memory,
)
from privpipe.numerics.mapping.problem.programme import (
    CodeDistance,
    Distance,
    Duals,
    MatrixDistance,
    Pairs,
    Programme,
    log_ratios,
    make_feasible,
    measure_information,
    normalise_potentials,
)
from privpipe.numerics.mapping.search.column_generation import repair_potentials
from privpipe.numerics.mapping.search.frank_wolfe import solve_coupled_choice
from privpipe.protocols import FloatArray


def make_problem(kind: str, n: int = 70, n_private: int = 2, seed: int = 0) -> Programme:
    rng = np.random.default_rng(seed)
    codes = np.unique(rng.integers(0, 6, (4 * n, 3)), axis=0)
    codes = rng.permutation(codes)[:n].astype(float)
    distance: Distance
    if kind in ("hamming", "squared", "absolute"):
        distance = CodeDistance(kind, codes, codes)  # type: ignore[arg-type]
    elif kind == "wide":
        codes[:, 0] *= 1000  # too wide for a byte
        distance = CodeDistance("hamming", codes, codes)
    else:
        distance = MatrixDistance(np.abs(codes[:, None] - codes[None]).max(-1))
    mass = rng.dirichlet(np.ones(n))
    posterior = rng.dirichlet(np.full(n_private, 0.3), n)
    return Programme(mass, posterior, distance, 0.5, np.arange(n))


def random_duals(problem: Programme, seed: int) -> Duals:
    raw = np.random.default_rng(seed).normal(size=(problem.n_symbols, problem.n_private))
    return Duals(normalise_potentials(raw, problem.prior), 0.37)


def dense_costs(problem: Programme, duals: Duals) -> FloatArray:
    block = problem.distance.block(0, problem.n_columns)
    return np.asarray(problem.posterior @ duals.potentials.T + duals.multiplier * block)


@pytest.mark.parametrize("n_private", [2, 3])
@pytest.mark.parametrize("kind", ["hamming", "squared", "absolute", "wide", "matrix"])
def test_price_in_memory__is_the_dense_minimum(kind: str, n_private: int) -> None:
    problem = make_problem(kind, n_private=n_private)
    duals = random_duals(problem, 1)
    costs = dense_costs(problem, duals)
    prices = price_in_memory(problem, PricingQuestion(duals, top=5, partners=True))
    np.testing.assert_allclose(prices.values, costs.min(axis=1), rtol=0, atol=1e-13)
    np.testing.assert_array_equal(prices.best, np.argsort(costs, axis=1, kind="stable")[:, :5])
    groups = column_groups(problem)
    slack = costs - prices.values[:, None]
    for group in range(n_private):
        inside = np.flatnonzero(groups == group)
        np.testing.assert_allclose(prices.slack[:, group], slack[inside].min(axis=0), atol=1e-13)
        partner = prices.partner[:, group]
        np.testing.assert_allclose(
            slack[partner, np.arange(problem.n_symbols)], prices.slack[:, group], atol=1e-13
        )


def test_price_in_memory__takes_the_first_of_equals() -> None:
    problem = make_problem("hamming")
    duals = Duals(np.zeros((problem.n_symbols, 2)), 0.0)
    prices = price_in_memory(problem, PricingQuestion(duals, top=3))
    assert (prices.best == np.arange(3)).all()


@settings(max_examples=30, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 69), max_size=5),
    kind=st.sampled_from(["hamming", "squared", "wide", "matrix"]),
)
def test_merge_prices__any_partition_gives_the_same_bits(cuts: list[int], kind: str) -> None:
    problem = make_problem(kind)
    question = PricingQuestion(random_duals(problem, 2), 3, True)
    whole = price_in_memory(problem, question)
    edges = sorted({0, problem.n_columns, *cuts})
    groups = column_groups(problem)
    parts = []
    for a, b in pairwise(edges):
        columns = np.arange(a, b)
        part = Programme(
            problem.mass[columns],
            problem.posterior[columns],
            problem.distance.columns_of(columns),
            problem.budget,
            problem.stay[columns],
        )
        parts.append(price_block(part, question, 0, b - a, groups[columns]))
    merged = merge_prices(parts, edges[:-1])
    for name in ("values", "best", "slack", "partner"):
        assert (getattr(merged, name) == getattr(whole, name)).all(), name


def make_line(kind: str, mixed: bool, n: int = 300) -> Programme:
    rng = np.random.default_rng(3)
    x = np.cumsum(rng.integers(1, 5, n)).astype(float)[:, None]
    value = rng.uniform(size=n) if mixed else (rng.uniform(size=n) > 0.5).astype(float)
    posterior = np.stack([1 - value, value], axis=1)
    distance = CodeDistance(kind, x, x)  # type: ignore[arg-type]
    return Programme(np.full(n, 1 / n), posterior, distance, 10.0, np.arange(n))


@pytest.mark.parametrize("kind", ["squared", "absolute"])
def test_price_line__is_exact_for_few_posteriors(kind: str) -> None:
    problem = make_line(kind, mixed=False)
    question = PricingQuestion(replace(random_duals(problem, 4), multiplier=0.003), 1, True)
    bins = bin_posteriors(problem.posterior, 8)
    assert bins is not None
    line, dense = price_ordered(problem, question, bins), price_in_memory(problem, question)
    np.testing.assert_allclose(line.values, dense.values, atol=1e-12)
    costs = dense_costs(problem, question.duals)
    named = np.take_along_axis(costs, line.best, axis=1).min(axis=1)
    np.testing.assert_allclose(named, dense.values, atol=1e-12)
    np.testing.assert_allclose(line.slack.min(axis=1), dense.slack.min(axis=1), atol=1e-12)


@pytest.mark.parametrize("kind", ["squared", "absolute"])
@pytest.mark.parametrize(("n", "n_bins", "multiplier"), [(300, 4, 0.003), (3000, 16, 1e-6)])
def test_price_line__is_exact_for_many_posteriors(
    kind: str, n: int, n_bins: int, multiplier: float
) -> None:
    problem = make_line(kind, mixed=True, n=n)
    rough = random_duals(problem, 5)
    wave = np.sin(np.arange(n)[:, None] / n * np.array([9.0, 23.0]))
    smooth = replace(rough, potentials=normalise_potentials(wave, problem.prior))
    bins = bin_posteriors(problem.posterior, n_bins)
    assert bins is not None
    for duals in (rough, smooth):
        question = PricingQuestion(replace(duals, multiplier=multiplier), 1)
        dense, line = price_in_memory(problem, question), price_ordered(problem, question, bins)
        np.testing.assert_allclose(line.values, dense.values, rtol=0, atol=1e-13)
        costs = dense_costs(problem, question.duals)
        named = np.take_along_axis(costs, line.best, axis=1).min(axis=1)
        np.testing.assert_allclose(named, dense.values, rtol=0, atol=1e-13)


def test_price_line__without_a_multiplier_prices_the_least_potential() -> None:
    problem = make_line("squared", mixed=False)
    duals = replace(random_duals(problem, 6), multiplier=0.0)
    bins = bin_posteriors(problem.posterior, 8)
    assert bins is not None
    line = price_ordered(problem, PricingQuestion(duals), bins)
    np.testing.assert_allclose(line.values, price_in_memory(problem, PricingQuestion(duals)).values)


def test_repair_potentials__mends_a_spoilt_bound() -> None:
    value = (np.arange(60) >= 30).astype(float)
    problem = replace(
        make_line("squared", mixed=False, n=60),
        posterior=np.stack([1 - value, value], axis=1),
        budget=0.01,
    )
    # Staying put is nearly optimal, but its floored log-ratios undercut columns far away.
    own = np.clip(problem.posterior, 1e-9, 1 - 1e-9)
    duals = Duals(normalise_potentials(np.log(own / problem.prior), problem.prior), 0.05)
    levels = np.einsum("ja,ja->j", problem.posterior, duals.potentials)
    prices = price_in_memory(problem, PricingQuestion(duals, 1, True, levels))
    spoilt = float(problem.mass @ prices.values) - duals.multiplier * problem.budget
    repaired = repair_potentials(problem, prices, duals)
    again = price_in_memory(problem, PricingQuestion(repaired))
    assert spoilt < 0
    assert measure_bound(problem, again, repaired) > 0.4
    np.testing.assert_allclose(np.exp(repaired.potentials) @ problem.prior, 1.0, rtol=1e-12)


@pytest.mark.parametrize("kind", ["hamming", "squared", "absolute", "matrix"])
def test_measure_means__is_the_mean(kind: str) -> None:
    problem = make_problem(kind)
    dense = problem.mass @ problem.distance.block(0, problem.n_columns)
    np.testing.assert_allclose(problem.distance.measure_means(problem.mass), dense, atol=1e-12)


def test_log_ratios__are_the_gradient() -> None:
    rng = np.random.default_rng(7)
    masses, change = rng.dirichlet(np.ones(12)).reshape(4, 3), rng.normal(size=(4, 3))
    change -= change.mean(axis=0)  # the prior stays
    step = 1e-6
    up, down = masses + step * change, masses - step * change
    slope = (measure_information(up) - measure_information(down)) / (2 * step)
    assert float((log_ratios(masses) * change).sum()) == pytest.approx(slope, rel=1e-6)


def test_make_feasible__wins_the_budget_back_from_the_identity() -> None:
    problem = make_problem("hamming", n=20)
    pairs = Pairs.of(problem, np.tile(np.arange(20), 20), np.repeat(np.arange(20), 20))
    plan = make_feasible(problem, pairs, np.full(400, 1 / 400))
    assert plan.distortion <= problem.budget
    assert plan.distortion == pytest.approx(problem.budget)
    np.testing.assert_allclose(np.bincount(plan.columns, plan.weights), problem.mass, rtol=1e-13)


@pytest.mark.parametrize("seed", range(5))
def test_solve_coupled_choice__is_the_linear_programme(seed: int) -> None:
    from scipy.optimize import linprog

    problem = replace(make_problem("squared", n=25, seed=seed), budget=1.0)
    pairs = Pairs.of(problem, np.tile(np.arange(25), 25), np.repeat(np.arange(25), 25))
    cost = np.random.default_rng(seed).normal(size=len(pairs))
    solution = solve_coupled_choice(pairs, cost, problem.mass, 1.0)
    equal = np.zeros((25, len(pairs)))
    equal[pairs.columns, np.arange(len(pairs))] = 1.0
    exact = linprog(
        cost, A_ub=pairs.distances[None], b_ub=[1.0], A_eq=equal, b_eq=problem.mass, method="highs"
    )
    assert solution.weights @ cost == pytest.approx(exact.fun, abs=1e-12)
    assert pairs.distances @ solution.weights <= 1.0 + 1e-12
    assert float(problem.mass @ solution.levels) - solution.multiplier == pytest.approx(
        exact.fun, abs=1e-12
    )
