"""The drawing stage: surrogates of all records of the fit, tile by tile, and their keys."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial

from privpipe.cluster.events import Event
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.drawing_pass import DrawingJob, draw_surrogates
from privpipe.errors import MemoryBudgetError, StoreError
from privpipe.numerics.masking.sign_sums import BLOCK_RECORDS
from privpipe.pipeline.runs.resume import check_unchanged
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.stages.clean import find_done, prove_receipts
from privpipe.pipeline.stages.train import Trained
from privpipe.store.access.location import local_path
from privpipe.store.arrays.blocks import Receipt
from privpipe.store.keyring.keyfiles import check_keys_apart
from privpipe.store.keyring.partition_keys import PartitionKeys, forget_keys, make_partition_keys
from privpipe.store.releases.release import ReleasePlan, prepare_release, record_receipts


def draw_stage(
    run: Run, trained: Trained, plan: ReleasePlan, executor: Executor
) -> dict[int, Receipt]:
    """Draw what is not drawn yet and return the proven receipts.

    Raises
    ------
    StoreError
        If the keys of an interrupted run are gone: what was drawn from them cannot be completed.
    """
    _check_memory(run, trained, executor)
    prepare_release(plan)
    done = find_done(plan, executor)
    part = replace(run.training, only_finite=False).keeping(run.split, "fit")
    job = DrawingJob(
        part, plan, run.stored_model_url, trained.model_digest, _make_keys(run, trained)
    )
    executor.listener(Event("clean_chunk", "begins", plan.chunks.n_records))
    executor.listener(Event("clean_chunk", "advances", sum(one.rows for one in done.values())))
    try:
        draw_surrogates(executor, job, partial(record_receipts, plan), done=frozenset(done))
    finally:
        executor.listener(Event("clean_chunk", "ends"))
    check_unchanged(run)
    return prove_receipts(plan, executor, frozenset(done))


def forget_drawing(run_id: str) -> None:
    """Destroy every key that a run drew from; harmless if that is done already."""
    forget_keys(run_id)


def _make_keys(run: Run, trained: Trained) -> PartitionKeys:
    """Keys of this run alone: they end with it, and no other run may need them."""
    path = local_path(run.release_url)
    if path is not None:
        check_keys_apart(path)
    about = hashlib.sha256(f"surrogates of run {run.run_id}".encode()).hexdigest()
    try:
        return make_partition_keys(
            run.training.schema_of_records.partitions,
            trained.model_digest,
            about,
            run=run.run_id,
            source=run.training.digest,
        )
    except StoreError as error:
        if error.code != "key_gone":
            raise
    raise StoreError(
        "A key of this run is gone before its release was complete: further surrogates would be "
        "drawn with other signs than those that are there.",
        remedy="`privpipe purge`, then run again: all are drawn anew. Nothing was published.",
        code="key_gone",
    )


def _check_memory(run: Run, trained: Trained, executor: Executor) -> None:
    """A worker holds a chunk, the signs of a block of records, and a tile for each thread."""
    memory, schema = executor.measure(), run.training.schema_of_records
    columns, tile = trained.n_features_out, trained.tile_rows or 1
    words = schema.chunk_rows * -(-tile // 64)
    needed = 8 * (4 * schema.chunk_rows * columns + words + (BLOCK_RECORDS + 3 * columns) * tile)
    if needed * memory.threads > memory.smallest:
        raise MemoryBudgetError(
            f"Drawing surrogates takes about {needed * memory.threads / 2**20:.0f} MiB of a worker "
            f"that has {memory.smallest / 2**20:.0f} MiB.",
            remedy="Set [cluster] memory_limit, or ingest the collection in smaller chunks.",
        )
