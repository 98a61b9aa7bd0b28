"""The bench of masking runs, at a small size; its figures are not judged here."""

from __future__ import annotations

from tests.bench.bench_masking import run


def test_run__gives_a_row_for_each_figure() -> None:
    rows = run(small=True)
    assert len(rows) == 5
    assert all(row[1] > 0 for row in rows)
