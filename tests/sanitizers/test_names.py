"""Tables are read by the names of the features a map was fitted to, never by their order."""

from __future__ import annotations

import pickle

import dask.dataframe
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
import xarray as xr

import privpipe
from privpipe import (
    Records,
    apply_dataset,
    fit_leace_eraser,
    fit_minimax_filter,
    fit_null_space_cleaner,
    fit_targeted_cleaner,
    open_model,
    write_model,
)
from privpipe.errors import InputError, OptionError
from privpipe.fitted_names import names_of
from privpipe.store.models import digest_map

NAMES = ["height", "weight", "age", "dose"]


@pytest.fixture
def frame():
    values = np.random.default_rng(3).normal(size=(60, 4)) * [1, 10, 100, 1000]
    return pd.DataFrame(values, columns=NAMES)


@pytest.fixture(params=["null_space", "targeted", "leace", "minimax"])
def fitted(request, frame):
    x = frame.to_numpy()
    records = Records(frame, desired=x[:, 0] + x[:, 2], confidential=x[:, 1] > 0)
    fits = {
        "null_space": lambda: fit_null_space_cleaner(records, utility_budget=0.1),
        "targeted": lambda: fit_targeted_cleaner(records, utility_budget=0.1),
        "leace": lambda: fit_leace_eraser(records),
        "minimax": lambda: fit_minimax_filter(records),
    }
    return fits[request.param]()


def test_apply__reads_a_table_by_name(tmp_path, frame, fitted):
    write_model(fitted, tmp_path / "m.zarr")
    expected = fitted.apply(frame.to_numpy())
    for known in (fitted, open_model(tmp_path / "m.zarr"), pickle.loads(pickle.dumps(fitted))):
        assert names_of(known) == tuple(NAMES)
        for order in (NAMES, NAMES[::-1], ["dose", "height", "age", "weight"]):
            released = known.apply(frame[order])
            names = order if fitted.keeps_features else released.columns
            there = [*NAMES, *released.columns[4:]] if fitted.keeps_features else names
            assert [*released] == [*names]
            np.testing.assert_array_equal(released[there], expected)
    assert digest_map(fitted) == digest_map(open_model(tmp_path / "m.zarr"))


def test_apply__gives_back_the_kind_of_table_that_it_got(frame, fitted):
    expected = fitted.apply(frame.to_numpy())
    frame.index = [f"p{i:02d}" for i in range(60)]
    names = NAMES if fitted.keeps_features else ["released_0"]
    shuffled = frame[NAMES[::-1]]
    released = fitted.apply(shuffled)
    assert released.index.equals(frame.index)
    assert released.columns.tolist() == names[::-1]
    of_polars = fitted.apply(polars.from_pandas(shuffled))
    assert of_polars.columns == names[::-1]
    lazily = fitted.apply(dask.dataframe.from_pandas(shuffled, npartitions=3))
    pd.testing.assert_frame_equal(lazily.compute(), released, check_index_type=False)
    labelled = fitted.apply(xr.DataArray(shuffled, dims=("person", "what")))
    assert labelled.person.to_numpy().tolist() == frame.index.tolist()
    of_arrow = fitted.apply(pa.Table.from_pandas(shuffled, preserve_index=False))
    of_batch = fitted.apply(pa.RecordBatch.from_pandas(shuffled, preserve_index=False))
    assert isinstance(of_arrow, pa.Table)
    assert isinstance(of_batch, pa.RecordBatch)
    labels = labelled.sel(what=names).to_pandas()
    for table in (released, of_polars, labels):
        np.testing.assert_array_equal(table[names], expected)
    for arrow in (of_arrow, of_batch):  # its columns lie otherwise in memory
        np.testing.assert_allclose(arrow.to_pandas()[names], expected, rtol=1e-9)
    np.testing.assert_allclose(fitted.apply(shuffled.iloc[7]), expected[7], rtol=1e-12)
    with pytest.raises(InputError, match="Dataset"):
        fitted.apply(xr.Dataset.from_dataframe(frame))


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1, 2, 3],
        [5, 7, 8, 9],
        [0.5, 1.5, 2.5, 3.5],
        pd.MultiIndex.from_product([["a", "b"], ["x", "y"]]),
        pd.date_range("2026", periods=4),
    ],
    ids=["counted", "whole", "numbers", "levels", "dates"],
)
def test_columns__that_are_named_by_no_text_are_in_one_order(frame, labels):
    """They were read by place, whatever their order: a column was released as another."""
    plain = Records(frame.to_numpy(), confidential=frame["age"].to_numpy() > 0)
    frame.columns = labels
    records = Records(frame, confidential=frame.iloc[:, 2].to_numpy() > 0)
    known, expected = fit_leace_eraser(records), fit_leace_eraser(plain).apply(frame.to_numpy())
    np.testing.assert_array_equal(known.apply(frame), expected)
    np.testing.assert_allclose(known.apply(frame.iloc[3]), expected[3])
    turned = frame.iloc[:, [2, 0, 1, 3]]
    for given in (turned, turned.iloc[3], dask.dataframe.from_pandas(turned.iloc[:, ::-1])):
        with pytest.raises(InputError, match="not named by text alone"):
            known.apply(given)
    with pytest.raises(InputError, match="not named by text alone"):
        Records(turned)
    # The remedy: names of text.
    named = fit_leace_eraser(
        Records(frame.set_axis(NAMES, axis=1), confidential=frame.iloc[:, 2].to_numpy() > 0)
    )
    released = named.apply(turned.set_axis(["age", "height", "weight", "dose"], axis=1))
    np.testing.assert_allclose(released[NAMES], expected)


def test_columns__of_text_and_numbers_are_refused(frame):
    frame.columns = ["height", 1, "age", 3]
    with pytest.raises(InputError, match=r"columns\.astype\(str\)"):
        Records(frame)


def test_apply__refuses_columns_that_are_missing_or_too_many(frame, fitted):
    with pytest.raises(InputError, match="lack 'age'; have too many 'aeg'"):
        fitted.apply(frame.rename(columns={"age": "aeg"}))
    with pytest.raises(InputError, match="have too many 'town'"):
        fitted.apply(frame.assign(town=1.0))
    with pytest.raises(InputError, match="lack 'dose'"):
        fitted.apply(frame[NAMES[:3]])
    with pytest.raises(InputError, match="hold twice 'age'"):
        fitted.apply(frame[[*NAMES, "age"]])


def test_apply__takes_arrays_and_unnamed_columns_as_they_are(frame, fitted):
    x = frame.to_numpy()
    np.testing.assert_array_equal(fitted.apply(pd.DataFrame(x)), fitted.apply(x))


def test_apply__of_a_model_without_names_takes_columns_in_order(frame):
    x = frame.to_numpy()
    cleaner = fit_null_space_cleaner(Records(x, desired=x[:, 0]), utility_budget=0.1)
    assert names_of(cleaner) == ()
    np.testing.assert_array_equal(cleaner.apply(frame), cleaner.apply(x))


def test_apply_dataset__reads_the_coordinate_of_the_features(frame, fitted):
    def label(order):
        table = frame[order].to_numpy()
        return xr.Dataset({"features": (("record", "feature"), table)}, coords={"feature": order})

    expected = apply_dataset(fitted, label(NAMES)).features.to_numpy()
    np.testing.assert_array_equal(
        apply_dataset(fitted, label(NAMES[::-1])).features.to_numpy(), expected
    )
    if fitted.n_features_out == 4:
        found = apply_dataset(fitted, label(NAMES[::-1]).chunk())
        assert found.feature.to_numpy().tolist() == NAMES
        np.testing.assert_array_equal(found.features.to_numpy(), expected)
    with pytest.raises(InputError, match="lack 'height', 'age'"):
        apply_dataset(fitted, label(NAMES).assign_coords(feature=["a", *NAMES[1:2], "b", "c"]))


@pytest.mark.parametrize("given", [3, {"n_filtered": 2}, "auto"])
@pytest.mark.parametrize(
    "name", ["minimax_filter", "minimax_neural_filter", "masking", "masking_private", "target_only"]
)
def test_fit__names_options_of_another_type(name: str, given: object) -> None:
    """An AttributeError of some inner function was shown."""
    x = np.random.default_rng(0).normal(size=(50, 3))
    records = privpipe.Records(x, desired=x[:, 0] > 0, confidential=x[:, 1] > 0)
    with pytest.raises(OptionError, match=f"of type {type(given).__name__}. Give .*Options"):
        getattr(privpipe, f"fit_{name}")(records, given)
