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

from privpipe.errors import InputError, OptionError
from privpipe.records.schema import Variable
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.collections.proposal import propose_schema
from privpipe.store.sources import arrow_file
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


LOST = r"^'who' holds whole numbers of 2\*\*53 and more, whose last digits are lost"
PERSONS = [str(key) for key in MANY]


@pytest.mark.parametrize(
    "lines",
    [
        [f'{{"x": {k}.5, "who": {10**20 + k // 2}}}\n' for k in range(N)],
        [f'{{"x": {k}.5, "who": {key if k else 1.5}}}\n' for k, key in enumerate(MANY)],
        [f'{{"x": {k}.5, "who": -{10**20 + k // 2}.00}} ' for k in range(N)],
        [f'{{"who" :\n{10**20 + k // 2},\n"x": {k}.5\n}}\n' for k in range(N)],
    ],
    ids=["beyond int64", "beside a fraction", "of decimals in one line", "over lines"],
)
def test_json__whole_numbers_that_arrow_makes_floating_are_refused(
    lines: list[str], tmp_path: Path
) -> None:
    """They were one person, as text too: the digits are gone before they are written as text."""
    source = write_text(tmp_path / "t.jsonl", "", lines)
    check_refused(source, "numeric", "categorical", "one_hot")
    measured = IngestOptions(layout=SourceLayout(features=("who",)))
    assert ingest(source, tmp_path / "f.zarr", measured).n_features == 1
    quoted = (json.dumps({"x": x, "who": k}) + "\n" for x, k in zip(MEASURED, PERSONS, strict=True))
    assert read_who(write_text(tmp_path / "q.jsonl", "", quoted))[1] == N // 2


def check_refused(source: Path, *ways: str) -> None:
    layouts = [SourceLayout(features=("x",), **{way: ("who",)}) for way in ("labels", *ways)]
    for layout in layouts:
        with pytest.raises(InputError, match=LOST) as refused:
            read_who(source, layout=layout)
        assert refused.value.code == "rounded-key"
    schema = propose_schema(source)
    who = replace(schema.columns["who"], use="subject", kind="text")
    with pytest.raises(InputError, match=LOST):
        read_who(source, schema=replace(schema, columns={**schema.columns, "who": who}))


def test_json__a_name_is_found_however_it_is_written(tmp_path: Path) -> None:
    name = 'd\'où "est"'
    for ascii_ in (True, False):
        rows = [json.dumps({"x": k / 7, name: 10**20 + k}, ensure_ascii=ascii_) for k in range(9)]
        source = write_text(tmp_path / f"{ascii_}.jsonl", "", "\n".join(rows))
        with pytest.raises(InputError, match="last digits are lost"):
            read_who(source)


def test_json__measured_labels_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_file, "BLOCK_BYTES", 5_000)  # a pair may lie across two
    for size in 1e14, 1e20:
        rows = [json.dumps({"x": x, "who": (x + 0.01) * size}) + "\n" for x in MEASURED]
        source = write_text(tmp_path / f"{size}.jsonl", "", rows)
        assert read_who(source) == (Variable("who", "float64"), N)
    key = json.dumps({"x": 0.5, "who": 10**20})
    with pytest.raises(InputError, match=LOST):
        read_who(write_text(tmp_path / "last.jsonl", "", [*rows, key]))


@pytest.mark.parametrize("keys", [FEW, MANY, ["A", *MANY[1:]]], ids=["few", "many", "mixed"])
def test_workbook__whole_numbers_of_cells_are_refused(keys: list[Any], tmp_path: Path) -> None:
    """A cell is a double: by --categorical there were 101 persons of 200, three classes of four."""
    pytest.importorskip("python_calamine")
    frame = pd.DataFrame({"x": MEASURED * 1e30, "who": keys})
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    check_refused(tmp_path / "t.xlsx", "categorical")
    without = IngestOptions(drop=("who",))
    assert ingest(tmp_path / "t.xlsx", tmp_path / "f.zarr", without).n_features == 1
    frame.astype({"who": str}).to_excel(tmp_path / "q.xlsx", index=False)
    assert read_who(tmp_path / "q.xlsx")[1] == len({*keys})


def test_parquet__decimals_of_cents_are_exact_or_refused(tmp_path: Path) -> None:
    """Of a hundred persons 51 were left."""
    cents = pa.array([decimal.Decimal(f"{key}.00") for key in MANY], pa.decimal128(38, 2))
    pq.write_table(pa.table({"x": MEASURED, "who": cents}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"^'who' holds whole numbers of 2") as refused:
        read_who(tmp_path / "t.parquet")
    assert "--categorical 'who'" in str(refused.value)
    assert read_who(tmp_path / "t.parquet", categorical=("who",))[1] == N // 2
    layout = SourceLayout(features=("x",), bins=("who=2",))
    assert read_who(tmp_path / "t.parquet", layout=layout)[1] == 2


def test_npz__a_column_of_a_matrix_is_named_as_the_remedy_says(tmp_path: Path) -> None:
    """`--categorical who` was taken, and nothing came of it."""
    pairs = np.array([MANY, MANY[::-1]], np.int64).T
    np.savez(tmp_path / "t.npz", X=MEASURED[:, None], who=pairs)
    with pytest.raises(InputError, match="--categorical 'who_0'"):
        ingest(tmp_path / "t.npz", tmp_path / "a.zarr")
    with pytest.raises(OptionError, match="It has: who_0, who_1"):
        ingest(tmp_path / "t.npz", tmp_path / "a.zarr", IngestOptions(categorical=("who",)))
    options = IngestOptions(categorical=("who_0", "who_1"))
    made = ingest(tmp_path / "t.npz", tmp_path / "a.zarr", options)
    assert [len(one.categories or ()) for one in made.variables] == [N // 2, N // 2]


@pytest.mark.parametrize(
    "codes",
    [
        [f"0e{1000 + k}" for k in range(N)],
        ["1e5", "10e4", "100e3", "12e5"],
        ["1E5", "100000"],
        ["1e400", "1e401", "7"],
    ],
)
def test_csv__labels_of_digits_with_an_e_are_codes(codes: list[str], tmp_path: Path) -> None:
    """As numbers they were one person, or infinite."""
    rows = [f"{k / 7},{codes[k % len(codes)]}\n" for k in range(N)]
    source = write_text(tmp_path / "t.csv", "x,who\n", rows)
    with pytest.raises(InputError, match="digits with an e in the column 'who'") as refused:
        read_who(source)
    assert refused.value.code == "lost-zero"
    assert "row 2 " in str(refused.value)
    assert codes[0] not in str(refused.value)
    # The remedies.
    stored, found = read_who(source, categorical=("who",))
    assert found == len(codes) == len(stored.categories or ())
    assert read_who(source, numeric=("who",))[0].categories is None
    features = IngestOptions(layout=SourceLayout(features=("x", "who")))
    assert ingest(source, tmp_path / "f.zarr", features).n_features == 2
    schema = propose_schema(source)
    who = replace(schema.columns["who"], use="variable", kind="number", missing=("9",))
    schema = replace(schema, columns={**schema.columns, "who": who})
    with pytest.raises(InputError, match="digits with an e"):
        read_who(source, schema=schema)


def test_csv__labels_as_programs_write_them_are_numbers(tmp_path: Path) -> None:
    cells = ["1e+20", "1.5e20", "2.0E5", "7", "3.e5", "1e-05"]
    rows = [f"{k / 7},{cells[k % 6]}\n" for k in range(N)]
    assert read_who(write_text(tmp_path / "t.csv", "x,who\n", rows))[1] == 6
