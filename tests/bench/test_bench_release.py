"""The bench of releases runs, at a small size; its figures are not judged here."""

from __future__ import annotations

from tests.bench.bench_release import run


def test_run__small_gives_every_row():
    rows = run(small=True)
    assert [row[0] for row in rows[:2]] == ["receipt and checksum", "proof before publishing"]
    assert rows[2][0].startswith("resume after a stop at")
    assert all(row[1] > 0 and row[4] > 0 and row[5] > 0 for row in rows)
