"""What the sums of places cost, as a share of the pass that cleans the same chunks.

Processor seconds of this process, in turn in one run; records of ``bench_pipeline`` with a
confidential and a desired variable, cleaned with their sums and without.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from privpipe.cluster.passes.cleaning_pass import CleaningJob, clean_chunks
from privpipe.cluster.passes.place_pass import PlacePlan
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.store.access.objects import use_one_thread
from privpipe.store.arrays.layout import FEATURES
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.collections.writing import write_collection
from privpipe.store.releases.release_writing import prepare_release
from tests.bench.stores import CHUNK_ROWS, N_FEATURES, fresh_job, write_cleaner

Row = tuple[str, float, str, str, float, float]
LABELS = ("wanted", "secret")


def run(small: bool) -> list[Row]:
    """One row: the cleaning with its sums against without."""
    use_one_thread()
    with tempfile.TemporaryDirectory(prefix="bench-places-") as folder:
        collection = make_labelled(Path(folder), 2 if small else 8)
        with fresh_job(Path(folder), collection, write_cleaner(Path(folder)), f"{8:08x}") as job:
            prepare_release(job.plan)
            watched = replace(job, places=_plan(job, folder))
            ratios, seconds = _compare(job, watched, rounds=1 if small else 15)
    n = collection.n_records
    share = statistics.median(ratios)
    return [
        (
            "sums of places, share of the cleaning",
            share,
            "of the pass",
            "cleaning without them, us CPU/record",
            statistics.median(seconds) / n * 1e6,
            share,
        )
    ]


def make_labelled(folder: Path, n_chunks: int) -> Collection:
    """Random float32 records in chunks of 8 MiB, with two variables of two classes."""
    random, url = np.random.default_rng(0), str(folder / "labelled.zarr")
    variables = tuple(Variable(name, "int8", ("no", "yes")) for name in LABELS)
    schema = CollectionSchema(n_chunks * CHUNK_ROWS, N_FEATURES, "float32", CHUNK_ROWS, variables)
    blocks = (
        {FEATURES: random.normal(size=(CHUNK_ROWS, N_FEATURES)).round(2).astype(np.float32)}
        | {name: random.integers(0, 2, CHUNK_ROWS).astype(np.int8) for name in LABELS}
        for _ in range(n_chunks)
    )
    write_collection(url, schema, blocks)
    return open_collection(url)


def _plan(job: CleaningJob, folder: str) -> PlacePlan:
    url = str(Path(folder) / "places")
    return PlacePlan(url, job.plan.run, job.collection, job.plan.arrays, ("secret",), ("wanted",))


def _compare(
    job: CleaningJob, watched: CleaningJob, rounds: int
) -> tuple[list[float], list[float]]:
    """In turn: what the sums add, as a share, and seconds without them."""
    chunks, ratios, seconds = list(range(job.plan.chunks.n_chunks)), [], []
    for _ in range(rounds + 1):
        times = []
        for one in (job, watched):
            begun = time.process_time()
            clean_chunks(one, chunks)
            times.append(time.process_time() - begun)
        ratios.append(times[1] / times[0] - 1)
        seconds.append(times[0])
    return ratios[1:], seconds[1:]  # the first round fills caches


if __name__ == "__main__":
    for row in run(small=False):
        print(*row)
