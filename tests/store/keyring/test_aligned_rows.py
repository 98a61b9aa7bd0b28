"""Which records of a collection an earlier release holds, however long the list of their rows."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, cast

import numpy as np
import pytest

from privpipe.errors import OptionError
from privpipe.records.schema import Partition
from privpipe.store.keyring import registers
from privpipe.store.keyring.registers import Registered, Shared, align_rows
from privpipe.store.keyring.sketches import Sketches


def list_one_by_one(rows: np.ndarray, first: int) -> list[Shared]:
    """The same, row by row."""
    found: list[Shared] = []
    for at, row in enumerate(map(int, rows)):
        if row < 0:
            continue
        last = found[-1] if found else None
        if last and last.last == first + at and last.other + last.last - last.first == row:
            found[-1] = replace(last, last=last.last + 1)
        else:
            found.append(Shared(first + at, first + at + 1, row))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_runs__of_a_list_read_in_pieces_are_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pieces = [
        np.arange(n) + rng.integers(0, 3) if rng.random() < 0.7 else np.full(n, -1)
        for n in rng.integers(1, 30, 20)
    ]
    rows = np.concatenate(pieces)
    whole = list_one_by_one(rows, 1000)
    most = int(rng.integers(1, 40))
    monkeypatch.setattr(registers, "MOST_AT_ONCE", most)
    n_found, runs = registers._list_runs(rows, 1000)
    assert n_found == (rows >= 0).sum()
    # A piece that ends within a run makes two of it.
    cut = np.full(len(rows), -1)
    for one in runs:
        cut[one.first - 1000 : one.last - 1000] = np.arange(one.last - one.first) + one.other
    assert list_one_by_one(cut, 1000) == whole
    assert len(runs) <= len(whole) + len(rows) // most


@pytest.mark.parametrize("most", [7, 1000])
def test_runs__of_no_order_end_and_all_that_is_found_counts(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(registers, "MOST_AT_ONCE", most)
    monkeypatch.setattr(registers, "MOST_RUNS", 20)
    n_found, runs = registers._list_runs(2 * np.arange(500)[::-1], 0)
    assert n_found == 500
    assert 20 < len(runs) <= 20 + 21


def test_runs__of_no_rows() -> None:
    assert registers._list_runs(np.empty(0, np.int64), 3) == (0, [])


class Known:
    """Sketches of 40 records, of which "shuffled" has another order and "moved" two blocks."""

    words = np.random.default_rng(3).integers(1, 2**64, (40, 4), dtype=np.uint64)
    orders: ClassVar = {
        "first": np.arange(40),
        "shuffled": np.random.default_rng(4).permutation(40),
        "moved": np.roll(np.arange(40), 15),
    }

    def known(self) -> dict[str, tuple[str, ...]]:
        return dict.fromkeys(self.orders, ("frame",))

    def read(self, digest: str, frame: str) -> np.ndarray:
        return np.asarray(self.words[self.orders[digest]])


def test_align__of_a_shuffled_collection_says_what_would_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registers, "MOST_RUNS", 5)
    entry, known = Registered("day", "", "", "", "", (("first", 40),)), cast("Sketches", Known())
    found = align_rows(entry, [Partition("m", 0, 40, "moved")], known)
    assert found == (Shared(0, 15, 25), Shared(15, 40, 0))
    with pytest.raises(OptionError, match="another order") as refused:
        align_rows(entry, [Partition("s", 0, 40, "shuffled")], known)
    assert refused.value.code == "row-order"
    assert "collection that it was made of" in refused.value.remedy
