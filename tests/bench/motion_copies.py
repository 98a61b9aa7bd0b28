"""Minimax fits as motion records grow: copies of HAR in chunks of 4 MiB, on workers and killed.

``python -m tests.bench.motion_copies FOLDER``, FOLDER with har.npz. Processor seconds are those of
the busiest worker, for on a machine that is shared wall time says more of the others; both are
printed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from threadpoolctl import threadpool_limits

from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.pass_checkpoints import Checkpoints
from privpipe.cluster.passes.reduce import ShardedCollection
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.sanitizers.minimax.linear_minimax import MinimaxOptions, fit_minimax_filter
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.collections.writing import write_collection
from tests.bench.bench_resume import DyingExecutor, Killed

Row = tuple[str, float, str, str, float, float]
CHUNK_BYTES = 4 << 20
OPTIONS = MinimaxOptions(n_filtered=5, max_iterations=5, tolerance=0.0)


def write_copies(url: str, folder: str | Path, n_copies: int, n_most: int | None = None) -> Any:
    """A collection of so many copies of (the first `n_most` of) the motion records."""
    with np.load(Path(folder) / "har.npz") as har:
        x = np.asarray(har["X"][:n_most], np.float32)
        activity, subject = (har[name][:n_most].astype(np.int8) - 1 for name in NAMES)
    rows = CHUNK_BYTES // x[0].nbytes
    schema = CollectionSchema(
        n_records=n_copies * len(x),
        n_features=x.shape[1],
        dtype="float32",
        chunk_rows=rows,
        variables=tuple(
            Variable(name, "int8", tuple(f"{name}{i}" for i in range(n)))
            for name, n in NAMES.items()
        ),
    )

    def blocks() -> Iterator[dict[str, Any]]:
        for start in range(0, schema.n_records, rows):
            at = np.arange(start, min(start + rows, schema.n_records)) % len(x)
            yield {"features": x[at], "activity": activity[at], "subject": subject[at]}

    write_collection(url, schema, blocks())
    return open_collection(url, desired=["activity"], confidential=["subject"])


NAMES = {"activity": 6, "subject": 30}


def read_resident() -> float:
    """Resident memory of this process now, in MB: the features that it keeps among it."""
    return float(psutil.Process().memory_info().rss) / 1e6


def fit_on_workers(
    collection: Collection, workers: int, label: str, memory_limit: str = "auto"
) -> dict[str, float]:
    """Processor seconds of the busiest worker, wall seconds, memory of a worker, Phi."""
    options = ClusterOptions(workers=workers, dashboard="127.0.0.1:0", memory_limit=memory_limit)
    with connect(options) as client:
        before, start = client.run(time.process_time), time.perf_counter()
        shards = ShardedCollection(collection, DaskExecutor(client, label))
        fitted = fit_minimax_filter(shards, OPTIONS)
        wall, after = time.perf_counter() - start, client.run(time.process_time)
        memory = max(client.run(read_resident).values())
    busiest = max(after[key] - before[key] for key in after)
    return {"cpu": busiest, "wall": wall, "memory": memory, "phi": fitted.history[-1, 1]}


def compare_sizes(folder: str | Path, sizes: tuple[int, int], n_most: int | None) -> list[Row]:
    """Two workers against one, and twice the records against once.

    Raises
    ------
    AssertionError
        If Phi of one and of two workers differs by more than 1e-9.
    """
    found: dict[tuple[int, int], dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-copies-") as place:
        for n in sizes:
            collection = write_copies(f"{place}/{n}.zarr", folder, n, n_most)
            for workers in (1, 2):
                found[n, workers] = fit_on_workers(collection, workers, f"copies-{n}-{workers}")
                print(n, workers, found[n, workers], file=sys.stderr, flush=True)
    few, many = sizes
    assert abs(found[many, 1]["phi"] - found[many, 2]["phi"]) < 1e-9
    rows: list[Row] = []
    for key, unit in (("cpu", "s of CPU"), ("wall", "s"), ("memory", "MB")):
        one, two, less = (found[at][key] for at in ((many, 1), (many, 2), (few, 1)))
        rows.append((f"{many} copies, two workers: {key}", two, unit, "one worker", one, two / one))
        rows.append((f"{many} copies: {key}", one, unit, f"{few} copies", less, one / less))
    return rows


def compare_memory(folder: str | Path, sizes: tuple[int, int], n_most: int | None) -> list[Row]:
    """Memory of a worker after a fit to more records than it keeps, and to more still."""
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-copies-") as place:
        for n in sizes:
            collection = write_copies(f"{place}/{n}.zarr", folder, n, n_most)
            found.append(fit_on_workers(collection, 1, f"kept-{n}", memory_limit="800MiB"))
            print(n, "in 800 MiB", found[-1], file=sys.stderr, flush=True)
    few, many = (one["memory"] for one in found)
    name = "{} copies, a worker of 800 MiB: memory"
    return [(name.format(sizes[1]), many, "MB", f"{sizes[0]} copies", few, many / few)]


def compare_resumed(folder: str | Path, n_copies: int, n_most: int | None) -> list[Row]:
    """A fit in this process that is killed at .6 of its processor time, and what is left then.

    On one thread, as on a worker: threads that wait for one another spend processor time too.
    """
    with threadpool_limits(1), tempfile.TemporaryDirectory(prefix="bench-copies-") as place:
        collection = write_copies(f"{place}/records.zarr", folder, n_copies, n_most)

        def fit(kept: str, seconds: float) -> float:
            start = time.process_time()
            checkpoints = Checkpoints(f"{place}/{kept}")
            executor = DyingExecutor(seconds)
            try:
                shards = ShardedCollection(collection, executor, checkpoints=checkpoints)
                fit_minimax_filter(shards, OPTIONS)
            except Killed:
                assert seconds < 1e9
            return time.process_time() - start

        fit("warm", 1e9)  # reads files into the system's memory and compiles
        whole = fit("whole", 1e9)
        killed = fit("killed", 0.6 * whole)
        rest = fit("killed", 1e9)
        again = fit("killed", 1e9)  # nothing is left to do: what starting costs
    print("whole, killed, rest, again", whole, killed, rest, again, file=sys.stderr, flush=True)
    name = f"{n_copies} copies, killed at .6 and resumed"
    return [
        (name, rest, "s of CPU", "whole", whole, rest / whole),
        (f"{name}, both runs", killed + rest, "s of CPU", "whole", whole, (killed + rest) / whole),
        ("a fit whose answers are all known", again, "s of CPU", "whole", whole, again / whole),
    ]


if __name__ == "__main__":
    for row in [
        *compare_resumed(sys.argv[1], 20, None),
        *compare_sizes(sys.argv[1], (10, 20), None),
        *compare_memory(sys.argv[1], (20, 40), None),
    ]:
        print(*row, sep="\t", flush=True)
