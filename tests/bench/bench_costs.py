"""`check --cost-of` of a tenth of the records, against what a run of all of them takes on workers.

A run is a process with its scheduler and two workers, up to its last cleaned chunk, watched as a
tree: processor seconds and characters read and written. What a run of a few records takes is what
starting costs, and is taken off. Load of the machine makes both larger, and not alike.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from privpipe.flows.pilot import forecast_cost
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.stages.check import check_stage
from tests.standard import write_standard

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
    n_records, rows = (200_000, 2_000) if small else (10_000_000, 20_000)
    with tempfile.TemporaryDirectory(prefix="bench-costs-") as folder:
        place = Path(folder)
        for name, n in (("few", 3 * rows), ("tenth", n_records // 10), ("all", n_records)):
            write_standard(str(place / f"{name}.zarr"), n, chunk_rows=rows)
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


def _watch(config: Path) -> np.ndarray:
    """Processor seconds, GB read and GB written of a run with all processes that it starts."""
    command = [sys.executable, "-c", PROGRAM, str(config)]
    found: dict[int, tuple[float, float, float]] = {}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            for one in [root, *root.children(recursive=True)]:
                try:
                    times, counted = one.cpu_times(), one.io_counters()
                except psutil.Error:  # it has ended; what it took until the last look is known
                    continue
                spent = times.user + times.system
                found[one.pid] = (spent, counted.read_chars / 1e9, counted.write_chars / 1e9)
            time.sleep(0.1)
        assert process.returncode == 0
    return np.sum(list(found.values()), axis=0)
