"""The discrete law: exact probabilities in rationals, the same draws in any chunks."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import stats

from privpipe.errors import OptionError
from privpipe.numerics.noise.discrete import FURTHER, DiscreteLaplaceNoise
from privpipe.numerics.noise.mechanism import Mechanism
from tests.numerics.noise.oracles import draw_discrete_slowly, find_probability, stream

TABLE = [
    (epsilon, sensitivity)
    for epsilon in (0.01, 0.1, 0.5, 1.0, math.log(3), 8.0)
    for sensitivity in (2, 2**11, 2**14, 12_345, 2**17)
]


def test_slack__is_below_a_hundred_bits_over_the_table() -> None:
    """Issue, figure 4: thirty pairs, a record of 561 coordinates."""
    assert len(TABLE) == 30
    worst = max(DiscreteLaplaceNoise(e, s, 561).slack for e, s in TABLE)
    assert 0 < worst < 2.0**-100


@pytest.mark.parametrize(("epsilon", "sensitivity"), TABLE[::4])
def test_probabilities__are_the_law_up_to_the_slack(epsilon: float, sensitivity: int) -> None:
    """In rationals from what is stored, against the formula in 400 bits: nothing is sampled."""
    noise = DiscreteLaplaceNoise(epsilon, sensitivity, 1)
    rate = Fraction(epsilon) / sensitivity
    top = 1 << noise.n_digits
    values = [0, 1, -1, 2, 3, -5, 17, -sensitivity, sensitivity + 1, top // 2, top - 1, -top]
    with mpmath.workprec(400):
        q = mpmath.exp(-mpmath.mpf(rate.numerator) / rate.denominator)
        for n in values:
            found = find_probability(noise, n)
            ideal = (1 - q) / (1 + q) * q ** abs(n)
            ratio = mpmath.mpf(found.numerator) / found.denominator / ideal
            assert abs(mpmath.log(ratio)) <= noise.slack, n


def test_probabilities__sum_to_one_and_hold_the_promise_for_every_output() -> None:
    """The clipped release of any two records within the sensitivity, exhaustively, in rationals."""
    noise, radius = DiscreteLaplaceNoise(2.0, 4, 1), 2
    top = (1 << noise.n_digits) + 1
    law = {n: find_probability(noise, n) for n in range(-top, top + 1)}
    assert sum(law.values()) == 1
    limit = noise.limit(radius)

    def release(step: int) -> dict[int, Fraction]:
        out: dict[int, Fraction] = Counter()  # type: ignore[assignment]
        for n, chance in law.items():
            out[max(-limit, min(limit, step + n))] += chance
        return out

    worlds = {step: release(step) for step in range(-radius, radius + 1)}
    ratios = [
        one[y] / other[y] for one in worlds.values() for other in worlds.values() for y in one
    ]
    with mpmath.workprec(400):
        worst = mpmath.log(mpmath.mpf(max(ratios).numerator) / max(ratios).denominator)
        assert worst <= mpmath.mpf(2) + mpmath.mpf(noise.slack)
        assert worst > 1.9999999


@pytest.mark.parametrize(("epsilon", "sensitivity", "width"), [(1.0, 2**16, 3), (3.0, 2, 5)])
def test_draw__is_the_comparison_of_all_bits(epsilon: float, sensitivity: int, width: int) -> None:
    noise, n = DiscreteLaplaceNoise(epsilon, sensitivity, width), 400
    words = stream(n).words("discrete", noise.n_words)
    further = stream(n).words(FURTHER, noise.n_further)
    expected = draw_discrete_slowly(noise, words, further)
    np.testing.assert_array_equal(noise.draw(stream(n)), expected)


class Fixed:
    """A stream of chosen words, among them such as no cipher will ever make."""

    def __init__(self, words: Any, further: Any) -> None:
        self._words, self._further = words, further
        self.n_records = len(words)

    def tiles(self, purpose: str, words_per_record: int) -> Any:
        yield slice(0, len(self._words)), self._words

    def words_at(self, purpose: str, width: int, records: Any, places: Any = None) -> Any:
        return self._further[records[:, None], places]


def test_draw__ties_are_decided_to_the_last_of_264_bits() -> None:
    """Every lane equal to its threshold, one above it, one below it."""
    noise = DiscreteLaplaceNoise(1.0, 2**16, 1)
    words, further = np.zeros((3, noise.n_words), np.uint64), np.zeros((3, noise.n_further))
    further = further.astype(np.uint64)
    for row, shift in enumerate((0, 1, -1)):
        octets = bytearray(8 * noise.n_words)
        for lane, threshold in enumerate(noise.thresholds):
            number = threshold + (shift if threshold % 2**256 else 0)
            octets[lane] = number >> 256
            for k in range(4):
                further[row, lane * 4 + k] = number >> (64 * (3 - k)) & (1 << 64) - 1
        words[row] = np.frombuffer(bytes(octets), "<u8")
    found = noise.draw(Fixed(words, further))  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, draw_discrete_slowly(noise, words, further))
    assert found[0] == found[1] == 0
    assert abs(int(found[2, 0])) == (1 << noise.n_digits) + 1  # all lanes hit: saturated


@pytest.mark.parametrize("rows", [1, 37, 5_000])
def test_draw__no_chunking_changes_it(rows: int) -> None:
    noise, n = DiscreteLaplaceNoise(1.0, 2**16, 20), 6_000 if rows > 1 else 60
    whole = noise.draw(stream(n, 2**40))
    parts = [
        noise.draw(stream(min(rows, n - a), 2**40 + a, partition="p")) for a in range(0, n, rows)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert (noise.draw(stream(n, 2**40, key=2)) != whole).mean() > 0.99


def test_draw__has_the_law_at_a_declared_rate_of_false_alarms() -> None:
    small = DiscreteLaplaceNoise(1.0, 3, 4)
    found = small.draw(stream(100_000)).ravel()
    values = np.arange(-14, 15)
    law = np.array([float(find_probability(small, int(n))) for n in values])
    seen = np.array([np.count_nonzero(found == n) for n in values])
    rest = [len(found) - seen.sum(), (1 - law.sum()) * len(found)]
    fit = stats.chisquare([*seen, rest[0]], [*(law * len(found)), rest[1]])
    assert fit.pvalue > 1e-4


@pytest.mark.parametrize("scale", [3.0, 2.0**16])
def test_draw__is_the_law_of_opendp(scale: float) -> None:
    """An independent exact sampler: the same distribution, at a false-alarm rate of 1e-4."""
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
    reference = dp.m.make_laplace(*space, scale=scale)
    theirs = np.array(reference([0] * 20_000))
    ours = DiscreteLaplaceNoise(1.0, int(scale), 1).draw(stream(20_000)).ravel()
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-4
    low = np.array([np.bincount(v & 7, minlength=8) for v in (ours, theirs)])
    assert stats.chi2_contingency(low).pvalue > 1e-4


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_discrete__refuses_an_epsilon_that_is_none(epsilon: float) -> None:
    for law in ("discrete", "knorm"):
        with pytest.raises(OptionError, match="epsilon is"):
            Mechanism(epsilon, 2, "l2", law, 2.0**-12)


@pytest.mark.parametrize(("epsilon", "way"), [(1e-9, "coarser"), (1e9, "finer")])
def test_discrete__refuses_a_grid_beyond_what_is_exact(epsilon: float, way: str) -> None:
    with pytest.raises(OptionError, match=way):
        DiscreteLaplaceNoise(epsilon, 2**16, 1)


def test_slack__is_of_all_values_of_a_record() -> None:
    one, eight = (DiscreteLaplaceNoise(1.0, 64, width).slack for width in (1, 8))
    assert 7.9 * one < eight < 8.1 * one
