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
from privpipe.store.artifacts import read_arrays
from privpipe.store.basis import Basis
from privpipe.store.blocks import Receipt, check_receipts
from privpipe.store.keyfiles import check_keys_apart
from privpipe.store.keys import KeyBinding, ReleaseKey, make_key
from privpipe.store.layout import FEATURES, RELEASED, ArrayPlan
from privpipe.store.location import local_path
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
    basis = _read_basis(run) if run.options.release.layout == "factored" else None
    dtype = schema.dtype if basis is None else "float64"
    released = (
        [ArrayPlan(FEATURES, (n, trained.n_features_out), rows, dtype)]
        if trained.reads == "features"
        else [_plan_variable(run, name) for name in run.collection.attributes]
    )
    included = [_plan_variable(run, name) for name in run.options.release.include]
    flag = [ArrayPlan(RELEASED, (n,), rows, "int8")] if run.may_withhold else []
    return ReleasePlan(run.run_id, run.release_url, (*released, *included, *flag), basis)


def _plan_variable(run: Run, name: str) -> ArrayPlan:
    """A variable of the release, with its category table."""
    schema = run.collection.schema_of_records
    variable = schema.variable(name)
    table = (("categories", list(variable.categories)),) if variable.categories else ()
    return ArrayPlan(name, (schema.n_records,), schema.chunk_rows, variable.dtype, table)


def _read_basis(run: Run) -> Basis:
    """The basis of a factored release, from the stored model."""
    arrays = read_arrays(run.stored_model_url, ["lift", "centre"])
    return Basis(arrays["lift"], arrays["centre"], run.collection.schema_of_records.dtype)


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
        key=_make_key(run, trained).ticket() if trained.draws else None,
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
    return _prove(plan, client, frozenset(done))


def _make_key(run: Run, trained: Trained) -> ReleaseKey:
    """The release's key: made once, bound to source, model and options, kept apart from it."""
    path = local_path(run.release_url)
    if path is not None:
        check_keys_apart(path)
    binding = KeyBinding(run.collection.digest, trained.model_digest, run.state.options_sha256)
    return make_key(f"release-{run.run_id}", binding)


def _find_done(plan: ReleasePlan, client: Client) -> dict[int, Receipt]:
    """Chunks of an interrupted run whose bytes still match their receipts."""
    known = {receipt.chunk: receipt for receipt in read_ledger(plan) if receipt.run == plan.run}
    damaged = find_damaged_chunks(client, plan, list(known.values()), "before")
    if damaged:
        drop_receipts(plan, damaged)
    return {chunk: receipt for chunk, receipt in known.items() if chunk not in damaged}


def _prove(
    plan: ReleasePlan, client: Client, found: frozenset[int] = frozenset()
) -> dict[int, Receipt]:
    """Every chunk has one receipt, and every stored byte is what its receipt says.

    The bytes of chunks that were `found` done have been read when this run began.
    """
    receipts = check_receipts(read_ledger(plan), plan.arrays, plan.run)
    check_foreign(plan)
    written = [receipt for chunk, receipt in receipts.items() if chunk not in found]
    damaged = find_damaged_chunks(client, plan, written, "after")
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
