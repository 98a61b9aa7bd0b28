"""Ascent of the dual of a full ordered alphabet: what a round keeps, and what comes of many."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.numerics.mapping.problem.ordered_pricing import list_near
from privpipe.numerics.mapping.problem.pair_pricing import PricingQuestion, price_in_memory
from privpipe.numerics.mapping.problem.programme import Programme, identity_duals
from privpipe.numerics.mapping.problem.search_progress import Search
from privpipe.numerics.mapping.problem.smoothed_dual import logits_of
from privpipe.numerics.mapping.search import coarse_to_fine_search
from privpipe.numerics.mapping.search.dual_ascent import REACH, DualAscent
from privpipe.numerics.mapping.search.full_alphabet_search import is_thin
from privpipe.sanitizers.mapping.alphabet import prepare_alphabet
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from tests.bench.bench_mapping_scale import line_law


def make_problem(law: str, n: int, kind: str, budget: float) -> Programme:
    return prepare_alphabet(*line_law(law, n, 5), kind, budget).problem  # type: ignore[arg-type]


def start_ascent(problem: Programme, multiplier: float = 3.0) -> DualAscent:
    duals = identity_duals(problem)
    progress = Search(problem, 1e-4)
    ascent = DualAscent(progress, duals, 10**6)
    ascent.restart(np.clip(logits_of(duals.potentials, problem.prior)[:, 0], -4, 4), multiplier)
    return ascent


@pytest.mark.parametrize("law", ["gamma", "noise", "waves"])
@pytest.mark.parametrize("kind", ["absolute", "squared"])
def test_climb__never_falls_by_more_than_the_temperature(law: str, kind: str) -> None:
    ascent = start_ascent(make_problem(law, 1_500, kind, 3.7))
    first, worst = ascent.bound, 0.0
    for tau in (2e-3, 1e-3, 5e-4, 2e-4):
        for _ in range(5):
            before, pairs = ascent.bound, ascent.list_pairs(tau)
            assert pairs is not None
            ascent.climb(pairs, tau)
            worst = max(worst, (before - ascent.bound) / tau)
        ascent.cool()
    assert worst <= 1.0
    assert ascent.bound > first + 0.01
    exact = price_in_memory(ascent.progress.problem, PricingQuestion(ascent.duals)).values
    np.testing.assert_allclose(ascent.values, exact, rtol=1e-15, atol=1e-15)


def test_list_near__has_every_pair_that_is_near_and_its_own() -> None:
    """Against all costs; runs of symbols that are passed over hold none."""
    problem = make_problem("noise", 1_500, "absolute", 3.7)
    ascent = start_ascent(problem)
    near, none = ascent.list_pairs(1e-3), list_near(problem, ascent.duals, ascent.values, 0.1, 5)
    assert near is not None
    assert none is None
    columns, symbols = np.arange(1_500), np.arange(1_500)
    cost = problem.posterior @ ascent.duals.potentials.T
    for i in symbols:
        cost[:, i] += ascent.duals.multiplier * problem.distance.pairs(np.full(1_500, i), columns)
    listed = np.zeros(cost.shape, bool)
    listed[near.columns, near.symbols] = True
    edge = ascent.values[:, None] + REACH * 1e-3
    assert listed[cost < edge - 1e-9].all()
    assert not listed[(cost > edge + 1e-9) & ~np.eye(1_500, dtype=bool)].any()
    assert listed.diagonal().all()


@pytest.mark.parametrize(("seconds", "is_whole"), [(np.inf, True), (1e4, True), (5.0, False)])
def test_is_thin__a_limit_that_is_short_leaves_it_to_neighbours(
    seconds: float, is_whole: bool
) -> None:
    """The mapping comes last: 131,072 symbols ended at 2.9e-3 after half of 120 seconds."""
    progress = Search(make_problem("gamma", 1_500, "absolute", 3.7), 1e-4, seconds)
    assert is_thin(progress) == is_whole


@pytest.mark.parametrize(("law", "kind"), [("gamma", "absolute"), ("waves", "squared")])
@pytest.mark.parametrize("n", [600, pytest.param(1_200, marks=pytest.mark.slow)])
def test_search_ordered__full_alphabet_agrees_with_annealing(
    n: int, law: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certified by code of its own, and no bound above what another route reaches."""
    joint, codes = line_law(law, n, 6)
    monkeypatch.setattr(coarse_to_fine_search, "_MANY_SYMBOLS", 10**9)
    other = solve_privacy_mapping(joint, codes, kind, distortion_budget=3.7, gap=1e-4)  # type: ignore[arg-type]
    monkeypatch.setattr(coarse_to_fine_search, "_MANY_SYMBOLS", 1)
    stages: list[str] = []

    def watch(progress: Search) -> None:
        stages.append(progress.rounds[-1].stage)

    found = solve_privacy_mapping(
        joint,
        codes,
        kind,  # type: ignore[arg-type]
        distortion_budget=3.7,
        gap=1e-4,
        on_round=watch,
    )
    assert found.gap <= 1e-4
    assert found.lower_bound <= other.information
    assert other.lower_bound <= found.information
    # By squared distance neighbours come in between.
    assert [stage for stage in stages if stage != "exchange"] == ["cells", "cells", "interior"]
    assert ("exchange" in stages) == (kind == "squared")


@pytest.mark.slow
def test_solve__of_a_few_thousand_symbols_reaches_the_gap() -> None:
    """With neighbours alone 1e-3 was left after 40 processor seconds."""
    joint, codes = line_law("uniform", 4_096, 7)
    found = solve_privacy_mapping(joint, codes, "absolute", distortion_budget=200.0, gap=1e-4)
    assert found.gap <= 1e-4
    assert found.stopped == "gap reached"
