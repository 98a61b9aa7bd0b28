"""Keyed streams: any chunking, any order, counter mode equals single blocks, nothing shared."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privpipe.errors import OptionError
from privpipe.numerics.random.streams import (
    MAX_RECORDS,
    TILE_WORDS,
    JoinedStream,
    KeyedStream,
    ScopedStream,
)
from privpipe.protocols import RecordStream

KEY = bytes(range(32))
ALARM = 1e-6
"""False-alarm rate of each statistical test; the keys are fixed, so a passing test stays so."""


def stream(
    first: int = 0, count: int = 100, *, key: bytes = KEY, partition: str = "ab"
) -> KeyedStream:
    return KeyedStream(key, partition=partition, first_record=first, n_records=count)


def one_word(record: int, place: int, width: int, purpose: str, partition: str = "ab") -> int:
    """The definition, by Python integers: HKDF, then one block of AES, then half of it."""
    fields = (b"privpipe/stream/1", purpose.encode(), str(width).encode(), partition.encode())
    info = b"".join(len(field).to_bytes(8, "big") + field for field in fields)
    subkey = HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(KEY)
    block, half = divmod(record * width + place, 2)
    cipher = Cipher(algorithms.AES(subkey), modes.ECB()).encryptor()
    octets = cipher.update(block.to_bytes(16, "big"))
    return int.from_bytes(octets[8 * half : 8 * half + 8], "little")


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 9), st.integers(0, 3), st.sampled_from([0, 1, 7, 2**62 + 5]))
def test_words__do_not_depend_on_chunking(data, width, n_cuts, first):
    count = data.draw(st.integers(0, 200))
    cuts = sorted(data.draw(st.lists(st.integers(0, count), min_size=n_cuts, max_size=n_cuts)))
    whole = stream(first, count).words("noise", width)
    edges = [0, *cuts, count]
    runs = list(pairwise(edges))
    order = data.draw(st.permutations(range(len(runs))))
    again = np.empty_like(whole)
    for i in order:
        start, stop = runs[i]
        part = stream(first + start, stop - start)
        again[start:stop] = part.words("noise", width)
    np.testing.assert_array_equal(again, whole)


@pytest.mark.parametrize("first", [0, 3, 2**32 - 2, 2**62 + 1, MAX_RECORDS - 5])
@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_words__are_the_definition(first, width):
    words = stream(first, 5).words("noise", width)
    expected = [[one_word(first + i, j, width, "noise") for j in range(width)] for i in range(5)]
    assert words.tolist() == expected


@pytest.mark.parametrize("width", [1, 2, 3, 8, 4097])
def test_words_at__scattered_records_are_those_of_the_run(width):
    # 2**62 * 8 words are 2**64 blocks: the run goes over the end of the low half of the counter.
    centre = 2**65 // width if width >= 8 else 2**33
    first = centre - 20
    run = stream(first, 40).words("noise", width)
    shuffled = np.random.default_rng(3).permutation(40)
    scattered = stream(first, 40).words_at("noise", width, shuffled)
    np.testing.assert_array_equal(scattered, run[shuffled])


def test_tiles__are_the_words_and_share_a_buffer():
    source = stream(11, 3 * TILE_WORDS // 5 + 7)
    whole = source.words("noise", 5)
    seen, addresses = 0, set()
    for rows, words in source.tiles("noise", 5):
        np.testing.assert_array_equal(words, whole[rows])
        seen, addresses = rows.stop, addresses | {words.ctypes.data}
    assert seen == source.n_records
    assert len(addresses) == 1


def test_tiles__hold_a_record_wider_than_a_tile():
    source = stream(1, 2)
    width = 2 * TILE_WORDS + 3
    tiles = np.concatenate([words.copy() for _, words in source.tiles("wide", width)])
    np.testing.assert_array_equal(tiles, source.words("wide", width))


def test_tiles__memory_does_not_grow_with_records():
    source = stream(0, 10**6)
    tracemalloc.start()
    try:
        total = sum(len(words) for _, words in source.tiles("noise", 2))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 10**6
    assert peak < 2**20


def test_words__own_their_memory():
    source = stream()
    first = source.words("a", 2)
    kept = first.copy()
    source.words("b", 2)
    list(source.tiles("c", 2))
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize(
    "other",
    [
        lambda: stream(count=50_000).words("other", 2),
        lambda: stream(count=50_000, partition="ac").words("noise", 2),
        lambda: stream(count=50_000, key=bytes(32)).words("noise", 2),
        lambda: stream(count=100_000).words("noise", 1).reshape(-1, 2),
        lambda: stream(first=50_000, count=50_000).words("noise", 2),
    ],
    ids=["purpose", "partition", "key", "words_per_record", "records"],
)
def test_words__purposes_partitions_keys_and_widths_are_independent(other):
    here, there = stream(count=50_000).words("noise", 2), other()
    assert not np.intersect1d(here, there).size
    same_bits = 64 * here.size - int(np.bitwise_count(here ^ there).sum())
    assert stats.binomtest(same_bits, 64 * here.size).pvalue > ALARM
    ranks = stats.spearmanr(here[:, 0].astype(float), there[:, 0].astype(float))
    assert ranks.pvalue > ALARM


def test_words__fields_of_the_subkey_cannot_be_confused():
    left = stream(partition="bc").words("a", 1)
    assert not np.intersect1d(left, stream(partition="c").words("ab", 1)).size
    assert not np.intersect1d(left, stream(partition="2bc").words("a1", 1)).size


@pytest.mark.parametrize("seed", range(3))
def test_words__are_uniform_by_bit_and_by_byte(seed):
    words = stream(count=200_000, key=bytes([seed]) * 32).words("noise", 1)
    ones = np.unpackbits(words.view(np.uint8), axis=1).sum(axis=0)
    assert np.all(np.abs(ones - 1e5) < stats.norm.isf(ALARM / 128) * np.sqrt(5e4))
    counts = np.bincount(words.view(np.uint8).ravel(), minlength=256)
    assert stats.chisquare(counts).pvalue > ALARM


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: stream(key=b"short"), "has 32 bytes"),
        (lambda: stream(partition=""), "partition digest is empty"),
        (lambda: stream(first=-1), "not within 0 to"),
        (lambda: stream(first=MAX_RECORDS, count=1), "not within 0 to"),
        (lambda: stream(count=-1), "not within 0 to"),
        (lambda: stream().words("", 1), "purpose of a draw is empty"),
        (lambda: stream(partition=3), "partition digest is empty, or no text"),
        (lambda: stream(first=0.5), "no whole number"),
        (lambda: stream().words(b"a", 1), "purpose of a draw is empty, or no text"),
        (lambda: stream().words("a", 1.5), "words_per_record is 1.5"),
        (lambda: stream().words("a", np.int64(2)), "words_per_record is"),
        (lambda: stream().words_at("a", 1, np.array([0.5])), "or no whole number"),
        (lambda: stream().words("a", 0), "words_per_record is 0"),
        (lambda: stream().words("a", 2**31 + 1), "words_per_record is"),
        (lambda: next(stream().tiles("a", 0)), "words_per_record is 0"),
        (lambda: stream().words_at("a", 1, np.array([3, -1])), "not within the run of 100"),
        (lambda: stream().words_at("a", 1, np.array([3, 100])), "not within the run of 100"),
    ],
)
def test_stream__refuses_what_it_cannot_address(make, match):
    with pytest.raises(OptionError, match=match):
        make()


def test_stream__empty_run_has_no_words():
    assert stream(count=0).words("a", 3).shape == (0, 3)
    assert list(stream(count=0).tiles("a", 3)) == []
    assert stream().words_at("a", 3, np.array([], np.int64)).shape == (0, 3)


def test_stream__neither_shows_nor_pickles_its_key():
    source = stream(key=b"a key that must never be printed")
    assert "must never" not in repr(source) + str(source) + f"{source}"
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(OptionError, match="not pickled") as caught:
            way(source)
        assert "must never" not in str(caught.value)


def test_joined_stream__is_its_parts_one_after_the_other() -> None:
    key = bytes(range(32))
    parts = tuple(
        KeyedStream(key, partition=name, first_record=first, n_records=n)
        for name, first, n in (("a", 3, 4), ("b", 0, 2))
    )
    joined = JoinedStream(parts)
    assert joined.n_records == 6
    expected = np.concatenate([part.words("noise", 3) for part in parts])
    assert np.array_equal(joined.words("noise", 3), expected)


def make_joined(counts: list[int]) -> tuple[JoinedStream, np.ndarray]:
    """Runs of several partitions, and the words of each by itself, one after the other."""
    parts = [stream(3 * i, n, partition=f"p{i}") for i, n in enumerate(counts)]
    return JoinedStream(parts), np.concatenate([part.words("noise", 3) for part in parts])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.data())
def test_joined_stream__tiles_and_scattered_records_cross_partitions(counts, data) -> None:
    joined, whole = make_joined(counts)
    assert isinstance(joined, RecordStream)
    tiles = [(rows, words.copy()) for rows, words in joined.tiles("noise", 3)]
    assert [number for rows, _ in tiles for number in range(rows.start, rows.stop)] == list(
        range(len(whole))
    )
    for rows, words in tiles:
        np.testing.assert_array_equal(words, whole[rows])
    n = max(len(whole), 1)
    places = data.draw(st.lists(st.integers(0, n - 1), max_size=9 if len(whole) else 0))
    found = joined.words_at("noise", 3, np.array(places, np.int64))
    np.testing.assert_array_equal(found, whole[places])


def test_joined_stream__refuses_records_beyond_its_end() -> None:
    joined, _ = make_joined([2, 3])
    with pytest.raises(OptionError, match="not within the run of 5"):
        joined.words_at("noise", 3, np.array([5]))


def test_scoped_stream__shares_no_word_with_another_scope_or_none() -> None:
    source = stream(count=1000)
    one, other = ScopedStream(source, "0"), ScopedStream(source, "1")
    for words in (source.words("noise", 2), other.words("noise", 2)):
        assert not np.intersect1d(one.words("noise", 2), words).size
    # A scope and a purpose cannot be cut elsewhere to give the same words.
    assert not np.intersect1d(
        ScopedStream(source, "a").words("b", 1), ScopedStream(source, "a/b").words("", 1)
    ).size
    places = np.array([7, 3])
    np.testing.assert_array_equal(one.words_at("noise", 2, places), one.words("noise", 2)[places])
