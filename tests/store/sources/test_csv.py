"""CSV: what is wrong is told by row and column, never by cell."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from privpipe.errors import FormatError, GuessWarning, InputError, StoreError
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.collections.writing import read_statistics
from privpipe.store.sources import csv_table
from privpipe.store.sources.reading import delimited
from privpipe.store.sources.reading.source import SourceLayout
from tests.store.tables import read_collection


def ingest_text(tmp_path, text, name="t.csv", **layout):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    dest = tmp_path / "c.zarr"
    ingest(str(path), str(dest), IngestOptions(layout=SourceLayout(**layout)))
    return read_collection(dest)


@pytest.mark.parametrize(
    ("text", "message", "code"),
    [
        ("a,b\n1,2\n3,secret\n", r"holds text in b", "text-feature"),
        ("a,b\n1,2\n3,4\n5\n", r"row 4 has 1 cells instead of 2", "ragged"),
        ("a;b\n1,5;2\n", "another sign separates all cells", "ragged"),
        ("a,b\n1,2\n3,77777,5\n", r"row 3 has 3 cells instead of 2", "ragged"),
        ("a,b,a\n1,2,3\n", r"several columns named a", "duplicate-names"),
        ("", "is empty", "empty"),
        ("a,b\n", "has no records", "empty"),
        ("39,77777,x\n1,2,y\n", "numbers in its first row", "no-header"),
        (",a\n0,1\n1,2\n", "Column 1 of .* has no name.*--drop unnamed_1", "unnamed-column"),
        ("a;b\n1;77777\n", "one column whose name holds ';'.*--delimiter ';'", "delimiter"),
        (b"a,b\n1,\xff\xfe\n", r"t\.csv: line 2 is not text in UTF-8", "encoding"),
        (b"a,\xff\xfe\n1,77777\n", r"t\.csv: line 1 is not text in UTF-8", "encoding"),
        ("a,b\n1,77777\n".encode("utf-16"), "but in UTF-16.*iconv -f UTF-16 -t", "encoding"),
        (b"a,b\n1,\xff\n", "is not text in UTF-8. .*iconv -f LATIN1 -t", "encoding"),
        ("a,b\n1,?\n2,77777\n", "--missing names a missing value", "text-feature"),
        ("a,day\n1,2024-07-01\n", r"neither numbers nor text: day \(date32", "column-type"),
    ],
)
def test_ingest__a_bad_text_is_told_without_its_cells(tmp_path, text, message, code):
    with pytest.raises((InputError, FormatError), match=message) as caught:
        ingest_text(tmp_path, text)
    assert caught.value.code == code
    told = f"{caught.value} {caught.value.__context__!r}"
    assert not [cell for cell in ("secret", "77777", "2024") if cell in told]
    assert not (tmp_path / "c.zarr").exists()


def test_ingest__text_beyond_the_first_block_is_told_by_row(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 200)
    text = "a,b\n" + "1,2\n" * 300 + "1,secret\n"
    with pytest.raises(InputError, match=r"row 302 .* column 'b' that is not a number") as caught:
        ingest_text(tmp_path, text)
    assert "secret" not in f"{caught.value} {caught.value.__context__!r}"
    found = ingest_text(tmp_path, text, categorical=("b",))
    assert found["b"][-2:] == ["2", "secret"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"1,secr\xe9t,2\n", "row 302 has 3 cells instead of 2"),
        (b"1,secr\xe9t\n", r"line 302 is not text in UTF-8"),
        (b'1,"a\nsecr\xe9t"\n', r"line 303 is not text in UTF-8"),
    ],
)
def test_ingest__a_byte_that_is_no_text_is_never_shown(
    tmp_path: Path, capfd, monkeypatch, row, message
):
    """A callback of Arrow's printed a traceback with it, past every error of ours."""
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 200)
    seen: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", seen.append)
    with pytest.raises((InputError, FormatError), match=message) as caught:
        ingest_text(tmp_path, b"a,b\n" + b"1,x\n" * 300 + row, categorical=("b",))
    shown = f"{caught.value} {caught.value.__context__!r} {capfd.readouterr()}"
    assert not [word for word in ("secr", "xe9", "\xe9", "Traceback") if word in shown]
    assert not seen
    assert not (tmp_path / "c.zarr").exists()


def test_ingest__a_pipe_is_not_waited_at(tmp_path):
    os.mkfifo(tmp_path / "t.csv")
    with pytest.raises(StoreError, match="is no regular file"):
        ingest(str(tmp_path / "t.csv"), str(tmp_path / "c.zarr"))
    assert os.listdir(tmp_path) == ["t.csv"]


def test_ingest__kinds_of_variables_follow_their_cells(tmp_path):
    text = "f,zip,flag,few,many,real\n" + "".join(
        f"0.5,{i:03d},{'true' if i % 2 else 'false'},{i % 2},{i},{i / 4}\n" for i in range(9)
    )
    labels = ("flag", "few", "many", "real")
    with pytest.warns(GuessWarning, match=r"^many: whole numbers, which are stored as classes"):
        found = ingest_text(tmp_path, text, labels=labels, categorical=("zip",))
    assert found["zip"] == [f"{i:03d}" for i in range(9)]
    assert found["flag"][:2] == ["false", "true"]
    assert found["few"][:2] == ["0", "1"]
    assert found["many"] == list(map(str, range(9)))
    np.testing.assert_array_equal(found["real"], np.arange(9) / 4)


def test_ingest__missing_cells_are_those_named(tmp_path):
    text = "a,town\n1,NA\n,-\n3,x\n"
    found = ingest_text(tmp_path, text, categorical=("town",))
    assert found["town"] == [None, "-", "x"]
    np.testing.assert_array_equal(found["features"][:, 0], [1, np.nan, 3])
    assert read_statistics(str(tmp_path / "c.zarr")).cells_not_finite == 1
    (tmp_path / "c.zarr").rename(tmp_path / "old.zarr")
    again = ingest_text(tmp_path, text, categorical=("town",), missing=("", "-"))
    assert again["town"] == ["NA", None, "x"]


def test_ingest__names_of_columns_may_count(tmp_path):
    found = ingest_text(tmp_path, "0,1,2,label\n5,6,7,x\n", labels=("label",))
    np.testing.assert_array_equal(found["features"], [[5, 6, 7]])


def test_ingest__quotes_delimiters_and_a_byte_order_mark_are_understood(tmp_path):
    text = '\ufeffa;"b ""c""";town\n1;2;"x;\ny"\n3;4;z\n'
    found = ingest_text(tmp_path, text, delimiter=";", labels=("town",))
    assert found["town"] == ["x;\ny", "z"]
    np.testing.assert_array_equal(found["features"], [[1, 2], [3, 4]])


def test_ingest__a_row_longer_than_a_block_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 64)
    with pytest.raises(FormatError, match="a row of more than"):
        ingest_text(tmp_path, "a,b\n1,2\n1," + "2" * 3000 + "\n")


@pytest.mark.parametrize("mark", [",", ";", "\t", "|", ":"])
def test_scan__finds_a_cell_that_begins_with_zeros_wherever_it_is(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a regular expression does, with pieces that end anywhere: a code keeps its zero."""
    monkeypatch.setattr(csv_table, "BUFFER_BYTES", 7)
    rng = np.random.default_rng(3)
    cells = ["1.05", "0.5", "10", "0", "-0.03", "1e05", "100.007", "2.00", "a0b"]
    begins = re.compile(rb"(?:^|[\n\r\"+\- " + re.escape(mark).encode() + rb"])0[0-9]")
    for code in ["007", "-05", '"012"', "+00", None]:
        rows = [[*rng.choice(cells, 3)] for _ in range(20)]
        if code is not None:
            rows[int(rng.integers(20))][int(rng.integers(3))] = code
        text = "".join(f"{mark.join(row)}\n" for row in rows).encode()
        found, has_codes, _, n_lines = csv_table._scan(pa.BufferReader(text), mark)
        assert has_codes == (b"1e05" in text)
        assert found == bool(begins.search(text)) == (code is not None), code
        assert n_lines == 20 or (n_lines is None and code == '"012"')


@pytest.mark.parametrize(
    ("text", "n_records"),
    [
        ('"a","b"\n1,2\n3,4', 2),
        ("a,b\n1,2\n\n3,4\n", 2),
        ("a,b\r\n1,2\r\n3,4\r\n", 2),
        ("a,b\r1,2\r3,4", 2),
        ('a,b\n"1",2\n3,4\n', 2),
        ('"a\nc",b\n1,2\n', 1),
        ("a,b\n1,2\n\n\n", 1),
    ],
)
@pytest.mark.parametrize("size", [5, 2**20])
def test_ingest__counts_the_rows_that_pyarrow_reads(
    text: str, n_records: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By lines where each is a row: quotes, empty lines and returns are left to the parser."""
    monkeypatch.setattr(csv_table, "BUFFER_BYTES", size)
    (tmp_path / "t.csv").write_bytes(text.encode())
    options = IngestOptions(layout=SourceLayout(categorical=("b",)))
    assert ingest(tmp_path / "t.csv", tmp_path / "t.zarr").n_records == n_records
    assert ingest(tmp_path / "t.csv", tmp_path / "u.zarr", options).n_records == n_records
