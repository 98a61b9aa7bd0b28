"""Ascent of the dual of a full ordered alphabet: what a round keeps, and what comes of many."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.numerics.mapping.problem.pair_pricing import PricingQuestion, price_in_memory
from privpipe.numerics.mapping.problem.programme import MappingProblem, identity_duals
from privpipe.numerics.mapping.problem.search_progress import SearchProgress
from privpipe.numerics.mapping.problem.smoothed_dual import logits_of
from privpipe.numerics.mapping.search import coarse_to_fine_search
from privpipe.sanitizers.mapping.alphabet import prepare_alphabet
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from tests.bench import dual_ascent
from tests.bench.ascent_search import searching_full
from tests.bench.bench_mapping_scale import line_law
from tests.bench.dual_ascent import DualAscent

pytestmark = pytest.mark.slow


def make_problem(law: str, n: int, kind: str, budget: float) -> MappingProblem:
    return prepare_alphabet(*line_law(law, n, 5), kind, budget).problem  # type: ignore[arg-type]


def start_ascent(problem: MappingProblem, multiplier: float = 3.0) -> DualAscent:
    duals = identity_duals(problem)
    progress = SearchProgress(problem, 1e-4)
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


def test_climb__ranges_are_blind_to_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sweeps a range, in whatever order: the same bits."""
    problem, found = make_problem("gamma", 1_500, "absolute", 3.7), []
    monkeypatch.setattr(dual_ascent, "_RANGE", 256)
    inner, seen = dual_ascent.sweep_range, []
    for order in (1, -1):

        def shuffled(task: object, starts: list[int], order: int = order) -> list[object]:
            seen.append(len(starts))
            return [inner(task, start) for start in starts[::order]][::order]  # type: ignore[arg-type]

        monkeypatch.setattr(dual_ascent, "sweep_ranges", shuffled)
        ascent = start_ascent(problem)
        for _ in range(3):
            pairs = ascent.list_pairs(1e-3)
            assert pairs is not None
            ascent.climb(pairs, 1e-3)
        found.append(ascent.logits)
    assert set(seen) == {6}
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("law", "kind"), [("gamma", "absolute"), ("waves", "squared")])
def test_search_ordered__full_alphabet_agrees_with_annealing(
    law: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certified by code of its own, and no bound above what another route reaches."""
    joint, codes = line_law(law, 1_200, 6)
    monkeypatch.setattr(coarse_to_fine_search, "_MANY_SYMBOLS", 10**9)
    other = solve_privacy_mapping(joint, codes, kind, distortion_budget=3.7, gap=1e-4)  # type: ignore[arg-type]
    monkeypatch.setattr(coarse_to_fine_search, "_MANY_SYMBOLS", 1)
    stages: list[str] = []

    def watch(progress: SearchProgress) -> None:
        stages.append(progress.rounds[-1].stage)

    with searching_full():
        found = solve_privacy_mapping(
            joint,
            codes,
            kind,
            distortion_budget=3.7,
            gap=1e-4,
            on_round=watch,  # type: ignore[arg-type]
        )
    assert found.gap <= 1e-4
    assert found.lower_bound <= other.information
    assert other.lower_bound <= found.information
    # By squared distance neighbours come in between.
    assert [stage for stage in stages if stage != "exchange"] == ["cells", "cells", "interior"]
    assert ("exchange" in stages) == (kind == "squared")
