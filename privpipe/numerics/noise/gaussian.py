"""The discrete Gaussian law by comparisons of whole numbers, and the size that a promise needs.

Canonne, Kamath and Steinke 2020, The Discrete Gaussian for Differential Privacy, algorithms 1 to 3.
This is rejection from a discrete Laplace law. Every chance is a ratio of whole numbers, so the law
is exact for every variance. Its size is that of the analytic Gaussian mechanism (Balle and Wang
2018, theorem 8). The discrete law follows that up to `find_slack`; see PROOF.md of masking.

It draws moments, once a release: value by value, where the Laplace law draws for every record.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
from scipy.optimize import brentq

from privpipe.errors import OptionError
from privpipe.numerics.noise.composition import convert_rho
from privpipe.protocols import RecordStream, WordArray

PURPOSE = "gaussian"

WORDS_PER_VALUE = 2**20
"""Room of a value: rejections read on; to need more than a few hundred words never happens."""

WORDS_AT_ONCE = 16

REACH = 40
"""Standard deviations beyond which noise is a chance below exp(-799) a value."""

MARGIN = 1e-9
"""Of epsilon and of delta: what the discrete law may add to either, and more than rounding may."""


def _join(words: WordArray) -> int:
    return int.from_bytes(words.astype(">u8").tobytes())


class _Digits:
    """Uniform whole numbers of one value, of its own words in their order; the first are given."""

    def __init__(self, stream: RecordStream, value: int, words: WordArray) -> None:
        self._stream, self._value = stream, np.array([value])
        self._next, self._held, self._n_held = WORDS_AT_ONCE, _join(words), 64 * WORDS_AT_ONCE

    def draw_bits(self, n: int) -> int:
        while self._n_held < n:
            places = np.arange(self._next, self._next + WORDS_AT_ONCE)[None]
            words = self._stream.words_at(PURPOSE, WORDS_PER_VALUE, self._value, places)
            self._held = self._held << 64 * WORDS_AT_ONCE | _join(words)
            self._n_held += 64 * WORDS_AT_ONCE
            self._next += WORDS_AT_ONCE
        self._n_held -= n
        found = self._held >> self._n_held
        self._held &= (1 << self._n_held) - 1
        return found

    def draw_below(self, limit: int) -> int:
        """Uniform below a limit; a remainder would favour the small ones, so that others go."""
        while (found := self.draw_bits(limit.bit_length())) >= limit:
            pass
        return found

    def decide_exp(self, numerator: int, denominator: int) -> bool:
        """True with probability exp(-numerator / denominator), algorithm 1."""
        whole, rest = divmod(numerator, denominator)
        if not all(self._decide_below_one(1, 1) for _ in range(whole)):
            return False
        return self._decide_below_one(rest, denominator)

    def _decide_below_one(self, numerator: int, denominator: int) -> bool:
        # exp(-x) is the alternating series of x^k / k!: an odd number of steps decides for it.
        steps = 1
        while self.draw_below(denominator * steps) < numerator:
            steps += 1
        return steps % 2 == 1

    def draw_laplace(self, scale: int) -> int:
        """P(x) proportional to exp(-|x| / scale), algorithm 2."""
        while True:
            low = self.draw_below(scale)
            if not self.decide_exp(low, scale):
                continue
            high = 0
            while self.decide_exp(1, 1):
                high += 1
            size, negative = low + scale * high, self.draw_bits(1)
            # Zero would be met twice, once by each sign.
            if size or not negative:
                return -size if negative else size

    def draw_gaussian(self, variance: int) -> int:
        """P(x) proportional to exp(-x^2 / (2 variance)), algorithm 3."""
        scale = math.isqrt(variance) + 1
        while True:
            found = self.draw_laplace(scale)
            if self.decide_exp((abs(found) * scale - variance) ** 2, 2 * variance * scale**2):
                return found


def draw_discrete_gaussian(variances: Sequence[int], stream: RecordStream) -> list[int]:
    """Whole noise of each variance, exactly of its law given uniform words.

    Parameters
    ----------
    variances
        Of each value, positive whole numbers.
    stream
        Of at least as many records: the words of a value are those of the record of its number.
    """
    values, places = np.arange(len(variances)), np.arange(WORDS_AT_ONCE)[None]
    # In one call: few values need more, and a call costs as much as a draw.
    first = stream.words_at(PURPOSE, WORDS_PER_VALUE, values, places)
    return [_Digits(stream, at, first[at]).draw_gaussian(one) for at, one in enumerate(variances)]


def find_delta(sigma: float, epsilon: float) -> mpmath.mpf:
    """Delta of Gaussian noise of this deviation at sensitivity 1; Balle and Wang, theorem 8."""
    with mpmath.workprec(200):
        s, e = mpmath.mpf(sigma), mpmath.mpf(epsilon)
        return mpmath.ncdf(1 / (2 * s) - e * s) - mpmath.exp(e) * mpmath.ncdf(-1 / (2 * s) - e * s)


def find_sigma(epsilon: float, delta: float) -> float:
    """Least deviation of Gaussian noise at sensitivity 1 for (epsilon, delta), rounded up.

    Less a `MARGIN` of both, which is left for `find_slack`.

    Examples
    --------
    >>> round(find_sigma(1.0, 1e-6), 3)
    4.225
    """
    if not (0 < epsilon <= 100 and 1e-30 <= delta < 1):
        problem = f"epsilon is {epsilon:g} and delta {delta:g}."
        remedy = "Use an epsilon above 0 and at most 100. Use a delta from 1e-30 to below 1."
        raise OptionError(problem, remedy=remedy, code="epsilon")
    epsilon, delta = epsilon * (1 - MARGIN), delta * (1 - MARGIN)
    low, high = 1e-3, 1.0
    while find_delta(high, epsilon) > delta:
        low, high = high, 2 * high
    # Delta falls with sigma: the upper end of the interval is always enough.
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if find_delta(middle, epsilon) <= delta else (middle, high)
    return high


def convert_mu(mu: float, delta: float) -> float:
    """Least epsilon of Gaussian noise of deviation ``1 / mu`` at sensitivity 1, rounded down.

    >>> convert_mu(0.0, 1e-6), round(convert_mu(1 / 4.225, 1e-6), 3)
    (0.0, 1.0)
    """
    return bound_epsilon(mu * mu / 2, delta) * (1 - 3e-6)


@cache
def bound_epsilon(rho: float, delta: float) -> float:
    """An epsilon, at most a millionth too large, that holds with delta of Gaussian noise.

    Parameters
    ----------
    rho
        Sum of ``1 / (2 sigma^2)`` over draws at unit sensitivity. Together they are one draw whose
        ``1 / sigma^2`` is the sum of theirs. That holds also where each size is chosen by what was
        seen before (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023).
    delta
        Positive.

    Examples
    --------
    >>> sigma = find_sigma(1.0, 1e-6)
    >>> round(bound_epsilon(0.5 / sigma**2, 1e-6), 5)
    1.0
    """
    if rho == 0:
        return 0.0
    sigma, cap = math.sqrt(0.5 / rho) * (1 - 1e-14), convert_rho(rho, delta)

    def exceed(epsilon: float) -> float:
        return float(mpmath.log(find_delta(sigma, epsilon) / delta))

    if exceed(0.0) <= 0:
        return 0.0
    above = float(brentq(exceed, 0.0, cap, rtol=1e-7, xtol=1e-300)) * (1 + 1e-6)
    # The root is known to rounding only: what is returned has been seen to hold.
    return above if exceed(above) <= 0 else cap


def find_slack(variance: int, n_values: int) -> Fraction:
    """Most that the log of a ratio of the discrete to the rounded Gaussian law may be, twice.

    Per value it is at most a sum of two parts, for noise n up to `REACH` standard deviations. One
    is ``n^2 / (8 variance^2)``. The other is ``1 / (24 variance)``. This is by Jensen below and by
    ``cosh x <= exp(x^2 / 2)`` above. The sums of both laws differ by less than ``exp(-variance)``.
    """
    return 2 * n_values * (Fraction(REACH**2, 8 * variance) + Fraction(1, 12 * variance))
