"""From the start of a run to its first finished chunk: everything its own, or everything there.

Cold: a run that starts a Prefect server and a cluster of two workers for itself. Warm: the same
run where server, database, scheduler and workers are processes that are there already. Both in a
fresh Python, whose imports are told apart; it is no part of a start that a flow is imported, since
a worker of Prefect imports it the same way in both.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median

from tests.operations.whole_cluster import POSTGRES, ROOT, WholeCluster
from tests.standard import write_standard

__all__ = ["measure_run_starts"]

Row = tuple[str, float, str, str, float, float]

PROGRAM = """
import sys, time
begun = time.perf_counter()
from privpipe.pipeline.operations.prefect_server import prepare_prefect
prepare_prefect()
from privpipe.flows.release_flow import run_pipeline
from privpipe.pipeline.operations.prefect_server import ephemeral_server
from privpipe.pipeline.runs.watch import Watch
called = time.perf_counter()
real = Watch.hear
def hear(self, event):
    if event.work == "clean_chunk" and event.what == "advances" and event.amount and not found:
        found.append(time.perf_counter())
    real(self, event)
found, Watch.hear = [], hear
if __name__ == "__main__":
    with ephemeral_server():
        run_pipeline(sys.argv[1])
    print(called - begun, found[0] - called)
"""

CONFIG = """
[collection]
path = "records.zarr"
desired = ["late"]
confidential = ["party"]
[method]
name = "null_space"
utility_budget = 0.05
ridge = 0.01
[release]
path = "{name}.zarr"
[cluster]
{cluster}
[audit]
adversaries = []
[gate]
enforce = false
"""


def measure_run_starts(folder: Path, rounds: int = 3) -> list[Row]:
    """Seconds of both, in turn."""
    folder.mkdir()
    write_standard(str(folder / "records.zarr"), 4_000, chunk_rows=250)
    whole = WholeCluster(folder)
    (folder / "program.py").write_text(PROGRAM)
    database = ["database"] if POSTGRES is not None else []
    found: dict[str, list[tuple[float, float]]] = {"cold": [], "warm": []}
    try:
        whole.start(*database, "server", "scheduler", "worker-1", "worker-2")
        _time(whole, "first", warm=True)  # the server's first flow, the workers' first chunk
        for turn in range(rounds):
            for kind, times in found.items():
                times.append(_time(whole, f"{kind}-{turn}", warm=kind == "warm"))
    finally:
        whole.stop()
    imports, cold = (median(column) for column in zip(*found["cold"], strict=True))
    _, warm = (median(column) for column in zip(*found["warm"], strict=True))
    return [
        ("run to its first chunk, all warm", warm, "s", "all its own", cold, warm / cold),
        ("imports of a run", imports, "s", "cold start", cold, imports / cold),
    ]


def _time(whole: WholeCluster, name: str, *, warm: bool) -> tuple[float, float]:
    """Seconds of imports, and from the call to the first chunk."""
    address = f'address = "tls://127.0.0.1:{whole.ports["scheduler"]}"'
    text = CONFIG.format(name=name, cluster=address if warm else "workers = 2")
    (whole.folder / f"{name}.toml").write_text(text)
    environment = dict(whole.environment)
    if not warm:
        for variable in list(environment):
            if variable.startswith(("PREFECT_API", "PREFECT_SERVER", "DASK_CONFIG")):
                del environment[variable]
        environment["PREFECT_HOME"] = str(whole.folder / "prefect-cold")
    done = subprocess.run(
        [sys.executable, "program.py", f"{name}.toml"],
        cwd=whole.folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    imports, first = map(float, done.stdout.split()[-2:])
    return imports, first
