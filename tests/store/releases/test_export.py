"""Export: what stands in the release, and nothing that was not released."""

from __future__ import annotations

import json
import os

import fsspec
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from privpipe.errors import FormatError, IncompleteReleaseError, OptionError, StoreError
from privpipe.store.access.workspace import has_workspace, hold_workspace, remove_workspace
from privpipe.store.arrays.blocks import write_block
from privpipe.store.arrays.layout import FEATURES, ArrayPlan
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.releases.export import export_release
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.releases.release_writing import ReleasePlan, prepare_release, publish_release
from privpipe.store.sources.reading.source import SourceLayout
from tests.store.tables import make_frame, read_collection

N = 23


def choose_place(where, tmp_path, request):
    """The test's folder, or one of its name in memory or in a bucket."""
    if where == "local":
        return str(tmp_path)
    home = "memory:/" if where == "memory" else request.getfixturevalue("bucket")
    return f"{home}/{tmp_path.name}"


def make_release(url, header=None):
    arrays = (
        ArrayPlan(FEATURES, (N, 3), 5, "float32"),
        ArrayPlan("town", (N,), 5, "int8", (("categories", ["Ulm", "Köln"]),)),
        ArrayPlan("score", (N,), 5, "float64"),
    )
    plan = ReleasePlan("0123abcd", str(url), arrays)
    prepare_release(plan)
    rng = np.random.default_rng(4)
    whole = {
        FEATURES: rng.normal(size=(N, 3)).astype(np.float32),
        "town": rng.integers(-1, 2, N).astype(np.int8),
        "score": np.where(np.arange(N) == 7, np.nan, rng.normal(size=N)),
    }
    receipts = {}
    for chunk in range(plan.chunks.n_chunks):
        rows = slice(*plan.chunks.rows(chunk))
        block = {name: values[rows] for name, values in whole.items()}
        receipts[chunk] = write_block(plan.data_url, arrays, chunk, block, plan.run)
    publish_release(plan, receipts, header or {})
    remove_workspace(plan.url)
    return str(url), whole


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("local", ()),
        ("local", ("a", "b", "c")),
        ("memory", ("a", "b", "c")),
        ("s3", ("a", "b", "c")),
        pytest.param("memory", (), marks=pytest.mark.slow),
        pytest.param("s3", (), marks=pytest.mark.slow),
    ],
)
def test_export_release__parquet_holds_what_the_release_does(tmp_path, request, where, names):
    place = choose_place(where, tmp_path, request)
    url, whole = make_release(f"{place}/r.zarr", {"feature_names": list(names)})
    out = f"{place}/r.parquet"
    assert export_release(url, out, verify=True) == N
    with fsspec.open(out, "rb") as file:
        found = pq.read_table(file)
    features = names or ("feature_0", "feature_1", "feature_2")
    assert tuple(found.column_names) == (*features, "town", "score")
    for j, name in enumerate(features):
        np.testing.assert_array_equal(found.column(name).to_numpy(), whole[FEATURES][:, j])
    kinds = ["Ulm", "Köln", None]
    assert found.column("town").to_pylist() == [kinds[code] for code in whole["town"]]
    assert found.column("score").null_count == 1
    assert json.loads(found.schema.metadata[b"privpipe"])["run"] == "0123abcd"
    assert pq.ParquetFile(fsspec.open(out, "rb").open()).num_row_groups == 5


@pytest.mark.slow
@pytest.mark.parametrize("where", ["local", "memory", "s3"])
def test_export_release__a_folder_holds_a_file_per_partition(tmp_path, request, where):
    place = choose_place(where, tmp_path, request)
    header = {"feature_names": ["a", "b", "c"], "partitions": [12, 0, 11]}
    url, whole = make_release(f"{place}/r.zarr", header)
    assert export_release(url, f"{place}/out.parquet/") == N
    system, root = fsspec.core.url_to_fs(f"{place}/out.parquet")
    assert sorted(path.rpartition("/")[2] for path in system.find(root)) == [
        "_SUCCESS",
        *(f"part-0000{number}.parquet" for number in range(3)),
    ]
    parts = []
    for number in range(3):
        with system.open(f"{root}/part-0000{number}.parquet", "rb") as file:
            parts.append(pq.read_table(file))
    assert [part.num_rows for part in parts] == [12, 0, 11]
    for j, name in enumerate("abc"):
        found = np.concatenate([part.column(name).to_numpy() for part in parts])
        np.testing.assert_array_equal(found, whole[FEATURES][:, j])
    assert export_release(url, f"{place}/out.parquet/") == N
    # What was one partition is one again.
    options = IngestOptions(layout=SourceLayout(labels=("town", "score")))
    schema = ingest(f"{place}/out.parquet/", f"{place}/again.zarr", options)
    assert schema.feature_names == ("a", "b", "c")
    assert [part.n_records for part in schema.partitions] == [12, 0, 11]


def test_export_release__a_folder_of_no_partitions_is_one_file(tmp_path):
    url, _ = make_release(tmp_path / "r.zarr")
    export_release(url, str(tmp_path / "out"))
    assert sorted(os.listdir(tmp_path / "out")) == ["_SUCCESS", "part-00000.parquet"]
    assert pd.read_parquet(tmp_path / "out").shape == (N, 5)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a", "a", "b"], ["feature_0", "feature_1", "feature_2"]),
        (["a", "town", "b"], ["feature_0", "feature_1", "feature_2"]),
    ],
)
def test_export_release__no_column_hides_another(tmp_path, names, expected):
    url, _ = make_release(tmp_path / "r.zarr", {"feature_names": names})
    export_release(url, str(tmp_path / "r.parquet"))
    found = pq.read_schema(tmp_path / "r.parquet").names
    assert found == [*expected, "town", "score"]


def test_export_release__killed_leaves_nothing_visible_and_the_next_removes_the_rest(
    tmp_path, monkeypatch
):
    url, _ = make_release(tmp_path / "r.zarr")

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("privpipe.store.arrays.destination._clear", lambda *_: None)
        patch.setattr("privpipe.store.access.workspace.remove_workspace", lambda *_: None)
        patch.setattr("privpipe.store.releases.export.move_made", die)
        with pytest.raises(KeyboardInterrupt):
            export_release(url, str(tmp_path / "out.parquet"))
    assert sorted(os.listdir(tmp_path)) == [".out.parquet.privpipe", "r.zarr"]
    export_release(url, str(tmp_path / "out.parquet"))
    assert sorted(os.listdir(tmp_path)) == ["out.parquet", "r.zarr"]


def test_export_release__ingest_brings_it_back(tmp_path):
    url, whole = make_release(tmp_path / "r.zarr")
    export_release(url, str(tmp_path / "r.parquet"))
    options = IngestOptions(layout=SourceLayout(labels=("town", "score")))
    schema = ingest(str(tmp_path / "r.parquet"), str(tmp_path / "c.zarr"), options)
    found = read_collection(tmp_path / "c.zarr")
    assert schema.dtype == "float32"
    np.testing.assert_array_equal(found["features"], open_release(url).features)
    np.testing.assert_array_equal(found["score"], whole["score"])
    assert found["town"] == [["Ulm", "Köln", None][code] for code in whole["town"]]


def test_export_release__records_that_were_not_released_are_not_exported(tmp_path):
    make_frame()[["height"]].to_parquet(tmp_path / "t.parquet")
    ingest(str(tmp_path / "t.parquet"), str(tmp_path / "c.zarr"))
    with pytest.raises(FormatError, match="not a privpipe release but collection"):
        export_release(str(tmp_path / "c.zarr"), str(tmp_path / "out.parquet"))
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("where", ["local", "memory"])
def test_export_release__csv_holds_the_same(tmp_path, request, where):
    place = choose_place(where, tmp_path, request)
    url, whole = make_release(f"{place}/r.zarr", {"feature_names": ["a", "b", "c"]})
    assert export_release(url, f"{place}/r.csv") == N
    found = pd.read_csv(f"{place}/r.csv", dtype={"a": "f4", "b": "f4", "c": "f4"})
    np.testing.assert_array_equal(found[["a", "b", "c"]], whole[FEATURES])
    np.testing.assert_array_equal(found["score"], whole["score"])
    assert found["town"].fillna("").tolist() == [["Ulm", "Köln", ""][c] for c in whole["town"]]


def test_export_release__nothing_is_overwritten_and_only_tables_are_written(tmp_path):
    url, _ = make_release(tmp_path / "r.zarr")
    (tmp_path / "there.parquet").write_bytes(b"x")
    with pytest.raises(StoreError, match=r"there\.parquet exists"):
        export_release(url, str(tmp_path / "there.parquet"))
    with pytest.raises(OptionError, match=r"does not end in \.parquet or \.csv"):
        export_release(url, str(tmp_path / "r.xlsx"))
    with pytest.raises(StoreError, match="cannot be made"):
        export_release(url, str(tmp_path / "there.parquet" / "x.parquet"))
    assert (tmp_path / "there.parquet").read_bytes() == b"x"


def test_export_release__nothing_is_written_into_a_release(tmp_path):
    """It lay among the chunks, and the release was no more what its owner had signed."""
    url, _ = make_release(tmp_path / "r.zarr")
    before = sorted(tmp_path.rglob("*"))
    for place in ("x.parquet", "x", "features/x.csv"):
        with pytest.raises(StoreError, match=r"is inside .*r\.zarr"):
            export_release(url, f"{url}/{place}")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("where", ["local", "memory"])
@pytest.mark.parametrize("name", ["r.parquet", "r.csv", "folder/"])
def test_export_release__what_is_there_already_is_done(tmp_path, request, where, name):
    """A kill after the last rename: the same command again said `exists`, as an error."""
    place = choose_place(where, tmp_path, request)
    url, _ = make_release(f"{place}/r.zarr", {"partitions": [10, 13]})
    out = f"{place}/{name}"
    assert export_release(url, out) == export_release(url, out) == N
    with hold_workspace(out):  # of the one that was killed
        assert has_workspace(out)
    assert export_release(url, out) == N
    assert not has_workspace(out)
    file = f"{out}part-00001.parquet" if out.endswith("/") else out
    with fsspec.open(file, "rb") as opened:
        content = opened.read()
    for other in (content[:-9], content + b"x", content[:200] + b"x" + content[201:], b""):
        with fsspec.open(file, "wb") as opened:
            opened.write(other)
        with pytest.raises(StoreError, match="exists; nothing is ever"):
            export_release(url, out)
    with fsspec.open(file, "rb") as opened:
        assert opened.read() == b""


def test_export_release__a_folder_that_holds_more_is_another(tmp_path):
    url, _ = make_release(tmp_path / "r.zarr")
    out = tmp_path / "out"
    export_release(url, out)
    (out / "mine.parquet").write_bytes(b"x")
    with pytest.raises(StoreError, match="out exists"):
        export_release(url, out)
    (tmp_path / "other.parquet").mkdir()
    with pytest.raises(StoreError, match="exists"):
        export_release(url, tmp_path / "other.parquet")


def test_export_release__a_damaged_release_leaves_no_file(tmp_path):
    url, _ = make_release(tmp_path / "r.zarr")
    chunk = tmp_path / "r.zarr" / "features" / "c" / "3" / "0"
    content = bytearray(chunk.read_bytes())
    content[20] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(IncompleteReleaseError):
        export_release(url, str(tmp_path / "v.parquet"), verify=True)
    with pytest.raises(StoreError, match="Records 15 to 20"):
        export_release(url, str(tmp_path / "w.parquet"))
    assert [path.name for path in tmp_path.iterdir()] == ["r.zarr"]
    remote = f"memory://{tmp_path.name}/w.parquet"
    with pytest.raises(StoreError, match="Records 15 to 20"):
        export_release(url, remote)
    assert not fsspec.filesystem("memory").exists(remote)


def test_export__refuses_codes_that_the_release_does_not_name(tmp_path, monkeypatch):
    """As old releases hold them whose model had numbered the categories by another table."""
    plain = ArrayPlan.__init__
    one = (("categories", ["Ulm"]),)

    def shorten(self, name, shape, rows, dtype, attributes=()):
        plain(self, name, shape, rows, dtype, one if attributes else attributes)

    monkeypatch.setattr(ArrayPlan, "__init__", shorten)
    make_release(tmp_path / "r.zarr")
    with pytest.raises(FormatError, match="code of 'town' that its table of 1") as error:
        export_release(tmp_path / "r.zarr", tmp_path / "r.parquet")
    assert error.value.code == "schema-drift"
    assert not (tmp_path / "r.parquet").exists()
