"""Cleaning on the workers: store, worker, store; only receipts travel.

One task owns whole chunks. A bounded number of tasks is in flight, futures are released as they
complete, and each task's receipts are recorded before the next is submitted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from distributed import Client, Future, wait
from distributed import TimeoutError as DaskTimeoutError

from privpipe.dist.boundary import run_sealed
from privpipe.dist.cluster import measure_workers
from privpipe.dist.parcel import send
from privpipe.dist.progress import Progress, Silent
from privpipe.errors import ClusterError, FormatError, InputError, PrivpipeError
from privpipe.numerics.finite import find_empty_rows, find_finite_rows, keep_rows
from privpipe.numerics.streams import JoinedStream
from privpipe.protocols import BoolArray, FloatArray, RecordMap, RecordStream
from privpipe.records.partitions import cut_by_partition
from privpipe.records.schema import MISSING
from privpipe.sanitizers.factored import FactoredCleaner
from privpipe.sanitizers.lowrank import LinearCleaner
from privpipe.sanitizers.summary import UtilitySummary
from privpipe.store.artifacts import digest_map, open_model
from privpipe.store.blocks import Receipt, write_block
from privpipe.store.collection import Collection
from privpipe.store.keys import KeyTicket
from privpipe.store.layout import FEATURES, RELEASED
from privpipe.store.release import ReleasePlan

__all__ = [
    "CleaningJob",
    "Nonfinite",
    "clean_chunks",
    "clean_collection",
    "load_map",
    "release_records",
    "treat_nonfinite",
]

Nonfinite = Literal["fail", "withhold", "impute"]
Block = dict[str, npt.NDArray[Any]]

IN_FLIGHT_PER_THREAD = 3
"""Tasks submitted per worker thread: one at work, two waiting close by."""

REPORT_AFTER = 60.0
"""Seconds without a finished task after which the watchdog reports."""

GIVE_UP_AFTER = 600.0
"""Seconds without a finished task *and* without any worker after which the stage fails."""


@dataclass(frozen=True)
class CleaningJob:
    """All that a worker must know to clean chunks; no values of records.

    Parameters
    ----------
    collection
        Source of the records.
    plan
        The release being written.
    model_url, model_digest
        The fitted map, and what it must be.
    include
        Variables released by name.
    nonfinite
        What happens to records with values that are not finite: "fail", "withhold" (the row
        stays and holds nothing), or "impute" (such values become those of `fill`).
    fill : (n_features,), optional
        Mean training record, for "impute".
    key
        Names the release's key, when the map draws at random.
    """

    collection: Collection
    plan: ReleasePlan
    model_url: str
    model_digest: str
    include: tuple[str, ...] = ()
    nonfinite: Nonfinite = "fail"
    fill: FloatArray | None = None
    key: KeyTicket | None = None

    @property
    def flags_released(self) -> bool:
        """Whether the release says of each record if it was released."""
        return any(array.name == RELEASED for array in self.plan.arrays)


def clean_collection(
    client: Client,
    job: CleaningJob,
    record: Callable[[Sequence[Receipt]], None],
    *,
    done: frozenset[int] = frozenset(),
    progress: Progress | None = None,
) -> None:
    """Clean every chunk that is not done yet.

    Parameters
    ----------
    client
        The cluster.
    job
        What to clean and where to.
    record
        Called with the receipts of each finished task, in the order of finishing.
    done
        Chunks that already have a receipt.
    progress
        Told of records done and of stalls.

    Raises
    ------
    PrivpipeError
        What a worker reported; other tasks are cancelled.
    ClusterError
        If all workers are gone and none comes back.
    """
    progress = progress or Silent()
    waiting = [
        chunks
        for task in job.plan.chunks.tasks()
        if (chunks := [chunk for chunk in task if chunk not in done])
    ]
    limit = max(1, measure_workers(client).n_threads) * IN_FLIGHT_PER_THREAD
    shared = send(client, job)
    in_flight: set[Future[Any]] = set()
    queue = iter(waiting)

    def submit_next() -> None:
        if (chunks := next(queue, None)) is not None:
            key = f"clean_chunk-{job.plan.run}-{chunks[0]:06d}"
            in_flight.add(
                client.submit(
                    run_sealed, clean_chunks, shared, chunks, key=key, pure=False, retries=2
                )
            )

    for _ in range(limit):
        submit_next()
    try:
        while in_flight:
            for future in _next_finished(client, in_flight, progress):
                receipts = _receipts_of(future)
                in_flight.discard(future)
                future.release()
                record(receipts)
                progress.advance(sum(receipt.rows for receipt in receipts))
                submit_next()
    finally:
        client.cancel(list(in_flight))


def clean_chunks(job: CleaningJob, chunks: list[int]) -> list[Receipt]:
    """Worker side: read, map and write whole chunks, one after the other."""
    fitted = load_map(job.model_url, job.model_digest)
    return [_clean_chunk(job, fitted, chunk) for chunk in chunks]


def _clean_chunk(job: CleaningJob, fitted: RecordMap, chunk: int) -> Receipt:
    begun = time.perf_counter()
    start, stop = job.plan.chunks.rows(chunk)
    mapped = (_map_codes if fitted.reads == "attributes" else _map_features)(job, fitted, chunk)
    block, kept = mapped.block, mapped.kept
    for name in job.include:
        values = job.collection.read(name, start, stop)
        block[name] = values if kept.all() else _spread(values[kept], kept)
    if job.flags_released:
        block[RELEASED] = kept.astype(np.int8)
    receipt = write_block(job.plan.data_url, job.plan.arrays, chunk, block, job.plan.run)
    seconds = time.perf_counter() - begun
    withheld = len(kept) - int(kept.sum())
    return replace(receipt, seconds=seconds, withheld=withheld, utility=mapped.utility)


@dataclass(frozen=True, eq=False)
class _Mapped:
    """What a map made of a chunk: the arrays, which records are released, and the cost."""

    block: Block
    kept: BoolArray
    utility: UtilitySummary | None = None


def _map_features(job: CleaningJob, fitted: RecordMap, chunk: int) -> _Mapped:
    """Released features of a chunk."""
    start, stop = job.plan.chunks.rows(chunk)
    x, kept = treat_nonfinite(job, job.collection.read(FEATURES, start, stop), chunk)
    utility = None
    if isinstance(fitted, LinearCleaner):
        # Withheld records must not count as cleaned, and cleaning draws nothing.
        released, utility = fitted.apply_measured(keep_rows(x, kept), overwrite_x=True)
        released = _spread(released, kept)
    else:
        # Withheld records keep their place, so that what is drawn for a record never shifts.
        ready = x if kept.all() else np.where(kept[:, None], x, x.dtype.type(0))
        released = fitted.apply(ready, _stream(job, start, stop))
        if not kept.all():
            released[~kept] = np.nan
    kept &= ~find_empty_rows(released)  # a map may withhold records of its own
    block = {FEATURES: released.astype(job.plan.arrays[0].dtype, copy=False)}
    return _Mapped(block, kept, utility)


def _map_codes(job: CleaningJob, fitted: RecordMap, chunk: int) -> _Mapped:
    """Released attributes of a chunk, one array per variable."""
    start, stop = job.plan.chunks.rows(chunk)
    codes = fitted.apply(job.collection.codes(start, stop), _stream(job, start, stop))
    dtypes = {array.name: array.dtype for array in job.plan.arrays}
    block = {
        name: codes[:, j].astype(dtypes[name]) for j, name in enumerate(job.collection.attributes)
    }
    return _Mapped(block, np.ones(len(codes), bool))


def _stream(job: CleaningJob, start: int, stop: int) -> RecordStream | None:
    """Random words of these records, from the release's key; None when nothing is drawn.

    A record's words depend on its partition and its number within, not on where the partition
    stands in the collection.
    """
    if job.key is None:
        return None
    key = job.key.open()
    runs = cut_by_partition(job.collection.schema_of_records.partitions, start, stop)
    if not runs:  # a collection without partitions is one
        return key.stream(job.collection.digest, start, stop - start)
    parts = [key.stream(run.partition.digest, run.first_record, run.n_records) for run in runs]
    return JoinedStream(tuple(parts))


def treat_nonfinite(
    job: CleaningJob, x: npt.NDArray[Any], chunk: int
) -> tuple[npt.NDArray[Any], BoolArray]:
    """Records ready for the map, and which of them may be released.

    Raises
    ------
    InputError
        Under "fail", with how many records of which chunk are concerned.
    """
    kept = find_finite_rows(x)
    if kept.all() or job.nonfinite == "withhold":
        return x, kept
    if job.nonfinite == "impute" and job.fill is not None:
        return np.where(np.isfinite(x), x, job.fill.astype(x.dtype)), np.ones(len(x), bool)
    raise InputError(
        f"{len(x) - int(kept.sum())} of {len(x)} records of chunk {chunk} hold features that are "
        "not finite.",
        remedy='Mend the source, or set [release] nonfinite = "withhold" or "impute".',
        code="nonfinite",
    )


def _spread(values: npt.NDArray[Any], kept: BoolArray) -> npt.NDArray[Any]:
    """Put rows back to their places; rows left out hold NaN, or the missing code."""
    if kept.all():
        return values
    fill = np.nan if np.issubdtype(values.dtype, np.floating) else MISSING
    spread = np.full((len(kept), *values.shape[1:]), fill, values.dtype)
    spread[kept] = values
    return spread


def release_records(
    fitted: RecordMap, x: npt.NDArray[Any], stream: RecordStream | None = None
) -> npt.NDArray[Any]:
    """Records as a reader of the release will see them, whatever its layout."""
    released = fitted.apply(x, stream)
    return fitted.reconstruct(released) if isinstance(fitted, FactoredCleaner) else released


@lru_cache(maxsize=4)
def load_map(url: str, digest: str) -> RecordMap:
    """Worker side: open a model once per process, and only the one that was fitted."""
    fitted = open_model(url)
    if digest_map(fitted) != digest:
        raise FormatError(
            "The stored model is not the one of this run.",
            remedy="Do not change a run's workspace while it works.",
        )
    return fitted


def _next_finished(
    client: Client, in_flight: set[Future[Any]], progress: Progress
) -> set[Future[Any]]:
    """Wait for a task to finish; report when nothing moves, give up when no worker is left."""
    silent_since = time.monotonic()
    while True:
        try:
            return set(wait(in_flight, timeout=REPORT_AFTER, return_when="FIRST_COMPLETED").done)
        except DaskTimeoutError:
            silent = time.monotonic() - silent_since
        n_workers = measure_workers(client).n_workers
        progress.stalled(silent, n_workers)
        if n_workers == 0 and silent > GIVE_UP_AFTER:
            raise ClusterError(
                f"No worker has been connected for {silent:.0f} s.",
                remedy="Start workers, then run again; finished chunks are kept.",
                code="no-workers",
            )


def _receipts_of(future: Future[Any]) -> list[Receipt]:
    problem: PrivpipeError
    try:
        receipts: list[Receipt] = future.result()
        return receipts
    except PrivpipeError as error:
        problem = error.with_traceback(None)
    except Exception as error:  # a killed worker, a cancelled task, a broken installation
        problem = ClusterError(
            f"A cleaning task was lost ({type(error).__name__}).",
            remedy="Look at the workers' memory and logs, then run again.",
            code="task-lost",
        )
    raise problem
