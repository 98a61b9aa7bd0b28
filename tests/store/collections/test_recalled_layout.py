"""A later file is read by the names of the features that an earlier one became."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privpipe.errors import OptionError
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.collections.proposal import recall_layout
from privpipe.store.sources.reading.source import SourceLayout


def make_table(n: int, seed: int) -> pd.DataFrame:
    """With a column that is called as if it had been made of another, `age year`."""
    rng = np.random.default_rng(seed)
    days = pd.to_timedelta(rng.integers(0, 9_999, (2, n)).ravel(), "D")
    made = {
        "age": rng.normal(size=n).round(3),
        "age year": rng.normal(size=n).round(3),
        "pay": np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n).round(2)),
        "born": pd.Timestamp("1980-01-01") + days[:n],
        "seen": pd.Timestamp("1990-01-01") + days[n:],
        "town": rng.choice(["x", "y", "z=1"], n),
        "code": rng.integers(0, 4, n),
        "late": rng.choice(["ja", "nein"], n),
    }
    return pd.DataFrame(made)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_recall_layout__makes_the_same_features_of_a_later_file(
    tmp_path: Path, delimiter: str
) -> None:
    layout = SourceLayout(
        features=("age", "age year", "pay"),
        labels=("late",),
        one_hot=("town", "code"),
        calendar=("born",),
        dates=("seen",),
        marked=("pay",),
        delimiter=delimiter,
    )
    frame = make_table(300, 1)
    frame.to_csv(tmp_path / "first.csv", index=False, sep=delimiter)
    known = ingest(tmp_path / "first.csv", tmp_path / "first.zarr", IngestOptions(layout))
    # Other records: in another order of columns, without labels, and none from one of the towns.
    later = frame[frame["town"] != "x"][[*reversed(frame.columns[:-1])]]
    later.to_csv(tmp_path / "later.csv", index=False, sep=delimiter)
    recalled = recall_layout(tmp_path / "later.csv", known.feature_names)
    found = ingest(tmp_path / "later.csv", tmp_path / "later.zarr", IngestOptions(recalled))
    assert sorted(found.feature_names) == sorted(known.feature_names)
    order = [found.feature_names.index(name) for name in known.feature_names]
    first, second = (
        open_collection(tmp_path / name).read("features", 0, n)
        for name, n in (("first.zarr", len(frame)), ("later.zarr", len(later)))
    )
    expected = first[(frame["town"] != "x").to_numpy()]
    assert np.ascontiguousarray(second[:, order]).tobytes() == expected.tobytes()


def test_recall_layout__keeps_what_the_file_lacks_for_the_error_that_names_it(
    tmp_path: Path,
) -> None:
    make_table(50, 2)[["age", "town"]].to_csv(tmp_path / "less.csv", index=False)
    layout = recall_layout(tmp_path / "less.csv", ["age", "pay", "pay missing", "town=x"])
    with pytest.raises(OptionError, match="no column 'pay'"):
        ingest(tmp_path / "less.csv", tmp_path / "less.zarr", IngestOptions(layout))
