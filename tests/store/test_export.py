"""Export: what stands in the release, and nothing that was not released."""

from __future__ import annotations

import json

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from privpipe.errors import FormatError, IncompleteReleaseError, OptionError, StoreError
from privpipe.store.blocks import write_block
from privpipe.store.export import export_release
from privpipe.store.ingest import IngestOptions, ingest
from privpipe.store.layout import FEATURES, ArrayPlan
from privpipe.store.published import open_release
from privpipe.store.release import (
    ReleasePlan,
    prepare_release,
    publish_release,
)
from privpipe.store.sources.source import SourceLayout
from privpipe.store.workspace import remove_workspace
from tests.store.tables import make_frame, read_collection

N = 23


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


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("names", [(), ("a", "b", "c")])
def test_export_release__parquet_holds_what_the_release_does(tmp_path, remote, names):
    url, whole = make_release(tmp_path / "r.zarr", {"feature_names": list(names)})
    out = f"memory://{tmp_path.name}/r.parquet" if remote else str(tmp_path / "r.parquet")
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


def test_export_release__nothing_is_overwritten_and_only_parquet_is_written(tmp_path):
    url, _ = make_release(tmp_path / "r.zarr")
    (tmp_path / "there.parquet").write_bytes(b"x")
    with pytest.raises(StoreError, match=r"there\.parquet exists"):
        export_release(url, str(tmp_path / "there.parquet"))
    with pytest.raises(OptionError, match=r"does not end in \.parquet"):
        export_release(url, str(tmp_path / "r.csv"))
    with pytest.raises(StoreError, match="could not be written"):
        export_release(url, str(tmp_path / "there.parquet" / "x.parquet"))
    assert (tmp_path / "there.parquet").read_bytes() == b"x"


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
