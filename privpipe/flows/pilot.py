"""What training and cleaning cost, measured: both stages, in this process, on the first chunks.

A pilot is charged to no account, and nothing of it stays. What costs once, as what is compiled for
the first chunk, is in both of two pilots, and the smaller is taken from the larger.
"""

import os
import tempfile
from dataclasses import dataclass, replace
from unittest.mock import patch

import psutil

from privpipe.cluster.executors.executor import Executor
from privpipe.errors import InputError
from privpipe.pipeline.runs.resume import begin_or_resume
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.stages import check, clean, train
from privpipe.records.schema import ChunkPlan
from privpipe.report.audit_text import say
from privpipe.store.access.workspace import hold_workspace
from privpipe.store.collections.collection import Collection

FEWEST, GROWTH = 2, 3
"""Chunks of the smallest pilot, and how often as many the next one takes."""
LEAST_SECONDS = 2.0
"""By which the last pilot is longer: clocks and caches of processors are coarse."""

SCHEDULER_SECONDS = 7e-3
"""Of Dask's scheduler for a task under TLS, measured with 12,500; there are two passes."""


@dataclass(frozen=True)
class Cost:
    """Of training and cleaning some records, without audit, on processors as this one.

    Parameters
    ----------
    n_records
        How many.
    hours
        Of one processor.
    bytes_read, bytes_written
        By all workers, of what is stored, compressed as it is.
    scheduler_hours
        Of the cluster's scheduler, at most.
    """

    n_records: int
    hours: float
    bytes_read: float
    bytes_written: float
    scheduler_hours: float

    def describe(self, price: float = 0.0) -> str:
        """In a sentence; money at a price for an hour of one processor.

        >>> Cost(10**10, 24.0, 4.1e12, 1.7e12, 0.05).describe(0.04)
        '10,000,000,000 records: 24 processor hours (0.96 at 0.04 an hour), 4,100 GB read, \
1,700 GB written, 0.05 hours of the scheduler.'
        """
        return say("cost", cost=self, price=price, round=_round)


def _round(number: float) -> str:
    """Two digits that count, and no exponent."""
    return f"{float(f'{number:.2g}'):,g}"


def forecast_cost(run: Run, n_records: int) -> Cost:
    """What so many records like those of a collection would cost.

    Parameters
    ----------
    run
        Checked; its first chunks are trained on and cleaned, twice.
    n_records
        As many as the forecast is for.

    Raises
    ------
    InputError
        If the collection has too few chunks to measure by.
    """
    n_chunks = run.collection.plan.n_chunks
    if n_chunks <= FEWEST:
        problem = f"{n_chunks} chunks are too few to measure the cost by."
        remedy = f"Take a collection of more than {FEWEST} chunks."
        raise InputError(problem, remedy=remedy, code="few-chunks")
    _spend(run, 1)  # what is imported and compiled once
    n, few = FEWEST, _spend(run, FEWEST)
    many = few
    while many[0] - few[0] < LEAST_SECONDS and n < n_chunks:
        n = min(GROWTH * n, n_chunks)
        many = _spend(run, n)
    rows = run.collection.schema_of_records.chunk_rows
    measured = min(n * rows, run.collection.n_records) - FEWEST * rows
    pairs = zip(few, many, strict=True)
    seconds, read, written = (max(b - a, 0.0) * n_records / measured for a, b in pairs)
    scheduler = 2 * SCHEDULER_SECONDS * len(ChunkPlan(n_records, rows).tasks())
    return Cost(n_records, seconds / 3600, read, written, scheduler / 3600)


def _spend(run: Run, n_chunks: int) -> tuple[float, float, float]:
    """Processor seconds, bytes read and bytes written of a pilot."""
    # Keys of the draws and the account are found by the environment and by the options.
    with (
        tempfile.TemporaryDirectory(prefix="privpipe-pilot-") as folder,
        patch.dict(os.environ, PRIVPIPE_KEYS=os.path.join(folder, "keys")),
    ):
        options = run.options.change(
            "privacy", account=os.path.join(folder, "account"), ephemeral="accept"
        ).change("release", path=os.path.join(folder, "release.zarr"), incremental=False)
        checked, executor = check.check_stage(options), Executor()
        both = checked.collection, checked.training
        collection, training = (_begin(one, n_chunks) for one in both)
        pilot = replace(checked, collection=collection, training=training)
        with hold_workspace(pilot.release_url):
            pilot, _ = begin_or_resume(pilot)
            before = _measure()
            trained = train.train_stage(pilot, executor)
            clean.clean_stage(pilot, trained, clean.plan_release(pilot, trained), executor)
            after = _measure()
    return after[0] - before[0], after[1] - before[1], after[2] - before[2]


def _begin(collection: Collection, n_chunks: int) -> Collection:
    """The first chunks of a collection."""
    whole = collection.schema_of_records
    n_records = min(n_chunks * whole.chunk_rows, whole.n_records)
    partitions = tuple(
        replace(one, n_records=min(one.n_records, n_records - one.first_record))
        for one in whole.partitions
        if one.first_record < n_records
    )
    few = replace(whole, n_records=n_records, partitions=partitions)
    return replace(collection, schema_of_records=few)


def _measure() -> tuple[float, float, float]:
    """Processor seconds, bytes read and bytes written of this process so far."""
    process = psutil.Process()
    times, counted = process.cpu_times(), process.io_counters()
    # Characters, not bytes of the disk: what the page cache holds is read on a cluster.
    return times.user + times.system, float(counted.read_chars), float(counted.write_chars)
