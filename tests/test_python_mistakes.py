"""Plausible mistakes in Python: the message names the thing, what was given, and the way out."""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from dask.dataframe import from_pandas
from scipy import sparse

import privpipe
from privpipe import Records, fit_null_space_cleaner
from privpipe.errors import InputError, OptionError, PrivpipeError
from privpipe.sanitizers.arrays import as_predictor
from privpipe.sklearn import RecordSanitizer
from tests.standard import write_standard

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5))
Y = X[:, 0] + 0.1 * RNG.normal(size=60)
RECORDS = Records(X, desired=Y, confidential=X[:, 1] > 0)
CLEANER = fit_null_space_cleaner(RECORDS, utility_budget=0.1)
LAZY = da.from_array(X, chunks=(20, 5))
SANITIZER = RecordSanitizer(options={"utility_budget": 0.1})
TWICE = pd.DataFrame(X[:, :3], columns=["a", "b", "a"])
NAMELESS = fit_null_space_cleaner(Records(X[:, :3], desired=Y), utility_budget=0.1)
DATES = pd.DataFrame({"a": Y, "day": pd.date_range("2026-01-01", periods=60)})
LACKING = pd.DataFrame(X[:, :3]).astype("Float64").where(pd.Series(np.arange(60) > 0), axis=0)
FRAME = pd.DataFrame({"a": Y, "town": ["secret"] * 60})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Records(X[:, 0], desired=Y), r"features has 1 dimensions.*\(n_records, n_feat"),
        (lambda: Records(X, desired=Y[:-1]), r"desired has shape \(59,\).*60 rows.*one row per"),
        (lambda: Records(FRAME, desired=Y), "features hold something that is not a real.*Leave"),
        (lambda: Records(X.astype(complex)), "not a real number .dtype complex128"),
        (
            lambda: Records(X, desired=np.array([{"secret": 1}, 2] * 30, object)),
            "desired_0 holds neither numbers alone nor text alone.*leave out records without",
        ),
        (lambda: CLEANER.apply(X[:, :3]), r"shape \(60, 3\) do not fit a map of 5.*\(n_records, 5"),
        (lambda: CLEANER.apply(FRAME), "Records hold something that is not a real number"),
        (lambda: CLEANER.apply(da.from_array(X)), "Array, lazy or .*privpipe.apply_lazily"),
        (
            lambda: privpipe.apply_dataset(xr.Dataset({"features": (("r", "f"), X)}), CLEANER),
            "given a Dataset and a NullSpaceCleaner.*a fitted map, then an xarray.Dataset",
        ),
        (
            lambda: privpipe.apply_dataset(CLEANER, xr.DataArray(X)),
            "given a NullSpaceCleaner and a DataArray.*apply_lazily",
        ),
        (
            lambda: privpipe.ingest(FRAME, "c.zarr"),
            "no Dask data frame.*for privpipe.Records; files",
        ),
        (lambda: privpipe.write_model(X, "m.zarr"), "of type ndarray cannot be stored.*the fits"),
        (lambda: RecordSanitizer("nullspace").fit(X, Y), "'nullspace', did you mean 'null_space'"),
        (lambda: RecordSanitizer(None).fit(X, Y), "no row-wise method None. Use one of: null_sp"),
        (lambda: RecordSanitizer(3).fit(X, Y), "no row-wise method 3. Use one of: null_space"),
        (lambda: SANITIZER.fit(LAZY, LAZY[:40, 0]), r"y has shape \(40,\), where X has 60 rows"),
        (
            lambda: SANITIZER.fit(LAZY, LAZY[:, 0], LAZY[:40, 1]),
            r"confidential has shape \(40,\), where X has 60 rows",
        ),
        (lambda: SANITIZER.fit(LAZY[LAZY[:, 0] > 0], Y), r"nan rows.*compute_chunk_sizes"),
        (
            lambda: SANITIZER.fit(from_pandas(TWICE, npartitions=2), Y),
            "Several columns are named 'a'",
        ),
        (lambda: NAMELESS.apply(LACKING), "1 of 60 records hold values that are not finite"),
        (lambda: NAMELESS.apply(TWICE), "Several columns are named 'a'.*name of its own"),
        (lambda: NAMELESS.apply(from_pandas(TWICE, npartitions=2)), "Several columns are named"),
        (lambda: Records(X, weights=["s3cret"] * 60), "weights hold something that is not a real"),
        (lambda: SANITIZER.fit(DATES, Y), "not a real number"),
        (lambda: Records(TWICE, desired=Y), "Several columns are named 'a'.*name of its own"),
        (lambda: RecordSanitizer(options="0.1").fit(X, Y), "options is of type str.*dictionary"),
        (
            lambda: RecordSanitizer(options={"utility_budget": 1, "rule": "best"}).fit(X, Y),
            "rule is 'best': Input should be 'greedy' or 'kkt'",
        ),
        (lambda: Records([[1.0, 2.0], [3.0]], desired=Y), "features have rows of different le"),
        (lambda: CLEANER.apply([[1.0], [2.0, 3.0]]), "Records have rows of different lengths"),
        (
            lambda: fit_null_space_cleaner(RECORDS, utility_budget=0.1, desired_predictor="secret"),
            "predictor hold something that is not a real number",
        ),
        (
            lambda: fit_null_space_cleaner(RECORDS, utility_budget=[0.1, 0.2]),
            r"utility_budget is \[0.1, 0.2\]",
        ),
        (lambda: privpipe.measure_attacks(X[:, 0], X[:, 1] > 0), r"released has shape \(60,\)"),
        (lambda: privpipe.measure_attacks(None, X[:, 1] > 0), r"released has shape \(\)"),
        (lambda: privpipe.measure_attacks(3, X[:, 1] > 0), r"released has shape \(\)"),
        (lambda: privpipe.measure_linkage(X, 3), r"released \(\).*at least 20 pairs"),
        (lambda: privpipe.measure_linkage(X, X, [1, 2]), r"groups \(2,\)"),
        (lambda: privpipe.measure_linkage(X, X, np.arange(90)), r"groups \(90,\)"),
        (lambda: privpipe.measure_reconstruction(X[:, 0], X), r"raw has shape \(60,\)"),
        (lambda: privpipe.measure_membership(["secret"] * 60, Y), "members hold something"),
        (
            lambda: privpipe.solve_privacy_mapping([["secret"]], [0], distortion_budget=0.1),
            "joint hold something",
        ),
    ],
)
def test_mistake__is_told_with_the_way_out(make, message):
    with pytest.raises(PrivpipeError, match=f"(?s){message}") as caught:
        make()
    assert "secret" not in f"{caught.value} {caught.value.__context__!r}"


def test_options_of_an_audit__of_another_type_are_named():
    codes = X[:, :2] > 0
    for call in (
        lambda: privpipe.measure_attacks(X, codes[:, 0], options=3),
        lambda: privpipe.measure_information(codes, codes, options=3),
        lambda: privpipe.measure_linkage(X, X, options=3),
        lambda: privpipe.measure_membership(Y, Y, options=3),
    ):
        with pytest.raises(OptionError, match=r"options is of type int.*privpipe.AttackOptions"):
            call()


SPARSE = {
    "features": lambda x: Records(x),
    "desired": lambda x: Records(X, desired=x),
    "weights": lambda x: Records(X, weights=x),
    "attributes": lambda x: Records(X, attributes=x),
    "X": lambda x: SANITIZER.fit(x, Y),
    "y": lambda x: SANITIZER.fit(X, x),
    "confidential": lambda x: SANITIZER.fit(X, Y, x),
    "Records": lambda x: CLEANER.apply(x),
    "released": lambda x: privpipe.measure_attacks(x, X[:, 0] > 0),
    "predictor": lambda x: as_predictor(x),
}


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.coo_array])
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_matrix__is_refused_by_the_name_of_the_argument(name, make):
    """NumPy takes it for one object: it had "no shape", or was "no real number"."""
    with pytest.raises(InputError, match=f"^{name}: a sparse matrix .*dense.*toarray"):
        SPARSE[name](make(X))


@pytest.mark.parametrize(
    "budget", ["0.1", "low", None, -1, float("nan"), [0.1, "x"], 5e-324, 1e300]
)
def test_fit__a_budget_that_is_no_number_is_named(budget):
    """Nor one whose squares round to 0 or beyond all numbers: twice of it was spent."""
    with pytest.raises(OptionError, match=r"(?s)utility_budget is .*Use 0 or a number from 1e-280"):
        fit_null_space_cleaner(RECORDS, utility_budget=budget)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [("intercept", "seperate", "augmented"), ("rule", "best", "kkt"), ("ridge", -1, "greater")],
)
def test_fit__a_choice_that_there_is_not_is_named(name, value, allowed):
    with pytest.raises(OptionError, match=f"{name} is {value!r}: .*{allowed}"):
        fit_null_space_cleaner(RECORDS, utility_budget=1, **{name: value})


@pytest.mark.parametrize("name", ["seeen", "grups"])
def test_measure_attacks__a_name_that_there_is_not_is_named(name):
    """It was dropped: records that the fit learned from were attacked as fresh ones."""
    with pytest.raises(OptionError, match=f"{name!r}.*Give some of: raw, .*groups, seen, places"):
        privpipe.measure_attacks(X, X[:, 1] > 0, **{name: np.arange(60) < 30})


@pytest.mark.parametrize(
    "fit",
    [
        lambda x: fit_null_space_cleaner(x, utility_budget=1),
        lambda x: privpipe.fit_targeted_cleaner(x, utility_budget=1),
        privpipe.fit_leace_eraser,
        privpipe.fit_minimax_filter,
        privpipe.fit_minimax_neural_filter,
    ],
)
@pytest.mark.parametrize("x", [X, FRAME])
def test_fit__arrays_instead_of_records_are_told(fit, x):
    with pytest.raises(InputError, match=rf"of type {type(x).__name__}.*Give privpipe\.Records"):
        fit(x)


def test_records__a_frame_of_several_types_keeps_each():
    frame = pd.DataFrame({"score": Y, "town": ["Ulm", "Bern"] * 30, "flag": X[:, 0] > 0})
    records = Records(X, desired=frame)
    assert [column.n_categories for column in records.schema.desired] == [None, 2, 2]
    (shard,) = records.shards()
    np.testing.assert_array_equal(shard.desired[:, 0], Y)
    np.testing.assert_array_equal(shard.desired[:, 1], [1, 0] * 30)


def test_places__may_be_paths_and_single_names_need_no_list(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    options = privpipe.IngestOptions(layout=privpipe.SourceLayout(labels="town"))
    schema = privpipe.ingest(tmp_path / "t.csv", tmp_path / "t.zarr", options)
    assert [variable.name for variable in schema.variables] == ["town"]
    write_standard(str(tmp_path / "c.zarr"), 80)
    records = privpipe.open_collection(tmp_path / "c.zarr", desired="height")
    assert records.desired == ("height",)
    cleaner = fit_null_space_cleaner(records, utility_budget=0.1, ridge=1e-6)
    privpipe.write_model(cleaner, tmp_path / "m.zarr")
    assert privpipe.open_model(tmp_path / "m.zarr").n_features_in == 9
