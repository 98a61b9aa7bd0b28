"""`check --cost-of` of a tenth of the records, against what a run of all of them takes on workers.

A run is a process with its scheduler and two workers, up to its last cleaned chunk, watched as a
tree: processor seconds and characters read; and what it has stored then. What a run of a few
records takes is what starting costs, and is taken off. Load of the machine makes both larger, and
not alike. PRIVPIPE_BENCH_RECORDS says of how many records; 10^8 take 20 GB of disk and 12 minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from privpipe.flows.pilot import forecast_cost
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.stages.check import check_stage
from privpipe.protocols import AnyArray
from privpipe.store.collections.writing import write_collection
from tests.standard import make_standard, write_standard

Row = tuple[str, float, str, str, float, float]

CONFIG = """
[collection]
path = "{folder}/{name}.zarr"
desired = ["late"]
confidential = ["party"]
[method]
name = "null_space"
utility_budget = 0.05
ridge = 0.01
[release]
path = "{folder}/{name}.release.zarr"
[cluster]
workers = 2
dashboard = "off"
[audit]
adversaries = []
[gate]
enforce = false
[privacy]
account = "{folder}/{name}.account"
"""

# Without Prefect: a server of its own would work as much as these records do.
PROGRAM = """
import sys
from privpipe.flows.release_flow import release_collection
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.watch import Watch
if __name__ == "__main__":
    release_collection(read_options(sys.argv[1]), Watch(), "clean")
"""


def run(small: bool) -> list[Row]:
    """Processor hours, bytes read and bytes written: forecast, taken, and their ratio."""
    usual, rows = (2e5, 2_000) if small else (1e7, 20_000)
    n_records = int(float(os.environ.get("PRIVPIPE_BENCH_RECORDS", usual)))
    with tempfile.TemporaryDirectory(prefix="bench-costs-") as folder:
        place = Path(folder)
        for name, n in (("few", 3 * rows), ("tenth", n_records // 10), ("all", n_records)):
            _write(str(place / f"{name}.zarr"), n, rows)
            (place / f"{name}.toml").write_text(CONFIG.format(folder=place, name=name))
        checked = check_stage(read_options(str(place / "tenth.toml")))
        forecast = forecast_cost(checked, n_records - 3 * rows)
        taken = _watch(place / "all.toml") - _watch(place / "few.toml")
    said = (forecast.hours * 3600, forecast.bytes_read / 1e9, forecast.bytes_written / 1e9)
    names = (("processor", "s"), ("read", "GB"), ("written", "GB"))
    return [
        (f"{what}, {n_records:,} records", value, unit, "run on two workers", real, value / real)
        for (what, unit), value, real in zip(names, said, taken.tolist(), strict=True)
    ]


def _write(url: str, n_records: int, rows: int) -> None:
    """Standard records, which are never all in memory."""
    template = write_standard(f"{url}.template", rows, chunk_rows=rows)
    kept = template.variables[:-1]

    def blocks() -> Iterator[dict[str, AnyArray]]:
        for k in range(n_records // rows):
            x, variables = make_standard(rows, seed=k)
            yield {"features": x, **{v.name: variables[v.name].astype(v.dtype) for v in kept}}

    schema = replace(template, n_records=n_records, variables=kept, partitions=())
    write_collection(url, schema, blocks())


def _watch(config: Path) -> np.ndarray:
    """Processor seconds, GB read by all processes that a run starts, and GB that it has stored."""
    command = [sys.executable, "-c", PROGRAM, str(config)]
    most = np.zeros(2)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            # What an ended process took is its parent's from then on, in both counts of Linux.
            spent = [_count(one) for one in [root, *root.children(recursive=True)]]
            most = np.maximum(most, np.sum(spent, axis=0))
            time.sleep(0.1)
        assert process.returncode == 0
    stored = [
        *config.parent.glob(f"{config.stem}.account"),
        *config.parent.glob(f".{config.stem}.*"),
    ]
    sizes = [one.stat().st_size for place in stored for one in place.rglob("*") if one.is_file()]
    return np.array([*most, sum(sizes) / 1e9])


def _count(process: psutil.Process) -> tuple[float, float]:
    try:
        times, counted = process.cpu_times(), process.io_counters()
    except psutil.Error:  # it has ended since it was listed
        return 0.0, 0.0
    return sum(times[:4]), counted.read_chars / 1e9
