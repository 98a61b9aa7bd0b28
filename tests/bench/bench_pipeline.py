"""Cleaning from store to store against its floor: copying the same store, checksum included.

The floor reads each chunk and writes it with the release's codec and receipt, and does nothing
else. All in this process; `bench_cluster` does the same on workers.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from privpipe.cluster.passes.cleaning_pass import clean_chunks
from privpipe.store.access.objects import use_one_thread
from privpipe.store.releases.release_writing import prepare_release
from tests.bench.stores import fresh_job, make_collection, write_cleaner
from tests.bench.watching import copy_chunks

Row = tuple[str, float, str, str, float, float]


def run(small: bool) -> list[Row]:
    """Cleaning at three sizes, and how its cost per record grows."""
    use_one_thread()
    sizes = (1, 2, 4) if small else (8, 16, 32)
    with tempfile.TemporaryDirectory(prefix="bench-pipeline-") as folder:
        rows = [_clean_against_copy(Path(folder), n, runs=1 if small else 5) for n in sizes]
    return [*rows, _growth(rows)]


def _clean_against_copy(folder: Path, n_chunks: int, runs: int) -> Row:
    collection, model = make_collection(folder, n_chunks), write_cleaner(folder / str(n_chunks))
    chunks = list(range(n_chunks))
    with fresh_job(folder, collection, model, f"{n_chunks:08x}") as job:
        prepare_release(job.plan)
        clean_chunks(job, chunks[:1])
        clean, copy = _paired(
            lambda: clean_chunks(job, chunks), lambda: copy_chunks(job, chunks), runs
        )
    n = collection.n_records
    return (
        f"clean {n_chunks} chunks of 8 MiB, one process",
        clean / n * 1e6,
        "us CPU/record",
        "copy of the store, same codec and receipts",
        copy / n * 1e6,
        clean / copy,
    )


def _growth(rows: list[Row]) -> Row:
    per_record = [row[1] for row in rows]
    ratio = per_record[-1] / per_record[0]
    return ("CPU per record, largest size", per_record[-1], "us", "smallest", per_record[0], ratio)


def _paired(
    first: Callable[[], object], second: Callable[[], object], runs: int
) -> tuple[float, float]:
    """Median CPU seconds of two things, in turn."""

    def cpu(work: Callable[[], object]) -> float:
        before = time.process_time()
        work()
        return time.process_time() - before

    pairs = [(cpu(first), cpu(second)) for _ in range(runs)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)
