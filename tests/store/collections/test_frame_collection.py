"""Frames of Dask and xarray as collections: the shards of a stored one, in memory that is flat."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

import privpipe
from privpipe.errors import InputError, OptionError
from privpipe.records.sampling import make_split
from privpipe.sklearn import Leace, NullSpaceCleaner

dd = pytest.importorskip("dask.dataframe")
da = pytest.importorskip("dask.array")
xr = pytest.importorskip("xarray")

N = 2_000
NAMES = list("abcd")
PARTS = ("features", "desired", "confidential", "groups", "weights")


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(N, 4)), columns=NAMES)
    frame["y"] = frame["a"] - frame["b"]
    frame["sex"] = np.where(frame["c"] > 0, "f", "m")
    frame.loc[5, "sex"] = None
    frame["who"] = np.repeat(np.arange(N // 5), 5) + 0.5
    frame["w"] = rng.random(N)
    return frame


@pytest.fixture(scope="module")
def frame(table):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dd.from_pandas(table, npartitions=7, sort=False)


ROLES = {"desired": "y", "confidential": "sex", "groups": "who", "weights": "w"}
SMALL = privpipe.IngestOptions(chunk_bytes=4 * 8 * 153)


def test_from_dask__has_the_shards_of_the_stored_collection(tmp_path, frame):
    layout = privpipe.SourceLayout(labels=tuple(ROLES.values()))
    options = privpipe.IngestOptions(layout=layout, chunk_bytes=SMALL.chunk_bytes)
    privpipe.ingest(frame, tmp_path / "c.zarr", options)
    stored = privpipe.open_collection(tmp_path / "c.zarr", **ROLES)
    lazy = privpipe.from_dask(frame, options=SMALL, **ROLES)
    assert lazy.schema == stored.schema
    assert lazy.plan.n_chunks > 7
    split = make_split(0.4, "who")
    for whole, part in ((lazy, stored), (lazy.keeping(split, "fit"), stored.keeping(split, "fit"))):
        for one, other in zip(whole.shards(), part.shards(), strict=True):
            for name in PARTS:
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    # In any order: an earlier chunk begins a new pass.
    np.testing.assert_array_equal(lazy.shard(1).features, stored.shard(1).features)
    assert "'m'" not in repr(lazy)


def test_from_xarray__fits_what_records_in_memory_fit(table):
    x = table[NAMES].to_numpy()
    dataset = xr.Dataset(
        {
            # Cut unlike one another, and within records.
            "features": (("record", "feature"), da.from_array(x, chunks=(333, 3))),
            "y": ("record", da.from_array(table["y"].to_numpy(), chunks=501)),
        },
        coords={"feature": NAMES},
    )
    lazy = privpipe.from_xarray(dataset, options=SMALL, desired="y")
    assert lazy.schema.feature_names == tuple(NAMES)
    found = privpipe.fit_null_space_cleaner(lazy, utility_budget=0.01)
    records = privpipe.Records(table[NAMES], desired=table["y"])
    expected = privpipe.fit_null_space_cleaner(records, utility_budget=0.01)
    np.testing.assert_allclose(found.apply(x), expected.apply(x), atol=1e-12)
    assert privpipe.from_xarray(dataset["features"]).n_records == N


@pytest.mark.filterwarnings("ignore:Dask currently has limited support")  # of text as objects
def test_transformers__take_collections_of_dask_and_give_them_back(table, frame):
    expected = Leace().fit(table[NAMES], table["y"], confidential=table["sex"].fillna("f"))
    found = Leace().fit(frame[NAMES], frame["y"], confidential=frame["sex"].fillna("f"))
    assert found.feature_names_in_.tolist() == NAMES
    released = found.transform(frame[NAMES])
    assert isinstance(released, dd.DataFrame)
    np.testing.assert_allclose(
        released.compute(), expected.transform(table[NAMES]), rtol=1e-9, atol=1e-12
    )
    x, y = frame[NAMES].to_dask_array(lengths=True), frame["y"].to_dask_array(lengths=True)
    cleaner = NullSpaceCleaner(utility_budget=0.01).fit(x, da.stack([y, x[:, 3]], axis=1))
    assert isinstance(cleaner.transform(x), da.Array)


@pytest.mark.parametrize(
    ("make", "kind", "match"),
    [
        (lambda f, t: privpipe.from_dask(t), InputError, "A DataFrame is no Dask data frame"),
        (lambda f, t: privpipe.from_dask(f, desired="yy"), OptionError, "'yy', did you mean 'y'"),
        (lambda f, t: privpipe.from_dask(f, desired="y"), InputError, "holds text in sex"),
        (lambda f, t: privpipe.from_xarray(xr.Dataset()), InputError, "no array any of features"),
        (
            lambda f, t: privpipe.from_dask(f.map_partitions(fail, meta=f._meta), **ROLES),
            Exception,
            "cannot be read as a part of a data frame",
        ),
    ],
)
def test_from_frames__refuses_by_name_and_quotes_no_value(frame, table, make, kind, match):
    with pytest.raises(kind, match=match) as caught:
        make(frame, table)
    assert "secret" not in str(caught.value)


def fail(part):
    raise ValueError("secret 17")


MEASURE = """
import resource, dask, dask.array as da, xarray as xr, privpipe
dask.config.set(scheduler="synchronous")
n = {n}
x = da.random.default_rng(0).normal(size=(n, 64), chunks=(20_000, 64))
ds = xr.Dataset({{"x": (("record", "feature"), x), "y": ("record", x[:, 0] - x[:, 1])}})
privpipe.fit_null_space_cleaner(privpipe.from_xarray(ds, desired="y"), utility_budget=0.01)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_from_xarray__needs_no_more_memory_for_ten_times_the_records():
    """The larger array has 1.0 GB; the limit is a tenth of it."""
    peaks = [
        int(subprocess.check_output([sys.executable, "-c", MEASURE.format(n=n)]))
        for n in (200_000, 2_000_000)
    ]
    assert peaks[1] - peaks[0] < 100_000, peaks
