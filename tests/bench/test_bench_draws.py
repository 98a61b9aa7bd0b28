"""The bench of draws runs, at a small size; its figures are not judged here."""

from __future__ import annotations

from tests.bench.bench_draws import main


def test_main__runs_small_and_times_every_draw(capsys):
    ratios = main(count=2**12, rounds=1)
    assert all(ratio > 0 for ratio in ratios.values())
    assert "keyed laplace" in capsys.readouterr().out
