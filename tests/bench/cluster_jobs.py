"""One cleaning or copying job on a local cluster, the whole way of the clean stage, measured.

The release prepared, eight chunks a task through the loop of `dist.apply`, receipts into the
ledger, completeness proven from it. The source is read from the page cache; what is written goes
there too, and the disk is waited for between jobs, never within one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from distributed import Client

from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Listener, ignore
from privpipe.cluster.passes import cleaning_pass as apply
from privpipe.cluster.passes.cleaning_pass import CleaningJob
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.store.arrays.blocks import Receipt, check_receipts
from privpipe.store.collections.collection import Collection
from privpipe.store.releases.release_writing import prepare_release, read_ledger, record_receipts
from tests.bench.stores import fresh_job, make_collection, write_cleaner
from tests.bench.watching import (
    copy_chunks,
    forget_peak,
    peak_bytes,
    processor_seconds,
    take_receipt_seconds,
    watch_receipts,
)

Work = Callable[[CleaningJob, list[int]], list[Receipt]]


@dataclass(frozen=True)
class Spent:
    """What one job took, in seconds.

    Parameters
    ----------
    wall
        From preparing the release to the proof of its receipts.
    workers
        Processor time of each worker: all, and that outside of the kernel.
    driver
        Processor time of this process.
    chunks
        Wall time of the workers from reading a chunk to its receipt, summed.
    receipts
        Of that, reading back and checksumming what was written.
    peak
        Largest resident memory of a worker, bytes.
    """

    wall: float
    workers: tuple[tuple[float, float], ...]
    driver: float
    chunks: float
    receipts: float
    peak: int

    @property
    def busiest(self) -> float:
        """Processor time of the worker that took most."""
        return max(whole for whole, _ in self.workers)

    @property
    def each(self) -> float:
        """Processor time per worker."""
        return self.processor / len(self.workers)

    @property
    def processor(self) -> float:
        """Processor time of all workers."""
        return sum(whole for whole, _ in self.workers)

    @property
    def outside_kernel(self) -> float:
        """Of that, outside of the kernel: without files, pages and sockets."""
        return sum(own for _, own in self.workers)

    @property
    def available(self) -> float:
        """Wall time of all workers together."""
        return self.wall * len(self.workers)


class JobBench:
    """A folder with a model in it, and jobs that are run on a cluster and measured.

    Parameters
    ----------
    folder
        For everything; the caller removes it.
    chunk_rows
        Records in a chunk of all collections.
    """

    def __init__(self, folder: Path, chunk_rows: int) -> None:
        self.folder, self.chunk_rows = folder, chunk_rows
        self.model = write_cleaner(folder)
        self._n_runs = 0

    def collection(self, n_chunks: int) -> Collection:
        return make_collection(self.folder, n_chunks, self.chunk_rows)

    @contextmanager
    def cluster(self, workers: int) -> Iterator[Client]:
        """A cluster whose workers have loaded and compiled all they need."""
        with connect(ClusterOptions(workers=workers, dashboard="127.0.0.1:0")) as client:
            with self.job(self.collection(1)) as job:
                prepare_release(job.plan)
                client.run(apply.clean_chunks, job, [0])
                client.run(copy_chunks, job, [0])
            client.run(watch_receipts)
            yield client

    def clean(self, client: Client, collection: Collection, listener: Listener = ignore) -> Spent:
        """Clean a collection, and remove the release."""
        with self.job(collection) as job:
            return measure_job(client, job, apply.clean_chunks, listener)

    def copy(self, client: Client, collection: Collection) -> Spent:
        """The same job in the same loop, but for the map."""
        with self.job(collection) as job:
            return measure_job(client, job, copy_chunks)

    def job(self, collection: Collection) -> AbstractContextManager[CleaningJob]:
        """A job with a release of its own, which is removed at the end."""
        self._n_runs += 1
        return fresh_job(self.folder, collection, self.model, f"{self._n_runs:08x}")


def measure_job(client: Client, job: CleaningJob, work: Work, listener: Listener = ignore) -> Spent:
    """One job, its release left in place; `work` is what a task of the loop calls."""
    with patch.object(apply, "clean_chunks", work):
        client.run(forget_peak)
        client.run(take_receipt_seconds)
        before = client.run(processor_seconds)
        mine, begun = time.process_time(), time.perf_counter()
        proven = _run_stage(client, job, listener)
        wall, driver = time.perf_counter() - begun, time.process_time() - mine
        after = client.run(processor_seconds)
    return Spent(
        wall=wall,
        workers=tuple((after[w][0] - before[w][0], after[w][1] - before[w][1]) for w in before),
        driver=driver,
        chunks=sum(receipt.seconds for receipt in proven),
        receipts=sum(client.run(take_receipt_seconds).values()),
        peak=max(client.run(peak_bytes).values()),
    )


def _run_stage(client: Client, job: CleaningJob, listener: Listener) -> Sequence[Receipt]:
    """What the clean stage does, without reading every byte again before publishing."""
    prepare_release(job.plan)
    apply.clean_collection(
        DaskExecutor(client, job.plan.run, listener),
        job,
        lambda found: record_receipts(job.plan, found),
    )
    proven = check_receipts(read_ledger(job.plan), job.plan.arrays, job.plan.run)
    return list(proven.values())
