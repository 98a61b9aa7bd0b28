"""Memory of long runs on deployed processes: workers over bytes, a scheduler over chunks and tasks.

The source is made of few chunks with many names; a part of the release is written as always, and
what is finished is emptied at once, so that as many bytes can go through as are asked for. Whether
memory grows is asked of the second tenth of the work and of the last: before, processes still load
and compile what they need.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
from distributed import Client
from distributed.spans import SpansSchedulerExtension

from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.passes.cleaning_pass import clean_collection
from privpipe.cluster.workers.connection import connect
from privpipe.cluster.workers.progress import Progress
from privpipe.pipeline.runs.watch import SHOW_EVERY
from privpipe.store.access.location import local_path
from privpipe.store.arrays.blocks import Receipt
from privpipe.store.arrays.layout import chunk_key
from privpipe.store.releases.release_writing import ReleasePlan, prepare_release, record_receipts
from tests.bench.cluster_jobs import JobBench
from tests.bench.deployed_cluster import deployed_cluster
from tests.bench.stores import CHUNK_ROWS

__all__ = ["measure_scheduler", "measure_tasks", "measure_workers"]

Row = tuple[str, float, str, str, float, float]
MIB = 2**20
TENTHS = 10


@dataclass
class Watched:
    """Memory of processes while a pass goes on, by tenths of it.

    Parameters
    ----------
    numbers
        Processes.
    own
        Whether only memory is counted that is of no file.
    peaks
        Largest sum of the processes' memory in each tenth, bytes.
    """

    numbers: Sequence[int]
    own: bool
    peaks: list[int] = field(default_factory=lambda: [0] * TENTHS)
    tenth: int = 0

    def look(self) -> None:
        """Measure now."""
        processes = [psutil.Process(number) for number in self.numbers]
        found = [one.memory_info() for one in processes]
        size = sum(one.rss - (one.shared if self.own else 0) for one in found)
        self.peaks[self.tenth] = max(self.peaks[self.tenth], size)

    @contextmanager
    def looking(self, every: float = 0.1) -> Iterator[None]:
        """Measure all the time."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(every):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def measure_workers(folder: Path, n_bytes: int) -> list[Row]:
    """Largest memory of two workers in the last tenth of so many bytes, against the second."""
    bench = JobBench(folder / "bytes", CHUNK_ROWS)
    n_chunks = max(n_bytes // (8 * MIB), TENTHS)
    with deployed_cluster(folder, 2) as options, connect(options) as client:
        client.wait_for_workers(2, timeout=120)
        watched = Watched(sorted(client.run(os.getpid).values()), own=False)
        clean(bench, client, n_chunks, watched)
    early, late = watched.peaks[1], watched.peaks[-1]
    name = f"workers' peak, tenth of {n_chunks * 8 / 1024:.1f} GiB: last"
    return [(name, late / MIB, "MiB", "second", early / MIB, late / early)]


def measure_scheduler(folder: Path, n_chunks: int, chunk_rows: int = 16) -> list[Row]:
    """What a scheduler's own memory grows by per chunk, against the bytes of a receipt."""
    bench = JobBench(folder / "chunks", chunk_rows)
    with deployed_cluster(folder, 2) as options, connect(options) as client:
        client.wait_for_workers(2, timeout=120)
        watched = Watched([client.run_on_scheduler(os.getpid)], own=True)
        receipt = clean(bench, client, n_chunks, watched)
    grown = (watched.peaks[-1] - watched.peaks[1]) / (n_chunks * (TENTHS - 2) / TENTHS)
    whole = watched.peaks[-1] / MIB
    return [
        (f"scheduler grows, {n_chunks:,} chunks", grown, "B/chunk", "a receipt", receipt,
         grown / receipt),
        ("scheduler at the end", whole, "MiB", "second tenth", watched.peaks[1] / MIB,
         watched.peaks[-1] / watched.peaks[1]),
    ]  # fmt: skip


RUN_TASKS = 4_096
"""Tasks of a run: a pass has no more."""

MEASURED = ("B/task in use", "objects/task", "B/task held")

SHORT = {
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__LOG_LENGTH": "20",
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "false",
}
"""What Dask notes by time, of which it retains an hour."""


def measure_tasks(folder: Path, n_tasks: int) -> list[Row]:
    """What scheduler, workers and flow keep of each task that is gone: bytes in use, and objects.

    Slopes by least squares over many short runs, of the second half: before, tables grow to their
    size. The reference is the same scheduler with what Dask notes by itself, for a fifth as many
    tasks. What Dask notes by time is short here: an hour of load and profiles grows for an hour.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (
        patch.dict(os.environ, SHORT),
        deployed_cluster(folder, 2) as options,
        connect(options) as client,
    ):
        client.wait_for_workers(2, timeout=120)
        ours = run_tasks(client, n_tasks)
        client.run_on_scheduler(note_spans)
        theirs, _ = fit_slope(run_tasks(client, n_tasks // 5), 0)
    rows: list[Row] = []
    for number, name in enumerate(("scheduler", "two workers", "flow")):
        for which, unit in enumerate(MEASURED):
            slope, error = fit_slope(ours, len(MEASURED) * number + which)
            rows.append((f"{name}, {n_tasks:,} tasks", slope, unit, "error", error, slope / error))
    return [*rows, ("scheduler as Dask has it", theirs, "B/task", "ours", rows[0][1], np.nan)]


def run_tasks(client: Client, n_tasks: int) -> list[tuple[int, ...]]:
    """Tasks done; what `measure_own` says of scheduler, workers and this process, 25 times."""
    found, done = list[tuple[int, ...]](), 0
    while done < n_tasks:
        executor = DaskExecutor(client)
        some = ((f"{n:06d}", (n,)) for n in range(min(RUN_TASKS, n_tasks - done)))
        for _ in executor.map_tasks(abs, some, prefix="clean_chunk"):
            done += 1
            if done % max(n_tasks // 25, 1) == 0:
                workers = np.sum(list(client.run(measure_own).values()), axis=0)
                scheduler = client.run_on_scheduler(measure_own)
                found.append((done, *scheduler, *map(int, workers), *measure_own()))
    return found


def fit_slope(found: Sequence[tuple[int, ...]], which: int) -> tuple[float, float]:
    """Bytes or objects per task, and their standard error."""
    kept = np.array(found[len(found) // 2 :], dtype=float)
    line, covariance = np.polyfit(kept[:, 0], kept[:, 1 + which], 1, cov=True)
    return float(line[0]), float(covariance[0, 0] ** 0.5)


class Heap(ctypes.Structure):
    """What glibc's heaps are made of, bytes and numbers: mallinfo2 of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def measure_own() -> tuple[int, int, int]:
    """Bytes in use by this process, its objects, and bytes that it holds of no file.

    In use is what Python's allocator and glibc's have handed out and not got back. What they hold
    beside it they hand out next: it grows by steps, as a heap is cut into pieces.
    """
    gc.collect()
    found = psutil.Process().memory_info()
    libc = ctypes.CDLL("libc.so.6")
    libc.mallinfo2.restype = Heap
    heap = libc.mallinfo2()
    with tempfile.TemporaryFile() as said:  # Python writes it to the number 2 itself
        before = os.dup(2)
        try:
            os.dup2(said.fileno(), 2)
            sys._debugmallocstats()
        finally:
            os.dup2(before, 2)
            os.close(before)
        said.seek(0)
        [line] = [one for one in said.read().decode().splitlines() if "in allocated blocks" in one]
    small = int(line.rpartition("=")[2].replace(",", ""))
    return small + heap.uordblks + heap.hblkhd, len(gc.get_objects()), int(found.rss - found.shared)


def note_spans(dask_scheduler: Any) -> None:
    """What Dask has by itself."""
    dask_scheduler.extensions["spans"] = SpansSchedulerExtension(dask_scheduler)


def clean(bench: JobBench, client: Client, n_chunks: int, watched: Watched) -> float:
    """Clean, telling the scheduler as a run does; mean bytes of a chunk's receipt as it travels."""
    travelled, shown = [0], [0.0]
    progress = Progress(run="0badcafe", stage="clean", total=float(n_chunks))
    with bench.job(bench.collection(n_chunks)) as job, watched.looking():
        executor = DaskExecutor(client, job.plan.run)
        prepare_release(job.plan)

        def record(receipts: Sequence[Receipt]) -> None:
            record_receipts(job.plan, receipts)
            travelled.append(len(pickle.dumps(receipts)))
            empty(job.plan, receipts)
            nonlocal progress
            progress = Progress(**{**progress.encode(), "done": progress.done + len(receipts)})
            if time.monotonic() - shown[-1] > SHOW_EVERY:  # as a run does
                shown.append(time.monotonic())
                executor.show(progress)
            watched.tenth = min(int(TENTHS * progress.done / n_chunks), TENTHS - 1)

        clean_collection(executor, job, record)
        watched.look()
    return sum(travelled) / n_chunks


def empty(plan: ReleasePlan, receipts: Sequence[Receipt]) -> None:
    """Give back the disk that finished chunks take."""
    root = local_path(plan.data_url)
    assert root is not None
    for receipt in receipts:
        for array in plan.arrays:
            os.truncate(Path(root) / chunk_key(array, receipt.chunk), 0)
