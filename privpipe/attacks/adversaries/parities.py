"""Parities: which exclusive-or of a few bits of a record goes with its class.

An adversary that learns step by step sees nothing of a parity before it has all of its bits. All
pairs of bits, and products of up to five of the same item over columns, are few enough to count:
64 records at a time, one exclusive-or and one population count a word.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

from privpipe.numerics.compiler import can_compile, njit
from privpipe.protocols import BoolArray, FloatArray, IntArray, WordArray

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

_Words = tuple[FloatArray, WordArray, WordArray]


@dataclass(frozen=True, eq=False)
class Digits:
    """How the values of each column are cut into items.

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
        size = np.abs(values) + 0.0
        mantissa = (size.view(np.uint64) & np.uint64(2**MANTISSA - 1)) | np.uint64(2**MANTISSA)
        with np.errstate(over="ignore"):
            multiple = np.ldexp(size, (FIXED - self.exponents[columns]).astype(np.int32))
        # Below 0 and above the median as one number: its sign bit, and whether it exceeds 1.
        sides = np.where(values < 0, -1.0, 1.0) * np.where(values > self.medians[columns], 2, 1)
        return sides, mantissa, np.minimum(multiple, 2.0**63).astype(np.uint64)

    def read(self, x: FloatArray, places: IntArray) -> npt.NDArray[np.float32]:
        """Items (n_records, n_places) at (column, item), each column being cut once."""
        columns, at = np.unique(places[:, 0], return_inverse=True)
        words = self.split(x, columns)
        found = [item_of(words, int(item))[:, j] for j, item in zip(at, places[:, 1], strict=True)]
        return np.column_stack(found)


def measure_digits(x: FloatArray) -> Digits:
    """Digits of the columns of (n_records, n_columns) values."""
    largest = np.abs(x).max(axis=0).astype(np.float64)
    return Digits(np.frexp(largest)[1].astype(np.int64), np.median(x, axis=0).astype(np.float64))


def item_of(words: _Words, item: int) -> npt.NDArray[np.float32]:
    """One bit of every value, or its trailing zeros, (n_records, n_columns)."""
    sides, mantissa, multiple = words
    if item < MANTISSA:
        return _bit(mantissa, item)
    if item < MANTISSA + FIXED:
        return _bit(multiple, item - MANTISSA)
    if item in (NEGATIVE, ABOVE):
        return np.asarray(sides < 0 if item == NEGATIVE else np.abs(sides) > 1, np.float32)
    word = mantissa if item == ABOVE + 1 else multiple
    lowest = word & (~word + np.uint64(1))  # a power of two, or 0
    return np.log2(np.maximum(lowest, np.uint64(1)).astype(np.float64)).astype(np.float32)


def _bit(word: WordArray, place: int) -> npt.NDArray[np.float32]:
    return ((word >> np.uint64(place)) & np.uint64(1)).astype(np.float32)


def count_exclusive(words: WordArray, other: WordArray, first: int, starts: IntArray) -> IntArray:
    """Ones of the exclusive-or of each row with another, cell by cell.

    Parameters
    ----------
    words : (n_groups, n_columns, n_words)
    other : (n_groups, n_words)
        Of each group.
    first
        Column to begin with.
    starts : (n_cells + 1,)
        First word of each cell, none being empty, and their number.

    Returns
    -------
    ones : (n_groups, n_columns - first, n_cells)
    """
    ones = np.bitwise_count(words[:, first:] ^ other[:, None])
    return np.add.reduceat(ones, starts[:-1], axis=-1, dtype=np.int64)


@njit(cache=True, nogil=True)
def _count_ones(left: WordArray, right: WordArray, start: int, stop: int) -> int:
    one, two, four = np.uint64(1), np.uint64(2), np.uint64(4)
    pairs, quads = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
    bytes_, sums = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
    total = np.uint64(0)
    for place in range(start, stop):
        word = left[place] ^ right[place]
        word = word - ((word >> one) & pairs)
        word = (word & quads) + ((word >> two) & quads)
        word = (word + (word >> four)) & bytes_
        total += (word * sums) >> np.uint64(56)
    return int(total)


@njit(cache=True, nogil=True)
def _measure(
    left: WordArray,
    right: WordArray,
    starts: IntArray,
    sums: FloatArray,
    spread: FloatArray,
    weights: FloatArray,
) -> float:
    """Chi-square of the classes with the exclusive-or of two rows; see `_Cells`."""
    n_strata, n_classes = spread.shape
    found = np.zeros(n_classes + n_strata)
    for cell in range(len(starts) - 1):
        ones = _count_ones(left, right, starts[cell], starts[cell + 1])
        for k in range(len(found)):
            found[k] += ones * sums[cell, k]
    size = 0.0
    for k in range(n_classes):
        variance = 0.0
        for s in range(n_strata):
            share = found[n_classes + s]
            variance += share * (1.0 - share) * spread[s, k]
        size += found[k] ** 2 / max(variance, 1e-3) * weights[k]
    return size


@njit(cache=True, nogil=True)
def scan_products(
    words: WordArray,
    varies: BoolArray,
    starts: IntArray,
    sums: FloatArray,
    spread: FloatArray,
    weights: FloatArray,
    factors: int,
    kept: int,
) -> tuple[FloatArray, IntArray]:
    """The products of so many rows of a group that go with the classes most.

    Parameters
    ----------
    words : (n_groups, n_columns, n_words)
    varies : (n_groups, n_columns)
        Rows that are looked at.
    starts, sums, spread, weights
        As of `_Cells`.
    factors, kept
        Rows of a product, and products that are returned.

    Returns
    -------
    sizes : (kept,)
    places : (kept, 1 + factors)
        Group and columns; -1 where there are fewer.
    """
    n_groups, n_columns, n_words = words.shape
    sizes, places = np.zeros(kept), np.full((kept, 1 + factors), -1, np.int64)
    joined = np.zeros((factors, n_words), np.uint64)
    at = np.empty(factors, np.int64)
    for group in range(n_groups):
        depth = 0
        at[0] = -1
        while depth >= 0:
            at[depth] += 1
            column = at[depth]
            if column > n_columns - factors + depth:
                depth -= 1
            elif not varies[group, column]:
                continue
            elif depth < factors - 1:
                for place in range(n_words):
                    joined[depth + 1, place] = joined[depth, place] ^ words[group, column, place]
                depth += 1
                at[depth] = column
            else:
                size = _measure(joined[depth], words[group, column], starts, sums, spread, weights)
                least = np.argmin(sizes)
                if size > sizes[least]:
                    sizes[least] = size
                    places[least, 0] = group
                    places[least, 1:] = at
    return sizes, places


def sum_by_digit(words: WordArray, weights: FloatArray) -> FloatArray:
    """Sum of the weights of the words that have each digit, (64, n_weights), lowest first.

    Parameters
    ----------
    words : (n_records,)
    weights : (n_records, n_weights)
        float32.
    """
    if not can_compile():
        digits = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
        return np.asarray(digits.T.astype(np.float32) @ weights)
    found = np.zeros((weights.shape[1], 64), np.float32)
    _sum_digits(words, np.ascontiguousarray(weights.T), found)
    return found.T


@njit(cache=True, nogil=True, fastmath=True)
def _sum_digits(words: WordArray, weights: FloatArray, found: FloatArray) -> None:
    for k in range(len(weights)):
        for i in range(len(words)):
            for digit in range(64):
                set_ = (words[i] >> np.uint64(digit)) & np.uint64(1)
                found[k, digit] += weights[k, i] * np.float32(set_)


MOST_FACTORS = 5
"""Bits of one parity."""

MOST_COLUMNS = 300
"""Columns whose bits are read, from the first."""

MOST_WORDS, PAIRED_WORDS = 12_000, 30_000
"""Words that are counted for each record in each search of products, and in that of all pairs of
bits; columns or bits beyond them are left out. Time grows with the records: of few of them the best
of many products is chance."""

KEPT = 6
"""Candidates that each search gives."""


@dataclass(frozen=True, eq=False)
class Parity:
    """The exclusive-or of some items, as a sign.

    Parameters
    ----------
    digits
        How values are cut.
    places : (n_factors, 2)
        Column and item of each factor.
    """

    digits: Digits
    places: IntArray

    def read(self, x: FloatArray) -> FloatArray:
        """(n_records, 1), 1 where the parity is even, else -1."""
        odd = self.digits.read(x, self.places).sum(axis=1) % 2
        return np.asarray(1.0 - 2.0 * odd, np.float64)[:, None]


def find_parities(
    x: FloatArray,
    classes: IntArray,
    strata: IntArray,
    digits: Digits,
    most_factors: int = MOST_FACTORS,
) -> Iterator[Parity]:
    """The parities that go with a class most, within strata of records that look alike.

    Parameters
    ----------
    x : (n_records, n_columns)
        Values as they are released.
    classes, strata : (n_records,)
        Codes from 0. What strata know of the classes does not count: many parities would else
        repeat what one bit tells.
    digits
        Of these columns.
    most_factors
        Bits of one parity.

    Notes
    -----
    Counted are single bits, all pairs of bits, and products of three to five of one item (a sign,
    or the same digit) over columns, each as far as `MOST_WORDS` goes: of 8,192 records all pairs
    of 1,900 bits, all products of five signs of 32 columns, and of five digits of 17; nearly the
    same of fewer records, whose words are fewer in proportion.
    """
    cells = _Cells.of(classes, strata)
    columns = np.arange(min(x.shape[1], MOST_COLUMNS))
    parts = digits.split(x, columns)
    words = np.stack([cells.pack(item_of(parts, item)) for item in range(BINARY)])
    varies = cells.vary(words)
    for factors in range(1, most_factors + 1):
        for first, most in _plan(words.shape, factors, MOST_WORDS * len(x) // cells.cost):
            some = np.ascontiguousarray(words[first:, :most])
            for item, chosen in _scan(cells, some, varies[first:, :most], factors):
                yield _parity(digits, [(j, first + item) for j in chosen])
    places = np.argwhere(varies.T)  # columns in order, items within
    # Signs, then multiples of a step, then the mantissa, whose bits are mostly the same ones.
    kind = np.digitize(places[:, 1], [MANTISSA, NEGATIVE])
    places = places[np.argsort(-kind, kind="stable")]
    places = places[: int(np.sqrt(2 * PAIRED_WORDS * len(x) / cells.cost))]
    flat = words[places[:, 1], places[:, 0]][None]
    for _, chosen in _scan(cells, flat, np.ones(flat.shape[:2], np.bool_), 2):
        yield _parity(digits, [tuple(places[i]) for i in chosen])


def _parity(digits: Digits, places: list[tuple[int, int]]) -> Parity:
    return Parity(digits, np.array(places, np.int64))


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
    starts : (n_cells + 1,)
        First word of each cell, and their number.
    sums : (n_cells, n_classes + n_strata)
        What a one of a cell adds: to the excess of each class over what its strata let expect,
        and to the share of each stratum.
    spread : (n_strata, n_classes)
        Variance of the excess, in units of share times one minus share.
    weights : (n_classes,)
        So that the statistic is a chi-square of one degree less than classes.
    """

    at: IntArray
    starts: IntArray
    sums: FloatArray
    spread: FloatArray
    weights: FloatArray

    @classmethod
    def of(cls, classes: IntArray, strata: IntArray) -> _Cells:
        n_classes, n_strata = int(classes.max()) + 1, int(strata.max()) + 1
        cell = strata * n_classes + classes
        sizes = np.bincount(cell, minlength=n_strata * n_classes)
        starts = np.concatenate([[0], np.cumsum(np.maximum((sizes + 63) // 64, 1))])
        order = np.argsort(cell, kind="stable")
        within = np.arange(len(cell)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        at = np.empty(len(cell), np.int64)
        at[order] = 64 * starts[cell[order]] + within
        table = sizes.reshape(n_strata, n_classes).astype(np.float64)
        total = np.maximum(table.sum(axis=1, keepdims=True), 1.0)
        shares = table / total
        excess = np.eye(n_classes)[None] - shares[:, None]  # by stratum, own class, class
        strata_of = np.repeat(np.diag(1.0 / total[:, 0]), n_classes, axis=0)
        sums = np.hstack([excess.reshape(-1, n_classes), strata_of])
        spread = table * (1 - shares) * total / np.maximum(total - 1, 1.0)
        return cls(at, starts.astype(np.int64), sums, spread, 1.0 - table.sum(axis=0) / len(cell))

    @property
    def cost(self) -> int:
        """Words that one product takes, its statistic included (four products of it a word)."""
        return int(self.starts[-1]) + self.sums.size // 4

    def pack(self, bits: FloatArray) -> WordArray:
        """Words (n_columns, n_words) of bits (n_records, n_columns)."""
        placed = np.zeros((64 * int(self.starts[-1]), bits.shape[1]), np.uint8)
        placed[self.at] = bits
        return np.ascontiguousarray(np.packbits(placed, axis=0).T).view(np.uint64)

    def vary(self, words: WordArray) -> BoolArray:
        """Which rows of words are neither all zeros nor all ones."""
        ones = np.bitwise_count(words).sum(axis=-1, dtype=np.int64)
        return np.asarray((ones > 0) & (ones < len(self.at)))

    def measure(self, words: WordArray, other: WordArray, first: int) -> FloatArray:
        """Statistic of the exclusive-or of rows with another: see `count_exclusive`."""
        found = count_exclusive(words, other, first, self.starts) @ self.sums
        n_classes = len(self.weights)
        excess, share = found[..., :n_classes], found[..., n_classes:]
        variance = (share * (1 - share)) @ self.spread
        return np.asarray((excess**2 / np.maximum(variance, 1e-3)) @ self.weights)


def _scan(
    cells: _Cells, words: WordArray, varies: BoolArray, factors: int
) -> list[tuple[int, tuple[int, ...]]]:
    """Group and columns of the products of most statistic, (n_groups, n_columns, n_words)."""
    if can_compile():
        about = (cells.starts, cells.sums, cells.spread, cells.weights)
        sizes, places = scan_products(words, varies, *about, factors, KEPT)
        order = np.argsort(-sizes, kind="stable")
        return [(int(p[0]), tuple(map(int, p[1:]))) for p in places[order] if p[0] >= 0]
    best: list[tuple[float, int, tuple[int, ...]]] = []
    for others in combinations(range(words.shape[1] - 1 if factors > 1 else 0), factors - 1):
        first = others[-1] + 1 if others else 0
        chosen = list(others)
        joined = np.bitwise_xor.reduce(words[:, chosen], axis=1)  # zeros of none
        whole: BoolArray = np.all(varies[:, chosen], axis=1, keepdims=True)
        counted = varies[:, first:] & whole
        found: FloatArray = np.where(counted, cells.measure(words, joined, first), 0.0)
        if len(best) == KEPT and found.max() <= best[0][0]:
            continue
        for place in np.argsort(found, axis=None)[::-1][:KEPT]:
            group, column = divmod(int(place), found.shape[1])
            heapq.heappush(best, (float(found[group, column]), group, (*others, first + column)))
        best = heapq.nlargest(KEPT, best)[::-1]
    return [(group, chosen) for _, group, chosen in reversed(best)]
