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

from privpipe.attacks.adversaries.bit_counts import count_exclusive, scan_products
from privpipe.attacks.adversaries.digits import BINARY, MANTISSA, NEGATIVE, Digits, item_of
from privpipe.numerics.compiler import can_compile
from privpipe.protocols import BoolArray, FloatArray, IntArray, WordArray

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
