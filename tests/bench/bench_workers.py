"""Whole stages on one worker and on two: wall seconds, and processor seconds of the busier worker.

The clusters are warm: a stage has run on each before one is measured. Small, everything is done in
this process.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.pipeline.runs.resume import begin_or_resume
from privpipe.pipeline.runs.run import Run, Trained
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.audit.audit_stage import audit_stage
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.clean import clean_stage, plan_release
from privpipe.pipeline.stages.train import train_stage
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.store.access.workspace import hold_workspace
from privpipe.store.collections.writing import write_collection
from privpipe.store.keyring.keys import forget_keys

Row = tuple[str, float, str, str, float, float]
Spent = dict[str, tuple[float, float]]
"""Of each stage: wall seconds, processor seconds of the busiest worker."""

METHODS: dict[str, tuple[dict[str, Any], int, int]] = {
    "masking": ({"name": "masking", "n_surrogates": 2000}, 1_000_000, 30),
    "null_space": ({"name": "null_space", "utility_budget": 0.01, "ridge": 0.01}, 100_000, 300),
}
"""Of each method: its options, records and features."""


def run(small: bool) -> list[Row]:
    """Rows of every method: two workers against one."""
    rows: list[Row] = []
    for name, (method, n_records, n_features) in METHODS.items():
        sizes = (4_000, 6) if small else (n_records, n_features)
        if small and name == "masking":
            method = method | {"n_surrogates": 20}
        with tempfile.TemporaryDirectory(prefix="bench-workers-") as place:
            folder = Path(place)
            write_numbers(str(folder / "records.zarr"), *sizes)
            one, two = (measure_stages(folder, method, n, small=small) for n in (1, 2))
        for stage in one:
            of = f"{name}, {stage}, {sizes[0]:,} x {sizes[1]}"
            for k, unit in enumerate(("s", "s CPU of the busiest")):
                mine, other = two[stage][k], one[stage][k]
                rows.append((of, mine, unit, "one worker", other, mine / other if other else 0.0))
    return rows


def write_numbers(url: str, n_records: int, n_features: int, chunk_rows: int = 8192) -> None:
    """Records whose wanted and confidential numbers are linear in the features, but for noise."""
    random = np.random.default_rng(0)
    told = random.normal(size=(n_features, 2))
    schema = CollectionSchema(
        n_records=n_records,
        n_features=n_features,
        dtype="float64",
        chunk_rows=chunk_rows,
        variables=(Variable("wanted", "float64"), Variable("secret", "float64")),
    )

    def make() -> Iterator[dict[str, np.ndarray]]:
        for first in range(0, n_records, chunk_rows):
            n = min(chunk_rows, n_records - first)
            x = random.normal(size=(n, n_features))
            y = x @ told + random.normal(size=(n, 2))
            yield {"features": x, "wanted": y[:, 0], "secret": y[:, 1]}

    write_collection(url, schema, make())


def measure_stages(folder: Path, method: dict[str, Any], workers: int, *, small: bool) -> Spent:
    """The stages of one method on so many workers; the first turn warms them up."""
    found: Spent = {}
    with _open(workers, small) as client:
        for turn in range(1 if small else 2):
            options = RunOptions(
                collection={
                    "path": str(folder / "records.zarr"),
                    "desired": ["wanted"],
                    "confidential": ["secret"],
                },
                method=method,
                release={"path": str(folder / f"release-{workers}-{turn}.zarr")},
                audit={"holdout": 0.3, **({"adversaries": ["least_squares"]} if small else {})},
                gate={"enforce": False},
                cluster={"workers": 0},
            )
            found = _run_stages(options, client)
    return found


@contextmanager
def _open(workers: int, small: bool) -> Iterator[Client | None]:
    if small:
        yield None
        return
    with connect(ClusterOptions(workers=workers, dashboard="127.0.0.1:0")) as client:
        yield client


def _run_stages(options: RunOptions, client: Client | None) -> Spent:
    run, spent = check_stage(options), Spent()
    with hold_workspace(run.release_url):
        run, _ = begin_or_resume(run)
        executor: Executor = Executor() if client is None else DaskExecutor(client, run.run_id)

        def time_stage(name: str, work: Any) -> Any:
            before, begun = _read_clocks(client), time.monotonic()
            done = work()
            wall, after = time.monotonic() - begun, _read_clocks(client)
            spent[name] = wall, max(after[key] - before[key] for key in after)
            return done

        trained: Trained = time_stage("train", lambda: train_stage(run, executor))
        plan = plan_release(run, trained)
        name = "draw" if trained.tile_rows else "clean"
        cleaned = time_stage(name, lambda: clean_stage(run, trained, plan, executor))
        time_stage("audit", lambda: audit_stage(run, trained, cleaned, executor))
        _forget(run, trained)
    return spent


def _read_clocks(client: Client | None) -> dict[str, float]:
    """Processor time of every worker so far, or of this process."""
    if client is None:
        return {"here": time.process_time()}
    return dict(client.run(time.process_time))


def _forget(run: Run, trained: Trained) -> None:
    if trained.tile_rows:
        forget_keys(run.run_id)
