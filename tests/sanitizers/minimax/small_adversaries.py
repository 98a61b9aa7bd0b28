"""Adversaries of a few features and steps, drawn anew often: a fit against them takes a moment."""

from __future__ import annotations

import pytest

from privpipe.sanitizers.minimax import neural_minimax
from privpipe.sanitizers.minimax.training import adversary_rounds

SMALL = {
    "RESAMPLE_EVERY": 1,
    "RANDOM_FEATURES": 8,
    "LANDMARKS": 6,
    "HIDDEN_UNITS": 3,
    "NETWORK_STEPS": 3,
}


def make_small(monkeypatch: pytest.MonkeyPatch, **changes: float) -> None:
    """For the test at hand; autoencoders as well."""
    for name, value in {**SMALL, **changes}.items():
        monkeypatch.setattr(adversary_rounds, name, value)
    monkeypatch.setattr(neural_minimax, "AUTOENCODER_ITERATIONS", 3)
    monkeypatch.setattr(neural_minimax, "SUPERVISED_ITERATIONS", 3)
