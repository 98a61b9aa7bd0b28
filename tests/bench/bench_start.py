"""What comes before the first record: Prefect, the cluster, the command; and a worker's memory.

Everything is measured in a fresh process, in turn with a Python that does nothing, which is the
reference; only memory in work is held against what the plan predicts. Prefect is the in-process
server that a run without ``PREFECT_API_URL`` starts, with an empty flow; its first start makes its
database.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from privpipe.cluster.passes.cleaning_pass import clean_chunks
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.records.schema import predict_chunk_memory
from privpipe.store.releases.release_writing import prepare_release
from tests.bench.cluster_jobs import JobBench
from tests.bench.stores import CHUNK_ROWS, N_FEATURES
from tests.bench.watching import (
    forget_peak,
    give_back_memory,
    own_bytes,
    peak_bytes,
    resident_bytes,
)

Row = tuple[str, float, str, str, float, float]
MIB = 2**20

PREFECT = """
from privpipe.pipeline.operations.prefect_server import prepare_prefect
prepare_prefect()
from prefect import flow
@flow
def empty():
    pass
empty()
"""
CLUSTER = """
from privpipe.cluster.workers.connection import ClusterOptions, connect
if __name__ == "__main__":
    with connect(ClusterOptions(workers={workers}, dashboard="127.0.0.1:0")):
        pass
"""
HELP = """
import sys
from privpipe.command import main
sys.argv = ["privpipe", "--help"]
main()
"""
PROGRAMS = {
    "import privpipe": "import privpipe",
    "import privpipe, a cleaner used": "import privpipe; privpipe.NullSpaceCleaner",
    "privpipe --help": HELP,
    "import dask.distributed": "import distributed",
    "import prefect": "import prefect",
}
LONG = {
    "cluster of one worker, to its end": CLUSTER.format(workers=1),
    "cluster of two workers, to its end": CLUSTER.format(workers=2),
    "an empty flow": PREFECT,
}


def run(small: bool) -> list[Row]:
    """Seconds of each start, then memory."""
    with tempfile.TemporaryDirectory(prefix="bench-start-") as name:
        folder = Path(name)
        starts = measure_starts(folder, PROGRAMS if small else PROGRAMS | LONG, 1 if small else 7)
        if not small:
            starts.append(measure_first_flow(folder, rounds=3))
        return starts + measure_memory(folder, CHUNK_ROWS, n_chunks=2 if small else 24)


def measure_starts(folder: Path, programs: dict[str, str], rounds: int) -> list[Row]:
    """Median seconds of whole processes, each once per turn."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    nothing = []
    if PREFECT in programs.values():
        _seconds(PREFECT, folder / "prefect")  # makes the database
    for _ in range(rounds):
        nothing.append(_seconds("pass", folder))
        for name, program in programs.items():
            times[name].append(_seconds(program, folder / "prefect"))
    return [_row(name, found, nothing) for name, found in times.items()]


def measure_first_flow(folder: Path, rounds: int) -> Row:
    """An empty flow where Prefect never ran before: its database is made first."""
    times, nothing = [], []
    for turn in range(rounds):
        nothing.append(_seconds("pass", folder))
        times.append(_seconds(PREFECT, folder / f"prefect-{turn}"))
    return _row("the first empty flow of a Prefect home", times, nothing)


def _row(name: str, found: list[float], nothing: list[float]) -> Row:
    value, base = median(found), median(nothing)
    return name, value, "s", "a Python that does nothing", base, value / base


def _seconds(program: str, home: Path) -> float:
    """Wall time of a Python process, with a Prefect home of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "PREFECT_HOME": str(home)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - begun


def measure_memory(folder: Path, chunk_rows: int, n_chunks: int) -> list[Row]:
    """A worker that waits, one that has loaded all it needs, and what a chunk takes on top."""
    bench = JobBench(folder / "whole", chunk_rows)
    tiny = JobBench(
        folder / "tiny", chunk_rows // 7
    )  # of 1.2 MB: the kernel is compiled for it too
    with connect(ClusterOptions(workers=1, dashboard="127.0.0.1:0")) as client:
        idle = _only(client.run(own_bytes))
        with tiny.job(tiny.collection(1)) as job:
            prepare_release(job.plan)
            client.run(clean_chunks, job, [0])
        client.run(give_back_memory)
        ready, before = _only(client.run(own_bytes)), _only(client.run(resident_bytes))
        client.run(forget_peak)
        bench.clean(client, bench.collection(n_chunks))
        peak = _only(client.run(peak_bytes)) - before
    bare = float(subprocess.check_output([sys.executable, "-c", _OWN_MEMORY]))
    planned = predict_chunk_memory(chunk_rows, N_FEATURES, N_FEATURES, np.dtype("f4").itemsize)
    nothing, plan = "a Python that does nothing", "planned for a chunk"
    return [
        ("worker that waits, own memory", idle / MIB, "MiB", nothing, bare / MIB, idle / bare),
        ("worker that has cleaned", ready / MIB, "MiB", nothing, bare / MIB, ready / bare),
        (
            f"its peak over {n_chunks} chunks of 8 MiB, on top",
            peak / MIB,
            "MiB",
            plan,
            planned / MIB,
            peak / planned,
        ),
    ]


_OWN_MEMORY = """
import re
text = open("/proc/self/smaps_rollup").read()
print(1024 * sum(int(n) for n in re.findall(r"Private_(?:Clean|Dirty): +([0-9]+) kB", text)))
"""


def _only(found: dict[str, int]) -> int:
    (value,) = found.values()
    return value
