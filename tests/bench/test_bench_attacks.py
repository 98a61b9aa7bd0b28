"""The bench of attacks runs, at a small size; its figures are not judged here."""

from __future__ import annotations

import re

from tests.bench.bench_attacks import main


def test_main__audits_small_and_tells_each_attack(capsys):
    report = main(n_records=400, n_features=6)
    assert report.n_records == 400
    told = capsys.readouterr().out
    done = re.findall(r" (\d+)/(\d+) ", told)
    assert [int(number) for number, _ in done] == [*range(1, int(done[0][1]) + 1)]
    assert "peak" in told
