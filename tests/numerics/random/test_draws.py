"""Draws: laws at a declared false-alarm rate, exact places, precision, refusals."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

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
    ("exponential", lambda: draws.draw_exponential(words(1)), stats.expon),
    ("laplace", lambda: draws.draw_laplace(words(1)), stats.laplace),
    ("normal", lambda: draws.draw_normal(words(2)), stats.norm),
    ("gamma 1", lambda: draws.draw_gamma(words(1), 1.0), stats.gamma(1)),
    ("gamma 20", lambda: draws.draw_gamma(words(20), 20.0), stats.gamma(20)),
    ("gamma 0.3", lambda: draws.draw_gamma(words(1), 0.3), stats.gamma(0.3)),
    ("gamma 2.5", lambda: draws.draw_gamma(words(1), 2.5), stats.gamma(2.5)),
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
    values = draws.draw_normal(words(2)).ravel()[:COUNT] * 1.02
    assert stats.kstest(values, stats.norm.cdf).pvalue < 1e-3
    assert stats.kstest(values + 0.03, stats.norm.cdf).pvalue < ALARM


def test_draw_normal__partners_are_independent_and_round():
    pair = draws.draw_normal(words(2))
    assert stats.spearmanr(pair[:, 0], pair[:, 1]).pvalue > ALARM
    assert stats.spearmanr(pair[:, 0] ** 2, pair[:, 1] ** 2).pvalue > ALARM
    angle = np.arctan2(pair[:, 1], pair[:, 0])
    assert stats.kstest(angle, stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > ALARM
    assert stats.kstest((pair**2).sum(axis=1), stats.chi2(2).cdf).pvalue > ALARM
    octants = np.bincount(np.floor((angle + math.pi) / (math.pi / 4)).astype(int), minlength=8)
    assert stats.chisquare(octants).pvalue > ALARM


def test_draw_normal__within_five_ulp_of_the_transform():
    source = words(2, 3000)
    worst = 0.0
    with mpmath.workprec(200):
        for (first, second), pair in zip(source.tolist(), draws.draw_normal(source), strict=True):
            radius = mpmath.sqrt(-2 * mpmath.log((first + mpmath.mpf(0.5)) / 2**64))
            angle = (second % 2**61 + mpmath.mpf(0.5)) / 2**61 * mpmath.pi / 4
            exact = [mpmath.cos(angle), mpmath.sin(angle)]
            exact = exact[::-1] if second >> 61 & 1 else exact
            for value, size, bit in zip(pair.tolist(), exact, (63, 62), strict=True):
                truth = radius * size * (-1 if second >> bit & 1 else 1)
                worst = max(worst, float(abs(value - truth)) / math.ulp(float(truth)))
    assert worst < 5  # measured 3.4


def test_draw_uniform__open_symmetric_and_exact():
    low, high = draws.draw_uniform(two(0, LAST))[0]
    assert low == 2.0**-53
    assert high == 1 - 2.0**-53
    source = words(1, 1000)
    np.testing.assert_array_equal(draws.draw_uniform(~source), 1 - draws.draw_uniform(source))


def test_draws__extreme_words_stay_finite():
    ends = two(0, LAST)
    for values in (
        draws.draw_exponential(ends),
        draws.draw_laplace(ends),
        draws.draw_normal(ends),
        draws.draw_normal(two(LAST, 0)),
        draws.draw_gamma(ends, 2.0),
        draws.draw_gamma(ends, 0.001, 2),
        draws.draw_gamma(ends, 999_999.5, 2),
    ):
        assert np.all(np.isfinite(values))
    assert draws.draw_exponential(ends)[0].tolist() == [pytest.approx(45.05, abs=0.01), 2.0**-65]
    assert abs(draws.draw_normal(ends)).max() < 9.5


def test_draw_laplace__sign_is_the_lowest_bit():
    source = words(1, 1000)
    flipped = draws.draw_laplace(source ^ np.uint64(1))
    np.testing.assert_array_equal(flipped, -draws.draw_laplace(source))
    np.testing.assert_array_equal(draws.draw_laplace(source) < 0, (source & np.uint64(1)) == 1)


@pytest.mark.parametrize("shape", [0.001, 0.3, 2.5, 40.5, 12_345.6, 999_999.5])
def test_draw_gamma__inverse_has_the_stated_precision(shape):
    source = words(1, 2000)
    value = draws.draw_gamma(source, shape)[:, 0]
    tail = ((source[:, 0] & np.uint64(2**63 - 1)).astype(float) + 0.5) * 2.0**-64
    upper = source[:, 0] >> np.uint64(63) == 1
    found = np.where(upper, special.gammaincc(shape, value), special.gammainc(shape, value))
    shown = value > 1e-290  # smaller ones have no room for the precision
    np.testing.assert_allclose(found[shown], tail[shown], rtol=1e-10)
    assert shape < 0.01 or shown.all()


def test_draw_gamma__whole_shape_is_the_sum_of_its_exponentials():
    source = words(12, 500)
    parts = draws.draw_exponential(source).reshape(500, 3, 4)
    found = draws.draw_gamma(source, 4.0, n_values=3)
    exact = [[math.fsum(part) for part in row] for row in parts.tolist()]
    np.testing.assert_allclose(found, exact, rtol=4 * 2.0**-52)


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
@given(
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from(["uniform", "laplace", "normal", "gamma 3", "gamma 1.5", "signs"]),
)
def test_draws__row_by_row_whatever_the_chunking(cut, count, law):
    laws = {
        "uniform": (3, draws.draw_uniform),
        "laplace": (3, draws.draw_laplace),
        "normal": (4, lambda w: draws.draw_normal(w, 3)),
        "gamma 3": (6, lambda w: draws.draw_gamma(w, 3.0, 2)),
        "gamma 1.5": (2, lambda w: draws.draw_gamma(w, 1.5, 2)),
        "signs": (2, lambda w: draws.draw_signs(w, 70)),
    }
    width, draw = laws[law]
    source = words(width, 60)[:count]
    cut = min(cut, count)
    parts = np.concatenate([draw(source[:cut]), draw(source[cut:])])
    assert parts.tobytes() == draw(source).tobytes()


def test_draws__write_where_told_and_leave_the_words():
    source = words(2, 50)
    kept, out = source.copy(), np.empty((50, 2))
    for draw in (draws.draw_uniform, draws.draw_exponential, draws.draw_laplace):
        assert draw(source, out) is out
        np.testing.assert_array_equal(out, draw(source))
    odd = draws.draw_normal(source, 1, out)
    assert odd.base is out
    np.testing.assert_array_equal(odd, draws.draw_normal(source)[:, :1])
    np.testing.assert_array_equal(source, kept)


@pytest.mark.parametrize(
    ("draw", "match"),
    [
        (lambda: draws.draw_uniform(np.zeros(3, np.uint64)), "C-contiguous uint64"),
        (lambda: draws.draw_uniform(np.zeros((3, 1), np.int64)), "dtype int64"),
        (lambda: draws.draw_uniform(np.zeros((4, 4), np.uint64)[:, ::2]), "C-contiguous"),
        (lambda: draws.draw_uniform(two(0, 0), np.zeros((2, 1))), "out has shape"),
        (lambda: draws.draw_uniform(two(0, 0), np.zeros((1, 2), np.float32)), "float32"),
        (lambda: draws.draw_normal(np.zeros((4, 3), np.uint64)), "take 4 words"),
        (lambda: draws.draw_normal(np.zeros((4, 4), np.uint64), 2), "take 2 words"),
        (lambda: draws.draw_gamma(two(0, 0), 3.0), "take 3 words"),
        (lambda: draws.draw_gamma(two(0, 0), -1.0), "gamma shape is -1.0"),
        (lambda: draws.draw_gamma(two(0, 0), math.nan), "gamma shape is nan"),
        (lambda: draws.draw_signs(two(0, 0), 64), "take 1 words"),
    ],
)
def test_draws__refuse_words_that_do_not_fit(draw, match):
    with pytest.raises(OptionError, match=match):
        draw()
