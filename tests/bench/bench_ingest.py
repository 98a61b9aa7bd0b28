"""Ingest and export of Parquet, against pyarrow and Zarr used by hand with the same codec.

Like for like: by hand, too, one thread reads and turns the next batch while another writes the
last one, and Arrow, Zarr and Blosc keep to one thread each. Wall time and processor time.

``python -m tests.bench.bench_ingest [megabytes]``
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

from privpipe.records.schema import plan_chunk_rows
from privpipe.store.access.objects import use_one_thread
from privpipe.store.access.workspace import remove_workspace
from privpipe.store.arrays.blocks import Receipt, write_block
from privpipe.store.arrays.layout import FEATURES, ArrayPlan
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.releases.export import export_release
from privpipe.store.releases.release_writing import ReleasePlan, prepare_release, publish_release
from privpipe.store.sources.reading.source import SourceLayout

Row = tuple[str, float, str, str, float, float]
"""Name, value, unit, what it is measured against, its value, ratio."""

Times = tuple[float, float]
"""Wall and processor seconds."""

N_FEATURES = 64
CODECS = [BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle"), Crc32cCodec()]


def run(small: bool) -> list[Row]:
    """Measure, interleaved, medians; nothing is judged here."""
    megabytes, rounds = (2, 1) if small else (512, 5)
    with tempfile.TemporaryDirectory(prefix="privpipe-bench-") as folder:
        return measure(Path(folder), megabytes, rounds)


def measure(folder: Path, megabytes: int, rounds: int) -> list[Row]:
    """All figures of this bench for a source of so many megabytes of features."""
    n_records = megabytes * 2**20 // (N_FEATURES * 4)
    rows = plan_chunk_rows(N_FEATURES, 4)
    source = folder / "source.parquet"
    use_one_thread()
    pa.set_cpu_count(1)  # the reference and ingest alike
    write_source(source, n_records)
    release = write_release(folder / "release.zarr", n_records, rows)
    layout = SourceLayout(labels=("label", "town"), drop=("id",))
    times = interleave(
        {
            "ingest": lambda out: ingest(str(source), out, IngestOptions(layout=layout)),
            "ingest by hand": lambda out: ingest_by_hand(source, out, rows),
            "read alone": lambda _: read_alone(source, rows),
            "export": lambda out: export_release(release, f"{out}.parquet"),
            "export by hand": lambda out: export_by_hand(release, f"{out}.parquet"),
        },
        folder,
        rounds,
    )
    by_hand = "pyarrow read, Zarr written by hand, same codec"
    back = "Zarr read, pyarrow write by hand"
    return [
        *rows_of(f"ingest Parquet, {megabytes} MB", times, "ingest", "ingest by hand", by_hand),
        *rows_of(
            "ingest Parquet", times, "ingest", "read alone", "pyarrow reading alone, in batches"
        ),
        *rows_of("export Parquet", times, "export", "export by hand", back),
    ]


def rows_of(name: str, times: dict[str, Times], ours: str, other: str, reference: str) -> list[Row]:
    """Two lines of the table: wall time, and processor time of all threads."""
    pairs = zip(("s", "s of CPU"), times[ours], times[other], strict=True)
    return [(name, value, unit, reference, base, value / base) for unit, value, base in pairs]


def write_source(path: Path, n_records: int) -> None:
    """Rounded numbers, a few labels, an identifier; in row groups of 128 Ki records."""
    rng = np.random.default_rng(0)
    writer: pq.ParquetWriter | None = None
    for start in range(0, n_records, 2**17):
        n = min(2**17, n_records - start)
        x = rng.normal(size=(N_FEATURES, n)).astype(np.float32).round(3)
        columns = {f"f{j}": pa.array(x[j]) for j in range(N_FEATURES)}
        columns["label"] = pa.array(rng.integers(0, 2, n).astype(np.int8))
        columns["town"] = pa.array(rng.choice(["Ulm", "Bern", "Linz"], n))
        columns["id"] = pa.array(np.arange(start, start + n))
        batch = pa.RecordBatch.from_pydict(columns)
        writer = writer or pq.ParquetWriter(path, batch.schema)
        writer.write_batch(batch)
    assert writer is not None
    writer.close()


def ingest_by_hand(source: Path, out: str, rows: int) -> None:
    """What one would write without privpipe, in batches of a chunk: no checks, digests, receipts.

    Reading the whole table first takes 1.5 to 2 times as long.
    """
    names = [f"f{j}" for j in range(N_FEATURES)]
    file = pq.ParquetFile(source, pre_buffer=False, read_dictionary=["town"])
    n, group = file.metadata.num_rows, zarr.open_group(out, mode="w")
    shapes = {FEATURES: ((n, N_FEATURES), "float32"), "label": ((n,), "int8")}
    shapes["town"] = ((n,), "int8")
    arrays = {
        name: group.create_array(
            name, shape=shape, chunks=(min(rows, n), *shape[1:]), dtype=dtype, compressors=CODECS
        )
        for name, (shape, dtype) in shapes.items()
    }

    def read_blocks() -> Iterator[dict[str, np.ndarray]]:
        for batch in file.iter_batches(batch_size=rows, columns=[*names, "label", "town"]):
            yield {
                FEATURES: batch.select(names).to_tensor(row_major=True).to_numpy(),
                "label": batch.column("label").to_numpy(),
                "town": batch.column("town").indices.to_numpy().astype(np.int8),
            }

    blocks, at = read_blocks(), 0
    with ThreadPoolExecutor(1) as reader:
        waiting = reader.submit(next, blocks, None)
        while (block := waiting.result()) is not None:
            waiting = reader.submit(next, blocks, None)
            stop = at + len(block["label"])
            for name, values in block.items():
                arrays[name][at:stop] = values
            at = stop


def read_alone(source: Path, rows: int) -> None:
    """Every column, in batches of a chunk, none of them kept."""
    for _ in pq.ParquetFile(source, pre_buffer=False).iter_batches(batch_size=rows):
        pass


def write_release(path: Path, n_records: int, rows: int) -> str:
    """A release as the pipeline writes one, without a model."""
    arrays = (
        ArrayPlan(FEATURES, (n_records, N_FEATURES), rows, "float32"),
        ArrayPlan("town", (n_records,), rows, "int8", (("categories", ["Bern", "Linz", "Ulm"]),)),
    )
    plan = ReleasePlan("0" * 8, str(path), arrays)
    prepare_release(plan)
    rng = np.random.default_rng(1)
    receipts: dict[int, Receipt] = {}
    for chunk in range(plan.chunks.n_chunks):
        start, stop = plan.chunks.rows(chunk)
        block = {
            FEATURES: rng.normal(size=(stop - start, N_FEATURES)).astype(np.float32).round(3),
            "town": rng.integers(-1, 3, stop - start).astype(np.int8),
        }
        receipts[chunk] = write_block(plan.data_url, arrays, chunk, block, plan.run)
    publish_release(plan, receipts, {})
    remove_workspace(plan.url)
    return plan.url


def export_by_hand(release: str, out: str) -> None:
    """Read and write chunk by chunk, without a look at the manifest."""
    group = zarr.open_group(release, mode="r")
    features, town, writer = group[FEATURES], group["town"], None
    kinds = pa.array(["Bern", "Linz", "Ulm"])
    rows = features.chunks[0]
    for start in range(0, features.shape[0], rows):
        x = np.ascontiguousarray(features[start : start + rows].T)
        codes = town[start : start + rows]
        columns = {f"feature_{j}": pa.array(x[j]) for j in range(N_FEATURES)}
        columns["town"] = pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), kinds)
        batch = pa.RecordBatch.from_pydict(columns)
        writer = writer or pq.ParquetWriter(out, batch.schema)
        writer.write_batch(batch)
    writer.close()


def interleave(
    actions: dict[str, Callable[[str], object]], folder: Path, rounds: int
) -> dict[str, Times]:
    """Median times of each action, all of them once per round, after one round to warm up."""
    found: dict[str, list[Times]] = {name: [] for name in actions}
    for turn in range(rounds + 1):
        for name, action in actions.items():
            out = str(folder / f"out-{turn}")
            start, used = time.perf_counter(), time.process_time()
            action(out)
            found[name].append((time.perf_counter() - start, time.process_time() - used))
            shutil.rmtree(out, ignore_errors=True)
            if os.path.exists(f"{out}.parquet"):
                os.remove(f"{out}.parquet")
    return {
        name: (median(wall for wall, _ in times[1:]), median(cpu for _, cpu in times[1:]))
        for name, times in found.items()
    }


def main(megabytes: int = 512, rounds: int = 5) -> list[Row]:
    """Print and return the figures."""
    with tempfile.TemporaryDirectory(prefix="privpipe-bench-") as folder:
        rows = measure(Path(folder), megabytes, rounds)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(f"median of {rounds}, load {load:.1f}, Arrow, Zarr and Blosc on one thread each")
    for name, value, unit, reference, other, ratio in rows:
        print(f"{name:24s}{value:8.3f} {unit}  {ratio:5.2f} x {reference} ({other:.3f} {unit})")
    return rows


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:3]))
