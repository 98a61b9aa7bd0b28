"""Columns of text as features: same numbers as pandas, rare ones pooled, named on purpose."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import privpipe
from privpipe.errors import InputError, OptionError
from privpipe.store.sources.reading import recoding

COLOURS = ["red", "green", "blue", "red", "red", None, "green", "black"]


def write(folder: Path) -> Path:
    frame = pd.DataFrame({"size": np.arange(8.0), "colour": COLOURS, "wanted": [0, 1] * 4})
    frame.to_csv(folder / "a.csv", index=False)
    return folder / "a.csv"


def read(source: Path, least: int = 1, **layout: tuple[str, ...]) -> pd.DataFrame:
    place = source.with_name(f"{least}.zarr")
    made = privpipe.SourceLayout(labels=("wanted",), **layout)  # type: ignore[arg-type]
    options = privpipe.IngestOptions(made, categorical=("wanted",), min_category_count=least)
    privpipe.ingest(source, place, options)
    shard = privpipe.open_collection(place).shard(0)
    names = privpipe.open_collection(place).schema_of_records.feature_names
    return pd.DataFrame(shard.features, columns=list(names))


def test_one_hot__are_the_dummies_of_pandas(tmp_path: Path) -> None:
    found = read(write(tmp_path), one_hot=("colour",))
    texts = pd.Series(COLOURS).fillna("(missing)").rename("colour")
    wanted = pd.get_dummies(texts, prefix="colour", prefix_sep="=").astype(float)
    assert list(found.columns) == ["size", *sorted(wanted.columns[1:]), "colour=(missing)"]
    np.testing.assert_array_equal(found[wanted.columns], wanted)
    assert (found.iloc[:, 1:].sum(axis=1) == 1).all()


def test_one_hot__pools_rare_categories(tmp_path: Path) -> None:
    found = read(write(tmp_path), 2, one_hot=("colour",))
    names = ["colour=green", "colour=red", "colour=(other)", "colour=(missing)"]
    assert list(found.columns) == ["size", *names]
    np.testing.assert_array_equal(found["colour=(other)"], [0, 0, 1, 0, 0, 0, 0, 1])


def test_one_hot__names_what_it_cannot_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="holds text in colour") as caught:
        read(write(tmp_path))
    assert "--one-hot" in caught.value.remedy
    with pytest.raises(OptionError, match="no column 'color', did you mean 'colour'"):
        read(write(tmp_path), one_hot=("color",))
    monkeypatch.setattr(recoding, "MOST_CATEGORIES", 3)
    with pytest.raises(InputError, match="exceed 3"):
        read(write(tmp_path), one_hot=("colour",))


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_dates__are_days_since_1970(tmp_path: Path, ending: str) -> None:
    days = [dt.datetime(1970, 1, 2), None, dt.datetime(2024, 7, 1, 12)]
    frame = pd.DataFrame({"day": days, "x": [1.0, 2.0, 3.0], "wanted": [0, 1, 1]})
    source = tmp_path / f"a{ending}"
    if ending == ".csv":
        frame.to_csv(source, index=False)
    else:
        frame.to_parquet(source)
    found = read(source, dates=("day",))
    np.testing.assert_array_equal(found["day"], [1.0, np.nan, 19905.5])
    with pytest.raises(InputError, match="neither numbers nor text: day") as caught:
        read(source, 2)
    assert "--dates" in caught.value.remedy
    with pytest.raises(InputError, match=r"no dates in x \(double\)"):
        read(source, 3, dates=("x",))
