"""Adversaries of a few features, drawn anew often: a fit against them takes a moment."""

from __future__ import annotations

import pytest

from privpipe.sanitizers.minimax.training import adversary_rounds

SMALL = {"RESAMPLE_EVERY": 1, "LANDMARKS": 6}


def make_small(monkeypatch: pytest.MonkeyPatch, **changes: float) -> None:
    """For the test at hand."""
    for name, value in {**SMALL, **changes}.items():
        monkeypatch.setattr(adversary_rounds, name, value)
