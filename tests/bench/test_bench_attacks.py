"""The bench of attacks runs, at a small size; its figures are not judged here."""

from __future__ import annotations

from tests.bench.bench_attacks import main


def test_main__audits_small_and_tells_each_attack(capsys):
    report = main(n_records=400, n_features=6)
    assert report.n_records == 400
    told = capsys.readouterr().out
    assert " 21/21" in told
    assert "peak" in told
