"""Two samples told apart: error rates in both directions, and models that know their records."""

from __future__ import annotations

import json

import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats.attack_table import Sample, run_by_name
from privpipe.attacks.threats.two_samples import compare_samples, measure_losses_of_model
from privpipe.errors import InputError

QUICK = AttackOptions(adversaries=("logistic",))


@pytest.mark.slow
def test_two_samples__alike_ones_are_seldom_told_apart() -> None:
    random = np.random.default_rng(0)
    found = [
        compare_samples(*random.normal(size=(2, 400, 3)), QUICK).strongest.advantage_lower > 0
        for _ in range(30)
    ]
    assert sum(found) <= 4


def test_two_samples__a_shift_is_found() -> None:
    random = np.random.default_rng(0)
    here, there = random.normal(size=(2, 1000, 3))
    found = compare_samples(here, there + np.array([0.8, 0, 0]), QUICK).strongest
    assert found.advantage_lower > 0.1


def test_two_samples__an_overfitted_model_tells_whom_it_learned_from() -> None:
    """As many features as records: residuals of members are next to nothing."""
    random = np.random.default_rng(0)
    n, d = 300, 250
    slope = random.normal(size=(d, 1))
    raw, labels = random.normal(size=(2 * n, d)), np.empty((2 * n, 1))
    labels[:] = raw @ slope + 10 * random.normal(size=(2 * n, 1))
    fitted = np.linalg.lstsq(raw[:n], labels[:n], rcond=None)[0]
    losses = measure_losses_of_model(raw, labels, fitted, raw[:, :2])
    assert losses.shape == (2 * n, 1)
    sample = Sample(learned=losses[:n], fresh=losses[n:])
    report = json.loads(run_by_name("training_membership", sample).to_json())
    assert report["strongest"]["advantage_lower"] > 0.3


def test_two_samples__measuring_itself_tells_no_side() -> None:
    """Residuals that were centred side by side told members by the other centre alone."""
    random = np.random.default_rng(3)
    raw = random.normal(size=(1800, 5))
    slope = np.array([[1.0], [0.5], [0], [0], [0]])
    labels = raw @ slope + 0.3 * random.normal(size=(1800, 1))
    released = (raw @ slope).round(2) * np.ones(5)
    table = np.hstack([measure_losses_of_model(raw, labels, slope, released), labels, released])
    options = AttackOptions(adversaries=("boosting",))
    assert compare_samples(table[:900], table[900:], options).strongest.advantage_lower < 0.05


def test_two_samples__too_few_records_are_refused() -> None:
    with pytest.raises(InputError, match="at least 50"):
        compare_samples(np.zeros((10, 2)), np.zeros((100, 2)))
