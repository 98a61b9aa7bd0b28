"""Noise of density proportional to exp(-|xi| / scale), correctly rounded to a grid.

Hamm 2017, Noisy Minimax Filters, eq. (8), with the Euclidean norm. Whole noise ``round(xi / grid)``
added to whole records post-processes the real mechanism, if the rounding is that of the real xi.
Floats decide it for almost all records, with a bound on their error. What lies nearer to a boundary
is decided by intervals of as many bits as it takes (Ziv's strategy).
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from mpmath.ctx_iv import MPIntervalContext
from mpmath.libmp import to_int

from privpipe.errors import OptionError
from privpipe.numerics.compiler import compiled
from privpipe.numerics.random.draws import exponential_of, sine_cosine_of
from privpipe.protocols import BoolArray, FloatArray, IntArray, RecordStream, WordArray

SPARE = 64
"""Bits of working precision beyond those of the uniforms."""

_contexts = threading.local()
"""A context of intervals holds its precision, so each thread has its own."""


def round_exactly(
    words: Sequence[Sequence[int]], width: int, cells_per_scale: Fraction
) -> tuple[int, ...] | None:
    """Whole noise of one record from uniforms of as many words as were read.

    Parameters
    ----------
    words : (width + n_pairs, n_words)
        64-bit words of every uniform, most significant first; the first `width` make the
        exponentials, the rest the angles, as `privpipe.numerics.noise.knorm` says.
    width
        Coordinates.
    cells_per_scale
        Scale of the law in steps of the grid, exactly.

    Returns
    -------
    noise : (width,) or None
        None if these words do not decide every coordinate.
    """
    numbers = [int.from_bytes(np.array(row, ">u8").tobytes()) for row in words]
    if not all(numbers[:width]):
        return None  # a uniform that begins with zeros alone may be any smaller one
    n_bits = 64 * len(words[0])
    # Intervals enclose whatever rounding does: the result is certain or not given.
    iv = _open_context(n_bits + SPARE)
    energies = [-iv.log(_interval(iv, number, n_bits)) for number in numbers[:width]]
    normals: list[Any] = []
    for energy, number in zip(energies, numbers[width:], strict=False):
        normals += _draw_pair(iv, energy, number, n_bits)
    normals = normals[:width]
    square = sum((g * g for g in normals), iv.mpf(0))
    # A direction of a vector that may be zero is unknown.
    if not square.a > 0:
        return None
    scale = iv.mpf(cells_per_scale.numerator) / iv.mpf(cells_per_scale.denominator)
    factor = scale * sum(energies, iv.mpf(0)) / iv.sqrt(square)
    cells = [(g * factor + iv.mpf(1) / 2)._mpi_ for g in normals]
    low, high = ([int(to_int(cell[end], "f")) for cell in cells] for end in (0, 1))
    # Both ends round alike, so every number between them does (Ziv).
    return tuple(low) if low == high else None


def _open_context(bits: int) -> Any:
    found = getattr(_contexts, "held", None)
    if found is None:
        found = _contexts.held = MPIntervalContext()
    found.prec = bits
    return found


def _interval(iv: Any, number: int, n_bits: int) -> Any:
    """All numbers below 1 whose first bits are these."""
    return iv.mpf([number, number + 1]) / iv.mpf(2) ** n_bits


def _draw_pair(iv: Any, energy: Any, number: int, n_bits: int) -> list[Any]:
    """Both coordinates on the circle of radius sqrt(energy): signs, swap, angle below pi/4."""
    signs, swap = number >> (n_bits - 2), number >> (n_bits - 3) & 1
    angle = _interval(iv, number & (1 << n_bits - 3) - 1, n_bits - 3) * iv.pi / 4
    sine, cosine, length = iv.sin(angle), iv.cos(angle), iv.sqrt(energy)
    first = length * (sine if swap else cosine) * (-1 if signs & 2 else 1)
    return [first, length * (cosine if swap else sine) * (-1 if signs & 1 else 1)]


PURPOSE, FURTHER = "knorm", "knorm further"
"""Words of every record, and the further bits of the rare ones that need them."""

FURTHER_WORDS = 16
"""Further words of each uniform: 1,024 bits; they are read two at a time, as long as needed."""

LARGEST_CELL = 2.0**50
"""Noise in steps of the grid stays below this, where a float still holds halves."""

_EIGHTH_TURN = math.pi / 4 * 2.0**-61


@compiled
def _add_up(values: FloatArray) -> float:
    """Sum of numbers above 0, within 17 u of it: plain in sixteens, whose sum is compensated."""
    total, carry = 0.0, 0.0
    for first in range(0, values.size, 16):
        part = 0.0
        for j in range(first, min(first + 16, values.size)):
            part += values[j]
        above = total + part
        back = above - total
        carry += (total - (above - back)) + (part - back)
        total = above
    return total + carry


@compiled
def _round_one(words: WordArray, cells_per_scale: float, out: IntArray, close: BoolArray) -> None:
    """The same of a single coordinate, whose direction is its sign: no angle is needed."""
    for i in range(words.shape[0]):
        word, turn = words[i, 0], words[i, 1]
        radius = cells_per_scale * exponential_of(np.float64(word) + 0.5, np.float64(~word) + 0.5)
        cell = (radius if turn >> np.uint64(63) == np.uint64(0) else -radius) + 0.5
        step = np.floor(cell)
        tolerance = radius * 2.0**-47 + cells_per_scale / np.float64(word) + 2.0**-52
        close[i] = not tolerance < min(cell - step, 1.0 - (cell - step))
        out[i, 0] = np.int64(step) if abs(step) < 2.0**62 else 0


@compiled
def _round(words: WordArray, width: int, cells: float, out: IntArray, close: BoolArray) -> None:
    """Rounded noise of a run of records, and which of them floats do not decide."""
    pairs = (width + 1) // 2
    energy, normal = np.empty(width), np.empty(2 * pairs)
    base = 64.0 * 2.0**-53
    for i in range(words.shape[0]):
        row = words[i]
        for j in range(width):
            energy[j] = exponential_of(np.float64(row[j]) + 0.5, np.float64(~row[j]) + 0.5)
        for p in range(pairs):
            turn = row[width + p]
            length = math.sqrt(energy[p])
            angle = (np.float64(np.int64(turn & np.uint64(2**61 - 1))) + 0.5) * _EIGHTH_TURN
            sine, cosine = sine_cosine_of(angle)
            swap = (turn >> np.uint64(61)) & np.uint64(1) == np.uint64(1)
            signs = np.int64(turn >> np.uint64(62))
            one = length * (1.0 - np.float64(signs & 2))
            two = length * (1.0 - 2.0 * np.float64(signs & 1))
            normal[2 * p] = one * (sine if swap else cosine)
            normal[2 * p + 1] = two * (cosine if swap else sine)
        least, nearest, long = np.inf, np.inf, 0.0
        for j in range(width):
            least = min(least, np.float64(row[j]))
        for p in range(pairs):
            nearest = min(nearest, energy[p])
            long += energy[p]
        total = _add_up(energy)
        for j in range(width):
            energy[j] = normal[j] * normal[j]
        size, radius = math.sqrt(_add_up(energy)), cells * total
        # A small uniform has few known digits: its unread bits weigh more.
        unread = 1.0 / least
        missed = 2.0**-47 * math.sqrt(long) + 4.0 * math.sqrt(width) * unread / math.sqrt(nearest)
        # Radius and direction each err; the last term is the rounding of the cell itself.
        tolerance = radius * (base + width * unread / total + missed / size) + 2.0**-52
        factor = radius / size
        sure = True
        for j in range(width):
            cell = normal[j] * factor + 0.5
            step = np.floor(cell)
            above = cell - step
            # No boundary between cells lies within the tolerance, or the record is decided by
            # intervals.
            sure &= (above > tolerance) & (1.0 - above > tolerance)
            # Undefined beyond the range of integers; such a record is never sure.
            out[i, j] = np.int64(step) if abs(step) < 2.0**62 else 0
        close[i] = not sure


@dataclass(frozen=True)
class KNormNoise:
    """Whole noise ``round(xi / grid)``, xi of density ``exp(-|xi|_2 / scale)``, as words say.

    With E_1 .. E_width exponentials, sqrt(E_1), sqrt(E_2), .. at uniform angles are normal vectors,
    two coordinates each (Box and Muller); their first `width` coordinates give the direction, and
    ``|xi| = scale * (E_1 + .. + E_width)``. The length of the normal vector is independent of its
    direction. With all its pairs' energies in the sum the radius is Gamma(width), as the law
    requires. That takes ``width + ceil(width / 2)`` words a record, and nothing is rejected.

    Parameters
    ----------
    scale
        Of the law, in the unit of the grid.
    grid
        Power of two, as `Lattice` checks.
    width
        Coordinates per record, at least one.

    Raises
    ------
    OptionError
        If the scale does not suit the grid.

    Notes
    -----
    Error of the floats, u = 2**-53, to first order; the kernel's constants are well above it:

    - an exponential, given its word: 7 u relative (proved, see `exponential_of`), and at most
      1 / (2 word) for the bits of the uniform that were not read;
    - their sum T: (7 + 17) u relative (`_add_up`), and width / (2 least word);
    - sqrt(E): 5 u relative, and the unread part over sqrt(E);
    - sine and cosine: 6 u. Of these the angle has 3.2 u, `sine_cosine_of` 2 u, unread bits less
      than u / 2;
    - a normal coordinate: 12 u sqrt(E). The vector is off by at most 17 u rho, with rho**2 the sum
      of the pairs' energies (the kernel: 32 u);
    - ``scale T g / (grid |g|)``: radius times [24 u + 9 u + 8 u, and twice the error of the vector
      over its length]. The kernel has 64 u in place of the first three.

    A record nearer to a boundary than this is decided by intervals from 64 + 1,024 bits per
    uniform. They leave it undecided with a probability below `undecided`.

    References
    ----------
    Hamm 2017, Noisy Minimax Filters, eq. (8). Ziv 1991, Fast evaluation of elementary
    mathematical functions with correctly rounded last bit.
    """

    slack: ClassVar[float] = 0.0
    """No stored probability is rounded: what is undecided is in delta."""

    scale: float
    grid: float
    width: int

    def __post_init__(self) -> None:
        if not 2.0**4 <= self.scale / self.grid or not self.largest < LARGEST_CELL:
            problem = f"Noise of scale {self.scale:g} does not suit a grid of {self.grid:g}."
            remedy = "Choose epsilon or the grid so that the scale is 16 to 2**30 steps."
            raise OptionError(problem, remedy=remedy, code="grid")

    @property
    def largest(self) -> float:
        """No word makes noise beyond this many steps; the true law does so with 3e-20 a value."""
        return self.scale / self.grid * 45.1 * self.width

    @property
    def n_words(self) -> int:
        """Words of every record."""
        return self.width + (self.width + 1) // 2

    @property
    def n_further(self) -> int:
        """Further words of a record that floats do not decide."""
        return self.n_words * FURTHER_WORDS

    @cached_property
    def cells_per_scale(self) -> float:
        """The scale in steps; exact, because the grid is a power of two."""
        return self.scale / self.grid

    @property
    def undecided(self) -> float:
        """Bound on the probability that 1,088 bits of every uniform leave a record undecided.

        Three cases count as undecided:

        - a uniform of an exponential is below 2**-200, with a probability of width times that;
        - the normal vector is shorter than 2**-190. Its first coordinate has density at most
          1/sqrt(pi), so the probability is at most 2**-188;
        - a sum of energies is below 2**-200.

        In all others the unread bits move a coordinate by less than 2**(900 - 1088) steps. The
        density of a coordinate is below 2**30 per step. So one is within that of a boundary with
        probability at most width 2**-150.
        """
        return self.width * (2.0**-198 + 2.0**-150) + 2.0**-187

    def limit(self, radius: int) -> int:
        """Clip of released whole numbers, exact in float64; the noise itself stays below."""
        return 2**52

    def draw(self, stream: RecordStream) -> IntArray:
        """Whole noise of every record of a stream, (n_records, width), int64."""
        out = np.empty((stream.n_records, self.width), np.int64)
        close = np.empty(stream.n_records, np.bool_)
        for rows, words in stream.tiles(PURPOSE, self.n_words):
            if self.width == 1:
                _round_one(words, self.cells_per_scale, out[rows], close[rows])
            else:
                _round(words, self.width, self.cells_per_scale, out[rows], close[rows])
        places = np.flatnonzero(close)
        if places.size:
            # The noise of these few is that of intervals.
            words = stream.words_at(PURPOSE, self.n_words, places)
            further = stream.words_at(FURTHER, self.n_further, places)
            for place, head, tail in zip(places.tolist(), words, further, strict=True):
                out[place] = self.decide_record(head, tail.reshape(self.n_words, FURTHER_WORDS))
        return out

    def decide_record(self, head: WordArray, tail: WordArray) -> tuple[int, ...]:
        """Noise of one record from intervals; `head` (n_words,), `tail` (n_words, 16)."""
        exact = Fraction(self.cells_per_scale)
        # 128 bits more each time: hardly any record needs the second round.
        for n in range(2, FURTHER_WORDS + 1, 2):
            rows = [[int(a), *map(int, b[:n])] for a, b in zip(head, tail, strict=True)]
            found = round_exactly(rows, self.width, exact)
            if found is not None:
                return found
        return (0,) * self.width  # with probability `undecided`, which delta counts
