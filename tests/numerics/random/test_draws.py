"""Draws: laws at a declared false-alarm rate, exact places, precision, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from flows.reproduce.laplace import draw_laplace
from privpipe.errors import OptionError
from privpipe.numerics.random import draws
from privpipe.numerics.random.streams import KeyedStream

ALARM = 1e-6
"""False-alarm rate of each statistical test; the keys are fixed, so a passing test stays so."""
COUNT = 100_000
LAST = 2**64 - 1


def words(width: int, count: int = COUNT, purpose: str = "test") -> np.ndarray:
    stream = KeyedStream(bytes([7]) * 32, partition="ab", first_record=0, n_records=count)
    return stream.words(purpose, width)


def two(first: int, second: int) -> np.ndarray:
    return np.array([[first, second]], np.uint64)


LAWS = [
    ("uniform", lambda: draws.draw_uniform(words(1)), stats.uniform),
    ("laplace", lambda: draw_laplace(words(1)), stats.laplace),
]


@pytest.mark.parametrize(("draw", "law"), [law[1:] for law in LAWS], ids=[law[0] for law in LAWS])
def test_draws__follow_their_law(draw, law):
    values = draw()
    assert values.dtype == np.float64
    assert stats.kstest(values.ravel()[:COUNT], law.cdf).pvalue > ALARM
    # The tails, which that test hardly sees: values beyond the 1e-3 quantiles.
    flat = values.ravel()
    for hits in (np.sum(flat < law.ppf(1e-3)), np.sum(flat > law.isf(1e-3))):
        assert stats.binomtest(int(hits), flat.size, 1e-3).pvalue > ALARM
    again = flat[1:], flat[:-1]
    assert stats.spearmanr(*again).pvalue > ALARM


def test_draws__of_a_shifted_law_would_be_noticed():
    values = draw_laplace(words(2)).ravel()[:COUNT] * 1.02
    assert stats.kstest(values, stats.laplace.cdf).pvalue < 1e-3
    assert stats.kstest(values + 0.03, stats.laplace.cdf).pvalue < ALARM


def test_draw_uniform__open_symmetric_and_exact():
    low, high = draws.draw_uniform(two(0, LAST))[0]
    assert low == 2.0**-53
    assert high == 1 - 2.0**-53
    source = words(1, 1000)
    np.testing.assert_array_equal(draws.draw_uniform(~source), 1 - draws.draw_uniform(source))


def test_draws__extreme_words_stay_finite():
    ends = two(0, LAST)
    assert np.all(np.isfinite(draw_laplace(ends)))
    assert abs(draw_laplace(ends)[0]).tolist() == [pytest.approx(44.4, abs=0.1), 2.0**-64]


def test_draw_laplace__sign_is_the_lowest_bit():
    source = words(1, 1000)
    flipped = draw_laplace(source ^ np.uint64(1))
    np.testing.assert_array_equal(flipped, -draw_laplace(source))
    np.testing.assert_array_equal(draw_laplace(source) < 0, (source & np.uint64(1)) == 1)


def test_draw_signs__are_the_bits_and_even():
    source = words(2)
    signs = draws.draw_signs(source, 100)
    assert signs.shape == (COUNT, 100)
    assert signs.dtype == np.int8
    expected = [1 if source[3].tolist()[i // 64] >> i % 64 & 1 else -1 for i in range(100)]
    assert signs[3].tolist() == expected
    plus = np.count_nonzero(signs == 1)
    assert np.count_nonzero(signs == -1) == signs.size - plus
    assert stats.binomtest(plus, signs.size).pvalue > ALARM


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.sampled_from(["uniform", "laplace", "signs"]))
def test_draws__row_by_row_whatever_the_chunking(cut, count, law):
    laws = {
        "uniform": (3, draws.draw_uniform),
        "laplace": (3, draw_laplace),
        "signs": (2, lambda w: draws.draw_signs(w, 70)),
    }
    width, draw = laws[law]
    source = words(width, 60)[:count]
    cut = min(cut, count)
    parts = np.concatenate([draw(source[:cut]), draw(source[cut:])])
    assert parts.tobytes() == draw(source).tobytes()


@pytest.mark.parametrize(
    ("draw", "match"),
    [
        (lambda: draws.draw_signs(np.zeros(3, np.uint64), 64), "take 1 words"),
        (lambda: draws.draw_signs(two(0, 0), 64), "take 1 words"),
    ],
)
def test_draws__refuse_words_that_do_not_fit(draw, match):
    with pytest.raises(OptionError, match=match):
        draw()
