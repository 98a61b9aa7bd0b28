"""Cleaning from store to store against its floor: copying the same store, checksum included.

The floor reads each chunk and writes it with the release's codec and receipt, and does nothing
else. Dispatch is measured with chunks so small that there is nothing else to measure.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

from privpipe.dist.apply import CleaningJob, clean_chunks, clean_collection
from privpipe.dist.cluster import ClusterOptions, connect
from privpipe.records.schema import CollectionSchema
from privpipe.sanitizers.nullspace import NullSpaceCleaner
from privpipe.store.artifacts import write_model
from privpipe.store.blocks import write_block
from privpipe.store.collection import Collection, open_collection
from privpipe.store.layout import FEATURES, ArrayPlan
from privpipe.store.location import use_one_thread
from privpipe.store.release import ReleasePlan, prepare_release, record_receipts
from privpipe.store.writing import write_collection

N_FEATURES = 294
Row = tuple[str, float, str, str, float, float]


def run(small: bool) -> list[Row]:
    """Cleaning at three sizes, then dispatch on two workers."""
    use_one_thread()
    sizes = (1, 2, 4) if small else (8, 16, 32)
    with tempfile.TemporaryDirectory() as folder:
        rows = [_clean_against_copy(Path(folder), n, runs=1 if small else 5) for n in sizes]
        rows.append(_growth(rows, sizes))
        rows += _dispatch(Path(folder), n_chunks=40 if small else 1000)
    return rows


def make_collection(folder: Path, n_chunks: int, chunk_rows: int, n_features: int) -> Collection:
    """Random float32 records, of little compressible content, as measured data are."""
    url = str(folder / f"records-{n_chunks}-{chunk_rows}.zarr")
    n = n_chunks * chunk_rows
    schema = CollectionSchema(n, n_features, "float32", chunk_rows)
    rng = np.random.default_rng(0)
    block = rng.normal(size=(chunk_rows, n_features)).round(2).astype(np.float32)
    write_collection(url, schema, ({FEATURES: block} for _ in range(n_chunks)))
    return open_collection(url)


def make_job(folder: Path, collection: Collection, run: str) -> CleaningJob:
    """A job of rank three."""
    schema = collection.schema_of_records
    rng = np.random.default_rng(1)
    cleaner = NullSpaceCleaner.from_predictor(
        rng.normal(size=(schema.n_features, 3)), utility_budget=0.5
    )
    model = str(folder / f"{run}-model.zarr")
    digest = write_model(cleaner, model)
    shape = (schema.n_records, schema.n_features)
    plan = ReleasePlan(
        run,
        str(folder / f"{run}-release.zarr"),
        (ArrayPlan(FEATURES, shape, schema.chunk_rows, "float32"),),
    )
    prepare_release(plan)
    return CleaningJob(collection, plan, model, digest)


def copy_chunks(job: CleaningJob, chunks: list[int]) -> None:
    """The floor: read, write, receipt."""
    for chunk in chunks:
        start, stop = job.plan.chunks.rows(chunk)
        block = {FEATURES: job.collection.read(FEATURES, start, stop)}
        write_block(job.plan.data_url, job.plan.arrays, chunk, block, job.plan.run)


def _clean_against_copy(folder: Path, n_chunks: int, runs: int) -> Row:
    rows_per_chunk = 8 * 2**20 // (4 * N_FEATURES)
    collection = make_collection(folder, n_chunks, rows_per_chunk, N_FEATURES)
    job = make_job(folder, collection, f"{n_chunks:08x}")
    chunks = list(range(n_chunks))
    clean_chunks(job, chunks[:1])
    clean, copy = _paired(lambda: clean_chunks(job, chunks), lambda: copy_chunks(job, chunks), runs)
    n = collection.n_records
    return (
        f"clean {n_chunks} chunks of 8 MiB, one process",
        clean / n * 1e6,
        "us CPU/record",
        "copy of the store, same codec and receipts",
        copy / n * 1e6,
        clean / copy,
    )


def _growth(rows: list[Row], sizes: tuple[int, ...]) -> Row:
    per_record = [row[1] for row in rows]
    ratio = per_record[-1] / per_record[0]
    return ("CPU per record, largest size", per_record[-1], "us", "smallest", per_record[0], ratio)


def _dispatch(folder: Path, n_chunks: int) -> list[Row]:
    """Milliseconds per chunk of planning, dispatch and receipts, with next to no work in them."""
    collection = make_collection(folder, n_chunks, 4, 8)
    job = make_job(folder, collection, "d15ba7c4")
    with connect(ClusterOptions(workers=2, dashboard="127.0.0.1:0")) as client:
        begun = time.perf_counter()
        clean_collection(client, job, lambda receipts: record_receipts(job.plan, receipts))
        cluster = time.perf_counter() - begun
    begun = time.perf_counter()
    clean_chunks(job, list(range(n_chunks)))
    inline = time.perf_counter() - begun
    overhead = max(cluster - inline / 2, 0.0) / n_chunks * 1e3
    chunk = _seconds_of_a_real_chunk(folder) * 1e3
    return [
        (
            "dispatch and receipts per chunk, eight a task",
            overhead,
            "ms",
            "cleaning a chunk of 8 MiB, one process",
            chunk,
            overhead / chunk,
        )
    ]


def _seconds_of_a_real_chunk(folder: Path) -> float:
    collection = make_collection(folder, 3, 8 * 2**20 // (4 * N_FEATURES), N_FEATURES)
    job = make_job(folder, collection, "c0ffee00")
    clean_chunks(job, [0])
    begun = time.perf_counter()
    clean_chunks(job, [1, 2])
    return (time.perf_counter() - begun) / 2


def _paired(
    first: Callable[[], object], second: Callable[[], object], runs: int
) -> tuple[float, float]:
    """Median CPU seconds of two things, in turn."""
    process = psutil.Process()

    def cpu(work: Callable[[], object]) -> float:
        before = process.cpu_times()
        work()
        after = process.cpu_times()
        return (after.user + after.system) - (before.user + before.system)

    pairs = [(cpu(first), cpu(second)) for _ in range(runs)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)
