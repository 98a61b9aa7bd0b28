"""Tables of kilobytes that unfold to gigabytes: refused, in bounded memory, with a way out."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from privpipe.errors import FormatError
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.sources import arrow_file
from privpipe.store.sources.formats import open_source
from privpipe.store.sources.reading.delimited import MOST_LINE_BYTES
from privpipe.store.sources.reading.roles import MOST_COLUMNS
from privpipe.store.sources.reading.source import SourceLayout

PIECE = b"0" * 2**20
ARFF = b"@relation r\n@attribute a numeric\n@data\n"


def write_bomb(path: Path, before: bytes, n_pieces: int = 160) -> Path:
    """A line of 160 MiB without end, in a file of some hundred kilobytes."""
    with gzip.open(path, "wb", 1) as file:
        file.write(before)
        for _ in range(n_pieces):
            file.write(PIECE)
    assert path.stat().st_size < 2**20
    return path


@pytest.mark.parametrize(
    ("name", "before", "code"),
    [
        ("x.csv.gz", b"", "long-line"),
        ("x.csv.gz", b'a,"b', "long-line"),
        ("x.csv.gz", b"a,b\n1,2\n", "format"),
        ("x.csv.gz", b'a,b\n1,"', "format"),
        ("x.arff.gz", b"", "long-line"),
        ("x.arff.gz", b"@relation r\n@attribute a {", "long-line"),
        ("x.arff.gz", b"%", "long-line"),
        ("x.arff.gz", ARFF, "long-line"),
        ("x.arff.gz", ARFF + b"{", "long-line"),
    ],
)
def test_ingest__refuses_a_line_without_end_in_bounded_memory(
    tmp_path: Path, name: str, before: bytes, code: str
) -> None:
    source = write_bomb(tmp_path / name, before)
    held = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            ingest(source, tmp_path / "records.zarr")
        assert caught.value.code == code
        assert tracemalloc.get_traced_memory()[1] < 5 * MOST_LINE_BYTES
    finally:
        tracemalloc.stop()
    assert pa.total_allocated_bytes() - held < 2 * MOST_LINE_BYTES
    assert caught.value.remedy
    assert not (tmp_path / "records.zarr").exists()


def test_open_source__refuses_a_first_row_of_too_many_columns(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "x.csv.gz", "wb", 1) as file:
        file.write(b"c," * MOST_COLUMNS + b"c\n" + b"1," * MOST_COLUMNS + b"1\n")
    with pytest.raises(FormatError, match=r"more than 65,536 columns") as caught:
        open_source(str(tmp_path / "x.csv.gz"), SourceLayout())
    assert caught.value.code == "wide"


def test_ingest__refuses_a_row_group_that_unfolds_too_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the footer, before a page is read; smaller row groups, or leaving it out, are ways out."""
    monkeypatch.setattr(arrow_file, "MOST_COLUMN_BYTES", 2**16)
    table = pa.table({"a": np.zeros(2**14), "b": np.arange(2**14, dtype=np.int32) % 3})
    plain = {"compression": "zstd", "use_dictionary": ["b"]}
    pq.write_table(table, tmp_path / "x.parquet", **plain)
    assert (tmp_path / "x.parquet").stat().st_size < 2**13
    with pytest.raises(FormatError, match=r"row group \(0\) whose column 'a' unfolds") as caught:
        ingest(tmp_path / "x.parquet", tmp_path / "records.zarr")
    assert caught.value.code == "row-group"
    assert "row_group_size" in caught.value.remedy
    assert "--drop" in caught.value.remedy
    assert not (tmp_path / "records.zarr").exists()
    ingest(tmp_path / "x.parquet", tmp_path / "without.zarr", IngestOptions(drop=("a",)))
    pq.write_table(table, tmp_path / "y.parquet", row_group_size=2**12, **plain)
    ingest(tmp_path / "y.parquet", tmp_path / "records.zarr")
