"""One frame in every table format gives one collection; roles and errors are the same in all."""

from __future__ import annotations

import datetime as dt
import gzip
from decimal import Decimal

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from privpipe.errors import InputError, OptionError, PrivpipeError
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.collections.writing import read_statistics
from privpipe.store.sources.reading.source import SourceLayout
from tests.store.tables import make_frame, read_collection

LAYOUT = SourceLayout(labels=("smoker", "score"), categorical=("town",), drop=("id",))
FEATURE_NAMES = ("height", "weight", "steps")


def write_table(frame, path):
    """Write a frame in the format of the path's name, local or by URL."""
    if path.endswith(".parquet"):
        with fsspec.open(path, "wb") as file:
            frame.to_parquet(file, row_group_size=17)
        return
    text = frame.to_csv(index=False)
    if path.endswith((".arff", ".arff.gz")):
        text = as_arff(frame)
    data = text.encode()
    with fsspec.open(path, "wb") as file:
        file.write(gzip.compress(data) if path.endswith(".gz") else data)


def as_arff(frame):
    lines = ["% made for a test", "@relation 'a frame'"]
    for name in frame.columns:
        kind = "{Ulm,'Köln','a, b'}" if name == "town" else "numeric"
        kind = "{0,1}" if name == "smoker" else kind
        lines.append(f"@attribute '{name}' {kind}")
    lines.append("@data")
    for row in frame.itertuples(index=False):
        cells = ["?" if value != value or value is None else value for value in row]
        cells = [f"'{cell}'" if "," in str(cell) else str(cell) for cell in cells]
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


@pytest.fixture(params=["t.csv", "t.csv.gz", "t.parquet", "t.arff", "t.arff.gz"])
def name(request):
    return request.param


@pytest.mark.parametrize("chunk_bytes", [200, 8 * 2**20])
@pytest.mark.parametrize("remote", [False, True])
def test_ingest__every_format_gives_the_frame(tmp_path, name, remote, chunk_bytes):
    frame = make_frame()
    url = f"memory://{tmp_path.name}/{name}" if remote else str(tmp_path / name)
    write_table(frame, url)
    dest = str(tmp_path / "c.zarr")
    schema = ingest(url, dest, IngestOptions(layout=LAYOUT, chunk_bytes=chunk_bytes))
    found = read_collection(dest)
    assert schema.feature_names == FEATURE_NAMES
    assert (schema.chunk_rows < 60) == (chunk_bytes == 200)
    np.testing.assert_array_equal(found["features"], frame[list(FEATURE_NAMES)])
    np.testing.assert_array_equal(found["score"], frame["score"])
    assert found["town"] == [None if town != town else town for town in frame["town"]]
    assert found["smoker"] == [str(value) for value in frame["smoker"]]
    assert [partition.name for partition in schema.partitions] == [name]


def test_ingest__statistics_count_and_tell_no_value(tmp_path, name):
    write_table(make_frame(), str(tmp_path / name))
    dest = str(tmp_path / "c.zarr")
    ingest(str(tmp_path / name), dest, IngestOptions(layout=LAYOUT, min_category_count=19))
    statistics = read_statistics(dest)
    assert statistics.n_missing == {"smoker": 0, "town": 1, "score": 1}
    assert (statistics.cells_not_finite, statistics.records_not_finite) == (1, 1)
    town = open_collection(dest).schema_of_records.variable("town")
    counts = make_frame()["town"].value_counts()
    assert town.categories is not None
    assert statistics.n_pooled["town"] == sum(
        size for kind, size in counts.items() if kind not in town.categories
    )


@pytest.mark.filterwarnings("ignore::privpipe.errors.GuessWarning")  # steps
def test_ingest__roles_follow_what_is_named(tmp_path):
    path = str(tmp_path / "t.csv")
    write_table(make_frame().drop(columns="town"), path)

    def roles(number, **layout):
        dest = str(tmp_path / f"{number}.zarr")
        schema = ingest(path, dest, IngestOptions(layout=SourceLayout(**layout)))
        return schema.feature_names, tuple(variable.name for variable in schema.variables)

    rest = ("height", "weight", "steps", "smoker", "score")
    assert roles(0, drop=("id",)) == (rest, ())
    assert roles(1, drop=("id",), numeric=("steps",)) == (
        ("height", "weight", "smoker", "score"),
        ("steps",),
    )
    assert roles(2, features=("weight",), drop=("id",)) == (
        ("weight",),
        ("height", "steps", "smoker", "score"),
    )
    assert roles(3, features=("weight", "height"), labels=("score",)) == (
        ("height", "weight"),
        ("score",),
    )


def test_ingest__attributes_alone_make_a_collection_without_features(tmp_path):
    frame = make_frame()[["town", "smoker"]]
    write_table(frame, str(tmp_path / "t.parquet"))
    dest = str(tmp_path / "c.zarr")
    layout = SourceLayout(categorical=("town", "smoker"))
    schema = ingest(str(tmp_path / "t.parquet"), dest, IngestOptions(layout=layout))
    assert schema.n_features == 0
    collection = open_collection(dest, attributes=["town", "smoker"])
    assert collection.shard(0).attributes.shape == (60, 2)
    assert collection.shard(0).features.shape == (60, 0)


@pytest.mark.parametrize(
    ("layout", "kind", "message"),
    [
        ({"labels": ("smokr",)}, OptionError, "no column 'smokr', did you mean 'smoker'"),
        ({"drop": ("id", "heigth")}, OptionError, "'heigth', did you mean 'height'"),
        ({}, InputError, "holds text in town.*, and a feature is a number"),
        ({"numeric": ("town",)}, InputError, "'town' holds text and cannot be numeric"),
        (
            {"categorical": ("town",), "numeric": ("town",)},
            OptionError,
            "town cannot be both categorical and numeric",
        ),
        (
            {"features": ("height",), "labels": ("height",)},
            OptionError,
            "height cannot be both a feature and a variable",
        ),
    ],
)
def test_ingest__options_that_do_not_fit_are_told(tmp_path, name, layout, kind, message):
    write_table(make_frame(), str(tmp_path / name))
    with pytest.raises(kind, match=message) as caught:
        ingest(
            str(tmp_path / name),
            str(tmp_path / "c.zarr"),
            IngestOptions(layout=SourceLayout(**layout)),
        )
    assert_tells_no_value(caught.value)
    assert not (tmp_path / "c.zarr").exists()


def test_ingest__overflow_to_float32_names_the_column(tmp_path, name):
    frame = make_frame()
    frame.loc[4, "height"] = 3.21e39
    write_table(frame, str(tmp_path / name))
    options = IngestOptions(layout=LAYOUT, dtype="float32")
    with pytest.raises(InputError, match=r"1 cells .* overflow float32 \(in height\)") as caught:
        ingest(str(tmp_path / name), str(tmp_path / "c.zarr"), options)
    assert "3.21" not in str(caught.value)


def test_ingest__an_identifier_is_no_category(tmp_path, name, monkeypatch):
    monkeypatch.setattr("privpipe.store.collections.survey.MAX_DISTINCT", 20)
    write_table(make_frame(), str(tmp_path / name))
    layout = SourceLayout(categorical=("id", "town"))
    with pytest.raises(InputError, match="'id' has more than 20 different values") as caught:
        ingest(str(tmp_path / name), str(tmp_path / "c.zarr"), IngestOptions(layout=layout))
    assert_tells_no_value(caught.value)


def test_ingest__no_records_are_refused(tmp_path, name):
    write_table(make_frame().iloc[:0].astype({"town": "str"}), str(tmp_path / name))
    layout = SourceLayout(drop=("id",), categorical=("town",))
    with pytest.raises(InputError, match="has no records"):
        ingest(str(tmp_path / name), str(tmp_path / "c.zarr"), IngestOptions(layout=layout))


def test_ingest__a_file_cut_short_is_told_without_its_bytes(tmp_path, name):
    path = tmp_path / name
    write_table(make_frame(3000), str(path))
    content = path.read_bytes()
    short = len(content) * 2 // 3
    if not name.endswith((".gz", ".parquet")):
        # Within a row: a text that ends with a whole row cannot be known to be short.
        short = content.index(b",", content.index(b"\n", short)) + 1
    path.write_bytes(content[:short])
    with pytest.raises(PrivpipeError) as caught:
        ingest(str(path), str(tmp_path / "c.zarr"), IngestOptions(layout=LAYOUT))
    assert_tells_no_value(caught.value)
    assert caught.value.exit_code == 3
    assert not (tmp_path / "c.zarr").exists()


def test_ingest__the_type_of_the_features_is_kept_or_asked_for(tmp_path):
    frame = make_frame()[["height", "steps"]].astype({"height": "float32", "steps": "int8"})
    write_table(frame, str(tmp_path / "t.parquet"))
    for number, (wanted, dtype) in enumerate({None: "float32", "float64": "float64"}.items()):
        dest = str(tmp_path / f"{number}.zarr")
        schema = ingest(str(tmp_path / "t.parquet"), dest, IngestOptions(dtype=wanted))
        assert schema.dtype == dtype
        np.testing.assert_array_equal(read_collection(dest)["features"], frame)
    with pytest.raises(OptionError, match="'int8' is not known"):
        ingest(str(tmp_path / "t.parquet"), str(tmp_path / "n"), IngestOptions(dtype="int8"))


def assert_tells_no_value(error):
    text = f"{error!r} {error} {error.__context__!r}"
    values = ["Ulm", "Köln", "a, b", "7000001", *map(repr, make_frame()["height"].head(5))]
    assert not [value for value in values if value in text]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([5, None, 7, 7]).dictionary_encode(), ["5", None, "7", "7"]),
        (pa.array(["x", None, "y", "x"], pa.large_string()), ["x", None, "y", "x"]),
        (pa.array(["x", None, "y", "x"], pa.string_view()), ["x", None, "y", "x"]),
        (pa.array(pd.Categorical(["b", None, "a", "b"], ordered=True)), ["b", None, "a", "b"]),
        (pa.array([dt.date(2020, 1, 2), None] * 2), ["2020-01-02", None] * 2),
    ],
)
def test_ingest__parquet_types_become_categories(tmp_path, values, expected):
    table = pa.table({"x": [1.0, 2.0, 3.0, 4.0], "kind": values})
    pq.write_table(table, tmp_path / "t.parquet")
    options = IngestOptions(layout=SourceLayout(categorical=("kind",)))
    ingest(str(tmp_path / "t.parquet"), str(tmp_path / "c.zarr"), options)
    assert read_collection(tmp_path / "c.zarr")["kind"] == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([Decimal("1.25"), None, Decimal("-2.5")]), [1.25, np.nan, -2.5]),
        (pa.array([1, None, 3], pa.int64()), [1, np.nan, 3]),
        (pa.array([True, None, False]), [1, np.nan, 0]),
        (pa.array(np.array([1, 2, 3], np.float16)), [1, 2, 3]),
        (pa.array([2**63, None, 1], pa.uint64()), [2.0**63, np.nan, 1]),
        (pa.array([5, None, 7]).dictionary_encode(), [5, np.nan, 7]),
        (pa.nulls(3), [np.nan] * 3),
    ],
)
def test_ingest__parquet_types_become_features(tmp_path, values, expected):
    pq.write_table(pa.table({"x": [1.0, 2.0, 3.0], "f": values}), tmp_path / "t.parquet")
    ingest(str(tmp_path / "t.parquet"), str(tmp_path / "c.zarr"))
    found = read_collection(tmp_path / "c.zarr")["features"]
    np.testing.assert_array_equal(found[:, 1], expected)


@pytest.mark.parametrize(
    ("values", "layout", "message"),
    [
        (pa.array([[1], [2, 77777]]), {}, "neither numbers nor text: t .*--drop"),
        (pa.array([[1], [2, 77777]]), {"categorical": ("t",)}, "'t' .*lists or structures"),
        (pa.array([{"a": 77777}] * 2), {"labels": ("t",)}, "'t' .*lists or structures"),
        (pa.array([dt.datetime(2020, 1, 2)] * 2), {}, "neither numbers nor text: t .timestamp"),
        (pa.array([dt.datetime(2020, 1, 2)] * 2), {"labels": ("t",)}, "Make it --categorical"),
        (pa.array([b"\xff", b"77777"]), {"categorical": ("t",)}, "type binary cannot be written"),
    ],
)
def test_ingest__parquet_types_that_do_not_fit_are_told(tmp_path, values, layout, message):
    pq.write_table(pa.table({"x": [1.0, 2.0], "t": values}), tmp_path / "t.parquet")
    options = IngestOptions(layout=SourceLayout(**layout))
    with pytest.raises(InputError, match=message) as caught:
        ingest(str(tmp_path / "t.parquet"), str(tmp_path / "c.zarr"), options)
    assert "77777" not in str(caught.value)
    ingest(str(tmp_path / "t.parquet"), str(tmp_path / "c.zarr"), IngestOptions(drop=("t",)))
