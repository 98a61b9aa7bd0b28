"""What Hamm says of the marks of figures 4 and 6, held against accuracies that are made up."""

from __future__ import annotations

import pytest

from flows.reproduce.hamm import compare_statements
from flows.reproduce.hamm_accuracies import Accuracies, FilterResult

MARKS = {"pca": (0.9, 0.4), "ppls": (0.93, 0.2), "minimax_1": (0.97, 0.08), "rand": (0.7, 0.3)}


def make(marks: dict[str, tuple[float, float]], name: str = "hamm-har") -> Accuracies:
    """Two trials, a hundredth to both sides, at width 10; minimax_2 has a width of its own."""
    adversary = "papers" if name == "hamm-genki" else "logistic"
    results = []
    for who, pair in marks.items():
        for task, mean in zip(("target", "private"), pair, strict=True):
            trials = (mean - 0.01, mean + 0.01)
            width = 20 if who == "minimax_2" else 10
            results.append(FilterResult(who, width, task, adversary, trials, mean, mean, mean))
    return Accuracies(name, tuple(results), (), (0.2, 0.067), 2, 1000)


def say(found: Accuracies) -> dict[str, tuple[float, str]]:
    return {cell.cell: (cell.ours, cell.verdict) for cell in compare_statements(found)}


def test_compare_statements__measures_from_the_next_best_of_the_same_width() -> None:
    found = say(make(MARKS))
    compromise = found["minimax_1 10 best compromise, less the next one logistic"]
    assert compromise == (pytest.approx(0.97 - 0.08 - (0.93 - 0.2)), "better")
    assert found["minimax_1 10 best privacy, less the next one logistic"][0] == pytest.approx(0.12)
    assert found["minimax_1 10 best utility, less the next one logistic"][0] == pytest.approx(0.04)
    chance = found["minimax_1 largest private accuracy above guessing"]
    assert chance == (pytest.approx(0.013), "agrees")


def test_compare_statements__a_filter_that_is_not_the_best_differs() -> None:
    found = say(make(MARKS | {"minimax_1": (0.9, 0.25)}))
    assert {verdict for _, verdict in found.values()} == {"differs"}
    # A filter whose width is its own stands beside those of every width.
    found = say(make(MARKS | {"minimax_2": (0.99, 0.01)}))
    assert found["minimax_1 10 best compromise, less the next one logistic"][1] == "differs"


def test_compare_statements__the_most_useful_filter_of_faces_is_the_neural_one() -> None:
    found = say(make(MARKS | {"minimax_2": (0.98, 0.09)}, "hamm-genki"))
    assert found["minimax_2 10 best utility, less the next one papers"] == (
        pytest.approx(0.01),
        "agrees",
    )
    assert "minimax_1 10 best utility, less the next one papers" not in found


def test_compare_statements__says_nothing_of_filters_that_did_not_run() -> None:
    assert say(make({"pca": (0.9, 0.4), "rand": (0.7, 0.3)})) == {}
