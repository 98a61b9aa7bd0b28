"""A reviewed schema reads a column as the same options without one do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privpipe.errors import InputError
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.collections.proposal import propose_schema
from privpipe.store.sources.reading.source import SourceLayout


@pytest.mark.filterwarnings("ignore::privpipe.errors.GuessWarning")
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_schema__whole_numbers_of_a_label_are_classes_with_it_and_without(
    kind: str, tmp_path: Path
) -> None:
    """An audit of numbers measures R squared, in which a class may leak unseen."""
    random = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "a": random.normal(size=500),
            "flag": random.integers(0, 2, 500),
            "grade": random.integers(1, 6, 500),
            "year": random.integers(1900, 2020, 500),
        }
    )
    path, layout = tmp_path / f"t.{kind}", SourceLayout(labels=("flag", "grade", "year"))
    getattr(table, f"to_{kind}")(path, index=False)
    found = list[object]()
    for name, schema in ("options", None), ("schema", propose_schema(str(path))):
        url = tmp_path / f"{name}.zarr"
        ingest(path, url, IngestOptions(layout=layout, schema=schema))
        known = open_collection(url).schema_of_records
        found.append({one: known.variable(one).categories for one in layout.labels})
    assert found[0] == found[1]
    assert found[0]["flag"] == ("0", "1")
    assert found[0]["year"] is None


@pytest.mark.parametrize("zone", ["Z", "+00:00", "+02:00", ""])
def test_schema__reads_time_stamps_with_a_zone(zone: str, tmp_path: Path) -> None:
    times = pd.date_range("2020-01-31 09:41:17", periods=300, freq="7h")
    stamps = [f"{one:%Y-%m-%dT%H:%M:%S}{zone}" for one in times]
    path = tmp_path / "t.csv"
    table = {"a": np.random.default_rng(0).normal(size=300), "stamp": stamps}
    pd.DataFrame(table).to_csv(path, index=False)
    days = list[np.ndarray]()
    for name, schema, dates in (
        ("said", propose_schema(str(path)), ()),
        ("options", None, ("stamp",)),
    ):
        url = tmp_path / f"{name}.zarr"
        ingest(path, url, IngestOptions(layout=SourceLayout(dates=dates), schema=schema))
        (shard,) = open_collection(url).shards()
        days.append(shard.features[:, 1])
    np.testing.assert_allclose(days[0], days[1])
    np.testing.assert_allclose(np.diff(days[0]), 7 / 24, atol=1e-6)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_schema__a_key_of_records_of_which_some_stand_twice_is_no_feature(
    kind: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "customer": random.permutation(3_000) + 100_000,
            "amount": random.integers(0, 900, 3_000),
            "a": random.normal(size=3_000),
            "sex": random.choice(["f", "m"], 3_000),
        }
    )
    path = tmp_path / f"t.{kind}"
    getattr(pd.concat([table, table.iloc[:90]]), f"to_{kind}")(path, index=False)
    plans = propose_schema(str(path)).columns
    assert (plans["customer"].use, plans["amount"].use) == ("drop", "feature")
    options = IngestOptions(layout=SourceLayout(labels=("sex",)))
    with pytest.raises(InputError, match="holds in customer another whole") as refused:
        ingest(path, tmp_path / "t.zarr", options)
    assert refused.value.code == "record-key"
    # Of one column alone, or of few profiles, repeated values are what they are.
    table[["amount"]].to_csv(tmp_path / "one.csv", index=False)
    assert propose_schema(str(tmp_path / "one.csv")).columns["amount"].use == "feature"
    table[["amount", "sex"]].to_csv(tmp_path / "two.csv", index=False)
    assert propose_schema(str(tmp_path / "two.csv")).columns["amount"].use == "feature"
