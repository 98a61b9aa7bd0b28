"""Sketches of collections: made once, by whatever says who a record is."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.sketch_pass import sketch_collection
from privpipe.errors import FormatError
from privpipe.numerics.random import record_overlap
from privpipe.numerics.random.record_overlap import Overlap
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.collections.writing import write_collection
from privpipe.store.keyring import sketches as sketches_module
from privpipe.store.keyring.sketches import SUBJECTS, Sketches
from tests.store.test_writer_machine import flip_bit


def write_codes(url: str, codes: np.ndarray, towns: tuple[str, ...]) -> Collection:
    """Records without features: a town and a trade of many."""
    trades = tuple(f"trade-{k}" for k in range(500))
    variables = (Variable("town", "int16", towns), Variable("trade", "int16", trades))
    schema = CollectionSchema(len(codes), 0, "float64", 64, variables)
    empty = np.empty((len(codes), 0))
    blocks = [
        {"features": empty[s : s + 64], "town": codes[s : s + 64, 0], "trade": codes[s : s + 64, 1]}
        for s in range(0, len(codes), 64)
    ]
    write_collection(url, schema, blocks)
    return open_collection(url)


def test_write__compares_what_came_together_and_with_all_that_were_there(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    people = rng.integers(1, 2**64, (500, 4), dtype=np.uint64)
    rows = {"a": (0, 100), "b": (150, 200), "c": (99, 150), "d": (149, 160), "e": (158, 161)}
    tables = {one: people[slice(*some)].copy() for one, some in rows.items()}
    tables["b"][-1] = people[5]
    tables["c"][0, :3] = rng.integers(1, 2**64, 3, dtype=np.uint64)  # known by its last word alone
    sketches = Sketches(str(tmp_path / "account"))
    sketches.key()
    for together in ("a", "bcd", "e"):
        sketches.write({one: {"frame": tables[one]} for one in together})
    ties, met = sketches.ties(), {"ab", "ac", "bd", "cd", "be", "de"}
    for one in rows:
        for other in set(rows) - {one}:
            assert ties.meet(one, other) == ("".join(sorted(one + other)) in met)
    assert ties.between("b", "a") == Overlap(1 / 50, 1 / 100)


def test_read__finds_damage_in_any_piece_of_a_sketch(tmp_path: Path) -> None:
    words = np.random.default_rng(4).integers(1, 2**64, (20_000, 4), dtype=np.uint64)
    sketches = Sketches(str(tmp_path))
    sketches.key()
    sketches.write({"a": {"frame": words}})
    np.testing.assert_array_equal(sketches.read("a", "frame"), words)
    damaged = tmp_path / ".records" / "words" / "a" / "frame"
    flip_bit(damaged, 8 * 30)  # beyond its head, in the first piece
    with pytest.raises(FormatError, match="damaged"):
        sketches.read("a", "frame")


def test_sketch__of_many_records_is_in_pieces_that_are_missed_and_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketches_module, "PIECE_ROWS", 64)
    monkeypatch.setattr(record_overlap, "MOST_AT_ONCE", 100)
    people = np.random.default_rng(5).integers(1, 2**64, (500, 4), dtype=np.uint64)
    sketches = Sketches(str(tmp_path))
    sketches.key()
    left = tmp_path / ".records" / "words" / "old" / "frame"  # by a version without pieces
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    sketches.write({"old": {"frame": people[:300]}})
    sketches.write({"new": {"frame": people[260:]}, "other": {"frame": people[:10]}})
    np.testing.assert_array_equal(sketches.read("new", "frame"), people[260:])
    ties = sketches.ties()
    assert ties.between("new", "old") == Overlap(40 / 240, 40 / 300)
    assert ties.between("other", "old") == Overlap(1.0, 10 / 300)
    assert not ties.meet("new", "other")
    sketches.blank("new", [0, 239])
    blanked = people[260:].copy()
    blanked[[0, 239]] = 0
    np.testing.assert_array_equal(sketches.read("new", "frame"), blanked)
    assert sketches.find_missing(["old", "new"]) == []
    (tmp_path / ".records" / "words" / "new" / "frame.000003-000004").unlink()
    assert sketches.find_missing(["old", "new"]) == ["new"]
    with pytest.raises(FormatError, match="incomplete"):
        sketches.read("new", "frame")


def test_blank__leaves_no_word_in_what_a_killed_writer_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = np.random.default_rng(6).integers(1, 2**64, (10, 4), dtype=np.uint64)
    sketches = Sketches(str(tmp_path))
    sketches.key()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", die)
        patch.setattr(os, "unlink", lambda _: None)  # a kill cleans nothing up
        with pytest.raises(KeyboardInterrupt):
            sketches.write({"a": {"frame": people}})
    words = tmp_path / ".records" / "words"
    assert people[3].tobytes() in next((words / "a").iterdir()).read_bytes()
    sketches.write({"a": {"frame": people}, "b": {"frame": people}})
    sketches.blank("a", [3])
    assert not [
        file for file in (words / "a").iterdir() if people[3].tobytes() in file.read_bytes()
    ]
    assert people[3].tobytes() in (words / "b" / "frame").read_bytes()


def test_sketch__of_codes_is_by_names_of_categories_and_of_any_variables(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    codes = np.column_stack([rng.integers(0, 3, 200), rng.permutation(500)[:200]]).astype(np.int16)
    moved = codes.copy()
    moved[:, 0] += 1  # a town that nobody lives in comes first
    first = write_codes(str(tmp_path / "a.zarr"), codes, ("bern", "linz", "ulm"))
    later = write_codes(str(tmp_path / "b.zarr"), moved[1:], ("aarau", "bern", "linz", "ulm"))
    sketches = Sketches(str(tmp_path / "account"))
    sketch_collection(Executor(), replace(first, attributes=("town", "trade")), sketches)
    sketch_collection(Executor(), replace(later, attributes=("trade",)), sketches)
    (one,), (other,) = (
        [part.digest for part in some.schema_of_records.partitions] for some in (first, later)
    )
    assert sketches.ties().between(other, one) == Overlap(1.0, 199 / 200)
    before = sketches.known()
    sketch_collection(Executor(), later, sketches)
    assert sketches.known() == before


@pytest.mark.parametrize("named_at", ["once", "the first later", "both later"])
def test_write__of_people_with_names_does_not_count_equal_profiles(
    tmp_path: Path, named_at: str
) -> None:
    """Two surveys ask the same few questions; one person answered both."""
    rng = np.random.default_rng(7)
    profiles = rng.integers(1, 2**64, (5, 4), dtype=np.uint64)
    names = rng.integers(1, 2**64, (399, 4), dtype=np.uint64)
    tables = {
        "first": {"frame": profiles[rng.integers(0, 5, 200)], SUBJECTS: names[:200]},
        "second": {"frame": profiles[rng.integers(0, 5, 200)], SUBJECTS: names[199:]},
    }
    later = {"once": (), "the first later": ("first",), "both later": ("second", "first")}[named_at]
    sketches = Sketches(str(tmp_path))
    sketches.key()
    for one, some in tables.items():
        sketches.write({one: {k: v for k, v in some.items() if k == "frame" or one not in later}})
        if one == "second" and later:
            assert sketches.ties().between("second", "first").by_profile
    for one in later:
        sketches.write({one: {SUBJECTS: tables[one][SUBJECTS]}})
    assert sketches.ties().between("second", "first") == Overlap(1 / 200, 1 / 200)


def test_write__knows_people_of_many_records_as_such(tmp_path: Path) -> None:
    """Words of a person repeat, and are of nobody else."""
    words = np.random.default_rng(8).integers(1, 2**64, (10, 4), dtype=np.uint64)
    sketches = Sketches(str(tmp_path))
    sketches.key()
    sketches.write({"a": {SUBJECTS: np.repeat(words, 20, axis=0)}})
    sketches.write({"b": {SUBJECTS: np.repeat(words, 20, axis=0)}})
    assert sketches.ties().between("b", "a") == Overlap(1.0, 1.0)
