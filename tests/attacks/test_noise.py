"""Noise of equal utility: the loss of utility asked for is the one measured."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.attacks.threats.noise import (
    draw_noise_at_budget,
    draw_noise_at_score,
    measure_utility_cost,
)
from privpipe.errors import InputError, OptionError


def test_draw_noise_at_budget__costs_the_budget_and_no_more_in_the_mean() -> None:
    random = np.random.default_rng(0)
    raw, predictor = random.normal(size=(40_000, 5)), random.normal(size=(5, 2))
    noisy = draw_noise_at_budget(raw, predictor, 0.7)
    change = (((noisy - raw) @ predictor) ** 2).sum(axis=1)
    # Within four standard errors of the budget.
    assert abs(change.mean() - 0.7) < 4 * change.std() / 200
    assert measure_utility_cost(raw, noisy, predictor) == pytest.approx(change.mean())
    np.testing.assert_array_equal(draw_noise_at_budget(raw, predictor, 0.0), raw)


def test_draw_noise_at_budget__refuses() -> None:
    for budget in (-1.0, np.nan, np.inf):
        with pytest.raises(OptionError, match="budget is"):
            draw_noise_at_budget(np.zeros((3, 1)), np.ones((1, 1)), budget)
    with pytest.raises(InputError, match="predictor is zero"):
        draw_noise_at_budget(np.zeros((3, 1)), np.zeros((1, 1)), 1.0)


@pytest.mark.parametrize("n_classes", [2, None])
def test_draw_noise_at_score__reaches_the_score_asked_for(n_classes: int | None) -> None:
    random = np.random.default_rng(1)
    raw = random.normal(size=(6000, 4)) * [1, 10, 1, 1]
    number = raw @ [1.0, 0.1, 0, 0]
    desired = (number > 0).astype(float) if n_classes else number
    noisy = draw_noise_at_score(raw, desired, 0.75, n_classes=n_classes)
    fresh = slice(3000, None)
    design = np.column_stack([noisy, np.ones(len(noisy))])
    slope = np.linalg.lstsq(design[:3000], desired[:3000], rcond=None)[0]
    said = design[fresh] @ slope
    if n_classes:
        reached = np.mean((said > 0.5) == desired[fresh])
    else:
        reached = 1 - np.mean((said - number[fresh]) ** 2) / number[fresh].var()
    assert reached == pytest.approx(0.75, abs=0.04)
    # The same relative noise in every column.
    share = (noisy - raw).std(axis=0) / raw.std(axis=0)
    np.testing.assert_allclose(share, share[0], rtol=0.1)
