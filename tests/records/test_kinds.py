"""Integers that may be classes or numbers: one rule for all who read them, said when guessed."""

from __future__ import annotations

import tracemalloc
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from privpipe import Records, SourceLayout, fit_leace_eraser, ingest, open_collection
from privpipe.attacks.adversaries.preparation import code_targets, prepare_evidence
from privpipe.errors import GuessWarning, InputError, OptionError
from privpipe.protocols import Column
from privpipe.store.collections.growing_collection import append_partition, open_whole_collection
from privpipe.store.collections.ingest import IngestOptions

FOUR = np.arange(80) % 4


def kinds_of(tmp_path, values):
    """Whether records, attacks and collections read integers as classes."""
    x = np.random.default_rng(1).normal(size=(len(values), 3))
    np.savez(tmp_path / "s.npz", X=x, y=values)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        records = Records(x, confidential=values).schema.confidential[0]
        _, kinds, truth = code_targets(values, None)
        ingest(tmp_path / "s.npz", tmp_path / "c.zarr")
    stored = open_collection(tmp_path / "c.zarr", confidential="y").schema.confidential[0]
    assert not np.isnan(truth).all()
    return (
        {records.is_categorical, bool(kinds[0]), stored.is_categorical},
        [warning.category for warning in said],
    )


@pytest.mark.parametrize(
    ("values", "classes", "n_said"),
    [
        (np.arange(80) % 2, True, 0),
        (np.arange(80) % 2 * 2 - 1, True, 3),
        (FOUR, True, 3),
        (FOUR * 10, True, 3),
        (np.arange(80) % 64, True, 3),
        (np.arange(80) % 65, False, 3),
        (np.arange(80) % 11 - 5, False, 3),
        (FOUR.astype(np.uint8), True, 3),
        (np.arange(80) % 3 - 1, True, 3),
        (FOUR - 1, True, 3),
        (np.arange(80) % 2 * 8 - 5, False, 3),
        (np.arange(80) % 2 * 6 - 1, True, 3),
    ],
)
def test_integers__are_one_thing_for_all_readers(tmp_path, values, classes, n_said):
    kinds, said = kinds_of(tmp_path, values)
    assert kinds == {classes}
    assert said == [GuessWarning] * n_said


def test_leace__of_four_classes_erases_all_of_them():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(80, 5)) + np.eye(4, 5)[FOUR]
    with pytest.warns(GuessWarning, match="4 different values, which are read as classes"):
        eraser = fit_leace_eraser(Records(x, confidential=FOUR))
    released = eraser.apply(x)
    means = np.array([released[FOUR == k].mean(axis=0) for k in range(4)])
    assert np.ptp(means, axis=0).max() < 1e-9
    assert eraser.left.shape[1] == 3
    number = fit_leace_eraser(Records(x, confidential=FOUR, numeric="confidential"))
    assert number.left.shape[1] == 1


def test_records__kinds_may_be_said():
    x = np.ones((80, 2))
    both = np.c_[FOUR, np.arange(80)]
    columns = Records(
        x, confidential=both, numeric="confidential_0", categorical="confidential_1"
    ).schema.confidential
    assert [column.n_categories for column in columns] == [None, 80]
    assert floats_are_numbers(x)
    floats = Records(x, desired=FOUR / 2, categorical="desired").schema.desired
    assert floats[0].n_categories == 4
    with pytest.raises(OptionError, match="which is no variable"):
        Records(x, desired=FOUR / 2, numeric="confidential_3")
    with pytest.raises(OptionError, match="or in both"):
        Records(x, desired=FOUR, numeric="desired", categorical="desired")


def floats_are_numbers(x):
    return Records(x, desired=FOUR / 2).schema.desired[0].n_categories is None


def test_records__minus_one_is_missing_beside_two_classes():
    x = np.ones((6, 2))
    with pytest.warns(GuessWarning, match="-1 being missing"):
        records = Records(x, desired=np.array([-1, 0, 1, 1, 0, -1]))
    (shard,) = records.shards()
    np.testing.assert_array_equal(shard.desired[:, 0], [np.nan, 0, 1, 1, 0, np.nan])


def test_ingest__minus_one_is_missing_beside_two_classes(tmp_path):
    """It was a measurement for ingest, while records left such labels out."""
    x, y = np.ones((80, 2)), np.arange(80) % 3 - 1
    for suffix, write in ("npz", np.savez), ("csv", write_labels):
        write(tmp_path / f"s.{suffix}", X=x, y=y)
        options = IngestOptions(layout=SourceLayout(labels=("y",)))
        with pytest.warns(GuessWarning, match=r"^y \(-1 being missing\): .* stored as classes"):
            ingest(tmp_path / f"s.{suffix}", tmp_path / f"{suffix}.zarr", options)
        made = open_collection(tmp_path / f"{suffix}.zarr", confidential="y")
        assert made.schema.confidential == (Column("y", 2, ("0", "1")),)
        with pytest.warns(GuessWarning):
            (kept,) = Records(x, confidential=y).shards()
        np.testing.assert_array_equal(made.shard(0).confidential, kept.confidential)
        # Who says that it is a class keeps it.
        said = replace(options, categorical=("y",))
        found = ingest(tmp_path / f"s.{suffix}", tmp_path / f"{suffix}-said.zarr", said)
        assert found.variables[0].categories == ("-1", "0", "1")


def write_labels(path, X, y):
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_csv(path, index=False)


def test_append__minus_one_is_what_it_was_in_the_first_partition(tmp_path):
    """Classes without -1, classes with it, and numbers stay what they are."""
    firsts = {"missing": [-1, 0, 1], "none": [0, 1], "class": [-1, 1]}
    for name, values in firsts.items():
        first, later = np.resize(values, 60), np.resize([-1, *values], 60)
        for number, y in enumerate((first, later)):
            np.savez(tmp_path / f"{name}{number}.npz", X=np.eye(60, 2) + number, y=y)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GuessWarning)
                append_partition(
                    str(tmp_path / f"{name}{number}.npz"),
                    str(tmp_path / f"{name}.zarr"),
                    str(number),
                    f"2026-01-0{number + 1}",
                )
        grown = open_whole_collection(tmp_path / f"{name}.zarr", confidential="y")
        expected = np.r_[first, later].astype(float)
        expected[expected == -1] = -1 if name == "class" else np.nan
        stored = np.array(grown.schema.confidential[0].categories, float)
        (codes,) = (np.concatenate([s.confidential[:, 0] for s in grown.shards()]),)
        known = ~np.isnan(codes)
        np.testing.assert_array_equal(known, ~np.isnan(expected))
        np.testing.assert_array_equal(stored[codes[known].astype(int)], expected[known])


def test_ingest__names_what_it_guessed(tmp_path):
    np.savez(tmp_path / "s.npz", X=np.ones((80, 2)), y=FOUR, age=np.arange(80))
    with pytest.warns(GuessWarning) as said:
        ingest(tmp_path / "s.npz", tmp_path / "c.zarr")
    told = [str(warning.message) for warning in said]
    assert told[0].startswith("y: whole numbers, which are stored as classes")
    assert told[1].startswith("age: whole numbers, which are stored as numbers")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = IngestOptions(numeric=("y",), categorical=("age",))
        ingest(tmp_path / "s.npz", tmp_path / "d.zarr", options)


@pytest.mark.parametrize(
    "hide",
    [
        lambda text, gone: np.ma.masked_array(text, mask=gone),
        lambda text, gone: pd.Series(text).mask(gone),
        lambda text, gone: pd.Categorical(pd.Series(text).mask(gone)),
        lambda text, gone: pd.Series(text, dtype="string").mask(gone),
        lambda text, gone: np.where(gone, None, text.astype(object)),
        lambda text, gone: np.ma.masked_array((text == "a").astype(int), mask=gone),
    ],
    ids=["masked", "series", "categories", "strings", "objects", "masked integers"],
)
def test_records__a_missing_class_is_no_class_and_is_not_quoted(hide):
    """A masked cell raised an error of NumPy with another record's class; NaN was a class."""
    text, gone = np.where(np.arange(200) % 2, "a", "b"), np.arange(200) < 30
    records = Records(np.ones((200, 2)), desired=hide(text, gone))
    assert records.schema.desired[0].n_categories == 2
    (shard,) = records.shards()
    assert (np.isnan(shard.desired[:, 0]) == gone).all()


@pytest.mark.parametrize("dtype", ["i8", "f4"])
def test_records__masked_features_are_not_learned_from(dtype):
    masked = np.ma.masked_array(np.arange(80).reshape(20, 4).astype(dtype), mask=np.eye(20, 4) > 0)
    (shard,) = Records(masked).shards()
    assert np.isnan(shard.features).sum() == 4


@pytest.mark.parametrize("gone", [None, np.nan, pd.NA])
def test_missing_classes_are_no_class_of_an_attack(gone):
    values = np.array(["ill", gone, "well", "ill"], object)
    truth = code_targets(values, None)[2].ravel()
    assert np.flatnonzero(np.isnan(truth)).tolist() == [1]
    assert truth[0] == truth[3] != truth[2]


def test_masked_classes_are_no_class_of_an_attack():
    masked = np.ma.masked_array([1.5, 2.5, 0.5], mask=[0, 1, 0])
    assert np.isnan(code_targets(masked, None)[2]).ravel().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [str, object])
def test_text_of_a_release_is_refused_without_it(dtype):
    released = np.full((80, 2), "quoted", dtype)
    with pytest.raises(InputError, match="released hold something that is not a real") as caught:
        prepare_evidence(released, FOUR % 2)
    assert "quoted" not in str(caught.value)


def test_records__whole_numbers_beside_text_are_ordered_as_an_ingest_orders_them(tmp_path):
    """As text 10 comes before 2: distances of codes were between other values."""
    table = pd.DataFrame({"age": np.arange(60) % 13, "town": ["Ulm", "Bonn", "Köln"] * 20})
    table.assign(x=0.5).to_csv(tmp_path / "t.csv", index=False)
    ingest(tmp_path / "t.csv", tmp_path / "c.zarr", IngestOptions(categorical=("age", "town")))
    stored = open_collection(tmp_path / "c.zarr", attributes=("age", "town")).schema.attributes
    records = Records(np.ones((60, 1)), attributes=table)
    age, town = records.schema.attributes
    assert age.categories == stored[0].categories == tuple(map(str, range(13)))
    assert town.categories == stored[1].categories == ("Bonn", "Köln", "Ulm")
    (shard,) = records.shards()
    np.testing.assert_array_equal(shard.attributes[:, 0], table["age"])


def test_records__texts_are_categories_as_they_are():
    """NumPy gave each the room of the longest, and took a NUL off its end."""
    texts = np.array(["a\0", "a", "b" * 200_000, None] * 100, object)
    tracemalloc.start()
    records = Records(np.ones((400, 1)), attributes=texts)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert records.schema.attributes[0].categories == ("a", "a\0", "b" * 200_000)
    assert most < 50e6


AS_GIVEN = {
    "list": list,
    "objects": lambda texts: np.array(texts, object),
    "bytes": lambda texts: [text.encode() for text in texts],
    "series": pd.Series,
    "frame": lambda texts: pd.DataFrame({"text": texts, "number": 1.5})[["text"]],
}


@pytest.mark.parametrize("given", AS_GIVEN)
def test_classes__that_a_nul_at_their_end_tells_apart_stay_apart(given):
    """NumPy's text of a fixed width has none: two classes became one, of which nothing leaks."""
    texts = AS_GIVEN[given](["a", "a\0", "b"] * 20)
    (shard,) = Records(np.ones((60, 1)), desired=texts, confidential=texts).shards()
    truth = code_targets(texts, None)[2]
    for codes in (shard.desired, shard.confidential, truth):
        assert codes.ravel().tolist() == [0, 1, 2] * 20


@pytest.mark.parametrize("given", [pd.DataFrame.copy, pd.DataFrame.to_numpy])
def test_records__attributes_may_be_truth_values_alone(given):
    """They were refused where no other column was there; beside text they were taken."""
    table = pd.DataFrame({"smokes": [True, False] * 30, "drinks": [True, True, False] * 20})
    records = Records(np.ones((60, 1)), attributes=given(table))
    assert [one.categories for one in records.schema.attributes] == [("false", "true")] * 2
    (shard,) = records.shards()
    np.testing.assert_array_equal(shard.attributes, table)


@pytest.mark.parametrize(
    "given",
    [
        pd.DataFrame({"digit": FOUR, "income": FOUR / 3}),
        pd.DataFrame({"digit": pd.Categorical(FOUR), "income": FOUR / 3}),
        pl.DataFrame({"digit": FOUR, "income": FOUR / 3}),
        pa.table({"digit": FOUR, "income": FOUR / 3}),
        pd.Series([None, *FOUR[1:].tolist()], dtype="Int64"),
        pl.Series([None, *FOUR[1:].tolist()]),
        pa.array([None, *FOUR[1:].tolist()]),
    ],
    ids=["pandas", "categorical", "polars", "arrow", "Int64", "polars-null", "arrow-null"],
)
def test_records__classes_beside_numbers_or_a_missing_one_are_classes(given):
    """NumPy made floats of them, which were judged by R squared, and no one was warned."""
    with pytest.warns(GuessWarning, match="confidential_0 holds integers of 4 different"):
        schema = Records(np.ones((80, 1)), confidential=given).schema
    assert [one.n_categories for one in schema.confidential] == [4, None][: np.ndim(given)]


def test_records__integers_beyond_floats_stay_apart():
    given = pd.DataFrame({"id": 2**53 + FOUR, "income": FOUR / 3})
    records = Records(np.ones((80, 1)), confidential=given, categorical="confidential_0")
    assert records.schema.confidential[0].n_categories == 4
