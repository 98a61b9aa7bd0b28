"""Peak memory of ingest is that of a few blocks: five times the records need no more of it."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

N_PIECE = 10_000
N_FEATURES = 40

# Blocks are small, so that what is read ahead (32 of them) is reached by the small source.
MEASURE = """
import sys
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.access.objects import use_one_thread
from privpipe.store.sources.reading import delimited
from privpipe.store.sources.reading.source import SourceLayout
use_one_thread()
delimited.BLOCK_BYTES = delimited.BUFFER_BYTES = 2**16
named, *sources = sys.argv[1:]
named = {"labels": ("label",), "categorical": ("town",)} if named == "table" else {}
options = IngestOptions(layout=SourceLayout(**named), chunk_bytes=2**18)
for source in sources:
    ingest(source, f"{source}.ingested", options)
    # Unlike ru_maxrss this is not inherited from the process that started this one.
    with open("/proc/self/status") as status:
        print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""
"""The peak so far after each source: what a longer one after a shorter one needs more, it adds."""


@cache
def make_frame():
    rng = np.random.default_rng(1)
    columns = {f"f{j}": rng.normal(size=N_PIECE).round(3) for j in range(N_FEATURES)}
    columns["label"] = rng.integers(0, 2, N_PIECE)
    columns["town"] = rng.choice(["Ulm", "Bern", "Linz"], N_PIECE)
    return pd.DataFrame(columns)


@cache
def make_rows():
    """The records as lines of text."""
    return make_frame().to_csv(header=False, index=False)


def write_parquet(path, n_pieces):
    table = pa.Table.from_pandas(make_frame(), preserve_index=False)
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(n_pieces):
            writer.write_table(table, row_group_size=2_000)


def write_csv(path, n_pieces):
    body = make_rows()
    with gzip.open(path, "wt", 1) if path.suffix == ".gz" else open(path, "w") as file:
        file.write(",".join(make_frame().columns) + "\n")
        for _ in range(n_pieces):
            file.write(body)


def write_arff(path, n_pieces):
    names = "".join(f"@attribute f{j} numeric\n" for j in range(N_FEATURES))
    labels = "@attribute label {0,1}\n@attribute town {Ulm,Bern,Linz}\n"
    body = make_rows()
    with open(path, "w") as file:
        file.write(f"@relation r\n{names}{labels}@data\n")
        for _ in range(n_pieces):
            file.write(body)


def write_npz(path, n_pieces):
    x = np.tile(make_frame().iloc[:, :N_FEATURES].to_numpy(), (n_pieces, 1))
    np.savez_compressed(path, X=np.asfortranarray(x), y=np.arange(len(x)))


def write_zarr(path, n_pieces):
    x = make_frame().iloc[:, :N_FEATURES].to_numpy()
    shape = (n_pieces * N_PIECE, N_FEATURES)
    group = zarr.open_group(str(path), mode="w")
    features = group.create_array("X", shape=shape, chunks=(1_000, N_FEATURES), dtype="f8")
    for piece in range(n_pieces):
        features[piece * N_PIECE : (piece + 1) * N_PIECE] = x


def write_folder(path, n_pieces):
    """Files by Hive folder, each with its towns."""
    for piece in range(n_pieces):
        (path / f"day={piece}").mkdir(parents=True)
        write_parquet(path / f"day={piece}" / "t.parquet", 1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_parquet, "t.parquet"),
        (write_csv, "t.csv"),
        (write_csv, "t.csv.gz"),
        (write_arff, "t.arff"),
        (write_npz, "t.npz"),
        (write_zarr, "t.zarr"),
        (write_folder, "folder"),
    ],
)
def test_ingest__memory_does_not_grow_with_the_source(tmp_path, write, name):
    sources = [tmp_path / str(n_pieces) / name for n_pieces in (5, 17)]
    for source, n_pieces in zip(sources, (5, 17), strict=True):
        source.parent.mkdir()
        write(source, n_pieces)  # the fewer fill what is read ahead already
    what = "table" if name not in ("t.npz", "t.zarr") else "arrays"
    command = [sys.executable, "-c", MEASURE, what, *map(str, sources)]
    # The pool of the Arrow library keeps what it was given once, by the number of its threads.
    own = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=own)
    peaks = [int(line) * 2**10 for line in done.stdout.split()]
    grown = N_PIECE * (17 - 5) * N_FEATURES * 8
    # What grows with the source would grow by all of it; the rest is noise of the allocators.
    assert peaks[1] - peaks[0] < grown / 3, [peak / 2**20 for peak in peaks]
