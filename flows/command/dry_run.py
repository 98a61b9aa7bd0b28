"""``privpipe run --dry-run``: what a run would read, need and write, without doing it."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from rich.console import Console

from flows.check import check_stage
from flows.options import read_options
from flows.run import Run
from privpipe.records.chunks import ChunkPlan, predict_chunk_memory
from privpipe.store.location import shown

__all__ = ["dry_run_command"]

START_SECONDS = 15.0
"""Prefect's in-process server and a local cluster, roughly."""

READS = 5.0
"""A run reads, maps, writes, verifies and audits each chunk: about so many readings."""


def dry_run_command(config: str, *, as_json: bool) -> dict[str, Any]:
    """Print the plan of a run."""
    run = check_stage(read_options(config))
    plan = _plan(run)
    if as_json:
        return plan
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"would clean {plan['records']:,} records in {plan['chunks']:,} chunks ({plan['tasks']:,} "
        f"tasks), {plan['bytes_raw'] / 2**20:,.0f} MiB uncompressed"
    )
    console.print(
        f"would need  about {plan['bytes_per_thread'] / 2**20:,.0f} MiB per worker thread, "
        f"{plan['bytes_on_disk'] / 2**20:,.0f} MiB of disk at most"
    )
    console.print(
        f"would take  roughly {plan['seconds']:.0f} s on {plan['workers']} workers (from reading "
        "one chunk; training of iterative methods comes on top)"
    )
    for what, where in plan["writes"].items():
        console.print(f"would write {what:8s} {where}")
    return plan


def _plan(run: Run) -> dict[str, Any]:
    schema = run.collection.schema_of_records
    chunks = ChunkPlan(schema.n_records, schema.chunk_rows)
    itemsize = np.dtype(schema.dtype).itemsize
    workers = run.options.cluster.workers or os.cpu_count() or 1
    begun = time.perf_counter()
    run.collection.shard(0)
    one = time.perf_counter() - begun
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
        "seconds": START_SECONDS + READS * one * chunks.n_chunks / workers,
        "writes": {
            "release": shown(run.release_url),
            "model": shown(run.model_url),
            "report": shown(run.report_url),
        },
    }
