"""Categorical draws against exact fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privpipe.errors import InputError
from privpipe.numerics.random.categorical import CategoryTable, draw_categories, tabulate_categories
from privpipe.numerics.random.streams import KeyedStream

ONE = 2**64


def dense(*laws: list[float]) -> CategoryTable:
    bounds = np.cumsum([0, *(len(law) for law in laws)])
    codes = np.concatenate([np.arange(len(law)) for law in laws])
    return tabulate_categories(bounds, codes, np.concatenate(laws))


def masses(table: CategoryTable, law: int) -> dict[int, int]:
    """Number of words of each category, by Python integers."""
    span = slice(table.bounds[law], table.bounds[law + 1])
    starts = [*table.starts[span].tolist(), ONE]
    sizes = [stop - start for start, stop in pairwise(starts)]
    return dict(zip(table.codes[span].tolist(), sizes, strict=True))


def pick(table: CategoryTable, law: int, words: list[int]) -> list[int]:
    column = np.array(words, np.uint64)[:, None]
    return draw_categories(column, table, np.full(len(words), law)).tolist()


probability = st.one_of(st.just(0.0), st.floats(1e-30, 1.0), st.floats(1e-3, 1.0))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(probability, min_size=1, max_size=12), min_size=1, max_size=5))
def test_tabulate_categories__is_exact_to_two_to_the_minus_64(laws):
    laws = [np.array(law) / sum(law) if sum(law) > 0 else np.ones(1) for law in laws]
    table = dense(*laws)
    for number, law in enumerate(laws):
        found = masses(table, number)
        assert sum(found.values()) == ONE
        assert all(size > 0 for size in found.values())
        top = int(np.argmax(law))
        for code, p in enumerate(law.tolist()):
            if code != top:
                assert found.get(code, 0) == int(Fraction(p) * ONE)
        off = sum(
            abs(Fraction(found.get(c, 0), ONE) - Fraction(p)) for c, p in enumerate(law.tolist())
        )
        short = abs(1 - sum(Fraction(p) for p in law.tolist()))
        assert off / 2 <= Fraction(len(law), ONE) + short


@settings(max_examples=100, deadline=None)
@given(st.data(), st.lists(probability, min_size=1, max_size=12))
def test_draw_categories__change_exactly_at_the_thresholds(data, law):
    other = [0.5, 0.5]
    p = np.array(law) / sum(law) if sum(law) > 0 else np.ones(1)
    table = dense(np.array(other), p, np.array(other))
    start = 0
    for code, size in masses(table, 1).items():
        middle = data.draw(st.integers(start, start + size - 1))
        assert pick(table, 1, [start, middle, start + size - 1]) == [code] * 3
        start += size


@pytest.mark.parametrize("law", [[1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
def test_draw_categories__certain_category_for_every_word(law):
    certain = int(np.argmax(law))
    assert pick(dense(np.array(law)), 0, [0, 1, 2**63, ONE - 1]) == [certain] * 4


def test_draw_categories__follow_the_law_of_each_record():
    laws = [np.array([0.1, 0.2, 0.7]), np.array([0.0, 0.999, 0.001]), np.full(50, 0.02)]
    table = dense(*laws)
    stream = KeyedStream(bytes([9]) * 32, partition="ab", first_record=0, n_records=150_000)
    which = np.arange(150_000) % 3
    codes = draw_categories(stream.words("release", 1), table, which)
    for number, law in enumerate(laws):
        counts = np.bincount(codes[which == number], minlength=len(law))
        assert counts[law == 0].sum() == 0
        assert stats.chisquare(counts[law > 0], 50_000 * law[law > 0]).pvalue > 1e-6


def test_draw_categories__equal_a_plain_search_for_laws_of_all_sizes():
    generator = np.random.default_rng(4)
    sizes = [1, 2, 3, 64, 65, 1000, 1, 7]
    laws = [generator.random(size) for size in sizes]
    table = dense(*(law / law.sum() for law in laws))
    which = generator.integers(0, len(sizes), 3000)
    words = generator.integers(0, ONE, 3000, np.uint64, endpoint=False)
    expected = []
    for law, word in zip(which.tolist(), words.tolist(), strict=True):
        span = slice(table.bounds[law], table.bounds[law + 1])
        place = np.searchsorted(table.starts[span], np.uint64(word), side="right") - 1
        expected.append(int(table.codes[span][place]))
    assert draw_categories(words[:, None], table, which).tolist() == expected


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: dense(np.array([0.5, 0.6])), "1 laws do not sum to 1"),
        (lambda: dense(np.array([1.5, -0.5])), "negative, above 1"),
        (lambda: dense(np.array([np.nan, 1.0])), "not finite"),
        (
            lambda: tabulate_categories(np.array([0, 0, 1]), np.array([0]), np.array([1.0])),
            "at least one entry",
        ),
        (lambda: pick(dense(np.array([1.0])), 1, [0]), "not among the 1"),
        (lambda: pick(dense(np.array([1.0])), -1, [0]), "not among the 1"),
        (
            lambda: draw_categories(
                np.zeros((2, 2), np.uint64), dense(np.array([1.0])), np.zeros(2, int)
            ),
            "one word per record",
        ),
    ],
)
def test_categories__refuse_what_is_no_law(make, match):
    with pytest.raises(InputError, match=match):
        make()
