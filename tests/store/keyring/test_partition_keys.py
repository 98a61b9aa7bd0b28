"""Keys of partitions: the same records draw the same words, and other records never do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from privpipe.errors import OptionError, StoreError
from privpipe.numerics.random.streams import KEY_BYTES
from privpipe.protocols import WordArray
from privpipe.records.schema import ChunkPlan, CollectionSchema, Partition
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.writing import write_collection
from privpipe.store.keyring import keyfiles
from privpipe.store.keyring.keyfiles import KeyBinding, KeyEntry
from privpipe.store.keyring.keys import (
    PartitionKeys,
    find_keys,
    forget_key,
    forget_keys,
    list_keys,
    make_key,
    make_partition_keys,
)

MODEL, OPTIONS = "b" * 64, "c" * 64
CONTENT = {
    name: np.random.default_rng(number).normal(size=(n, 3))
    for number, (name, n) in enumerate({"monday": 13, "tuesday": 29, "wednesday": 7}.items())
}


def write(url: Path, names: Sequence[str], chunk_rows: int) -> tuple[Partition, ...]:
    """A collection of some of the partitions, in this order and in chunks of this size."""
    x = np.vstack([CONTENT[name] for name in names])
    edges = np.cumsum([0, *(len(CONTENT[name]) for name in names)]).tolist()
    partitions = tuple(
        Partition(name, edge, len(CONTENT[name])) for name, edge in zip(names, edges, strict=False)
    )
    schema = CollectionSchema(
        n_records=len(x),
        n_features=3,
        dtype="float64",
        chunk_rows=chunk_rows,
        variables=(),
        partitions=partitions,
    )
    plan = ChunkPlan(len(x), chunk_rows)
    rows = [slice(*plan.rows(chunk)) for chunk in range(plan.n_chunks)]
    write_collection(str(url), schema, [{"features": x[some]} for some in rows])
    return open_collection(str(url)).schema_of_records.partitions


def draw(keys: PartitionKeys, chunk_rows: int) -> dict[str, WordArray]:
    """The words of each partition, drawn chunk by chunk."""
    n = sum(part.n_records for part in keys.partitions)
    plan = ChunkPlan(n, chunk_rows)
    words = np.vstack(
        [keys.stream(*plan.rows(chunk)).words("noise", 2) for chunk in range(plan.n_chunks)]
    )
    return {
        part.name: words[part.first_record : part.first_record + part.n_records]
        for part in keys.partitions
    }


@pytest.mark.parametrize(
    ("names", "chunk_rows"),
    [
        (("monday", "tuesday"), 5),
        (("monday", "tuesday"), 11),
        (("monday", "tuesday"), 100),
        (("tuesday", "monday"), 11),
        (("wednesday", "monday", "tuesday"), 11),
    ],
    ids=["small chunks", "chunks", "one chunk", "another order", "one more"],
)
def test_stream__the_same_records_draw_the_same_words(
    tmp_path: Path, keys_home: Path, names: tuple[str, ...], chunk_rows: int
) -> None:
    first = write(tmp_path / "first.zarr", ("monday", "tuesday"), 8)
    expected = draw(make_partition_keys(first, MODEL, OPTIONS, run="1"), 8)
    again = write(tmp_path / "again.zarr", names, chunk_rows)
    found = draw(make_partition_keys(again, MODEL, OPTIONS, run="2"), chunk_rows)
    for name, words in expected.items():
        np.testing.assert_array_equal(found[name], words)


@pytest.mark.parametrize("change", ["content", "model", "options"])
def test_stream__anything_else_draws_other_words(keys_home: Path, change: str) -> None:
    bound = {"content": "a" * 64, "model": MODEL, "options": OPTIONS}

    def words(bound: dict[str, str]) -> WordArray:
        parts = [Partition("", 0, 50, bound["content"])]
        keys = make_partition_keys(parts, bound["model"], bound["options"], run="1")
        return keys.stream(0, 50).words("noise", 2)

    assert not np.intersect1d(words(bound), words({**bound, change: "d" * 64})).size


def test_make_partition_keys__never_replaces_a_destroyed_key(keys_home: Path) -> None:
    parts = [Partition("", 0, 5, "a" * 64)]
    make_partition_keys(parts, MODEL, OPTIONS, run="1")
    (entry,) = list_keys()
    forget_key(entry.key_id)
    with pytest.raises(StoreError, match="was destroyed"):
        make_partition_keys(parts, MODEL, OPTIONS, run="2")


def test_forget_keys__destroys_all_that_a_run_drew_from_and_nothing_else(keys_home: Path) -> None:
    one, two = Partition("", 0, 5, "a" * 64), Partition("", 5, 5, "e" * 64)
    make_partition_keys([one], MODEL, OPTIONS, run="11111111")
    make_partition_keys([one, two], MODEL, OPTIONS, run="22222222")
    assert {entry.runs for entry in list_keys()} == {("11111111", "22222222"), ("22222222",)}
    assert len(forget_keys("11111111")) == 1
    kept = [entry for entry in list_keys() if entry.forgotten is None]
    assert [entry.binding.source for entry in kept] == ["e" * 64]
    assert len(find_keys("22222222")) == 2
    assert find_keys("33333333") == ()


def test_make_partition_keys__an_older_run_goes_on_with_its_own_key(keys_home: Path) -> None:
    source = "f" * 64
    older = make_key("release-1234abcd", KeyBinding(source, MODEL, "9" * 64))
    parts = [Partition("", 0, 5, "a" * 64)]
    keys = make_partition_keys(parts, MODEL, OPTIONS, run="1234abcd", source=source)
    np.testing.assert_array_equal(
        keys.stream(1, 5).words("noise", 2), older.stream("a" * 64, 1, 4).words("noise", 2)
    )
    assert [entry.key_id for entry in list_keys()] == ["release-1234abcd"]
    with pytest.raises(OptionError, match="another source"):
        make_partition_keys(parts, MODEL, OPTIONS, run="1234abcd", source="0" * 64)


def test_decode_key__reads_the_first_version(
    keys_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = KeyEntry("monday", KeyBinding("a" * 64, MODEL, OPTIONS), "2026-01-01T00:00:00+00:00")
    content = keyfiles.encode_key(entry, bytes(KEY_BYTES))
    table = json.loads(content)
    table.pop("runs"), table.pop("check")
    table["version"] = 1
    old = json.dumps({**table, "check": keyfiles._check_sum(table)}).encode()
    assert keyfiles.decode_key(old, Path("monday.key")) == (entry, bytes(KEY_BYTES))
