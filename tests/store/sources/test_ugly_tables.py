"""Tables as people have them: looked at, reviewed, ingested; equal to what pandas gets."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privpipe.command.erase_command import erase_command
from privpipe.command.ingest_command import listing_places
from privpipe.command.init_command import init_command
from privpipe.errors import InputError, OptionError, PrivpipeError
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.growing_collection import read_uses
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.collections.proposal import TableSchema, propose_schema, read_schema
from tests.store.sources.ugly_tables import SHEETS, TABLES, Table, damage
from tests.store.tables import read_collection

pytest.importorskip("clevercsv")


def review(schema: TableSchema, table: Table) -> TableSchema:
    changed = {
        name: replace(schema.columns[name], **change) for name, change in table.edits.items()
    }
    return replace(schema, columns={**schema.columns, **changed})


def ingest_table(name: str, path: Path, dest: Path) -> dict[str, Any]:
    """What two commands store of a table, by column."""
    schema = review(propose_schema(path, table=SHEETS.get(name, "")), TABLES[name])
    made = ingest(path, dest, IngestOptions(schema=schema))
    found = read_collection(dest)
    return {**dict(zip(made.feature_names, found.pop("features").T, strict=True)), **found}


def as_stored(column: pd.Series) -> Any:
    """A column of pandas as a collection holds it."""
    if pd.api.types.is_bool_dtype(column):
        return column.map({True: "true", False: "false"}).tolist()
    if pd.api.types.is_datetime64_any_dtype(column):
        return ((column - pd.Timestamp(0)) / pd.Timedelta(days=1)).to_numpy()
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(float)
    return [None if pd.isna(one) else str(one) for one in column]


def make(name: str, tmp_path: Path) -> Path:
    table = TABLES[name]
    if table.needs:
        pytest.importorskip(table.needs)
        pytest.importorskip("openpyxl") if table.file.endswith("xlsx") else None
    path = tmp_path / table.file
    table.write(path)
    return path


@pytest.mark.parametrize("name", TABLES)
def test_ingest__of_an_ugly_table_is_what_pandas_gets(name: str, tmp_path: Path) -> None:
    path = make(name, tmp_path)
    found, careful = ingest_table(name, path, tmp_path / "c.zarr"), TABLES[name].careful(path)
    assert set(found) == set(map(str, careful))
    for column in careful:
        expected = as_stored(careful[column])
        if isinstance(expected, list):
            assert found[column] == expected, column
        else:
            np.testing.assert_allclose(found[column], expected, rtol=1e-12, err_msg=column)


def catch(path: Path, dest: Path, schema: TableSchema) -> PrivpipeError | None:
    try:
        ingest(path, dest, IngestOptions(schema=schema))
    except PrivpipeError as error:
        return error
    return None


TEXTS = [n for n, t in TABLES.items() if t.file.endswith((".csv", ".tsv", ".data"))]


TELLING = ("plain", "UTF-16", "quotes in quotes", "1.234,56", "no header")
"""Of the others, which are read in the same ways, only the damage that most readers miss."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(
            name, kind, marks=[] if kind == "column" or name in TELLING else [pytest.mark.slow]
        )
        for name in TEXTS
        for kind in ("cut", "column", "flipped")
    ],
)
def test_ingest__of_a_damaged_table_names_the_row_and_leaves_nothing(
    name: str, kind: str, tmp_path: Path
) -> None:
    path, dest = make(name, tmp_path), tmp_path / "c.zarr"
    schema = propose_schema(path)
    whole = path.read_bytes()
    path.write_bytes(damage(kind, whole))
    error = catch(path, dest, schema)
    if error is None:
        # Cut at the end of a cell, or flipped to other characters of a table of 256: nothing shows
        # that it was another.
        assert kind == "cut" or (kind == "flipped" and schema.file.encoding != "utf-8")
        return
    assert error.exit_code == 3
    assert error.remedy
    # UTF-16 that lost a byte has no lines.
    assert "UTF-16" in name or any(w in error.message for w in ("row ", "rows ", "line "))
    assert not dest.exists()
    path.write_bytes(whole)
    ingest(path, dest, IngestOptions(schema=schema))
    assert open_collection(str(dest)).n_records


PACKED = [name for name in TABLES if name not in TEXTS]
UNCHECKED = ("Feather", "SQLite", "DuckDB", "nested, decimals, dictionaries", "lines of JSON")
"""Formats without checksums of what cells hold: other bytes may be other values."""


@pytest.mark.parametrize("kind", ["cut", "column", "flipped"])
@pytest.mark.parametrize("name", PACKED)
def test_ingest__of_a_damaged_file_says_so_and_leaves_nothing(
    name: str, kind: str, tmp_path: Path
) -> None:
    path, dest = make(name, tmp_path), tmp_path / "c.zarr"
    schema = propose_schema(path, table=SHEETS.get(name, ""))
    whole, half = path.read_bytes(), path.stat().st_size // 2
    known = schema
    if kind == "cut":
        path.write_bytes(whole[:half])
    elif kind == "flipped":
        path.write_bytes(damage("flipped", whole))
    else:  # what the schema knows of, in the middle, is no longer in the file
        columns = list(schema.columns.items())
        middle = len(columns) // 2
        more = [*columns[:middle], ("gone", columns[0][1]), *columns[middle:]]
        known = replace(schema, columns=dict(more))
    error = catch(path, dest, known)
    if error is None:
        assert kind == "flipped"
        assert name in UNCHECKED
        return
    assert error.exit_code == 3, error
    assert error.remedy
    assert path.name in error.message or "gone" in error.message
    assert not dest.exists()
    path.write_bytes(whole)
    ingest(path, dest, IngestOptions(schema=schema))
    assert open_collection(str(dest)).n_records


@pytest.mark.parametrize(
    "name", ["two rows of header", "row names of R", "blanks and row names of R"]
)
def test_ingest__of_columns_in_another_order_is_refused_where_they_go_by_place(
    name: str, tmp_path: Path
) -> None:
    path = make(name, tmp_path)
    schema, text = propose_schema(path), path.read_text()
    for mark in ",; ":
        for quote in ('"', ""):
            one, other = f"{quote}amount{quote}", f"{quote}count{quote}"
            text = text.replace(one + mark + other, other + mark + one)
            if name.startswith("two"):
                text = text.replace(f"EUR{mark}pieces", f"pieces{mark}EUR")
    path.write_text(text)
    error = catch(path, tmp_path / "c.zarr", schema)
    assert error is not None
    assert (error.code, error.exit_code) == ("column-order", 3)


HUNDRED = range(150)
DOUBTFUL = {
    "two units": ([f"{k / 7:.2f} {'$' if k % 2 else '€'}" for k in HUNDRED], "text"),
    "a few in dollars": ([f"{k / 7:.2f} {'€' if k % 30 else '$'}" for k in HUNDRED], "refused"),
    "a few without a unit": ([f"{k / 7:.2f}{'%' if k % 30 else ''}" for k in HUNDRED], "refused"),
    "twice a sign": ([f"{k / 7:.2f}-" if k % 30 else "-5-" for k in HUNDRED], "refused"),
    "brackets and a minus": ([f"({k / 7:.2f})" if k % 30 else "(5-)" for k in HUNDRED], "refused"),
    "twice a unit": ([f"€{k / 7:.2f}" if k % 30 else "€5€" for k in HUNDRED], "refused"),
    "telephones": ([f"(030) {k + 1_000_000}" for k in HUNDRED], "text"),
    "ranges": ([f"{k % 7}-{k % 7 + 3}" for k in HUNDRED], "text"),
    "codes of percent": ([f"0{k}%" for k in HUNDRED], "text"),
    "colours": ([f"#{k % 7}f" for k in HUNDRED], "text"),
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_ingest__takes_no_cell_for_a_number_that_may_be_another(name: str, tmp_path: Path) -> None:
    cells, expected = DOUBTFUL[name]
    path = tmp_path / "t.csv"
    head = "#a,b\n" if name == "colours" else "a,b\n"
    path.write_text(head + "".join(f'"{cell}",{k % 5}\n' for k, cell in enumerate(cells)))
    schema = propose_schema(path)
    [kind, _] = [one.kind for one in schema.columns.values()]
    assert kind == ("text" if expected == "text" else "number")
    error = catch(path, tmp_path / "c.zarr", schema)
    assert (error is not None) == (expected == "refused")
    if error is not None:
        assert [one["row"] for one in error.details] == [2, 32, 62, 92, 122]
        assert not re.search(r"\d\.\d", error.message)


@pytest.mark.parametrize("decimal", [".", ","])
def test_ingest__lists_every_cell_and_row_that_is_wrong(decimal: str, tmp_path: Path) -> None:
    """What Arrow reads by itself, too, which names the first one alone; and no value of any."""
    good = [f"{k}{decimal}5;{k % 5};{'ab'[k % 2]}" for k in range(40_000)]
    whole = "\n".join(["x;y;z", *good]) + "\n"
    path, dest = tmp_path / "t.csv", tmp_path / "c.zarr"
    path.write_text(whole)
    schema = propose_schema(path)
    cells = {7: "SECRET;1;a", 900: "1;SECRET;b", 39_000: " 1e5 ;- 3;a", 39_500: "inf;NaN;b"}
    rows = {7: "1;2", 900: "1;2;a;SECRET", 39_000: "1"}
    for wrong, code in ((cells, "cell"), (rows, "ragged")):
        lines = [wrong.get(k, line) for k, line in enumerate(good)]
        path.write_text("\n".join(["x;y;z", *lines]) + "\n")
        error = catch(path, dest, schema)
        assert error is not None
        assert error.code in (code, "text-feature")
        assert sorted(int(one["row"]) for one in error.details) == [9, 902, 39_002]
        assert "SECRET" not in f"{error.message}{error.remedy}{error.details}{error.__context__}"
        assert code == "ragged" or [*error.details[0]] == ["column", "row"]
        # Who asks for a file is given one.
        with pytest.raises(InputError) as caught, listing_places(str(tmp_path / "t.schema.toml")):
            ingest(path, dest, IngestOptions(schema=schema))
        assert "All 3 places: " in caught.value.remedy
        assert len(json.loads((tmp_path / "t.errors.json").read_text())) == 3
        assert not dest.exists()
    path.write_text(whole)
    ingest(path, dest, IngestOptions(schema=schema))


def test_ingest__makes_a_calendar_of_dates_as_pandas_does(tmp_path: Path) -> None:
    """Before 1970, leap days, times of the day and a date that is missing."""
    texts = ["1969-12-31", "2024-02-29", "2023-12-31T23:59:59", "", "1600-01-01"] * 8
    (tmp_path / "t.csv").write_text("at,x\n" + "".join(f"{one},1\n" for one in texts))
    schema = propose_schema(tmp_path / "t.csv")
    plan = replace(schema.columns["at"], use="calendar")
    schema = replace(schema, columns={**schema.columns, "at": plan})
    made = ingest(tmp_path / "t.csv", tmp_path / "t.zarr", IngestOptions(schema=schema))
    features = read_collection(tmp_path / "t.zarr")["features"]
    found = pd.DataFrame(features, columns=[*made.feature_names])
    dates = pd.Series(np.array([text or "NaT" for text in texts], "datetime64[us]"))
    for part in ("year", "month", "weekday"):
        np.testing.assert_array_equal(
            found[f"at {part}"], getattr(dates.dt, part.replace("weekday", "day_of_week"))
        )
    days = dates.astype("int64").where(dates.notna()) / 86_400e6
    np.testing.assert_allclose(found["at"], days, rtol=1e-12)


ROLES = """[column."x"]
kind = "number"
use = "marked"
[column."pain"]
kind = "ordered"
order = ["none", "mild", "severe"]
use = "feature"
[column."who"]
kind = "text"
use = "subject"
[column."at"]
kind = "date"
use = "time"
[column."w"]
kind = "number"
use = "weights"
"""


def test_ingest__makes_periods_of_times_of_about_as_many_records_each(tmp_path: Path) -> None:
    """By whole days, also before 1970 and of times of a day; of a single day there is one."""
    random = np.random.default_rng(2)
    days = pd.Timestamp("1968-03-01 11:00") + pd.to_timedelta(random.gamma(2, 300, 4_000), "D")
    days = days.where(random.random(4_000) > 0.1)
    frame = pd.DataFrame({"x": random.normal(size=4_000), "at": days})
    for name, write in {"t.csv": frame.to_csv, "t.parquet": frame.to_parquet}.items():
        write(tmp_path / name, index=False)
        schema = propose_schema(tmp_path / name)
        plan = replace(schema.columns["at"], use="time")
        schema = replace(schema, columns={**schema.columns, "at": plan})
        ingest(tmp_path / name, tmp_path / f"{name}.zarr", IngestOptions(schema=schema))
        found = pd.Series(read_collection(tmp_path / f"{name}.zarr")["at"])
        sizes = found.value_counts().sort_index()
        assert len(sizes) == 4
        assert sizes.min() > 800
        edges = [pd.Timestamp(one.split()[-1]) for one in sizes.index[1:-1]]
        edges = [pd.Timestamp(sizes.index[0].split()[-1]), *edges]
        expected = sum((days >= edge).astype(int) for edge in edges)
        assert found.isna().equals(pd.Series(days.isna()))
        assert (found.str[0].dropna().astype(int) == expected[~days.isna()]).all()
    (tmp_path / "one.csv").write_text("x,at\n1,2024-01-02 10:00:00\n2,2024-01-02 11:00:00\n")
    text = replace(plan, kind="date")
    one = replace(
        propose_schema(tmp_path / "one.csv"), columns={"x": schema.columns["x"], "at": text}
    )
    ingest(tmp_path / "one.csv", tmp_path / "one.zarr", IngestOptions(schema=one))
    assert read_collection(tmp_path / "one.zarr")["at"] == ["0: any", "0: any"]


def test_ingest__takes_what_a_schema_says_of_order_gaps_and_roles(tmp_path: Path) -> None:
    rows = ["1,mild,p7,2024-01-02,1", ",none,p7,2024-01-01,2", "3,severe,p8,,1", "4,,p8,,1"]
    (tmp_path / "t.csv").write_text("\n".join(["x,pain,who,at,w", *rows]) + "\n")
    said = '[file]\nmissing = [""]\n' + ROLES
    (tmp_path / "s.toml").write_text(said)
    options = IngestOptions(schema=read_schema(tmp_path / "s.toml"))
    made = ingest(tmp_path / "t.csv", tmp_path / "t.zarr", options)
    assert made.feature_names == ("x", "pain", "x missing")
    found = read_collection(tmp_path / "t.zarr")
    np.testing.assert_array_equal(
        found["features"], [[1, 1, 0], [np.nan, 0, 1], [3, 2, 0], [4, np.nan, 0]]
    )
    assert found["at"] == ["1: from 2024-01-02", "0: below 2024-01-02", None, None]
    assert read_uses(str(tmp_path / "t.zarr"))["subject"] == "who"
    # `init` and `erase` read the roles.
    given: Any = {"method": "noisy", "desired": (), "confidential": (), "release": ""}
    text = init_command(str(tmp_path / "t.zarr"), "-", **given)["text"]
    assert '\nsubject = "who"\n' in text
    named = init_command(str(tmp_path / "t.zarr"), "-", subject="at", **given)["text"]
    assert '\nsubject = "at"\n' in named
    with pytest.raises(InputError, match="'whose'"):
        init_command(str(tmp_path / "t.zarr"), "-", subject="whose", **given)
    assert "\n[about]\n" in text
    assert '\ngroups = "at"  #' in text
    asked: Any = {"under": (), "account": "", "name": "", "dry_run": True}
    plan = erase_command(str(tmp_path / "t.zarr"), "subject == p7", **asked)
    assert plan["erasures"][0]["n_records"] == 2
    (tmp_path / "t.csv").write_text("x,pain,who,at,w\n1,SECRET,p7,,1\n")
    with pytest.raises(InputError, match="'pain' holds no category in order in row 2") as caught:
        ingest(tmp_path / "t.csv", tmp_path / "u.zarr", options)
    assert "SECRET" not in str(caught.value)
    for wrong in (
        said.replace('order = ["none", "mild", "severe"]\n', ""),
        f"{said}order = ['a']\n",
    ):
        (tmp_path / "s.toml").write_text(wrong)
        with pytest.raises(OptionError, match="all values from the least"):
            read_schema(tmp_path / "s.toml")
    (tmp_path / "s.toml").write_text(said.replace('[""]', '["", "none"]'))
    with pytest.raises(OptionError, match=r"pain: order holds what file\.missing"):
        read_schema(tmp_path / "s.toml")
