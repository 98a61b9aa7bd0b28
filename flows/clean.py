"""The clean stage: every chunk from store to worker to workspace, then proof of completeness."""

from __future__ import annotations

from functools import partial

import numpy as np
from distributed import Client

from flows.resume import check_unchanged
from flows.run import Run
from flows.train import Trained
from privpipe.dist.apply import CleaningJob, clean_collection
from privpipe.dist.cluster import measure_workers
from privpipe.dist.progress import Progress
from privpipe.dist.verify import find_damaged_chunks
from privpipe.errors import IncompleteReleaseError
from privpipe.records.chunks import check_memory, predict_chunk_memory
from privpipe.store.blocks import Receipt, check_receipts
from privpipe.store.layout import FEATURES, RELEASED, ArrayPlan
from privpipe.store.release import (
    ReleasePlan,
    check_foreign,
    drop_receipts,
    prepare_release,
    read_ledger,
    record_receipts,
)

__all__ = ["clean_stage", "plan_release", "read_progress"]


def plan_release(run: Run, trained: Trained) -> ReleasePlan:
    """What the release consists of: released features, and variables named by the user."""
    schema = run.collection.schema_of_records
    n, rows = schema.n_records, schema.chunk_rows
    included = [schema.variable(name) for name in run.options.release.include]
    return ReleasePlan(
        run=run.run_id,
        url=run.release_url,
        arrays=(
            ArrayPlan(FEATURES, (n, trained.n_features_out), rows, schema.dtype),
            *(
                ArrayPlan(
                    variable.name,
                    (n,),
                    rows,
                    variable.dtype,
                    (("categories", list(variable.categories)),) if variable.categories else (),
                )
                for variable in included
            ),
            *([ArrayPlan(RELEASED, (n,), rows, "int8")] if run.may_withhold else []),
        ),
    )


def clean_stage(
    run: Run, trained: Trained, plan: ReleasePlan, client: Client, progress: Progress
) -> dict[int, Receipt]:
    """Clean what is not clean yet and return the proven receipts."""
    _check_memory(trained, plan, client)
    prepare_release(plan)
    done = _find_done(plan, client)
    job = CleaningJob(
        collection=run.collection,
        plan=plan,
        model_url=run.stored_model_url,
        model_digest=trained.model_digest,
        include=run.options.release.include,
        nonfinite=run.options.release.nonfinite,
        fill=trained.mean_record,
    )
    progress.start("clean", plan.chunks.n_records)
    try:
        progress.advance(sum(receipt.rows for receipt in done.values()))
        clean_collection(
            client, job, partial(record_receipts, plan), done=frozenset(done), progress=progress
        )
    finally:
        progress.finish()
    check_unchanged(run)
    return _prove(plan, client)


def _find_done(plan: ReleasePlan, client: Client) -> dict[int, Receipt]:
    """Chunks of an interrupted run whose bytes still match their receipts."""
    known = {receipt.chunk: receipt for receipt in read_ledger(plan) if receipt.run == plan.run}
    damaged = find_damaged_chunks(client, plan, list(known.values()), "before")
    if damaged:
        drop_receipts(plan, damaged)
    return {chunk: receipt for chunk, receipt in known.items() if chunk not in damaged}


def _prove(plan: ReleasePlan, client: Client) -> dict[int, Receipt]:
    """Every chunk has one receipt, and every stored byte is what its receipt says."""
    receipts = check_receipts(read_ledger(plan), plan.arrays, plan.run)
    check_foreign(plan)
    damaged = find_damaged_chunks(client, plan, list(receipts.values()), "after")
    if damaged:
        raise IncompleteReleaseError(
            f"{len(damaged)} chunks changed after they were written.",
            remedy="Nothing was published. Check the disk, then run again: they are written anew.",
            code="damaged",
        )
    return receipts


def _check_memory(trained: Trained, plan: ReleasePlan, client: Client) -> None:
    memory = measure_workers(client)
    needed = predict_chunk_memory(
        plan.chunks.chunk_rows,
        trained.n_features_in,
        trained.n_features_out,
        np.dtype(plan.arrays[0].dtype).itemsize,
    )
    check_memory(needed, memory.smallest, memory.threads)


def read_progress(release_url: str, run_id: str) -> int:
    """Chunks of a run that have a receipt so far."""
    plan = ReleasePlan(run_id, release_url, ())
    return len({receipt.chunk for receipt in read_ledger(plan) if receipt.run == run_id})
