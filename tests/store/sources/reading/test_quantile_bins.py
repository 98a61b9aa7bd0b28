"""Columns of numbers as bins: quantiles of the records, named by rounded edges, their loss told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privpipe
from privpipe.errors import InputError, OptionError, PrivpipeError
from privpipe.store.collections.writing import read_statistics
from privpipe.store.sources.reading import recoding
from privpipe.store.sources.reading.recoding import choose_edges, measure_loss, parse_bins


def write(folder: Path, n: int = 400) -> tuple[Path, pd.DataFrame]:
    rng = np.random.default_rng(0)
    age = rng.integers(17, 91, n).astype(float)
    pay = rng.lognormal(3, 1, n)
    pay[:2] = 10.0, 40.0  # on edges
    frame = pd.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.05, np.nan, age),
            "pay": pay,
            "x": rng.normal(size=n),
            "sex": np.where(rng.random(n) < 0.5, "f", "m"),
            "old": np.where(age >= 60, "yes", "no"),
        }
    )
    frame.to_csv(folder / "a.csv", index=False)
    return folder / "a.csv", frame


def ingest(source: Path, bins: tuple[str, ...], name: str = "c.zarr") -> Path:
    layout = privpipe.SourceLayout(labels=("sex", "old"), bins=bins)
    privpipe.ingest(source, source.with_name(name), privpipe.IngestOptions(layout))
    return source.with_name(name)


def test_bins__are_categories_in_the_order_of_the_numbers(tmp_path: Path) -> None:
    source, frame = write(tmp_path)
    place = ingest(source, ("age=4", "pay=10:40"))
    collection = privpipe.open_collection(place, attributes=("age", "pay"))
    assert collection.schema_of_records.feature_names == ("x",)
    age, pay = (collection.schema_of_records.variable(name) for name in ("age", "pay"))
    assert pay.categories == ("0: below 10", "1: 10 to below 40", "2: from 40")
    codes = collection.shard(0).attributes
    np.testing.assert_array_equal(codes[:, 1], np.digitize(frame["pay"], [10.0, 40.0]))
    np.testing.assert_array_equal(codes[:, 0] == -1, frame["age"].isna())
    assert age.categories is not None
    known = codes[:, 0] >= 0
    sizes = np.bincount(codes[known, 0])
    assert len(sizes) == len(age.categories) == 4
    assert sizes.max() <= 1.3 * sizes.min()
    values = frame["age"].to_numpy()
    for k in range(3):
        assert values[codes[:, 0] == k].max() < values[codes[:, 0] == k + 1].min()


def test_bins__tell_what_they_lose(tmp_path: Path) -> None:
    source, frame = write(tmp_path, 3000)
    coarse = read_statistics(str(ingest(source, ("age=2",), "two.zarr"))).binning["age"]
    fine = read_statistics(str(ingest(source, ("age=16",), "many.zarr"))).binning["age"]
    assert (coarse.n_bins, fine.n_bins) == (2, 16)
    assert coarse.n_chosen == int(frame["age"].notna().sum())
    assert 0 < fine.distance < coarse.distance
    assert 0 < fine.share < coarse.share < 1


def test_measure_loss__is_that_of_the_definition() -> None:
    values, edges = np.array([0.0, 1.0, 2.0, 10.0, 14.0, np.nan]), np.array([5.0])
    lost = measure_loss(values, edges)
    assert lost.distance == pytest.approx((1 + 0 + 1 + 2 + 2) / 5)
    squares = (1 + 0 + 1) + (4 + 4)
    assert lost.share == pytest.approx(squares / ((values[:5] - 5.4) ** 2).sum())
    assert lost.n_chosen == 5


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60), n_bins=st.integers(2, 12))
def test_choose_edges__ascend_and_leave_no_bin_empty(values: list[float], n_bins: int) -> None:
    x = np.array(values)
    edges = choose_edges(x, n_bins)
    assert (np.diff(edges) > 0).all()
    assert len(edges) < n_bins
    if len(edges):
        assert (np.bincount(np.searchsorted(edges, x, side="right"), minlength=2) > 0).all()


def test_choose_edges__value_on_an_edge_belongs_above() -> None:
    np.testing.assert_array_equal(choose_edges(np.array([0.0, 1.0]), 2), [1.0])
    assert not len(choose_edges(np.array([1.0, 1.0]), 2))


def test_choose_edges__are_rounded_so_that_no_value_is_published() -> None:
    values = np.random.default_rng(1).normal(50, 10, 10_000)
    edges = choose_edges(values, 10)
    assert len(edges) == 9
    assert not np.isin(edges, values).any()
    np.testing.assert_allclose(edges, np.quantile(values, np.arange(1, 10) / 10), atol=0.1)


def test_bins__of_many_records_are_chosen_by_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = write(tmp_path, 3000)
    monkeypatch.setattr(recoding, "MOST_CHOSEN", 1000)
    lost = read_statistics(str(ingest(source, ("pay=8",)))).binning["pay"]
    assert lost.n_chosen == 750  # every fourth
    assert lost.n_bins == 8


@pytest.mark.parametrize("given", ["age", "age=1", "age=x", "=3", "age=3:1", "age=1:nan", "age=0:"])
def test_parse_bins__refuses_what_is_none(given: str) -> None:
    with pytest.raises(OptionError, match="bins") as error:
        parse_bins((given,))
    assert error.value.code == "bins"


@pytest.mark.parametrize(
    ("bins", "error", "match"),
    [
        (("sex=3",), PrivpipeError, "sex"),
        (("agee=3",), OptionError, "agee"),
        (("age=3", "age=4"), OptionError, "age=4"),
        (("one=3",), InputError, "single value"),
    ],
)
def test_bins__name_what_they_cannot_cut(
    tmp_path: Path, bins: tuple[str, ...], error: type[Exception], match: str
) -> None:
    source, frame = write(tmp_path, 20)
    frame.assign(one=1.0).to_csv(source, index=False)
    with pytest.raises(error, match=match):
        ingest(source, bins)


def test_bins__another_partition_joins_by_the_same_edges(tmp_path: Path) -> None:
    source, _ = write(tmp_path)
    first = ingest(source, ("age=30:60",))
    like = privpipe.open_collection(first).schema_of_records
    layout = privpipe.SourceLayout(labels=("sex", "old"), bins=("age=30:60",))
    options = privpipe.IngestOptions(layout)
    from privpipe.store.collections.ingest import ingest as ingest_like

    ingest_like(source, tmp_path / "more.zarr", options, like=like)
    found = privpipe.open_collection(tmp_path / "more.zarr").schema_of_records
    assert found.variable("age").categories == like.variable("age").categories
