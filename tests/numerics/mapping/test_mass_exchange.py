"""Exchange of masses along a line: what it reaches, what it keeps, when it is called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privpipe.numerics.mapping.problem.programme import Programme
from privpipe.numerics.mapping.problem.search_progress import Search
from privpipe.numerics.mapping.search import coarse_to_fine_search, full_alphabet_search
from privpipe.numerics.mapping.search.mass_exchange import measure_noise
from privpipe.sanitizers.mapping.alphabet import prepare_alphabet
from tests.bench.bench_mapping_scale import line_law, noisy_line, smooth_line


def make_problem(problem: Any) -> Programme:
    joint, codes, kind, budget, *_ = problem
    return prepare_alphabet(joint, codes, kind, budget).problem


@pytest.mark.parametrize("kind", ["absolute", "squared"])
def test_exchange_masses__wins_back_what_cells_lose(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coarse_to_fine_search, "_MANY_SYMBOLS", 1)
    monkeypatch.setattr(coarse_to_fine_search, "_NOISY", (32, 24))
    monkeypatch.setattr(coarse_to_fine_search, "_NOISY_THICK", (32, 24))
    monkeypatch.setattr(full_alphabet_search, "is_thin", lambda _: False)
    joint, codes, _, budget, *_ = noisy_line(2_000, 1e-3, 1.0)
    spend = budget if kind == "absolute" else budget**2
    problem = prepare_alphabet(joint, codes, kind, spend).problem
    seen: dict[str, list[float]] = {"cells": [], "exchange": []}

    def watch(progress: Search) -> None:
        stage = progress.rounds[-1].stage
        if stage not in seen or len(seen["exchange"]) == 6:
            raise StopIteration
        seen[stage].append(progress.reached)
        plan = progress.plan
        assert plan.distortion <= problem.budget * (1 + 1e-12)
        sums = np.bincount(plan.columns, plan.weights, problem.n_columns)
        np.testing.assert_allclose(sums, problem.mass, rtol=1e-12)

    with pytest.raises(StopIteration):
        coarse_to_fine_search.search_ordered(Search(problem, 1e-6, on_round=watch))
    assert seen["exchange"][-1] <= 0.35 * seen["cells"][-1]


def test_exchange_masses__ends_with_the_best_mapping_of_its_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With many symbols near a price sweeps stalled far from what pairs allow."""
    monkeypatch.setattr(coarse_to_fine_search, "_MANY_SYMBOLS", 1)
    monkeypatch.setattr(coarse_to_fine_search, "_NOISY", (32, 24))
    monkeypatch.setattr(coarse_to_fine_search, "_NOISY_THICK", (64, 24))
    monkeypatch.setattr(full_alphabet_search, "is_thin", lambda _: False)
    problem = prepare_alphabet(*line_law("steps", 1_500, 31), "absolute", 75.0).problem
    seen: list[tuple[str, float]] = []

    def watch(progress: Search) -> None:
        seen.append((progress.rounds[-1].stage, progress.reached))
        assert progress.plan.distortion <= problem.budget * (1 + 1e-12)
        if seen[-1][0] == "interior":
            raise StopIteration

    with pytest.raises(StopIteration):
        coarse_to_fine_search.search_ordered(Search(problem, 1e-6, on_round=watch))
    (before, stalled), (_, reached) = seen[-2:]
    assert before == "exchange"
    assert reached <= 0.3 * stalled


def test_search_ordered__exchanges_at_finer_cells_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise raises the bound of finer cells; their mapping alone, carried back, won nothing."""
    monkeypatch.setattr(coarse_to_fine_search, "_MANY_SYMBOLS", 1)
    monkeypatch.setattr(full_alphabet_search, "is_thin", lambda _: False)
    problem = prepare_alphabet(*line_law("noise", 1_500, 31), "absolute", 75.0).problem
    stages: list[str] = []

    def watch(progress: Search) -> None:
        stages.append(progress.rounds[-1].stage)
        if stages.count("cells") == 3 and stages[-1] != "cells":
            raise StopIteration

    with pytest.raises(StopIteration):
        coarse_to_fine_search.search_ordered(Search(problem, 1e-9, on_round=watch))
    assert stages[-1] == "exchange"


def test_measure_noise__is_told_from_jumps() -> None:
    assert measure_noise(make_problem(smooth_line(4_096, 1e-6, 1.0))) <= 1e-6
    assert measure_noise(make_problem(noisy_line(4_096, 1e-4, 1.0))) >= 3e-3
