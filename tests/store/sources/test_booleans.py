"""Truth values are one variable from every source: categories false and true, in this order."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import zarr

from privpipe import Records, ingest, open_collection
from privpipe.store.collections.ingest import IngestOptions
from privpipe.store.sources.reading.source import SourceLayout
from tests.store.tables import read_collection

FLAGS = np.arange(8) % 3 == 0


def write(kind, path):
    frame = pd.DataFrame({"x": np.arange(8.0), "flag": FLAGS})
    if kind == "parquet":
        frame.to_parquet(path)
    elif kind == "npz":
        np.savez(path, X=np.ones((8, 2)), flag=FLAGS)
    elif kind == "zarr":
        group = zarr.open_group(str(path), mode="w")
        group.create_array("X", data=np.ones((8, 2)))
        group.create_array("flag", data=FLAGS)
    elif kind == "arff":
        rows = "\n".join(f"{i},{'TRUE' if f else 'False'}" for i, f in enumerate(FLAGS))
        path.write_text(
            f"@relation r\n@attribute x real\n@attribute flag {{TRUE,False}}\n@data\n{rows}"
        )
    else:
        written = {"csv": str, "lower.csv": lambda f: str(f).lower(), "upper.csv": None}[kind]
        frame["flag"] = [written(f) if written else str(f).upper() for f in FLAGS]
        frame.to_csv(path, index=False)


KINDS = ["parquet", "npz", "zarr", "arff", "csv", "lower.csv", "upper.csv"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("forced", [False, True])
def test_truth_values__are_one_thing_from_every_source(tmp_path, kind, forced):
    path = tmp_path / f"s.{kind}"
    write(kind, path)
    layout = SourceLayout(labels=("flag",), categorical=("flag",) if forced else ())
    ingest(path, tmp_path / "c.zarr", IngestOptions(layout=layout))
    schema = open_collection(tmp_path / "c.zarr", desired="flag").schema_of_records
    assert schema.variable("flag").categories == ("false", "true")
    assert read_collection(tmp_path / "c.zarr")["flag"] == [str(f).lower() for f in FLAGS]


def test_truth_values__of_records_have_the_same_codes():
    (shard,) = Records(np.ones((8, 2)), desired=FLAGS).shards()
    np.testing.assert_array_equal(shard.desired[:, 0], FLAGS)
