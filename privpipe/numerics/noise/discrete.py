"""The two-sided geometric law, the discrete Laplace, by comparisons of whole numbers alone.

Ghosh, Roughgarden and Sundararajan 2009 (the geometric mechanism). P(n) = p q**|n| with p =
(1-q)/(1+q) and q = exp(-epsilon / sensitivity). n is 0 with probability p, else a sign and 1 + G, G
geometric. q**k is a product over the binary digits of k, so the digits of G are *independent*. The
odds that digit j is 1 are q**(2**j). One more lane says whether G reaches 2**n_digits, and then the
noise saturates, which clipping the sum makes a post-processing of the unbounded law.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import mpmath
import numpy as np

from privpipe.errors import OptionError
from privpipe.numerics.compiler import compiled
from privpipe.protocols import BoolArray, IntArray, OctetArray, RecordStream, WordArray

PURPOSE, FURTHER = "discrete", "discrete further"
"""Words of every value, and the further bits of lanes that the first eight leave undecided."""

LANES = 32
"""Bernoulli lanes of a value; at most; a byte of the value's words belongs to each."""

HEAD_BITS, TAIL_BITS = 8, 256
TAIL_WORDS = TAIL_BITS // 64

MOST_DIGITS = 29

SETTLED = 2**16
"""Values whose open lanes are decided together: they stay in the second-level cache."""

_PRECISION = 400


@compiled
def _compare(
    octets: OctetArray, heads: OctetArray, n_octets: int, open_mask: int, out: IntArray
) -> None:
    """Lanes of each value below their threshold by the first bits; above them, those left open.

    Thirty-two lanes are compared at once, whatever the number of a value's own octets. A constant
    is what makes vector instructions of it. Further lanes have a threshold of 0 and no say.
    """
    # The last value is done apart: reading 32 octets of it would leave the array.
    mask, last = np.uint32(open_mask), out.size - 1
    for i in range(last):
        below, tied, row = np.uint32(0), np.uint32(0), octets[i * n_octets : i * n_octets + 32]
        for j in range(32):
            octet = row[j]
            below |= np.uint32(octet < heads[j]) << np.uint32(j)
            tied |= np.uint32(octet == heads[j]) << np.uint32(j)
        out[i] = np.int64(below) | np.int64(tied & mask) << 32
    below, tied = np.uint32(0), np.uint32(0)
    for j in range(n_octets):
        octet = octets[last * n_octets + j]
        below |= np.uint32(octet < heads[j]) << np.uint32(j)
        tied |= np.uint32(octet == heads[j]) << np.uint32(j)
    out[last] = np.int64(below) | np.int64(tied & mask) << 32


@compiled
def _list_open(bits: IntArray, values: IntArray, lanes: IntArray) -> int:
    """Which lanes of which values are left open, and how many; -1 if there is no room for them."""
    count, room = 0, values.size - 32
    for i in range(bits.size):
        tied = bits[i] >> 32
        if tied != 0:
            if count > room:
                return -1
            for j in range(32):
                if tied & 1:
                    values[count], lanes[count] = i, j
                    count += 1
                tied = (tied >> 1) & 0x7FFFFFFF
                if tied == 0:
                    break
    return count


@compiled
def _find_places(
    values: IntArray, lanes: IntArray, width: int, word: int, records: IntArray, places: IntArray
) -> None:
    """Record of each open lane, and where in its further words this one is."""
    for i in range(values.size):
        records[i] = values[i] // width
        places[i, 0] = ((values[i] - records[i] * width) * 32 + lanes[i]) * 4 + word


@compiled
def _decide(
    bits: IntArray,
    values: IntArray,
    lanes: IntArray,
    read: WordArray,
    tails: WordArray,
    again: BoolArray,
) -> None:
    """Set the bits of lanes below their threshold; which are equal to it so far."""
    for i in range(values.size):
        against = tails[lanes[i]]
        bits[values[i]] |= np.int64(read[i] < against) << lanes[i]
        again[i] = read[i] == against


@compiled
def _compose(bits: IntArray, n_digits: int) -> None:
    """Bits of the lanes, in place, to the value: digits, overflow, not zero, sign."""
    # The digits come first, then overflow, not zero, sign: the order of `_ideal`.
    low = (np.int64(1) << n_digits) - 1
    for i in range(bits.size):
        held = bits[i]
        size = (held & low) + 1
        size = low + 2 if (held >> n_digits) & 1 else size
        size = size if (held >> (n_digits + 1)) & 1 else 0
        bits[i] = -size if (held >> (n_digits + 2)) & 1 else size


def _find_open(bits: IntArray) -> tuple[IntArray, IntArray]:
    """Values and lanes that the first bits leave open."""
    room = len(bits) // 4 + 64  # a tenth of the values has one
    while True:
        values, lanes = np.empty((2, room), np.int64)
        count = _list_open(bits, values, lanes)
        if count >= 0:
            return values[:count], lanes[:count]
        # All lanes of all values: the second try cannot fail.
        room = len(bits) * LANES + 64


@dataclass(frozen=True)
class DiscreteLaplaceNoise:
    """Whole noise with P(n) proportional to exp(-epsilon |n| / sensitivity), value by value.

    Parameters
    ----------
    epsilon
        Privacy loss for two records at the l1 distance `sensitivity`; an exact rational, finite
        and above 0, which `Mechanism` checks.
    sensitivity
        l1 distance, in whole steps.
    width
        Values per record.

    Raises
    ------
    OptionError
        If epsilon does not suit the sensitivity.

    Notes
    -----
    Guarantee: let two records have l1 distance at most `sensitivity`, and let the words be uniform.
    Then the probabilities of every release ``clip(steps + noise, -limit, limit)`` differ by a
    factor of at most exp(epsilon + slack). Delta is 0. All that is not exact is the rounding of the
    thresholds to 264 bits, which `slack` bounds from what is stored.

    Every lane is one comparison of 264 random bits with a threshold. Eight of them are a byte of
    the value's words; the others are read, by `words_at`, where these are equal.
    """

    undecided: ClassVar[float] = 0.0
    """Every comparison is decided."""

    epsilon: float
    sensitivity: int
    width: int

    def __post_init__(self) -> None:
        # 32 lanes fit one machine word; beyond a rate of 8 nearly all noise is zero on this grid.
        if self.rate > 8 or self.n_digits > MOST_DIGITS:
            finer = "finer grid" if self.rate > 8 else "coarser grid"
            raise OptionError(
                f"epsilon {self.epsilon:g} over {self.sensitivity:,} steps is beyond what is "
                "drawn exactly (6e-8 to 8 per step).",
                remedy=f"Use a {finer}, or another epsilon.",
                code="grid",
            )

    @property
    def rate(self) -> Fraction:
        """Loss per step."""
        return Fraction(self.epsilon) / self.sensitivity

    @cached_property
    def n_digits(self) -> int:
        """Least count of binary digits with exp(-rate 2**n_digits) <= exp(-32), and enough of them
        that noise reaches from any record to any other: see `limit`."""
        # 2**n_digits >= sensitivity: noise reaches from any record to any other, or clipping would
        # separate them for certain.
        enough = (self.sensitivity - 1).bit_length()
        # Noise saturates with at most exp(-32); clipping the sum makes that a post-processing.
        return max(1, math.ceil(math.log2(Fraction(32) / self.rate)), enough)

    @property
    def n_lanes(self) -> int:
        return self.n_digits + 3

    @property
    def value_words(self) -> int:
        """Words of every value: a byte per lane."""
        return -(-self.n_lanes // 8)

    @property
    def n_words(self) -> int:
        """Words of every record."""
        return self.width * self.value_words

    @property
    def n_further(self) -> int:
        """Words of a record under the second purpose."""
        return self.width * LANES * TAIL_WORDS

    def limit(self, radius: int) -> int:
        """Largest clip at which saturated noise is clipped for every |steps| <= radius.

        At least the radius, whatever epsilon is, as 2 radius <= sensitivity <= 2**n_digits: no clip
        makes records equal that are not.
        """
        # Saturated noise plus any record lies beyond the clip, on the side of its sign: the release
        # of overflow is one number, whatever the record.
        assert 2 * radius <= self.sensitivity, "two records may be a diameter apart"
        return (1 << self.n_digits) - radius

    @cached_property
    def _ideal(self) -> tuple[mpmath.mpf, ...]:
        """Probabilities of the lanes: digits, overflow, not zero, sign."""
        with mpmath.workprec(_PRECISION):
            rate = mpmath.mpf(self.rate.numerator) / self.rate.denominator
            # Independent, since q**k is a product over the binary digits of k.
            digits = [1 / (1 + mpmath.exp(rate * 2**j)) for j in range(self.n_digits)]
            overflow = mpmath.exp(-rate * 2**self.n_digits)
            return (*digits, overflow, 2 / (1 + mpmath.exp(rate)), mpmath.mpf(1) / 2)

    @cached_property
    def thresholds(self) -> tuple[int, ...]:
        """The same times 2**264, rounded down."""
        with mpmath.workprec(_PRECISION):
            one = mpmath.mpf(2) ** (HEAD_BITS + TAIL_BITS)
            # Rounded down to 264 bits: what that may cost is `slack`, measured on these very
            # numbers.
            return tuple(int(mpmath.floor(p * one)) for p in self._ideal)

    @cached_property
    def slack(self) -> float:
        """What the rounding of the thresholds may add to the loss of a record, rounded up."""
        with mpmath.workprec(_PRECISION):
            one = mpmath.mpf(2) ** (HEAD_BITS + TAIL_BITS)
            worst = mpmath.mpf(0)
            for stored, ideal in zip(self.thresholds, self._ideal, strict=True):
                ratios = (stored / one / ideal, (one - stored) / one / (1 - ideal))
                # Of a lane and of its opposite: either may be what a release rests on.
                worst += max(abs(mpmath.log(ratio)) for ratio in ratios)
            # Twice, since it may raise one probability and lower the other; all values of a record
            # count.
            return math.nextafter(float(2 * self.width * worst), math.inf)

    @cached_property
    def _heads(self) -> OctetArray:
        heads = np.zeros(LANES, np.uint8)
        heads[: self.n_lanes] = [t >> TAIL_BITS for t in self.thresholds]
        return heads

    @cached_property
    def _open_mask(self) -> int:
        """Lanes whose equality in the first bits decides nothing: their further bits are not 0."""
        mask = (1 << TAIL_BITS) - 1
        # Where all further bits of a threshold are zero no number is below it that begins alike.
        return sum(1 << lane for lane, t in enumerate(self.thresholds) if t & mask)

    @cached_property
    def _tails(self) -> WordArray:
        """Further bits of the thresholds, (n_lanes, 4), most significant word first."""
        words = [
            [t >> (64 * place) & (1 << 64) - 1 for place in reversed(range(TAIL_WORDS))]
            for t in self.thresholds
        ]
        return np.array(words, np.uint64)

    def draw(self, stream: RecordStream) -> IntArray:
        """Noise of every record of a stream, (n_records, width), int64."""
        out = np.empty((stream.n_records, self.width), np.int64)
        begun = 0
        for rows, words in stream.tiles(PURPOSE, self.n_words):
            octets = words.astype("<u8", copy=False).reshape(-1).view(np.uint8)
            n_octets = 8 * self.value_words
            _compare(octets, self._heads, n_octets, self._open_mask, out[rows].reshape(-1))
            if (rows.stop - begun) * self.width >= SETTLED or rows.stop == len(out):
                self._settle(stream, begun, out[begun : rows.stop].reshape(-1))
                begun = rows.stop
        return out

    def _settle(self, stream: RecordStream, first: int, bits: IntArray) -> None:
        """Decide the lanes left open, a word at a time; make values of the bits of all lanes."""
        values, lanes = _find_open(bits)
        for word in range(TAIL_WORDS):
            if not len(values):
                break
            records, places = np.empty_like(values), np.empty((len(values), 1), np.int64)
            _find_places(values, lanes, self.width, word, records, places)
            records += first
            read = stream.words_at(FURTHER, self.n_further, records, places)[:, 0]
            again = np.empty(len(values), np.bool_)
            _decide(bits, values, lanes, read, self._tails[:, word].copy(), again)
            values, lanes = values[again], lanes[again]
        _compose(bits, self.n_digits)
