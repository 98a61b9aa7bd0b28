"""PrivUnit on sign vectors: near the best local randomiser of vectors, in whole numbers.

Bhowmick et al. 2018, Protection Against Reconstruction (PrivUnit), its cap chosen for the least
error as by Asi, Feldman and Talwar 2022. A record is turned by a rotation that is drawn without it.
The order and the signs of its coordinates, no more, choose a signed permutation of one vector of
whole levels. Signs are drawn whose chances are two alone, a factor ``exp(epsilon)`` apart. The
chance depends on whether the levels that the signs agree with add up to a threshold. The signs are
turned back and scaled. What is private are the signs, so that no rounding of the rest is in the
proof; see PROOF.md.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, cast

import mpmath
import numpy as np
from scipy import special

from privpipe.errors import OptionError
from privpipe.numerics.compiler import compiled
from privpipe.protocols import FloatArray, IntArray, OctetArray, RecordStream, WordArray

PURPOSE = "privunit"

LEAST_EPSILON, MOST_EPSILON = 0.01, 20.0
"""Below, the margin would count; above, a chance may have too few of its 63 bits left."""

MOST_SIGNS = 2048
"""Signs of a record; the table of their chances is 40 MB then."""

Table = tuple[IntArray, IntArray, WordArray]

Signs = tuple[tuple[int, int], ...]

EVEN: Signs = ((-1, 0), (1, 0))
SIZED: Signs = ((-3, 1), (-1, 0), (1, 0), (3, 1))
"""Signs by ascending agreement, and which are large. Of one size they agree with a direction by .8
at most; of a quarter three times as large, by .94, which a large epsilon needs."""

MOST_SIZED = 40
"""Signs that may have sizes, so that the table has at most 2 MB."""

ANGLES = 256
"""Angles of a pair, a byte chooses."""


@compiled
def _turn(
    x: FloatArray, y: FloatArray, octets: OctetArray, angles: FloatArray, depth: int
) -> FloatArray:
    """Rotate up to a factor: blocks of random angles, each followed by sums and differences.

    Cards of a perfect shuffle: after log2 of their number every coordinate has met every other.
    """
    half = x.size // 2
    for block in range(octets.size // half):
        for i in range(half):
            angle = octets[block * half + i]
            c, s = angles[angle, 0], angles[angle, 1]
            y[2 * i], y[2 * i + 1] = c * x[i] - s * x[i + half], s * x[i] + c * x[i + half]
        x, y = y, x
        for _ in range(depth):
            for i in range(half):
                y[2 * i], y[2 * i + 1] = x[i] + x[i + half], x[i] - x[i + half]
            x, y = y, x
    return x


@compiled
def _turn_back(
    x: FloatArray, y: FloatArray, octets: OctetArray, angles: FloatArray, depth: int
) -> FloatArray:
    """The transpose of `_turn`."""
    half = x.size // 2
    for block in range(octets.size // half - 1, -1, -1):
        for _ in range(depth):
            for i in range(half):
                y[i], y[i + half] = x[2 * i] + x[2 * i + 1], x[2 * i] - x[2 * i + 1]
            x, y = y, x
        for i in range(half):
            angle = octets[block * half + i]
            c, s = angles[angle, 0], angles[angle, 1]
            y[i], y[i + half] = c * x[2 * i] + s * x[2 * i + 1], c * x[2 * i + 1] - s * x[2 * i]
        x, y = y, x
    return x


@compiled
def _find_cell(value: float, n: int) -> int:
    return int(min(abs(value), n - 1.0)) if abs(value) >= 0.0 else 0


@compiled
def _rank(x: FloatArray, deviation: float, ends: IntArray, order: IntArray) -> None:
    """Places of x by ascending size; whatever x is, each place once.

    Counted into as many cells as there are places, which few neighbours then have to leave.
    """
    n = x.size
    scale = n / (3.5 * deviation) if deviation > 0.0 else 0.0
    ends[:] = 0
    for i in range(n):
        ends[_find_cell(x[i] * scale, n)] += 1
    for cell in range(1, n):
        ends[cell] += ends[cell - 1]
    for i in range(n - 1, -1, -1):
        cell = _find_cell(x[i] * scale, n)
        ends[cell] -= 1
        order[ends[cell]] = i
    for k in range(1, n):
        place, at = order[k], k
        while at > 0 and abs(x[order[at - 1]]) > abs(x[place]):
            order[at] = order[at - 1]
            at -= 1
        order[at] = place


@compiled
def _release(
    bounded: FloatArray,
    words: WordArray,
    octets: OctetArray,
    angles: FloatArray,
    depth: int,
    table: Table,
    out: FloatArray,
) -> None:
    """Signs of every record, turned back up to a factor."""
    rises, offsets, chances = table
    n, width, marks = rises.size, bounded.shape[1], chances.shape[1]
    one: FloatArray = np.empty(n)
    two: FloatArray = np.empty(n)
    ends, order = np.empty(n, np.int64), np.empty(n, np.int64)
    growth = math.sqrt(2.0 ** (octets.shape[1] // (n // 2) * depth) / n)
    for i in range(bounded.shape[0]):
        row, total = words[i], 0.0
        one[width:] = 0.0
        for j in range(width):
            one[j] = bounded[i, j]
            total += one[j] * one[j]
        size = math.sqrt(total)
        x = _turn(one, two, octets[i], angles, depth)
        _rank(x, size * growth, ends, order)
        # A record within the ball is the mean of its direction and of the opposite one.
        lead = np.float64(np.int64(row[n] >> np.uint64(11))) * 2.0**-53 < 0.5 + 0.5 * size
        state = 0
        for j in range(n):
            word, at, value = row[j] >> np.uint64(1), offsets[j] + state, 0
            for mark in range(marks):
                value += word < chances[at, mark]
            state += rises[j] * value
            if marks > 1:
                state += value % marks == 0
            sign = np.float64(2 * value - marks)
            x[order[j]] = sign if (x[order[j]] >= 0.0) == lead else -sign
        # From here on the record has no say: signs are private, and all else was drawn without it.
        one, two = x, two if x is one else one
        out[i] = _turn_back(one, two, octets[i], angles, depth)[:width]


def measure_orders(n: int) -> FloatArray:
    """Means of the sizes of the coordinates of a uniform direction, ascending, (n,)."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    g, weights = 4.5 * (nodes + 1), 4.5 * weights  # half-normal beyond 9 is below 1e-18
    j = np.arange(1, n + 1)[:, None]
    share, density = special.erf(g / math.sqrt(2)), math.sqrt(2 / math.pi) * np.exp(-g * g / 2)
    logs = (j - 1) * np.log(share) + (n - j) * np.log(special.erfc(g / math.sqrt(2)))
    logs += special.gammaln(n + 1) - special.gammaln(j) - special.gammaln(n + 1 - j)
    length = math.sqrt(2) * math.exp(special.gammaln((n + 1) / 2) - special.gammaln(n / 2))
    return cast(FloatArray, (np.exp(logs) * density * g) @ weights / length)


def _tabulate(
    levels: IntArray, signs: Signs, large: int, odds: float, threshold: int
) -> tuple[IntArray, WordArray, float]:
    """Chances whose products are in proportion to ``odds`` or 1, and their loss.

    Backwards: ``F(state) = sum F'(next) / 2``, from ``odds`` where the score reaches the threshold
    and 1 elsewhere. A sign has the chance ``F'(next) / 2 F(state)``. Stored is the chance of that
    sign or a higher one, in 63 bits, so that a chance may be 1.
    """
    marks = len(signs) - 1
    reached = marks * np.concatenate(([0], np.cumsum(levels)))
    offsets = np.concatenate(([0], np.cumsum((large + 1) * (reached[:-1] + 1))))
    chances = np.empty((offsets[-1], marks), np.uint64)
    after = np.zeros((large + 1, reached[-1] + 1))
    after[large] = np.where(np.arange(reached[-1] + 1) >= threshold, odds, 1.0)
    missed = 0.0
    for j in range(len(levels) - 1, -1, -1):
        ideal = np.zeros((marks + 1, large + 1, reached[j] + 1))
        for value, (_, used) in enumerate(signs):
            rise = value * levels[j]
            ideal[value, : large + 1 - used] = after[used:, rise : rise + reached[j] + 1] / 2
        after = ideal.sum(axis=0)
        ideal /= np.maximum(after, 1e-300)  # what leads nowhere is reached from nowhere
        # All but the largest are rounded: as what others leave they would have fewer bits.
        stored = (ideal * 2.0**63).astype(np.uint64)
        largest = ideal.argmax(axis=0) == np.arange(marks + 1)[:, None, None]
        stored += largest * (np.uint64(2**63) - stored.sum(axis=0))
        sums = np.cumsum(stored[:0:-1], axis=0)[::-1]
        chances[offsets[j] : offsets[j + 1]] = sums.transpose(2, 1, 0).reshape(-1, marks)
        # Of what is stored, either way; floats err by less than 2**-50 in saying so.
        found, meant = stored[ideal > 0].astype(np.float64) * 2.0**-63, ideal[ideal > 0]
        missed += float(np.abs(found / meant - 1).max()) + 2.0**-50
    return offsets, chances, missed


def _choose_threshold(
    levels: IntArray, orders: FloatArray, signs: Signs, large: int, odds: float
) -> tuple[int, float]:
    """The threshold of the least error, and the mean product of signs and turned direction."""
    size = (len(signs) - 1) * int(levels.sum()) + 1
    shares, gains = np.eye(large + 1, size) * (np.arange(size) == 0), np.zeros((large + 1, size))
    for level, order in zip(levels, orders, strict=True):
        moved, won = np.zeros_like(shares), np.zeros_like(gains)
        for value, (sign, used) in enumerate(signs):
            start = np.s_[: large + 1 - used, : size - value * level]
            end = np.s_[used:, value * level :]
            moved[end] += shares[start] / 2
            won[end] += (gains[start] + order * sign * shares[start]) / 2
        shares, gains = moved, won
    share, gain = (np.cumsum(one[large, ::-1])[::-1] for one in (shares, gains))
    found = (odds - 1) * gain / (share[0] + (odds - 1) * share)
    return int(np.argmax(found)), float(found.max())


@lru_cache(maxsize=4)  # of a release there is one
def _make_table(n: int, epsilon: float) -> tuple[Table, float, float, float]:
    """Rises of a state, where chances of each place begin, chances; gain; mean square; loss."""
    orders, tried = measure_orders(n), []
    fineness = 8 if n <= 32 else 4 if n <= 128 else 3 if n <= 1024 else 2
    for signs, large, fine in ((EVEN, 0, fineness), (SIZED, n // 4, 4))[: 1 + (n <= MOST_SIZED)]:
        levels = np.maximum(1, np.rint(fine * math.sqrt(n) * orders)).astype(np.int64)
        # What the rounding of chances may add to the loss is taken off in advance, then checked.
        spare = 2.02 * n * (2.0**-48 + 2.0**-62 * math.exp(epsilon))
        odds = float(mpmath.exp(epsilon - spare))
        threshold, gain = _choose_threshold(levels, orders, signs, large, odds)
        tried.append(((1 + 8 * large / n) / gain**2, gain, levels, signs, large, odds, threshold))
    # Sizes that save less than a hundredth are not worth their time.
    square, gain, *made = tried[-1] if tried[-1][0] < 0.99 * tried[0][0] else tried[0]
    levels, _, large, odds, _ = made
    offsets, chances, missed = _tabulate(*made)
    loss = float(mpmath.log(odds)) + 2.01 * missed + 2.0**-48
    assert loss <= epsilon, "what is stored may lose no more than what is promised"
    # Fewer digits than libraries differ in: the same bytes on every processor.
    return (levels * (large + 1), offsets, chances), float(f"{gain:.10g}"), square, loss


def find_least_error(width: int, epsilon: float) -> float:
    """Least squared error of a unit record under any law of this epsilon, by no table.

    That of a cap on the sphere: Bhowmick et al. 2018, Asi, Feldman and Talwar 2022.

    >>> round(find_least_error(20, 8.0), 2)
    2.13
    """
    a, odds = (width - 1) / 2, math.exp(epsilon)
    edges = np.linspace(0.0, 1.0, 2**14, endpoint=False)
    share = special.betainc(a, a, (1 - edges) / 2)
    log = a * np.log1p(-(edges**2)) - special.betaln(a, a) - (width - 2) * math.log(2)
    gains = (odds - 1) * np.exp(log) / (width - 1) / (odds * share + 1 - share)
    return float(1 / gains.max() ** 2 - 1)


@dataclass(frozen=True)
class PrivUnitNoise:
    """Releases of norm ``sqrt(n) / gain`` whose mean over the words is the bounded record.

    Parameters
    ----------
    epsilon
        Largest log of the ratio of two chances of one release, from .01 to 20.
    width
        Coordinates per record, at most 2,048.

    Raises
    ------
    OptionError
        If epsilon or the width is beyond what is drawn exactly.

    Notes
    -----
    Guarantee: given the words of the rotation, every vector of signs has a chance, exactly the
    product of ``chances / 2**63``. For two records it differs by a factor of at most exp(epsilon),
    as `loss` shows from what is stored. Delta is 0, the slack within epsilon. The mean is that of a
    uniform rotation: three blocks come within 1e-4 of it.
    """

    slack: ClassVar[float] = 0.0
    """It is taken off in advance."""

    undecided: ClassVar[float] = 0.0
    """Every comparison is decided."""

    epsilon: float
    width: int

    def __post_init__(self) -> None:
        if not LEAST_EPSILON <= self.epsilon <= MOST_EPSILON or self.width > MOST_SIGNS:
            raise OptionError(
                f'noise = "privunit" of epsilon {self.epsilon:g} in {self.width:,} is inexact.',
                remedy=f"Use an epsilon of {LEAST_EPSILON:g} to {MOST_EPSILON:g} and at most "
                f'{MOST_SIGNS:,} coordinates, or noise = "knorm".',
                code="epsilon",
            )

    @property
    def n_signs(self) -> int:
        """Coordinates that are turned: an even number, and no small power of two, which mixes
        badly."""
        even = max(6, self.width + self.width % 2)
        return even + 2 if even in (8, 16, 32) else even

    @property
    def _n_octets(self) -> int:
        """Angles of a record: three blocks of pairs, nine where few coordinates mix slowly."""
        return (3 if self.n_signs > 16 else 9) * self.n_signs // 2

    @property
    def n_words(self) -> int:
        """Words of every record: one for each sign, one for the lead, and a byte for an angle."""
        return self.n_signs + 1 + -(-self._n_octets // 8)

    @property
    def loss(self) -> float:
        """What a record loses at most by the stored chances: at most epsilon."""
        return self._made[3]

    @property
    def spread(self) -> float:
        """Root mean square of one released coordinate of a record of length 1.

        Exact where all coordinates that are turned are released; within a fifth of few.
        """
        n, d, square = self.n_signs, self.width, self._made[2]
        return math.sqrt(max(square, (1 + (d - 1) * (n * square - 1) / (n - 1)) / d))

    @property
    def _made(self) -> tuple[Table, float, float, float]:
        return _make_table(self.n_signs, self.epsilon)

    @cached_property
    def _angles(self) -> FloatArray:
        """Cosines and sines of all angles, correctly rounded, (ANGLES, 2)."""
        turns = [2 * mpmath.pi * k / ANGLES for k in range(ANGLES)]
        return np.array([[float(mpmath.cos(t)), float(mpmath.sin(t))] for t in turns])

    def limit(self, radius: int) -> int:
        """Releases are bounded by themselves."""
        return 2**52

    def draw(self, bounded: FloatArray, stream: RecordStream) -> FloatArray:
        """Releases of bounded records, (n_records, width), float64."""
        out, n, depth = np.empty(bounded.shape), self.n_signs, (self.n_signs - 1).bit_length() - 1
        for rows, words in stream.tiles(PURPOSE, self.n_words):
            octets = words[:, n + 1 :].astype("<u8").view(np.uint8)[:, : self._n_octets]
            _release(
                bounded[rows], words, octets, self._angles, depth, self._made[0], out[rows]
            )  # fmt: skip
        # Sums and differences are no rotation before they are divided by the square root of two.
        out *= 2.0 ** (-depth * self._n_octets // (n // 2) / 2) / self._made[1]
        return out
