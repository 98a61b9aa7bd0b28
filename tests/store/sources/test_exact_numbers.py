"""Whole numbers beyond 2**53 are read exactly or refused: two persons never become one."""

from __future__ import annotations

import decimal
import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from privpipe.errors import InputError
from privpipe.records.schema import Variable
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.collections.proposal import propose_schema
from privpipe.store.sources.reading.source import SourceLayout

pytestmark = pytest.mark.filterwarnings("ignore::privpipe.errors.GuessWarning")

N, FIRST = 200, 2**53 + 1
MEASURED = np.arange(N) / 7
FEW = [FIRST + k % 4 for k in range(N)]
MANY = [FIRST + k // 2 for k in range(N)]
Keys = Sequence[int | None]


def write_csv(path: Path, keys: Keys) -> Path:
    rows = zip(MEASURED, keys, strict=True)
    return write_text(path.with_suffix(".csv"), "x,who\n", (f"{x},{k or ''}\n" for x, k in rows))


def write_arff(path: Path, keys: Keys) -> Path:
    head = "@relation r\n@attribute x numeric\n@attribute who numeric\n@data\n"
    rows = zip(MEASURED, keys, strict=True)
    return write_text(path.with_suffix(".arff"), head, (f"{x},{k or '?'}\n" for x, k in rows))


def write_lines(path: Path, keys: Keys) -> Path:
    rows = zip(MEASURED, keys, strict=True)
    lines = (json.dumps({"x": x, "who": k}) + "\n" for x, k in rows)
    return write_text(path.with_suffix(".jsonl"), "", lines)


def write_text(path: Path, head: str, lines: Any) -> Path:
    path.write_text(head + "".join(lines))
    return path


def table_of(keys: Keys, type_: Any) -> pa.Table:
    return pa.table({"x": MEASURED, "who": pa.array(keys, type_)})


def write_parquet(path: Path, keys: Keys) -> Path:
    pq.write_table(table_of(keys, pa.int64()), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def write_decimals(path: Path, keys: Keys) -> Path:
    whole = [None if k is None else decimal.Decimal(k) for k in keys]
    table = pa.table({"x": MEASURED, "who": pa.array(whole, pa.decimal128(38, 0))})
    pq.write_table(table, path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def write_arrow(path: Path, keys: Keys) -> Path:
    pyarrow.feather.write_feather(table_of(keys, pa.int64()), str(path.with_suffix(".arrow")))
    return path.with_suffix(".arrow")


def write_sqlite(path: Path, keys: Sequence[Any]) -> Path:
    path = path.with_suffix(".sqlite")
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t (x REAL, who INTEGER)")
        rows = zip(MEASURED.tolist(), keys, strict=True)
        database.executemany("INSERT INTO t VALUES (?, ?)", rows)
    database.close()
    return path


def write_npz(path: Path, keys: Keys) -> Path:
    np.savez(path.with_suffix(".npz"), X=MEASURED[:, None], who=np.array(keys, np.int64))
    return path.with_suffix(".npz")


EXACT = (write_lines, write_parquet, write_arrow, write_sqlite, write_npz)
"""Formats that declare whole numbers."""

WRITERS = (write_csv, write_arff, write_decimals, *EXACT)


def read_who(source: Path, **options: Any) -> tuple[Variable, int]:
    """The stored variable, and how many different values it has."""
    url = source.parent / f"{len(list(source.parent.iterdir()))}.zarr"
    layout = SourceLayout(features=("X" if source.suffix == ".npz" else "x",))
    layout = SourceLayout() if "schema" in options else layout
    ingest(source, url, IngestOptions(**{"layout": layout, **options}))
    opened = open_collection(url)
    values = opened.read("who", 0, opened.n_records).astype(float)
    return opened.schema_of_records.variable("who"), len(np.unique(values[values >= 0]))


@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "gaps"])
@pytest.mark.parametrize("keys", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("write", WRITERS)
def test_ingest__keeps_keys_apart_or_refuses_them(
    write: Callable[[Path, Keys], Path], keys: list[int], gaps: bool, tmp_path: Path
) -> None:
    """By float64 they were three classes of four, and 101 persons of 100 pairs."""
    if gaps and write is write_npz:
        pytest.skip("whole numbers of an array have no gaps")
    given = [None if gaps and k % 7 == 0 else key for k, key in enumerate(keys)]
    source = write(tmp_path / "t", given)
    n_different = len({*given} - {None})
    if keys is FEW and write in EXACT:  # classes are stored by what they are called
        stored, found = read_who(source)
        assert found == n_different
        assert str(FIRST) in (stored.categories or ())
    else:
        with pytest.raises(InputError, match=r"^'who' holds whole numbers of 2") as refused:
            read_who(source)
        assert refused.value.code == "rounded-key"
        assert str(FIRST)[:6] not in str(refused.value)
    # The remedy, for any of them.
    stored, found = read_who(source, categorical=("who",))
    assert found == n_different == len(stored.categories or ())


@pytest.mark.parametrize("use", ["subject", "variable"])
def test_schema__refuses_subjects_that_become_others(use: Any, tmp_path: Path) -> None:
    # Of twenty digits Arrow makes floating numbers at once.
    source = write_csv(tmp_path / "t", [10**19 + k // 2 for k in range(N)])
    schema = propose_schema(source)
    who = replace(schema.columns["who"], use=use, kind="number")
    schema = replace(schema, columns={**schema.columns, "who": who})
    with pytest.raises(InputError, match="'who' holds whole numbers of 2"):
        read_who(source, schema=schema)
    text = replace(schema, columns={**schema.columns, "who": replace(who, kind="text")})
    assert read_who(source, schema=text)[1] == N // 2


def test_ingest__takes_large_measurements_and_bins_as_they_are(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": MEASURED, "who": MEASURED * 1e30})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    for name in "t.csv", "t.parquet":
        assert read_who(tmp_path / name)[0].categories is None
    for write in write_csv, write_parquet:
        layout = SourceLayout(features=("x",), bins=("who=2",))
        stored, _ = read_who(write(tmp_path / "b", [None, *MANY[1:]]), layout=layout)
        assert len(stored.categories or ()) == 2


def test_ingest__keeps_keys_in_names_of_folders_apart(tmp_path: Path) -> None:
    for who in (FIRST, FIRST + 1):
        folder = tmp_path / "hive" / f"who={who}"
        folder.mkdir(parents=True)
        pd.DataFrame({"x": MEASURED}).to_csv(folder / "a.csv", index=False)
    layout = SourceLayout(features=("x",), labels=("who",))
    made = ingest(tmp_path / "hive", tmp_path / "c.zarr", IngestOptions(layout=layout))
    assert made.variables[0].categories == (str(FIRST), str(FIRST + 1))


def test_sqlite__whole_numbers_among_others_are_floating_numbers(tmp_path: Path) -> None:
    """Arrow refused them, and quoted the record's number."""
    source = write_sqlite(tmp_path / "t", [FIRST if k % 2 else 1.5 for k in range(N)])
    assert read_who(source) == (Variable("who", "float64"), 2)


@pytest.mark.parametrize("use", ["feature", "variable", "subject", "weights"])
def test_sqlite__a_text_among_the_numbers_of_a_schema_is_named(use: Any, tmp_path: Path) -> None:
    """It ended as a fault of privpipe, whose message quoted the cell."""
    write_sqlite(tmp_path / "a", [*range(N)])
    schema = propose_schema(tmp_path / "a.sqlite")
    who = replace(schema.columns["who"], use=use, kind="number")
    schema = replace(schema, columns={**schema.columns, "who": who})
    later = write_sqlite(tmp_path / "b", [*range(N - 1), "unheard of"])
    with pytest.raises(InputError, match=f"'who' holds no number in row {N}") as refused:
        read_who(later, schema=schema)
    assert refused.value.code == "cell"
    assert "unheard" not in str(refused.value)
    pq.write_table(table_of([str(k) for k in range(N)], pa.string()), tmp_path / "c.parquet")
    ingest(tmp_path / "c.parquet", tmp_path / "c.zarr", IngestOptions(schema=schema))
    assert open_collection(tmp_path / "c.zarr").n_records == N


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1e30", "2e31"], "number"),
        (["0", "3E28"], "number"),
        (["1e5", "300"], "text"),
        (["12e3", "13e5"], "text"),
        (["01", "1e5"], "text"),
    ],
)
def test_schema__powers_of_ten_are_numbers(cells: list[str], kind: str, tmp_path: Path) -> None:
    rows = (f"{k / 7},{cells[k % 2]}\n" for k in range(N))
    source = write_text(tmp_path / "t.csv", "x,size\n", rows)
    assert propose_schema(source).columns["size"].kind == kind
