"""The bench of cleaning runs, at a small size; its figures are not judged here."""

from __future__ import annotations

from tests.bench.bench_cleaning import main


def test_main__runs_small_and_times_every_action(capsys):
    ratios = main(n_records=512, rounds=1)
    assert all(ratio > 0 for ratio in ratios.values())
    assert "kernel r=3" in capsys.readouterr().out
