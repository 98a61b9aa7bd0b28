"""Names and coordinates of an xarray source: they reach the export, or are named as left out."""

from __future__ import annotations

import warnings

import numpy as np
import pyarrow.parquet as pq
import pytest
import xarray as xr

from privpipe import export_release, ingest, open_collection, open_release
from privpipe.errors import LeftOutWarning
from privpipe.store.access.workspace import remove_workspace
from privpipe.store.arrays.blocks import write_block
from privpipe.store.arrays.layout import FEATURES, ArrayPlan
from privpipe.store.releases.release_writing import ReleasePlan, prepare_release, publish_release

NAMES = ["height", "weight", "dose"]


def make(n=3, **more):
    """Records of named features: as many records as features, so that shapes tell nothing."""
    coords = {
        "feature": NAMES,
        "record": [f"id{i}" for i in range(n)],
        "site": ("record", np.arange(n) % 2 == 0),
        **more,
    }
    x = np.arange(3.0 * n).reshape(n, 3)
    return xr.Dataset({"features": (("record", "feature"), x)}, coords=coords)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("n", [3, 7])
@pytest.mark.filterwarnings("ignore::UserWarning:zarr", "ignore::FutureWarning")
def test_ingest__keeps_the_coordinates_of_records_and_the_names_of_features(tmp_path, version, n):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zarr, about text in format 3
        make(n).to_zarr(tmp_path / "s.zarr", zarr_format=version, consolidated=False)
    ingest(tmp_path / "s.zarr", tmp_path / "c.zarr")
    schema = open_collection(tmp_path / "c.zarr").schema_of_records
    assert schema.feature_names == tuple(NAMES)
    assert {v.name for v in schema.variables} == {"record", "site"}
    assert schema.variable("site").categories == ("false", "true")


def test_ingest__names_what_has_no_place(tmp_path):
    made = make(5, unit=("feature", ["m", "kg", "mg"])).assign(study=7.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.to_zarr(tmp_path / "s.zarr", consolidated=False)
    with pytest.warns(LeftOutWarning, match=r"unit \(along feature\)") as said:
        ingest(tmp_path / "s.zarr", tmp_path / "c.zarr")
    assert "study" in str(said[0].message)
    assert "site" not in str(said[0].message)


def test_names__reach_the_release_and_its_export(tmp_path):
    plan = ReleasePlan(
        "0123abcd", str(tmp_path / "o.zarr"), (ArrayPlan(FEATURES, (4, 3), 4, "f8"),)
    )
    prepare_release(plan)
    block = {FEATURES: np.arange(12.0).reshape(4, 3)}
    receipt = write_block(plan.data_url, plan.arrays, 0, block, plan.run)
    publish_release(plan, {0: receipt}, {"feature_names": NAMES})
    remove_workspace(plan.url)
    assert open_release(plan.url).feature.to_numpy().tolist() == NAMES
    export_release(plan.url, str(tmp_path / "o.parquet"))
    assert pq.read_schema(tmp_path / "o.parquet").names[:3] == NAMES
