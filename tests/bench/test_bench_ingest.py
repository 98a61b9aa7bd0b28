"""The bench of ingest runs, at a small size; its figures are not judged here."""

from __future__ import annotations

from tests.bench.bench_ingest import run


def test_run__measures_ingest_and_export_against_their_references():
    rows = run(small=True)
    names = [row[0].split(",")[0] for row in rows]
    assert names == ["ingest Parquet"] * 4 + ["export Parquet"] * 2
    assert [row[2] for row in rows] == ["s", "s of CPU"] * 3
    assert all(row[1] > 0 and row[5] == row[1] / row[4] for row in rows)
