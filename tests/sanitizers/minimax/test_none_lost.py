"""No fit is lost: widths whose start has to be filled up, inner problems that do not settle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privpipe import MinimaxOptions, Records, fit_minimax_filter
from privpipe.errors import ConvergenceError, OptionError
from privpipe.numerics.minimax.objective import MinimaxObjective
from privpipe.sanitizers.minimax.baselines import PrivacyLdsOptions, fit_privacy_lds_filter
from tests.sanitizers.minimax.small_adversaries import make_small

pytestmark = pytest.mark.filterwarnings("ignore:n_filtered is")  # wider than the targets need


def draw(seed: int = 0, n: int = 200, width: int = 5) -> Records:
    """Three classes of each kind, along a direction each."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, width))
    noise = 0.5 * random.normal(size=(2, n, 3))
    wanted = np.argmax(x[:, :1] @ random.normal(size=(1, 3)) + noise[0], axis=1)
    hidden = np.argmax(x[:, -1:] @ random.normal(size=(1, 3)) + noise[1], axis=1)
    return Records(x, desired=wanted.astype(str), confidential=hidden.astype(str))


@pytest.mark.parametrize("start", ["privacy_lds", "least_squares", "rand"])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
def test_fit__begins_at_every_width(start: Any, width: int) -> None:
    """With more outputs than directions avoid the hidden variable the start holds others, too."""
    options = MinimaxOptions(n_filtered=width, start=start, max_iterations=3)
    fitted = fit_minimax_filter(draw(), options)
    assert np.linalg.matrix_rank(fitted.weights) == width
    assert np.isfinite(fitted.history).all()


def test_closed_form__whose_directions_are_final_still_refuses() -> None:
    with pytest.raises(OptionError, match="directions avoid the confidential variables"):
        fit_privacy_lds_filter(draw(), PrivacyLdsOptions(n_filtered=5))


def test_fit__of_a_few_records_many_times_settles() -> None:
    """A head near enough was moved, refused and moved again for 200 rounds."""
    random = np.random.default_rng(294)
    n, width = int(random.choice([40, 100, 300, 1000])), int(random.choice([2, 5, 12, 40]))
    k = int(random.choice([2, 3, 6]))
    x = random.normal(size=(n, width))
    assert random.choice(["normal", "cauchy", "sep", "dup", "scaled", "int"]) == "dup"
    x = x[random.integers(0, max(3, n // 20), n)]
    noisy = [
        np.argmax(
            x[:, at : at + 1 or None] @ random.normal(size=(1, count))
            + 0.5 * random.normal(size=(n, count)),
            axis=1,
        )
        for at, count in ((0, k), (-1, 3))
    ]
    options = MinimaxOptions(max_iterations=15, regularisation=1e-6, n_filtered=2, tradeoff=100.0)
    records = Records(x, desired=noisy[0].astype(str), confidential=noisy[1].astype(str))
    assert fit_minimax_filter(records, options).stopped != "inner"


@pytest.mark.parametrize("adversary", ["logistic", "kernel"])
@pytest.mark.parametrize("solver", ["quasi_newton", "alternating"])
def test_fit__ends_at_its_last_iterate_where_an_inner_problem_is_not_solved(
    monkeypatch: pytest.MonkeyPatch, adversary: Any, solver: Any
) -> None:
    if (adversary, solver) == ("kernel", "alternating"):
        pytest.skip("the paper's steps know one adversary")
    make_small(monkeypatch)
    evaluate, calls = MinimaxObjective.__call__, [0]

    def fail(self: MinimaxObjective, parameters: Any) -> Any:
        calls[0] += 1
        if calls[0] > 8:
            raise ConvergenceError("It is not solved.", remedy="None.")
        return evaluate(self, parameters)

    monkeypatch.setattr(MinimaxObjective, "__call__", fail)
    options = MinimaxOptions(
        n_filtered=2, max_iterations=40, adversary=adversary, solver=solver, tolerance=0.0
    )
    fitted = fit_minimax_filter(draw(), options)
    assert fitted.stopped == "inner"
    phi = fitted.history[:, fitted.history_columns.index("phi")]
    assert 1 < len(phi) <= 9
    assert np.isfinite(fitted.weights).all()


def test_fit__whose_very_start_is_not_solved_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: MinimaxObjective, parameters: Any) -> Any:
        raise ConvergenceError("It is not solved.", remedy="None.")

    monkeypatch.setattr(MinimaxObjective, "__call__", fail)
    with pytest.raises(ConvergenceError, match="not solved"):
        fit_minimax_filter(draw(), MinimaxOptions(max_iterations=3))
