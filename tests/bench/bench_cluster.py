"""Cleaning on workers: against the workers' own copy, one against two, large against small.

What a job is, and what is measured of it, stands in `cluster_jobs`. Jobs that are compared run in
turn, and values are medians of the turns. Processor time of workers is that of their processes
with all threads, Dask's included.

Overhead is all time of the workers that is not spent in a chunk (they wait for planning, for
dispatch, for the last of them to end), and the processor time of this process (plan, scheduler,
ledger, proof of completeness) as if nothing of it ran beside the workers; with receipts, also the
time the workers take to read back and checksum what they wrote.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from distributed import Client

from tests.bench.cluster_jobs import JobBench, Spent
from tests.bench.stores import CHUNK_ROWS

Row = tuple[str, float, str, str, float, float]
MIB = 2**20


@dataclass(frozen=True)
class Sizes:
    """Chunks of three collections, records in a chunk, and turns; 1,000 chunks in three turns."""

    few: int = 14  # 99,862 records
    many: int = 168  # 1,198,344 records, 1.4 GB
    most: int = 1000  # 8 GB
    chunk_rows: int = CHUNK_ROWS
    rounds: int = 5
    rounds_of_most: int = 3


SMALL = Sizes(few=2, many=9, most=17, chunk_rows=64, rounds=1, rounds_of_most=1)


def run(small: bool) -> list[Row]:
    """All comparisons; the folder needs 16 GB at full size."""
    sizes = SMALL if small else Sizes()
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder:
        bench = JobBench(Path(folder), sizes.chunk_rows)
        with bench.cluster(1) as one, bench.cluster(2) as two:
            return [
                *compare_sizes(bench, sizes, one),
                *compare_with_copy(bench, sizes, one, two),
                *measure_overhead(bench, sizes, two),
            ]


def compare_with_copy(bench: JobBench, sizes: Sizes, one: Client, two: Client) -> list[Row]:
    """Cleaning and copying, on one worker and on two."""
    collection = bench.collection(sizes.many)
    found: dict[str, list[Spent]] = {"clean 1": [], "copy 1": [], "clean 2": [], "copy 2": []}
    for _ in range(sizes.rounds):
        found["clean 1"].append(bench.clean(one, collection))
        found["copy 1"].append(bench.copy(one, collection))
        found["clean 2"].append(bench.clean(two, collection))
        found["copy 2"].append(bench.copy(two, collection))
    rows = []
    for workers in (1, 2):
        name, other = f"clean {sizes.many} chunks, workers: {workers}", "their own copy"
        clean, copy = found[f"clean {workers}"], found[f"copy {workers}"]
        rows.append(_row(name, "s", _wall(clean), other, _wall(copy)))
        rows.append(_row(name, "s of CPU", _total(clean), other, _total(copy)))
    first, second = found["clean 1"], found["clean 2"]
    rows.append(_row("two workers", "s", _wall(second), "one worker", _wall(first)))
    busier, only = (_median(part, lambda spent: max(spent.workers)) for part in (second, first))
    rows.append(_row("busier of two workers", "s of CPU", busier, "one worker", only))
    return rows


def compare_sizes(bench: JobBench, sizes: Sizes, client: Client) -> list[Row]:
    """CPU per record and peak memory on one worker, which begins with the small collection."""
    few, many = bench.collection(sizes.few), bench.collection(sizes.many)
    at_first = [bench.clean(client, few) for _ in range(sizes.rounds)]
    smaller, larger = [], []
    for _ in range(sizes.rounds):
        larger.append(bench.clean(client, many))
        smaller += [bench.clean(client, few) for _ in range(sizes.rounds)]
    per_record = [
        1e6 * _total(part) / of.n_records for part, of in ((larger, many), (smaller, few))
    ]
    peaks = [max(spent.peak for spent in part) / MIB for part in (larger, at_first)]
    name, other = f"{many.n_records:,} records", f"{few.n_records:,} records"
    return [
        _row(f"{name}, per record", "us of CPU", per_record[0], other, per_record[1]),
        _row(f"{name}, peak memory of the worker", "MiB", peaks[0], other, peaks[1]),
    ]


def measure_overhead(bench: JobBench, sizes: Sizes, client: Client) -> list[Row]:
    """Planning, dispatch and receipts as a share of the workers' wall time; see the module."""
    collection = bench.collection(sizes.most)
    spent = [bench.clean(client, collection) for _ in range(sizes.rounds_of_most)]
    available = _median(spent, lambda s: s.available)
    overhead = _median(spent, lambda s: s.available - s.chunks + s.driver)
    receipts = _median(spent, lambda s: s.available - s.chunks + s.driver + s.receipts)
    driver = _median(spent, lambda s: s.driver)
    other = f"wall time of two workers, {sizes.most} chunks"
    return [
        _row("planning and dispatch, eight chunks a task", "s", overhead, other, available),
        _row("planning, dispatch and receipts", "s", receipts, other, available),
        _row("driver with scheduler", "s of CPU", driver, "the two workers", _total(spent)),
    ]


def _row(name: str, unit: str, value: float, reference: str, other: float) -> Row:
    return name, value, unit, reference, other, value / other


def _median(found: list[Spent], of: Callable[[Spent], float]) -> float:
    return median(of(spent) for spent in found)


def _wall(found: list[Spent]) -> float:
    return _median(found, lambda spent: spent.wall)


def _total(found: list[Spent]) -> float:
    return _median(found, lambda spent: sum(spent.workers))
