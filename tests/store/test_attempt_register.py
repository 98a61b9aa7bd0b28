"""Attempts at a release of the same records are counted, and share the level."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from privpipe.errors import FormatError, StoreError
from privpipe.store.keyring.registers import note_attempt, share_level


def _hash(number: int) -> str:
    return f"{number:08x}" * 8


def test_note_attempt__counts_those_that_share_a_partition(tmp_path: Path) -> None:
    account = str(tmp_path)
    one = note_attempt(account, _hash(1), _hash(9), {"a", "b"})
    assert one.number == 1
    assert note_attempt(account, _hash(2), _hash(9), {"b", "c"}).number == 2
    assert note_attempt(account, _hash(3), _hash(9), {"d"}).number == 1
    assert note_attempt(account, _hash(1), _hash(8), {"a"}).number == 2  # another sample size
    assert note_attempt(account, _hash(4), _hash(9), {"a", "c", "d"}).number == 5


def test_note_attempt__the_same_again_is_the_same(tmp_path: Path) -> None:
    account = str(tmp_path)
    first = note_attempt(account, _hash(1), _hash(9), {"a"})
    note_attempt(account, _hash(2), _hash(9), {"a"})
    assert note_attempt(account, _hash(1), _hash(9), {"a"}) == first
    assert note_attempt(account, _hash(1), _hash(7), {"a"}).seed == first.seed
    assert note_attempt(account, _hash(2), _hash(9), {"a"}).seed != first.seed


def test_note_attempt__the_same_release_of_records_ingested_in_another_way(tmp_path: Path) -> None:
    account = str(tmp_path)
    note_attempt(account, _hash(1), _hash(9), {"a"})
    again = note_attempt(account, _hash(1), _hash(9), {"a with another variable"})
    assert again.number == 1
    assert share_level(0.95, again.number) < 1
    assert note_attempt(account, _hash(2), _hash(9), {"a"}).number == 2


def test_note_attempt__one_that_was_killed_before_it_was_counted_is_counted(tmp_path: Path) -> None:
    account = str(tmp_path)
    note_attempt(account, _hash(1), _hash(9), {"a"})
    note_attempt(account, _hash(2), _hash(9), {"a"})
    (tmp_path / ".chain" / "00000001.json").unlink()  # killed before its link
    assert note_attempt(account, _hash(2), _hash(9), {"a"}).number == 2


def test_note_attempt__of_older_versions_keeps_its_number(tmp_path: Path) -> None:
    """Those of before the chain are its start: they said their numbers themselves."""
    (tmp_path / ".attempts").mkdir()
    for one, number in ((1, 1), (2, 2), (3, None)):
        entry = json.dumps({"partitions": ["a"], "number": number})
        (tmp_path / ".attempts" / f"{_hash(one)[:32]}-{_hash(9)[:32]}.json").write_text(entry)
    found = [note_attempt(str(tmp_path), _hash(n), _hash(9), {"a"}).number for n in (1, 2, 3, 4)]
    assert found == [1, 2, 3, 4]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"partitions": 3, "number": 1}', "\x00"])
def test_note_attempt__a_damaged_entry_closes_it(tmp_path: Path, content: str) -> None:
    note_attempt(str(tmp_path), _hash(1), _hash(9), {"a"})
    next((tmp_path / ".attempts").iterdir()).write_text(content)
    with pytest.raises(FormatError, match=r"register of attempts|\.attempts"):
        note_attempt(str(tmp_path), _hash(2), _hash(9), {"b"})


@pytest.mark.parametrize("content", ["{}", "[1]", '{"partitions": 3, "number": 1}'])
def test_note_attempt__an_entry_that_no_link_holds_closes_it(tmp_path: Path, content: str) -> None:
    """Its writer was killed before the chain had it, or it is of an older version."""
    note_attempt(str(tmp_path), _hash(1), _hash(9), {"a"})
    (tmp_path / ".attempts" / f"{_hash(3)[:32]}-{_hash(9)[:32]}.json").write_text(content)
    with pytest.raises(FormatError, match="register of attempts"):
        note_attempt(str(tmp_path), _hash(2), _hash(9), {"b"})


def test_note_attempt__that_cannot_be_noted_is_none(tmp_path: Path) -> None:
    (tmp_path / ".attempts").write_text("a file")
    with pytest.raises(StoreError):
        note_attempt(str(tmp_path), _hash(1), _hash(9), {"a"})


def test_share_level__all_attempts_together_keep_it() -> None:
    errors = np.array([1 - share_level(0.95, number) for number in range(1, 10_001)])
    assert (np.diff(errors) < 0).all()
    assert 0.0499 < errors.sum() < 0.05
