"""Laplace noise at equal utility: its scale, its law, and what it does not promise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from flows.reproduce.laplace import LaplaceMechanism
from privpipe.errors import InputError, OptionError
from privpipe.numerics.random.streams import KeyedStream


def test_apply__costs_the_budget_on_average():
    predictor = np.array([[3.0, 0.0], [4.0, 1.0], [0.0, -2.0]])
    mechanism = LaplaceMechanism.from_predictor(predictor, utility_budget=0.3)
    x = np.tile([1.0, -5.0, 100.0], (40000, 1))
    stream = KeyedStream(bytes(32), partition="a", first_record=0, n_records=len(x))
    noise = mechanism.apply(x, stream) - x
    loss = ((noise @ predictor) ** 2).sum(axis=1)
    # Standard error of the mean, four of them: one false alarm in 16,000.
    assert abs(loss.mean() - 0.3) < 4 * loss.std() / np.sqrt(len(x))
    # One false alarm in 10,000 by the Kolmogorov-Smirnov test.
    assert stats.kstest(noise.ravel() / mechanism.scale, "laplace").pvalue > 1e-4


def test_guarantee__promises_no_privacy():
    promise = LaplaceMechanism.from_predictor(np.ones(3), utility_budget=0.3).guarantee
    assert promise.scope == "in expectation"
    assert "No differential privacy" in promise.assumptions


def test_apply__needs_a_stream_of_the_right_length():
    mechanism = LaplaceMechanism.from_predictor(np.ones(3), utility_budget=0.3)
    stream = KeyedStream(bytes(32), partition="a", first_record=0, n_records=4)
    with pytest.raises(OptionError, match="stream of 5 records"):
        mechanism.apply(np.ones((5, 3)), stream)


@pytest.mark.parametrize(
    ("predictor", "budget", "kind"),
    [(np.zeros(3), 0.1, InputError), (np.ones(3), -1, OptionError), ([np.nan], 0.1, InputError)],
)
def test_from_predictor__refuses_bad_input(predictor, budget, kind):
    with pytest.raises(kind):
        LaplaceMechanism.from_predictor(predictor, utility_budget=budget)
