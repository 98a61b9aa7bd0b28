"""The bench of ingest runs, at a small size; its figures are not judged here."""

from __future__ import annotations

from tests.bench.bench_ingest import run


def test_run__measures_ingest_and_export_against_their_references():
    rows = run(small=True)
    assert [row[0].split(",")[0] for row in rows] == [
        "ingest Parquet",
        "ingest Parquet",
        "export Parquet",
    ]
    assert all(row[1] > 0 and row[5] == row[1] / row[4] for row in rows)
