"""Tables as people have them: looked at, reviewed, ingested; equal to what pandas gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privpipe.errors import PrivpipeError
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.collections.proposal import TableSchema, propose_schema
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


@pytest.mark.parametrize("kind", ["cut", "column", "flipped"])
@pytest.mark.parametrize("name", TEXTS)
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
    assert error.exit_code in (3, 4)
    assert error.remedy
    # UTF-16 that lost a byte has no lines.
    assert "UTF-16" in name or any(w in error.message for w in ("row ", "rows ", "line "))
    assert not dest.exists()
    path.write_bytes(whole)
    ingest(path, dest, IngestOptions(schema=schema))
    assert open_collection(str(dest)).n_records


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
