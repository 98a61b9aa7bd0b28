"""Records are known again after small changes, and taken for others hardly ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from tempfile import TemporaryFile
from typing import IO

import numpy as np
import pytest

from privpipe.numerics.random import record_grids, record_overlap
from privpipe.numerics.random.record_grids import GridFrame, fit_frame, word_features, word_values
from privpipe.numerics.random.record_overlap import Overlap, match_rows, measure_overlap

KEY = bytes(range(32))
Law = Callable[[np.random.Generator, int], np.ndarray]
MIX = np.random.default_rng(1).normal(size=(3, 40))

LAWS: dict[str, Law] = {
    "independent": lambda rng, n: rng.normal(size=(n, 20)),
    "correlated": lambda rng, n: rng.normal(size=(n, 3)) @ MIX * 10 + rng.normal(size=(n, 40)) / 2,
    "of rank three": lambda rng, n: rng.normal(size=(n, 3)) @ MIX,
    "heavy": lambda rng, n: rng.standard_cauchy(size=(n, 10)),
    "four": lambda rng, n: rng.normal(size=(n, 4)) * [1, 1e3, 1e-3, 7] + 5,
    "mixed": lambda rng, n: np.hstack(
        [rng.normal(size=(n, 3)), rng.integers(0, 5, (n, 6)), rng.random((n, 8)) < 0.02]
    ),
}


def name(x: np.ndarray) -> list[str]:
    return [f"#{j}" for j in range(x.shape[1])]


class First:
    """Records that were charged first, and others held against them."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x
        self.frame = fit_frame(x, name(x), len(x), KEY)
        self.words = word_features(x, name(x), self.frame, KEY)

    def meets(self, x: np.ndarray, names: list[str] | None = None) -> Overlap:
        words = word_features(x, names or name(x), self.frame, KEY)
        return measure_overlap(words, self.words)


@pytest.mark.parametrize("law", LAWS)
def test_grids__know_changed_records_again(law: str) -> None:
    rng = np.random.default_rng(3)
    first = First(LAWS[law](rng, 900))
    x = first.x
    sd = 1.5 if law == "heavy" else x.std(axis=0)
    assert first.meets(x) == Overlap(1.0, 1.0)
    assert first.meets(x[:-1]).mine == 1.0
    for by in (1e-9, 1e-3 * sd * rng.normal(size=x.shape), 1e-3 * sd):
        assert first.meets(x + by).mine > 0.95
    order = rng.permutation(x.shape[1])
    turned = x[rng.permutation(len(x))][:, order]
    assert first.meets(turned, [f"#{j}" for j in order]).mine == 1.0
    some = LAWS[law](rng, 900)
    some[100:103] = x[5:8]
    assert 3 / 900 <= first.meets(some).mine < 0.02


@pytest.mark.parametrize("law", LAWS)
def test_grids__take_no_record_for_another(law: str) -> None:
    rng = np.random.default_rng(4)
    first = First(LAWS[law](rng, 900))
    found = [first.meets(LAWS[law](rng, 900)) for _ in range(20)]
    assert sum(one != Overlap(0.0, 0.0) for one in found) <= 1


def test_grids__do_not_care_what_becomes_of_one_column() -> None:
    rng = np.random.default_rng(5)
    first = First(rng.normal(size=(400, 20)))
    lost, other = np.delete(first.x, 7, axis=1), first.x.copy()
    other[:, 3] = rng.normal(size=400)
    assert first.meets(lost, [f"#{j}" for j in range(20) if j != 7]).mine == 1.0
    assert first.meets(other).mine == 1.0


def test_grids__of_few_profiles_count_multiplicities_and_say_so() -> None:
    rng = np.random.default_rng(6)
    first = First((rng.random((500, 4)) < 0.5).astype(float))
    found = first.meets((rng.random((500, 4)) < 0.5).astype(float))
    assert found.by_profile
    assert 0.7 < found.mine < 1.0
    assert first.meets(first.x + 1e-9).mine == 1.0


@pytest.mark.parametrize("at_once", [100, 1 << 22])
@pytest.mark.parametrize("repeated", [1, 3])
def test_overlap__is_that_of_sets_of_words(
    repeated: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_overlap, "MOST_AT_ONCE", at_once)
    rng = np.random.default_rng(10)
    people = rng.integers(1, 2**64, (400, 4), dtype=np.uint64)
    mine, other = np.repeat(people[:300], repeated, axis=0), people[100:].copy()
    mine[rng.permutation(len(mine))[:40]] = 0  # erased
    other[:50, 1:] = rng.integers(1, 2**64, (50, 3), dtype=np.uint64)  # known by one word alone
    found = measure_overlap(mine, other)
    left = [words[words.any(axis=1)] for words in (mine, other)]
    sets = [[set(words[:, g].tolist()) for g in range(4)] for words in left]
    shares = [
        np.mean([any(row[g] in theirs[g] for g in range(4)) for row in words.tolist()])
        for words, theirs in zip(left, sets[::-1], strict=True)
    ]
    if repeated == 1:
        assert (found.mine, found.other) == tuple(shares)
    else:  # of each other record one of three
        n_met = len(left[1]) * shares[1]
        assert (found.mine, found.other) == (n_met / len(left[0]), n_met / len(left[1]))
    assert found.by_profile == (repeated > 1)


def test_frame__units_are_those_of_the_first_and_serve_like_records_only() -> None:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(500, 6))
    frame, again = (fit_frame(some, name(x), 500, KEY) for some in (x, rng.normal(size=(500, 6))))
    assert frame.fits(again)
    assert not frame.fits(fit_frame(16 * x, name(x), 500, KEY))
    assert frame.reads([*name(x), "new"])
    assert not frame.reads(name(x)[1:])


def test_words__of_another_key_have_nothing_in_common() -> None:
    x = np.random.default_rng(8).normal(size=(200, 5))
    frame = fit_frame(x, name(x), 200, KEY)
    words = [word_features(x, name(x), frame, key) for key in (KEY, KEY[::-1])]
    assert measure_overlap(*words) == Overlap(0.0, 0.0)
    assert np.unique(words[0]).size > 200


def test_words__are_a_cipher_of_the_key_and_no_plain_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_grids, "_digest", lambda *_: 7)  # nothing else that is secret
    words = np.arange(9, dtype=np.uint64)
    one, other = (record_grids._encrypt(words, key, 0) for key in (KEY, KEY[::-1]))
    assert (one != other).all()


def test_values__are_known_by_the_names_of_categories() -> None:
    frame = GridFrame(("sport", "town"), kind="values")
    codes = np.array([0, 1, 1, -1])
    named = {"town": (codes, ("bern", "ulm")), "sport": (codes, ("go", "run"))}
    fewer = {"sport": (codes, ("go", "run")), "town": (codes + (codes >= 0), ("aa", "bern", "ulm"))}
    words, others = (word_values(columns, frame, KEY) for columns in (named, fewer))
    np.testing.assert_array_equal(words, others)
    assert len(np.unique(words[:, 0])) == 3


def test_match_rows__follows_any_order_and_equal_records_in_turn() -> None:
    rng = np.random.default_rng(9)
    x = rng.normal(size=(300, 5))
    x[10] = x[20]
    first = First(x)
    order = rng.permutation(300)
    rows = match_rows(word_features(x[order] + 1e-9, name(x), first.frame, KEY), first.words)
    assert sorted(rows) == list(range(300))
    np.testing.assert_array_equal(x[rows], x[order])


def test_words__of_many_records_have_their_room_on_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page that finds no room when it is written ends the process by a signal."""
    opened = []

    def keep() -> IO[bytes]:
        file = TemporaryFile()
        opened.append(os.dup(file.fileno()))
        return file

    monkeypatch.setattr(record_overlap.tempfile, "TemporaryFile", keep)
    monkeypatch.setattr(record_overlap, "MOST_AT_ONCE", 100)
    words = record_overlap.make_words(100_000)
    assert words.shape == (100_000, 4)
    assert os.fstat(opened[0]).st_blocks * 512 >= words.nbytes
    os.close(opened[0])


def test_pairs__of_few_words_are_those_of_rows_that_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal words lie in many pieces of a table, and a record is in one pair at most."""
    rng = np.random.default_rng(11)
    known = rng.integers(1, 2**64, (40, 4), dtype=np.uint64)
    tables = tuple(np.take_along_axis(known, rng.integers(0, k, (450, 4)), 0) for k in (40, 15))
    matched = int((match_rows(*tables) >= 0).sum())
    monkeypatch.setattr(record_overlap, "MOST_AT_ONCE", 100)
    assert record_overlap._count_pairs(tables, record_overlap._cut(*tables)) == matched
    assert int((match_rows(*tables) >= 0).sum()) == matched < 450


@pytest.mark.parametrize("x", [np.empty((0, 3)), np.ones((1, 3)), np.full((4, 3), np.nan)])
def test_frame__of_hardly_any_record_is_made_all_the_same(x: np.ndarray) -> None:
    first = First(x)
    assert first.meets(x).mine == (1.0 if len(x) else 0.0)
