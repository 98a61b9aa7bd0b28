"""The bench of layouts runs, at a small size; its figures are not judged here."""

from __future__ import annotations

from tests.bench.bench_layouts import main


def test_main__runs_small_and_compares_both_layouts(capsys):
    ratios = main(n_records=300, rounds=1)
    assert all(ratio > 0 for ratio in ratios.values())
    assert "clean factored" in capsys.readouterr().out
