"""Parities: which exclusive-or of a few bits of a record goes with its class.

An adversary that learns step by step sees nothing of a parity before it has all of its bits. All
pairs of bits, and products of up to five of the same item over columns, are few enough to count.
One exclusive-or and one population count a word do so for 64 records at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from heapq import nlargest
from math import comb

import numpy as np

from privpipe.attacks.adversaries.problem import Features
from privpipe.protocols import BoolArray, FloatArray, IntArray, OctetArray, WordArray

MANTISSA = 52
"""Bits of a mantissa in double precision; released values of less are exact in it."""

FIXED = 62
"""Bits of a value as a multiple of the smallest step that its column's largest one allows."""

NEGATIVE, ABOVE = MANTISSA + FIXED, MANTISSA + FIXED + 1
"""Items: whether a value is below 0, and whether it is above its column's median."""

N_ITEMS = MANTISSA + FIXED + 4
"""Bits of the mantissa, then of the multiple, both signs, and both numbers of trailing zeros."""

BINARY = N_ITEMS - 2
"""Items that are bits, from the first."""

MOST_FACTORS = 5
"""Bits of one parity."""

MOST_COLUMNS = 300
"""Columns whose bits are read, from the first."""

MOST_WORDS, PAIRED_WORDS = 12_000, 30_000
"""Words that are counted for each record in each search of products, and in that of all pairs of
bits. Columns or bits beyond them are left out. Time grows with the records: of few of them the best
of many products is chance."""

CACHED = 1 << 16
"""Words that are counted at a time: of as many as a cache holds counting takes half as long."""

MOST_PARITIES = 6
"""Candidates that each search gives."""

_Words = tuple[FloatArray, WordArray, WordArray]


@dataclass(frozen=True, eq=False)
class Digits:
    """How the values of each column are cut into binary items.

    Parameters
    ----------
    exponents : (n_columns,)
        Of the largest value of each column: they fix its smallest step.
    medians : (n_columns,)
    """

    exponents: IntArray
    medians: FloatArray

    def split(self, x: FloatArray, columns: IntArray) -> _Words:
        """Values above the median, mantissa with its leading one, magnitude as a multiple.

        Of some columns, (n_records, n_chosen) each.
        """
        values = x[:, columns].astype(np.float64)
        size = np.abs(values) + 0.0  # a negative zero has a bit that zero has not
        mantissa = (size.view(np.uint64) & np.uint64(2**MANTISSA - 1)) | np.uint64(2**MANTISSA)
        with np.errstate(over="ignore"):
            multiple = np.ldexp(size, (FIXED - self.exponents[columns]).astype(np.int32))
        # Below 0 and above the median as one number: its sign bit, and whether it exceeds 1.
        sides = np.where(values < 0, -1.0, 1.0) * np.where(values > self.medians[columns], 2, 1)
        # Records that were not trained on may exceed the largest value; 2^63 still fits a word.
        return sides, mantissa, np.minimum(multiple, 2.0**63).astype(np.uint64)

    def read(self, x: FloatArray, places: IntArray) -> OctetArray:
        """Items (n_records, n_places) at (column, item), each column being cut once."""
        columns, at = np.unique(places[:, 0], return_inverse=True)
        words = self.split(x, columns)
        parts = [tuple(word[:, j] for word in words) for j in range(len(columns))]
        found = [item_of(parts[j], int(item)) for j, item in zip(at, places[:, 1], strict=True)]
        return np.column_stack(found)


def measure_digits(x: FloatArray) -> Digits:
    """Digits of the columns of (n_records, n_columns) values."""
    largest = np.abs(x).max(axis=0).astype(np.float64)
    return Digits(np.frexp(largest)[1].astype(np.int64), np.median(x, axis=0).astype(np.float64))


def item_of(words: _Words, item: int) -> OctetArray:
    """One bit of every value, or its trailing zeros, as the words are shaped."""
    sides, mantissa, multiple = words
    if item in (NEGATIVE, ABOVE):
        return np.asarray(sides < 0 if item == NEGATIVE else np.abs(sides) > 1, np.uint8)
    if item < NEGATIVE:
        word, place = (mantissa, item) if item < MANTISSA else (multiple, item - MANTISSA)
        # The byte that holds it alone: an eighth of what there is to read.
        octets = word.astype("<u8", copy=False)[..., None].view(np.uint8)
        return np.asarray((octets[..., place // 8] >> np.uint8(place % 8)) & np.uint8(1))
    word = mantissa if item == ABOVE + 1 else multiple
    lowest = word & (~word + np.uint64(1))  # a power of two, or 0
    return np.log2(np.maximum(lowest, np.uint64(1)).astype(np.float64)).astype(np.uint8)


def read_parity(digits: Digits, places: IntArray, x: FloatArray) -> FloatArray:
    """The exclusive-or of items at (column, item), (n_factors, 2), as a sign.

    Returns
    -------
    columns : (n_records, 1)
        1 where the parity is even, else -1.
    """
    return np.asarray(1.0 - 2.0 * (digits.read(x, places).sum(axis=1) % 2), np.float64)[:, None]


def find_parities(
    x: FloatArray, classes: IntArray, strata: IntArray, digits: Digits, most_factors: int
) -> Iterator[Features]:
    """What reads the parities that go with a class most, within strata of records that look alike.

    Parameters
    ----------
    x : (n_records, n_columns)
        Values as they are released.
    classes, strata : (n_records,)
        Codes from 0. What strata reveal of the classes does not count: many parities would else
        repeat what one bit says.
    digits
        Of these columns.
    most_factors
        Bits of one parity.

    Notes
    -----
    Counted are single bits, all pairs of bits, and products of three to five of one item (a sign,
    or the same digit) over columns. Each goes as far as `MOST_WORDS`. Of 8,192 records these are
    all pairs of 1,900 bits, and all products of five signs of 32 columns. Of five digits they are
    all products of 17 columns. Of fewer records, whose words are fewer in proportion, they are
    nearly the same.
    """
    cells = _Cells.of(classes, strata)
    parts = digits.split(x, np.arange(min(x.shape[1], MOST_COLUMNS)))
    words = np.stack([cells.pack(item_of(parts, item)) for item in range(BINARY)])
    ones = np.bitwise_count(words).sum(axis=-1, dtype=np.int64)
    varies = (ones > 0) & (ones < len(x))
    for factors in range(1, most_factors + 1):
        for first, most in _plan(words.shape, factors, MOST_WORDS * len(x) // cells.cost):
            for item, chosen in _scan(cells, words[first:, :most], varies[first:, :most], factors):
                of = np.array([(j, first + item) for j in chosen], np.int64)
                yield partial(read_parity, digits, of)
    places = np.argwhere(varies.T)  # columns in order, items within
    # Signs, then multiples of a step, then the mantissa, whose bits are mostly the same ones.
    places = places[np.argsort(-np.digitize(places[:, 1], [MANTISSA, NEGATIVE]), kind="stable")]
    # All pairs of m bits are m^2 / 2 products.
    places = places[: int(np.sqrt(2 * PAIRED_WORDS * len(x) / cells.cost))]
    flat = words[places[:, 1], places[:, 0]][None]
    for _, chosen in _scan(cells, flat, np.ones(flat.shape[:2], np.bool_), 2):
        yield partial(read_parity, digits, places[list(chosen)])


def _plan(shape: tuple[int, ...], factors: int, most_found: int) -> Iterator[tuple[int, int]]:
    """First item and number of columns: all items of few columns, then signs of more."""
    n_items, n_columns, _ = shape
    found = 0
    for first in (0, NEGATIVE):
        most = n_columns
        while comb(most, factors) * (n_items - first) > most_found:
            most -= 1
        if most > found:
            yield first, most
        found = max(found, most)


@dataclass(frozen=True, eq=False)
class _Cells:
    """Records sorted by stratum and class, each cell from a word's beginning on.

    Parameters
    ----------
    at : (n_records,)
        Bit of each record.
    starts : (n_cells,)
        First word of each cell.
    n_words
        Of all cells.
    sums : (n_cells, n_classes + n_strata)
        What a one of a cell adds to the excess of each class, and to the share of each stratum. The
        excess is over what its strata let expect.
    spread : (n_strata, n_classes)
        Variance of the excess, in units of share times one minus share.
    weights : (n_classes,)
        So that the statistic is a chi-square of one degree less than classes.
    """

    at: IntArray
    starts: IntArray
    n_words: int
    sums: FloatArray
    spread: FloatArray
    weights: FloatArray

    @classmethod
    def of(cls, classes: IntArray, strata: IntArray) -> "_Cells":
        n_classes, n_strata = int(classes.max()) + 1, int(strata.max()) + 1
        cell = strata * n_classes + classes
        sizes = np.bincount(cell, minlength=n_strata * n_classes)
        # An empty cell has a word too: `reduceat` takes no empty stretch.
        ends = np.cumsum(np.maximum((sizes + 63) // 64, 1))
        starts = np.concatenate([[0], ends[:-1]])
        order = np.argsort(cell, kind="stable")
        within = np.arange(len(cell)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        at = np.empty(len(cell), np.int64)
        at[order] = 64 * starts[cell[order]] + within
        table = sizes.reshape(n_strata, n_classes).astype(np.float64)
        total = np.maximum(table.sum(axis=1, keepdims=True), 1.0)
        shares = table / total
        excess = np.eye(n_classes)[None] - shares[:, None]  # by stratum, its class, class
        strata_of = np.repeat(np.diag(1.0 / total[:, 0]), n_classes, axis=0)
        sums = np.hstack([excess.reshape(-1, n_classes), strata_of])
        # Of a draw without replacement: the margins of the table are given.
        spread = table * (1 - shares) * total / np.maximum(total - 1, 1.0)
        return cls(at, starts, int(ends[-1]), sums, spread, 1.0 - table.sum(axis=0) / len(cell))

    @property
    def cost(self) -> int:
        """Words that one product takes, its statistic included (four products of it a word)."""
        return self.n_words + self.sums.size // 4

    def pack(self, bits: OctetArray) -> WordArray:
        """Words (n_columns, n_words) of bits (n_records, n_columns)."""
        placed = np.zeros((64 * self.n_words, bits.shape[1]), np.uint8)
        placed[self.at] = bits
        return np.ascontiguousarray(np.packbits(placed, axis=0).T).view(np.uint64)

    def measure(self, ones: IntArray) -> FloatArray:
        """Chi-square of the classes with so many ones in each cell, (n_cells, ...), in strata."""
        found, n_classes = np.tensordot(self.sums.T, ones, 1), len(self.weights)
        excess, share = found[:n_classes], found[n_classes:]
        variance = np.tensordot(self.spread.T, share * (1 - share), 1)
        # A variance of next to nothing is of a few records: no chi-square is made of it.
        return np.tensordot(self.weights, excess**2 / np.maximum(variance, 1e-3), 1)


def _scan(
    cells: _Cells, words: WordArray, varies: BoolArray, factors: int
) -> list[tuple[int, tuple[int, ...]]]:
    """Group and columns of the products of most statistic, (n_groups, n_columns, n_words)."""
    # Loaded where codes are searched for: the compiler takes half a second.
    from privpipe.attacks.adversaries import parity_counts

    best: list[tuple[float, int, tuple[int, ...]]] = []
    for sets in parity_counts.list_products(words.shape[1], factors, len(words)):
        sizes = cells.measure(parity_counts.count_ones(words, sets, cells.starts))
        sizes = np.where(varies[:, sets].all(axis=2), sizes, 0.0)
        if sizes.max() <= (best[-1][0] if len(best) == MOST_PARITIES else 0.0):
            continue
        largest = np.argsort(sizes, axis=None)[::-1][:MOST_PARITIES]
        groups, places = np.unravel_index(largest, sizes.shape)
        columns = map(tuple, sets[places].tolist())
        found = zip(sizes.flat[largest].tolist(), groups.tolist(), columns, strict=True)
        best = nlargest(MOST_PARITIES, [*best, *found])
    return [(group, columns) for size, group, columns in best if size > 0]
