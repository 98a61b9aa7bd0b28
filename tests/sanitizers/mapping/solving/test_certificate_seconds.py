"""The time that a limit leaves to the certificate."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.numerics.mapping.problem.programme import Duals
from privpipe.sanitizers.mapping.alphabet import Alphabet, prepare_alphabet
from privpipe.sanitizers.mapping.solving.solve import forecast_certificate


def prepare(n_symbols: int, distortion: str) -> Alphabet:
    joint = np.random.default_rng(0).dirichlet(np.ones(2 * n_symbols)).reshape(2, n_symbols)
    return prepare_alphabet(joint, np.arange(n_symbols)[:, None], distortion, 0.1)


@pytest.mark.parametrize("distortion", ["hamming", "absolute"])
def test_forecast__leaves_the_search_half_of_a_limit_at_least(distortion: str) -> None:
    alphabet = prepare(300, distortion)
    duals = Duals(np.zeros((len(alphabet.order), 2)), 0.0)
    assert forecast_certificate(alphabet, duals, 1e-6) == 0.5e-6
    assert 0 < forecast_certificate(alphabet, duals, 1000.0) < 100.0


def test_forecast__takes_matrices_and_empty_symbols() -> None:
    joint = np.array([[0.4, 0.1, 0.0], [0.1, 0.4, 0.0]])
    distances = 1.0 - np.eye(3)
    alphabet = prepare_alphabet(joint, np.arange(3)[:, None], distances, 0.1)
    duals = Duals(np.zeros((len(alphabet.order), 2)), 0.0)
    assert 0 < forecast_certificate(alphabet, duals, 1000.0) < 100.0
