"""The clean stage: every chunk from store to worker to workspace, then proof of completeness."""

from __future__ import annotations

from functools import partial

import numpy as np
from distributed import Client

from flows.run import Run
from flows.train import Trained
from privpipe.dist.apply import CleaningJob, clean_collection
from privpipe.dist.cluster import measure_workers
from privpipe.dist.progress import Progress
from privpipe.records.chunks import check_memory, predict_chunk_memory
from privpipe.store.blocks import Receipt
from privpipe.store.layout import FEATURES, ArrayPlan
from privpipe.store.release import (
    ReleasePlan,
    finalise_release,
    prepare_release,
    record_receipts,
)

__all__ = ["clean_stage", "plan_release"]


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
        ),
    )


def clean_stage(
    run: Run, trained: Trained, plan: ReleasePlan, client: Client, progress: Progress
) -> dict[int, Receipt]:
    """Clean the collection and return the proven receipts."""
    memory = measure_workers(client)
    needed = predict_chunk_memory(
        plan.chunks.chunk_rows,
        trained.n_features_in,
        trained.n_features_out,
        np.dtype(plan.arrays[0].dtype).itemsize,
    )
    check_memory(needed, memory.smallest, memory.threads)
    prepare_release(plan)
    job = CleaningJob(
        collection=run.collection,
        plan=plan,
        model_url=run.work_model_url,
        model_digest=trained.model_digest,
        include=run.options.release.include,
    )
    progress.start("clean", plan.chunks.n_records)
    clean_collection(client, job, partial(record_receipts, plan), progress=progress)
    progress.finish()
    return finalise_release(plan)
