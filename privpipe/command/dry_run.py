"""``privpipe run --dry-run``: what a run would read, need and write, without doing it."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.runs.subject_limit import count_subjects
from privpipe.pipeline.runs.trusted_code import list_unrun
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.forecast import forecast_run
from privpipe.records.chunks import ChunkPlan, predict_chunk_memory
from privpipe.report.console import say
from privpipe.store.access.location import shown

START_SECONDS = 18.0
"""Prefect's in-process server, a local cluster, and what workers import for their first task."""

TRAIN_READS, CLEAN_READS, AUDIT_READS = 2.0, 4.0, 4.0
"""How many times as long as reading the records a stage takes, where its map is not iterative."""

ATTACK_SECONDS = 3e-7
"""One adversary, trained on raw or released records, per cell of its sample (measured)."""


def dry_run_command(config: str, *, as_json: bool) -> dict[str, Any]:
    """Print the plan of a run."""
    run = check_stage(read_options(config))
    plan, forecast, subjects = _plan(run), forecast_run(run), count_subjects(run)
    told: dict[str, Any] = {forecast.about: asdict(forecast)} if is_dataclass(forecast) else {}
    if as_json:
        return plan | told
    parts = plan["seconds_by_part"]
    say(
        f"would clean {plan['records']:,} records in {plan['chunks']:,} chunks ({plan['tasks']:,} "
        f"tasks), {plan['bytes_raw'] / 2**20:,.0f} MiB uncompressed"
    )
    say(
        f"would need  about {plan['bytes_per_thread'] / 2**20:,.0f} MiB per worker thread, "
        f"{plan['bytes_on_disk'] / 2**20:,.0f} MiB of disk at most"
    )
    say(
        f"would take  roughly {plan['seconds']:.0f} s {_say_where(plan['workers'])}: start "
        f"{parts['start']:.0f} s, passes over the records {parts['passes']:.0f} s, adversaries "
        f"{parts['adversaries']:.0f} s (from reading one chunk now; on a busy machine twice as "
        "long, and training of iterative methods comes on top)"
    )
    if forecast is not None:
        say(f"would mean  {forecast.describe()}")
    for sentence in list_unrun(run.options):
        say(f"would run   {sentence}")
    if subjects is not None:
        say(f"would count {subjects.describe()}")
    for what, where in plan["writes"].items():
        say(f"would write {what:8s} {where}")
    return plan | told


def _say_where(workers: int) -> str:
    """Who does the work."""
    return f"on {workers} workers" if workers else "in this process"


def _plan(run: Run) -> dict[str, Any]:
    schema = run.collection.schema_of_records
    chunks = ChunkPlan(schema.n_records, schema.chunk_rows)
    itemsize = np.dtype(schema.dtype).itemsize
    asked = run.options.cluster.workers
    workers = os.cpu_count() or 1 if asked is None else asked
    parts = _estimate_seconds(run, workers)
    raw = schema.n_records * max(schema.n_features, len(run.collection.attributes)) * itemsize
    return {
        "records": schema.n_records,
        "chunks": chunks.n_chunks,
        "tasks": len(chunks.tasks()),
        "bytes_raw": raw,
        "bytes_on_disk": raw,
        "bytes_per_thread": predict_chunk_memory(
            schema.chunk_rows, schema.n_features, schema.n_features, itemsize
        ),
        "workers": workers,
        "seconds": sum(parts.values()),
        "seconds_by_part": parts,
        "writes": {
            "release": shown(run.release_url),
            "model": shown(run.model_url),
            "report": shown(run.report_url),
        },
    }


def _estimate_seconds(run: Run, workers: int) -> dict[str, float]:
    """Seconds of a run by part, from reading one chunk."""
    run.training.shard(0)  # what is opened or compiled once
    begun = time.perf_counter()
    run.training.shard(0)
    one = time.perf_counter() - begun
    at_once = min(max(workers, 1), os.cpu_count() or 1)
    chunks = CLEAN_READS * run.collection.plan.n_chunks
    chunks += (TRAIN_READS + AUDIT_READS) * run.training.plan.n_chunks
    audit, schema = run.options.audit, run.training.schema_of_records
    held_out = schema.n_records * (audit.holdout or 1.0)
    cells = min(held_out, audit.max_records) * max(schema.n_features, len(run.training.attributes))
    # Features raw and released, and three readers of what is released beside them.
    attacks = (2 * len(audit.adversaries) + 3) * len(run.training.confidential)
    return {
        "start": START_SECONDS,
        "passes": one * chunks / at_once,
        "adversaries": ATTACK_SECONDS * cells * attacks / at_once,
    }
