"""A tall table, two columns of numbers: ingest against pyarrow reading it, and against more.

Reading CSV is parsing; of Parquet it is nearly nothing, so that any writer takes several times as
long. So Parquet is held against pyarrow reading and writing it as well, flushed as ingest does.
Each ingest is a process of its own, whose peak of memory is compared with that of a tenth of the
rows. ``PRIVPIPE_TALL_ROWS`` says how many there are, 2e7 by default, 2e5 where it is small.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

Row = tuple[str, float, str, str, float, float]
"""Name, value, unit, what it is measured against, its value, ratio."""

PIECE = 2**20

INGEST = """
import sys, time
import pyarrow as pa
from privpipe.store.access.objects import use_one_thread
from privpipe.store.collections.ingest import ingest
use_one_thread()
pa.set_cpu_count(1)
begun = time.perf_counter()
ingest(sys.argv[1], sys.argv[2])
print(time.perf_counter() - begun)
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


def run(small: bool) -> list[Row]:
    """Measure, interleaved, medians; nothing is judged here."""
    n_rows = int(float(os.environ.get("PRIVPIPE_TALL_ROWS", 2e5 if small else 2e7)))
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory(prefix="privpipe-bench-") as folder:
        return [
            *measure(Path(folder), "csv", n_rows, 1 if small else 3),
            *measure(Path(folder), "parquet", n_rows, 1 if small else 3),
        ]


def make_pieces(n_rows: int) -> Iterator[pa.RecordBatch]:
    """Rounded numbers, as people have them; the same for the same number of rows."""
    rng = np.random.default_rng(0)
    for start in range(0, n_rows, PIECE):
        n = min(PIECE, n_rows - start)
        yield pa.RecordBatch.from_pydict(
            {"a": rng.normal(size=n).round(3), "b": rng.integers(0, 1000, n) / 10}
        )


def write(path: Path, pieces: Iterator[pa.RecordBatch]) -> None:
    """Write a table by its ending, flushed to the disk."""
    first = next(pieces)
    kind = pc.CSVWriter if path.suffix == ".csv" else pq.ParquetWriter
    with open(path, "wb") as file, kind(file, first.schema) as writer:
        writer.write(first) if path.suffix == ".csv" else writer.write_batch(first)
        for piece in pieces:
            writer.write(piece) if path.suffix == ".csv" else writer.write_batch(piece)
    flushed = os.open(path, os.O_RDONLY)
    os.fsync(flushed)
    os.close(flushed)


def read(path: Path) -> Iterator[pa.RecordBatch]:
    """All rows of a table, with one thread, none of them kept."""
    if path.suffix == ".csv":
        yield from pc.open_csv(path, pc.ReadOptions(use_threads=False))
    else:
        yield from pq.ParquetFile(path, pre_buffer=False).iter_batches(batch_size=2**17)


def take(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def ingest_apart(path: Path, dest: Path) -> tuple[float, float]:
    """Seconds and peak of memory in MB of an ingest in a process of its own; it is removed."""
    told = subprocess.run(
        [sys.executable, "-c", INGEST, str(path), str(dest)],
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, peak = map(float, told.stdout.split())
    subprocess.run(["rm", "-r", str(dest)], check=True)
    return seconds, peak / 1024


def measure(folder: Path, ending: str, n_rows: int, rounds: int) -> list[Row]:
    """Lines of a format: speed against reading, against reading and writing, and memory."""
    path, tenth = folder / f"all.{ending}", folder / f"tenth.{ending}"
    write(path, make_pieces(n_rows))
    write(tenth, make_pieces(n_rows // 10))
    alone, both, ours, peaks = list[float](), list[float](), list[float](), list[float]()
    for _ in range(rounds):
        alone.append(take(lambda: [None for _ in read(path)]))
        both.append(take(lambda: write(folder / "again.parquet", read(path))))
        seconds, peak = ingest_apart(path, folder / "made.zarr")
        ours.append(seconds)
        peaks.append(peak)
    _, least = ingest_apart(tenth, folder / "made.zarr")
    path.unlink()
    what, time_of = f"{ending}, {n_rows:.0e} rows of two numbers", median(ours)
    return [
        (what, time_of, "s", "pyarrow reading", median(alone), time_of / median(alone)),
        (what, time_of, "s", "and writing Parquet", median(both), time_of / median(both)),
        (what, max(peaks), "MB", "of a tenth of the rows", least, max(peaks) / least),
    ]
