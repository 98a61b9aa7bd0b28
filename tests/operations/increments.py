"""Runs of an incremental release in this process, without Prefect: the real stages."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from privpipe.flows.increment_flow import release_increment
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages.increment_check import TimeSpan
from privpipe.store.collections.growing_collection import append_partition
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.sources.reading.source import SourceLayout

CONFIGURATION = """
[collection]
path = "{folder}/growing.zarr"
desired = ["sign"]
[training]
path = "{folder}/training.zarr"
[method]
name = "null_space"
utility_budget = {budget}
ridge = 0.01
[release]
path = "{folder}/release.zarr"
incremental = true
[cluster]
workers = 0
[audit]
holdout = 0.5
adversaries = []
[gate]
enforce = false
drift_max = {drift}
"""

INGEST = IngestOptions(
    layout=SourceLayout(features=("x",), labels=("sign",)),
    categorical=("sign",),
    chunk_bytes=20 * 3 * 8,
)


def configure(folder: Path, budget: float = 0.05, drift: float = 5.0) -> RunOptions:
    """A configuration of the folder, and its training records."""
    if not (folder / "training.zarr").exists():
        rng = np.random.default_rng(3)
        x = rng.normal(size=(200, 3))
        np.savez(folder / "training.npz", x=x, sign=(x[:, 0] > 0).astype("int8"))
        ingest(str(folder / "training.npz"), str(folder / "training.zarr"), INGEST)
    path = folder / "run.toml"
    path.write_text(CONFIGURATION.format(folder=folder, budget=budget, drift=drift))
    return read_options(str(path))


def day(number: int) -> str:
    """A logical time."""
    return f"2026-11-{1 + number:02d}T00:00:00+00:00"


def append(
    folder: Path, name: str, x: npt.NDArray[np.float64], number: int, *, replacing: bool = False
) -> bool:
    """Append records under a name; whether anything changed."""
    y = (x[:, 0] > 0).astype("int8")
    np.savez(folder / "batch.npz", x=x, sign=y)
    return append_partition(
        str(folder / "batch.npz"),
        str(folder / "growing.zarr"),
        name,
        day(number),
        INGEST,
        replacing=replacing,
    )[1]


def release(options: RunOptions, since: int | None = None, until: int | None = None) -> str:
    """One run."""
    times = TimeSpan(
        *(None if d is None else datetime.fromisoformat(day(d)) for d in (since, until))
    )
    return release_increment(options, Watch(), times)
