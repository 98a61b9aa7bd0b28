"""Benchmarks run small in every test run, so that they cannot rot; no figure is judged here."""

from __future__ import annotations

import math
import re

import pytest

from tests.bench.__main__ import COLUMNS, find_benchmarks, run_benchmarks

ROWS = {
    "cleaning": ["kernel r=3"],
    "draws": ["keyed laplace"],
    "ingest": [*["ingest Parquet"] * 4, *["export Parquet"] * 2],
    "layouts": ["clean factored"],
    "release": ["receipt and checksum", "proof before publishing", "resume after a stop at"],
}
"""How rows begin that must be among those of a benchmark, in this order."""


@pytest.mark.slow
@pytest.mark.parametrize("name", find_benchmarks())
def test_benchmark__runs_small(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_benchmarks([name], small=True)
    assert rows
    for row in rows:
        assert len(row) == len(COLUMNS)
        assert math.isfinite(row[-1])
    names = iter([str(row[1]) for row in rows])
    for wanted in ROWS.get(name, []):
        assert any(found.startswith(wanted) for found in names), wanted
    if name in (*ROWS, "attacks"):
        assert all(row[2] > 0 and row[5] > 0 and row[6] > 0 for row in rows)
    if name == "ingest":
        assert [row[3] for row in rows] == ["s", "s of CPU"] * 3
        assert all(row[6] == row[2] / row[5] for row in rows)
    if name == "attacks":
        told = capsys.readouterr().out
        done = re.findall(r" (\d+)/(\d+) ", told)
        assert [int(number) for number, _ in done] == [*range(1, int(done[0][1]) + 1)]
        assert "peak" in told
