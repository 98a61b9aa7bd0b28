"""The audit's sample: every chunk, equal chances, a secret key; the same whoever draws it when."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from privpipe.cluster.passes.evidence_sample import draw_sample
from privpipe.cluster.passes.sample_drawing import (
    FEWEST_GROUPS,
    Drawing,
    Published,
    gather_sample,
    keep_chunk,
    make_sample_key,
)
from privpipe.errors import FormatError, InputError
from privpipe.protocols import Shard
from privpipe.records.sampling import DrawnSample, make_split
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.collections.writing import write_collection

N_RECORDS = 6000


def write(
    folder: Path,
    chunk_rows: int,
    *,
    person: np.ndarray | None = None,
    labelled: int = N_RECORDS,
    missing: int = 0,
) -> Collection:
    """Records of which the first so many have a secret, and of which some have a person."""
    random = np.random.default_rng(1)
    columns = {
        "features": random.normal(size=(N_RECORDS, 3)),
        "secret": random.integers(0, 2, N_RECORDS).astype(np.int8),
        "person": np.zeros(N_RECORDS, np.int32) if person is None else person.astype(np.int32),
    }
    columns["secret"][labelled:] = -1
    columns["features"][:missing, 1] = np.nan
    if person is not None:  # a person's records are all the same, but for those of the first ten
        columns["features"][person >= 10] = columns["features"][person[person >= 10]]
        columns["secret"] = columns["secret"][person]
    schema = CollectionSchema(
        n_records=N_RECORDS,
        n_features=3,
        dtype="float64",
        chunk_rows=chunk_rows,
        variables=(Variable("secret", "int8", ("no", "yes")), Variable("person", "int32")),
    )
    url = str(folder / f"records-{chunk_rows}.zarr")
    starts = range(0, N_RECORDS, chunk_rows)
    blocks = [{k: v[s : s + chunk_rows] for k, v in columns.items()} for s in starts]
    write_collection(url, schema, blocks)
    return open_collection(url, confidential=["secret"]).keeping(make_split(0.5), "held_out")


def place(folder: Path, key: bytes = bytes(32)) -> tuple[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / "key").write_bytes(key)
    return str(folder), make_sample_key(str(folder))


def assert_equal(one: DrawnSample, other: DrawnSample) -> None:
    for name in ("words", "rows", "counts"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    for field in fields(Shard):
        left, right = getattr(one.shard, field.name), getattr(other.shard, field.name)
        assert np.array_equal(left, right, equal_nan=True)


def test_gather_sample__is_the_same_for_any_chunking(tmp_path: Path) -> None:
    samples = [
        gather_sample(
            Drawing(write(tmp_path, rows), Published(), 500, *place(tmp_path / f"{rows}"))
        )
        for rows in (70, 1000, N_RECORDS)
    ]
    assert len(samples[0].rows) == 500
    assert samples[0].n_eligible == samples[2].n_eligible
    for other in samples[1:]:
        assert_equal(samples[0], other)


def test_gather_sample__reaches_every_place_with_equal_chances(tmp_path: Path) -> None:
    collection = write(tmp_path, 100)
    drawn = gather_sample(Drawing(collection, Published(), 1500, *place(tmp_path / "place")))
    counts = np.bincount(drawn.rows // 100, minlength=60)
    assert counts.min() > 8  # 25 are expected of each chunk
    assert counts.max() < 45
    held = np.concatenate([collection.rows(chunk) for chunk in range(60)])
    assert np.isin(drawn.rows, held).all()


def test_gather_sample__leaves_out_records_that_are_not_finite(tmp_path: Path) -> None:
    collection = replace(write(tmp_path, 1000, missing=4000), only_finite=True)
    drawn = gather_sample(Drawing(collection, Published(), 6000, *place(tmp_path / "place")))
    assert len(drawn.rows) > 500
    assert drawn.rows.min() >= 4000


def test_gather_sample__fills_in_what_is_imputed(tmp_path: Path) -> None:
    source = replace(write(tmp_path, 1000, missing=4000), only_finite=True, fill=(7.0, 8.0, 9.0))
    drawn = gather_sample(Drawing(source, Published(), 6000, *place(tmp_path / "place")))
    assert (drawn.rows < 4000).sum() > 1500
    assert ((drawn.shard.features[:, 1] == 8) == (drawn.rows < 4000)).all()
    assert np.isfinite(drawn.shard.features).all()


def test_gather_sample__depends_on_a_key_that_is_nowhere_else(tmp_path: Path) -> None:
    collection = write(tmp_path, 1000)
    one, other, again = (
        gather_sample(Drawing(collection, Published(), 500, *place(tmp_path / name, key)))
        for name, key in (("a", bytes(32)), ("b", bytes(31) + b"1"), ("c", bytes(32)))
    )
    assert len(np.intersect1d(one.rows, other.rows)) < 150  # 500 of 3,000: 83 by chance
    assert_equal(one, again)
    url, fresh = str(tmp_path / "fresh"), set[str]()
    for _ in range(2):
        fresh.add(make_sample_key(url))
    assert len(fresh) == 1  # a run that goes on
    assert len((tmp_path / "fresh" / "key").read_bytes()) == 32
    with pytest.raises(FormatError, match="key of the audit's sample"):
        keep_chunk(Drawing(collection, Published(), 500, url, "0" * 64), 0)


def test_keep_chunk__draws_again_what_is_missing_or_damaged(tmp_path: Path) -> None:
    drawing = Drawing(write(tmp_path, 1000), Published(), 500, *place(tmp_path / "place"))
    first = gather_sample(drawing)
    stored = sorted(path for path in (tmp_path / "place").iterdir() if path.name != "key")
    assert len(stored) == 6
    content = [path.read_bytes() for path in stored]
    stored[0].unlink()
    stored[3].write_bytes(content[3][:-9] + b"otherwise")
    assert_equal(first, gather_sample(drawing))
    assert [path.read_bytes() for path in stored] == content


def test_gather_sample__finds_the_few_that_carry_a_label(tmp_path: Path) -> None:
    collection = write(tmp_path, 1000, labelled=200)
    drawn = gather_sample(Drawing(collection, Published(), 150, *place(tmp_path / "place")))
    n_labelled = int((collection.rows(0) < 200).sum())
    assert drawn.n_eligible == n_labelled < 150
    assert len(drawn.rows) == n_labelled
    assert not np.isnan(drawn.shard.confidential).any()


def test_draw_sample__of_nobody_is_an_error_that_names_the_way_out(tmp_path: Path) -> None:
    collection = write(tmp_path, 1000, labelled=0)
    drawing = Drawing(collection, Published(), 150, *place(tmp_path / "place"))
    with pytest.raises(InputError, match="is held out and labelled"):
        draw_sample(drawing)


def test_gather_sample__draws_whole_groups_and_counts_their_repeats(tmp_path: Path) -> None:
    person = np.arange(N_RECORDS) % 300
    collection = write(tmp_path, 700, person=person)
    collection = replace(collection, split=make_split(0.5, "person"))
    published = Published(group="person")
    few, many = (
        gather_sample(Drawing(collection, published, most, *place(tmp_path / f"{most}")))
        for most in (50, 3000)
    )
    persons = few.shard.confidential[:, -2].astype(int)
    repeated = persons >= 10
    assert len(few.rows) == len(set(persons)) == 50  # one record of each has room
    assert (few.counts[repeated] == 20).all()
    assert (few.counts[~repeated] == 1).all()
    assert set(few.words) <= set(many.words)
    room = 3000 // FEWEST_GROUPS
    of_all, counts = np.unique(many.shard.confidential[:, -2], return_counts=True)
    assert (counts[of_all < 10] == min(20, room)).all()
    assert (counts[of_all >= 10] == 1).all()
