"""The bench of minimax fits runs, at a small size; its figures are not judged here."""

from __future__ import annotations

import pytest

from tests.bench.bench_minimax import main


@pytest.mark.slow
def test_main__runs_small_and_compares_inner_problems(capsys: pytest.CaptureFixture[str]) -> None:
    ratios = main(n=1000, rounds=1, workers=False)
    assert all(ratio > 0 for ratio in ratios.values())
    assert "scipy + scikit-learn" in capsys.readouterr().out
