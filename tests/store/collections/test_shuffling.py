"""Shuffled collections: the same records, in an order of which all are equally likely."""

from collections import Counter
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from privpipe.errors import StoreError
from privpipe.records.schema import CollectionSchema
from privpipe.store.collections import ingest as ingesting
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.collections.writing import read_statistics
from privpipe.store.sources.reading.source import SourceLayout

SHUFFLED = IngestOptions(
    layout=SourceLayout(labels=("kind",)), chunk_bytes=256, shuffle=True, dtype="float64"
)


@pytest.fixture(params=[2**27, 300])
def bucket_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """One bucket, and many of a few records each."""
    monkeypatch.setattr(ingesting, "BUCKET_BYTES", request.param)
    return int(request.param)


def write_table(path: Path, n: int, first: int = 0) -> None:
    numbers = np.arange(first, first + n)
    kinds = np.array(list("abc"))[numbers % 3]
    pd.DataFrame({"x": numbers + 0.5, "y": -numbers, "kind": kinds}).to_csv(path, index=False)


@pytest.mark.usefixtures("bucket_bytes")
def test_shuffled__are_the_same_records_within_their_partitions(tmp_path: Path) -> None:
    """Rows stay whole, none is lost or doubled, and no file's records come among another's."""
    (tmp_path / "parts").mkdir()
    for name, n, first in (("1.csv", 200, 0), ("2.csv", 0, 0), ("3.csv", 313, 200)):
        write_table(tmp_path / "parts" / name, n, first)
    schema = ingest(str(tmp_path / "parts"), str(tmp_path / "c.zarr"), SHUFFLED)
    found = open_collection(str(tmp_path / "c.zarr"))
    x = np.asarray(found.read("features", 0, 513))
    assert np.array_equal(np.sort(x[:, 0]), np.arange(513) + 0.5)
    assert np.array_equal(x[:, 1], 0.5 - x[:, 0])
    kinds = schema.variable("kind").categories
    assert kinds is not None
    codes = np.asarray(found.read("kind", 0, 513))
    assert [kinds[code] for code in codes] == ["abc"[int(one) % 3] for one in x[:, 0]]
    assert x[:200, 0].max() < 200 < x[200:, 0].min()
    # Not as they came, in either partition.
    for part in (x[:200, 0], x[200:, 0]):
        assert abs(stats.spearmanr(part, np.arange(len(part))).statistic) < 0.35
    assert read_statistics(str(tmp_path / "c.zarr")).shuffled
    assert not [one for one in (tmp_path / "c.zarr").rglob("*") if "bucket" in one.name]


@pytest.mark.usefixtures("bucket_bytes")
def test_shuffled__twice_are_in_two_orders(tmp_path: Path) -> None:
    """Who ingests again, with all that was known, does not find the order."""
    write_table(tmp_path / "t.csv", 100)
    orders = []
    for name in ("one.zarr", "two.zarr"):
        ingest(str(tmp_path / "t.csv"), str(tmp_path / name), SHUFFLED)
        orders.append(open_collection(str(tmp_path / name)).read("features", 0, 100)[:, 0])
    assert not np.array_equal(*orders)


@pytest.mark.parametrize("n_drawn", [240, pytest.param(720, marks=pytest.mark.slow)])
def test_shuffled__orders_are_equally_likely(
    n_drawn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 24 orders of four records, by chi-squared, over buckets of about one record."""
    monkeypatch.setattr(ingesting, "BUCKET_BYTES", 24)
    schema = CollectionSchema(n_records=4, n_features=1, dtype="float64", chunk_rows=4)
    x = np.arange(4.0)[:, None]
    blocks = [{"features": x[:1]}, {"features": x[1:]}]
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(n_drawn):
        place = str(tmp_path / "buckets")
        made = [one["features"] for one in ingesting.shuffle_blocks(blocks, schema, place)]
        seen[tuple(np.concatenate(made)[:, 0].astype(int).tolist())] += 1
    counts = [seen[order] for order in permutations(range(4))]
    assert sum(counts) == n_drawn
    assert stats.chisquare(counts).pvalue > 1e-4


def test_shuffled__leaves_no_record_on_the_way(tmp_path: Path) -> None:
    """A source that changes between its passes ends the ingest, and no bucket stays."""
    from privpipe.store.collections import ingest as module

    write_table(tmp_path / "t.csv", 100)
    survey = module.survey_source

    def change(*given: object, **more: object) -> object:
        found = survey(*given, **more)  # type: ignore[arg-type]
        write_table(tmp_path / "t.csv", 130)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "survey_source", change)
        with pytest.raises(StoreError):
            ingest(str(tmp_path / "t.csv"), str(tmp_path / "c.zarr"), SHUFFLED)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["t.csv"]
