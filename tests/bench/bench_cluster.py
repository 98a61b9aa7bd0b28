"""Cleaning on workers: against the workers' own copy, one against two, large against small.

What a job is, and what is measured of it, stands in `cluster_jobs`. Jobs that are compared run in
turn, and values are medians of the turns. Processor time of workers is that of their processes
with all threads, Dask's included.

Overhead is a sum of three parts: wall time of the workers that is not spent in a chunk (they wait
for the plan, for dispatch, for the last of them to end); processor time of this process (plan,
scheduler, ledger, proof of completeness), as if none of it ran beside the workers; and the time
the workers take for the checksums of what they write. It is held against the wall time of
all workers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from distributed import Client

from privpipe.cluster.passes.cleaning_pass import clean_chunks
from tests.bench.cluster_jobs import JobBench, Spent, measure_job
from tests.bench.stores import CHUNK_ROWS

Row = tuple[str, float, str, str, float, float]


@dataclass(frozen=True)
class Sizes:
    """Chunks of three collections, records in a chunk, and turns; 1,000 chunks in three turns."""

    few: int = 14  # 99,862 records
    many: int = 168  # 1,198,344 records, 1.4 GB
    most: int = 1000  # 8 GB
    chunk_rows: int = CHUNK_ROWS
    rounds: int = 8
    rounds_of_most: int = 3


SMALL = Sizes(few=2, many=9, most=17, chunk_rows=64, rounds=1, rounds_of_most=1)


def run(small: bool) -> list[Row]:
    """All comparisons; the folder needs 16 GB at full size."""
    sizes = SMALL if small else Sizes()
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder:
        bench = JobBench(Path(folder), sizes.chunk_rows)
        with bench.cluster(1) as one, bench.cluster(2) as two:
            rows = [*compare_sizes(bench, sizes, one), *compare_with_copy(bench, sizes, one, two)]
            if small:  # nothing is measured then, and a cluster takes seconds to start
                return rows + measure_overhead(bench, sizes, two)
        with bench.cluster(2) as client:  # alone: a driver looks after one cluster
            return rows + measure_overhead(bench, sizes, client)


def compare_with_copy(bench: JobBench, sizes: Sizes, one: Client, two: Client) -> list[Row]:
    """Cleaning and copying, on one worker and on two, in an order drawn for each turn.

    What a job pays for new pages depends on which job gave pages back before it: with the same
    one before it in every turn, one of the four took up to .5 of its time more than in others.
    """
    collection = bench.collection(sizes.many)
    jobs = {
        "clean 1": lambda: bench.clean(one, collection),
        "copy 1": lambda: bench.copy(one, collection),
        "clean 2": lambda: bench.clean(two, collection),
        "copy 2": lambda: bench.copy(two, collection),
    }
    found: dict[str, list[Spent]] = {name: [] for name in jobs}
    for turn in range(sizes.rounds):
        for name in Random(turn).sample(list(jobs), len(jobs)):
            found[name].append(jobs[name]())
    rows = []
    for workers in (1, 2):
        name, other = f"clean {sizes.many} chunks, workers: {workers}", "their own copy"
        pair = found[f"clean {workers}"], found[f"copy {workers}"]
        rows += [
            _row(name, "s", other, *pair, of=lambda s: s.wall),
            _row(name, "s of CPU", other, *pair, of=lambda s: s.processor),
            _row(name, "s outside the kernel", other, *pair, of=lambda s: s.outside_kernel),
        ]
    pair = found["clean 2"], found["clean 1"]
    rows.append(_row("two workers", "s", "one worker", *pair, of=lambda s: s.wall))
    rows.append(_row("each of two workers", "s of CPU", "one worker", *pair, of=lambda s: s.each))
    rows.append(_row("busier of the two", "s of CPU", "one worker", *pair, of=lambda s: s.busiest))
    return rows


def compare_sizes(bench: JobBench, sizes: Sizes, client: Client) -> list[Row]:
    """CPU per record and peak memory on one worker, which begins with the small collection.

    The small one is cleaned so often that as many records are written, into releases beside one
    another, before any of them is removed: both take as much new memory for the page cache, which
    a virtual machine may have to get back from its host at a price.
    """
    few, many = bench.collection(sizes.few), bench.collection(sizes.many)
    at_first = [bench.clean(client, few) for _ in range(2)]
    smaller: list[float] = []
    larger: list[Spent] = []
    for _ in range(sizes.rounds):
        larger.append(bench.clean(client, many))
        with ExitStack() as stack:
            jobs = [stack.enter_context(bench.job(few)) for _ in range(sizes.many // sizes.few)]
            parts = [measure_job(client, job, clean_chunks).processor for job in jobs]
        smaller.append(sum(parts) / len(parts))
    name, other = f"{many.n_records:,} records", f"{few.n_records:,} records"
    peaks = [max(s.peak for s in part) / 2**20 for part in (larger, at_first)]
    one = 1e6 * _median(larger, lambda s: s.processor) / many.n_records
    each = 1e6 * median(smaller) / few.n_records
    return [
        (f"{name}, per record", one, "us of CPU", other, each, one / each),
        (f"{name}, worker's peak memory", peaks[0], "MiB", other, peaks[1], peaks[0] / peaks[1]),
    ]


def measure_overhead(bench: JobBench, sizes: Sizes, client: Client) -> list[Row]:
    """Planning, dispatch and receipts as a share of the workers' wall time; see the module."""
    collection = bench.collection(sizes.most)
    spent = [bench.clean(client, collection) for _ in range(sizes.rounds_of_most)]
    parts: dict[str, Callable[[Spent], float]] = {
        "workers not in a chunk": lambda s: s.available - s.chunks,
        "CPU of driver with scheduler": lambda s: s.driver,
        "receipts made by workers": lambda s: s.receipts,
        "planning, dispatch and receipts": lambda s: s.available - s.chunks + s.driver + s.receipts,
    }
    available = _median(spent, lambda s: s.available)
    other = f"wall time of two workers, {sizes.most} chunks"
    values = {name: _median(spent, part) for name, part in parts.items()}
    return [
        (name, value, "s", other, available, value / available) for name, value in values.items()
    ]


def _row(
    name: str,
    unit: str,
    reference: str,
    ours: list[Spent],
    theirs: list[Spent],
    *,
    of: Callable[[Spent], float],
) -> Row:
    """Medians of one quantity."""
    value, other = _median(ours, of), _median(theirs, of)
    return name, value, unit, reference, other, value / other


def _median(found: list[Spent], of: Callable[[Spent], float]) -> float:
    return median(of(spent) for spent in found)
