"""The clean stage: every chunk from store to worker to workspace, then proof of completeness."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from privpipe.cluster.executors.executor import Event, Executor
from privpipe.cluster.passes import cleaning_pass, place_pass, proof_pass
from privpipe.errors import IncompleteReleaseError, StoreError
from privpipe.numerics.masking.sign_sums import BLOCK_RECORDS
from privpipe.pipeline.runs import resume, spend, subject_limit
from privpipe.pipeline.runs.run import Cleaned, Run, Trained
from privpipe.pipeline.stages.audit import audit_attacks, audit_places
from privpipe.records.schema import check_memory, predict_chunk_memory
from privpipe.store.arrays.blocks import Basis, Receipt, check_receipts
from privpipe.store.arrays.layout import FEATURES, RELEASED, ArrayPlan
from privpipe.store.models import read_arrays
from privpipe.store.releases import release_writing
from privpipe.store.releases.release_writing import ReleasePlan


def plan_release(run: Run, trained: Trained) -> ReleasePlan:
    """What the release consists of: released features, and variables named by the user.

    Of surrogates, features with the bias feature, and an array per response; a chunk is a tile.
    """
    schema, release = run.collection.schema_of_records, run.options.release
    n, rows, width = schema.n_records, schema.chunk_rows, trained.n_features_out
    if trained.tile_rows is not None:
        n, rows, width = trained.n_records or 0, trained.tile_rows, len(trained.feature_names)
    basis = None
    if release.layout == "factored":
        arrays = read_arrays(run.stored_model_url, ["lift", "centre"])
        basis = Basis(arrays["lift"], arrays["centre"], schema.dtype)
    dtype = "float64" if basis is not None or trained.tile_rows is not None else schema.dtype
    released = [_plan_variable(run, name) for name in run.collection.attributes]
    if trained.reads == "features":
        released = [ArrayPlan(FEATURES, (n, width), rows, dtype)]
    responses = [ArrayPlan(name, (n,), rows, "float64") for name in trained.response_names]
    included = [_plan_variable(run, name) for name in release.include]
    # A release of surrogates includes nothing else, and withholds none.
    withholds = run.may_withhold and trained.tile_rows is None
    flag = [ArrayPlan(RELEASED, (n,), rows, "int8")] * withholds
    plans = (*released, *responses, *included, *flag)
    return ReleasePlan(run.run_id, run.release_url, plans, basis)


def _plan_variable(run: Run, name: str) -> ArrayPlan:
    """A variable of the release, with its category table."""
    schema = run.collection.schema_of_records
    variable = schema.variable(name)
    table = (("categories", list(variable.categories)),) if variable.categories else ()
    return ArrayPlan(name, (schema.n_records,), schema.chunk_rows, variable.dtype, table)


def clean_stage(run: Run, trained: Trained, plan: ReleasePlan, executor: Executor) -> Cleaned:
    """Clean what is not clean yet, or draw it where records are made of all others at once.

    Raises
    ------
    GuaranteeError
        If a partition would lose more than its limit.
    StoreError
        If a source has changed, or the keys of an interrupted drawing are gone: what was drawn from
        them cannot be completed.
    """
    # The sources are compared once all is written: a chunk that was read from others than those of
    # the start is then known before anything is judged.
    done = (_clean if trained.tile_rows is None else _draw)(run, trained, plan, executor)
    resume.check_unchanged(run)
    return Cleaned(plan, prove_receipts(plan, executor, done))


def _clean(run: Run, trained: Trained, plan: ReleasePlan, executor: Executor) -> frozenset[int]:
    """Every chunk from store to worker to workspace; those that were there before."""
    memory, itemsize = executor.measure(), np.dtype(plan.arrays[0].dtype).itemsize
    width_in, width_out = trained.n_features_in, trained.n_features_out
    needed = predict_chunk_memory(plan.chunks.chunk_rows, width_in, width_out, itemsize)
    check_memory(needed, memory.smallest, memory.threads)
    release_writing.prepare_release(plan)
    places, done = audit_places.plan_places(run, trained, plan), find_done(plan, executor)
    if places is not None and done:  # what was not summed up is cleaned again, to the same bytes
        noted = {int(chunk) for table in place_pass.read_places(places) for chunk in table.chunk}
        done = {chunk: receipt for chunk, receipt in done.items() if chunk in noted}
    keys = spend.make_keys(run, trained) if trained.draws else None
    job = cleaning_pass.CleaningJob(
        collection=run.collection,
        plan=plan,
        model_url=run.stored_model_url,
        model_digest=trained.model_digest,
        include=run.options.release.include,
        nonfinite=run.options.release.nonfinite,
        fill=trained.mean_record,
        keys=keys,
        withheld=subject_limit.write_withheld(run) if run.may_withhold else None,
        samples=audit_attacks.plan_samples(run, trained, plan),
        places=places,
    )
    with _reporting(plan, done, executor), spend.reserve_loss(run, trained, plan, keys) as loss:
        executor.listener(Event("clean_chunk", "advances", numbers=(("privacy_loss", loss),)))
        record = partial(release_writing.record_receipts, plan)
        cleaning_pass.clean_collection(executor, job, record, done=frozenset(done))
    return frozenset(done)


def _draw(run: Run, trained: Trained, plan: ReleasePlan, executor: Executor) -> frozenset[int]:
    """Surrogates of all records of the fit, tile by tile; those that were there before."""
    _check_drawing_memory(run, trained, executor)
    release_writing.prepare_release(plan)
    done = find_done(plan, executor)
    part = replace(run.training, only_finite=False).keeping(run.split, "fit")
    try:
        # Surrogates of noisy moments draw nothing that is secret.
        keys = spend.make_keys(run, trained) if trained.draws else None
    except StoreError as error:
        if error.code != "key_gone":
            raise
        raise StoreError(
            "A key of this run is gone before its release was complete: further surrogates would "
            "be drawn with other signs than those that are there.",
            remedy="`privpipe purge`, then run again: all are drawn anew. Nothing was published.",
            code="key_gone",
        ) from None
    model, digest = run.stored_model_url, trained.model_digest
    job = cleaning_pass.CleaningJob(part, plan, model, digest, keys=keys)
    with _reporting(plan, done, executor), spend.reserve_loss(run, trained, plan, keys):
        record = partial(release_writing.record_receipts, plan)
        cleaning_pass.draw_surrogates(executor, job, record, done=frozenset(done))
    return frozenset(done)


@contextmanager
def _reporting(plan: ReleasePlan, done: Mapping[int, Receipt], workers: Executor) -> Iterator[None]:
    """Report that chunks are made, beginning with those that were there before."""
    n_done = sum(receipt.rows for receipt in done.values())
    total = (("chunks", float(plan.chunks.n_chunks)),)
    counts = cleaning_pass.count_receipts(done.values())
    found = (("chunks", float(len(done))), ("found", 1.0), *counts)
    workers.listener(Event("clean_chunk", "begins", plan.chunks.n_records, numbers=total))
    workers.listener(Event("clean_chunk", "advances", n_done, numbers=found))
    try:
        yield
    finally:
        workers.listener(Event("clean_chunk", "ends"))


def find_done(plan: ReleasePlan, executor: Executor) -> dict[int, Receipt]:
    """Chunks of an interrupted run whose bytes still match their receipts."""
    # Receipts of another run are no proof: its chunks may have been drawn with other keys.
    receipts = release_writing.read_ledger(plan)
    known = {receipt.chunk: receipt for receipt in receipts if receipt.run == plan.run}
    damaged = proof_pass.find_damaged_chunks(executor, plan, list(known.values()), "before")
    if damaged:
        release_writing.drop_receipts(plan, damaged)
    return {chunk: receipt for chunk, receipt in known.items() if chunk not in damaged}


def prove_receipts(
    plan: ReleasePlan, executor: Executor, found: frozenset[int] = frozenset()
) -> dict[int, Receipt]:
    """Every chunk has one receipt, and every stored byte is what its receipt says.

    The bytes of chunks that were `found` done have been read when this run began.
    """
    receipts = check_receipts(release_writing.read_ledger(plan), plan.arrays, plan.run)
    release_writing.check_foreign(plan)
    written = [receipt for chunk, receipt in receipts.items() if chunk not in found]
    damaged = proof_pass.find_damaged_chunks(executor, plan, written, "after")
    if damaged:
        problem = f"{len(damaged)} chunks changed after they were written."
        remedy = "Nothing was published. Check the disk, then run again: they are written anew."
        raise IncompleteReleaseError(problem, remedy=remedy, code="damaged")
    return receipts


def read_progress(release_url: str, run_id: str) -> int:
    """Chunks of a run that have a receipt so far."""
    receipts = release_writing.read_ledger(ReleasePlan(run_id, release_url, ()))
    return len({receipt.chunk for receipt in receipts if receipt.run == run_id})


def _check_drawing_memory(run: Run, trained: Trained, executor: Executor) -> None:
    """A worker holds a chunk, the signs of a block of records, and a tile for each thread."""
    memory, schema = executor.measure(), run.training.schema_of_records
    # Numbers of eight bytes: four tables as large as the chunk; a sign for each of its records and
    # each surrogate of the tile, 64 to a word; a block of signs as numbers, and three sums.
    columns, tile = trained.n_features_out, trained.tile_rows or 1
    words = schema.chunk_rows * -(-tile // 64)
    needed = 8 * (4 * schema.chunk_rows * columns + words + (BLOCK_RECORDS + 3 * columns) * tile)
    check_memory(needed, memory.smallest, memory.threads)
