"""hamm-noisy: what is chosen is chosen on training records, and what is compared is paired."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from flows.reproduce import hamm_noisy, noisy_trials
from flows.reproduce.hamm_accuracies import Trial
from flows.reproduce.hamm_noisy import reproduce_noisy
from flows.reproduce.noisy_trials import Choice, judge_noisy, list_choices, score_choice
from flows.reproduce.paper_adversaries import ADVERSARIES
from flows.reproduce.result import Reproduction
from flows.reproduce.steps import Steps, follow_steps


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked does not depend on how well a filter is trained."""
    monkeypatch.setattr(noisy_trials, "ITERATIONS", 2)
    monkeypatch.setattr(noisy_trials, "CHOOSING_DRAWS", 1)
    monkeypatch.setitem(ADVERSARIES, "logistic", lambda *_: [LogisticRegression()])


def make_trial(seed: int, n: int = 240) -> Trial:
    """One direction of small variance is wanted, one of large variance is to be hidden."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 6)) * np.array([1.0, 4.0, 2.0, 2.0, 2.0, 2.0])
    wanted, hidden = (x[:, 0] > 0).astype(int), (x[:, 1] > 0).astype(int)
    cut = n // 2

    def deal(values: Any) -> tuple[Any, Any]:
        return values[:cut], values[cut:]

    return Trial(deal(x), deal(wanted), deal(hidden))


def test_score_choice__reads_no_test_record() -> None:
    """Test records of another world change no score; others set aside do."""
    trial = make_trial(0)
    other = make_trial(1)
    mixed = Trial(
        (trial.features[0], other.features[1] * 100),
        (trial.target[0], 1 - other.target[1]),
        (trial.private[0], other.private[1]),
    )
    for choice in list_choices("minimax", "pre")[::4]:
        scores = [score_choice(t, "minimax", "pre", 2, choice, 0) for t in (trial, mixed)]
        assert scores[0] == scores[1]
    again = replace(trial, target=(1 - trial.target[0][::-1], trial.target[1]))
    assert score_choice(again, "minimax", "pre", 2, choice, 0) != scores[0]


def test_list_choices__only_what_the_paper_leaves_open() -> None:
    assert list_choices("pca", "pre") == (Choice(),)
    assert len(list_choices("minimax", "pre")) == 6
    assert all(choice.orthonormal for choice in list_choices("minimax", "post"))


def test_judge_noisy__own_scales_give_the_wanted_direction_less_noise() -> None:
    """Why there is a choice: made orthonormal, every direction has the same noise to bear."""
    trial = make_trial(3, 800)
    found = {}
    for orthonormal in (True, False):
        choice = Choice("least_squares", orthonormal)
        answers = judge_noisy(trial, "minimax", "pre", 4, choice, 0.05, 4, 0, others=())
        found[orthonormal] = np.mean([value for task, _, value in answers if task == "target"])
    assert found[False] > found[True] + 0.05


@pytest.fixture
def reproduce(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(hamm_noisy, "_split_genki", lambda _, seed: make_trial(seed))

    def run(**options: Any) -> Reproduction:
        return reproduce_noisy(
            Path(), 2, draws=2, widths=(2,), inverse=(0.0, 1e-2, 0.1), har=False, **options
        )

    return run


def test_reproduce__counts_its_steps_pairs_its_splits_and_reports_every_choice(
    reproduce: Any, tmp_path: Path
) -> None:
    said: list[str] = []
    steps = Steps(tmp_path / "steps", said.append)
    (tmp_path / "steps").mkdir()
    with follow_steps(steps):
        found = reproduce()
    assert steps.n_done == steps.n_expected
    cells = {cell.cell: cell for cell in found.cells}
    pre, post = (cells[f"genki minimax_{o} 2 1/eps 0.01 target papers"] for o in ("pre", "post"))
    gain = cells["genki: target accuracy of minimax 2, pre less post, 1/eps 0.01"]
    assert gain.n_runs == 2
    assert gain.ours == pytest.approx(pre.ours - post.ours)
    assert gain.lower < gain.ours < gain.upper
    assert "genki minimax_privunit 2 1/eps 0.1 target papers" in cells
    assert "genki minimax_privunit 2 1/eps 0.01 target papers" not in cells  # epsilon 100
    tried = [name for name in cells if "0.01 target papers [" in name]
    assert len(tried) == 6 + 3
    assert [note for note in found.notes if note.startswith("Chosen, genki minimax_pre 2")]


@pytest.mark.slow
def test_reproduce__goes_on_where_it_was(
    reproduce: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted one has the table of an undisturbed one, and does no step again."""
    whole = reproduce()
    folder = tmp_path / "steps"
    folder.mkdir()
    judge, left = hamm_noisy.judge_noisy, [7]

    def die(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return judge(*given, **named)

    monkeypatch.setattr(hamm_noisy, "judge_noisy", die)
    with pytest.raises(KeyboardInterrupt), follow_steps(Steps(folder)):
        reproduce()
    n_kept = len(list(folder.glob("*.json")))
    assert n_kept >= 7
    left[0] = 10**6
    steps = Steps(folder)
    with follow_steps(steps):
        found = reproduce()
    assert steps.n_found == n_kept
    assert found.to_json() == whole.to_json()
