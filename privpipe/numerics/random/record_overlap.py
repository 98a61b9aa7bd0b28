"""How many records two sets have in common, by words of which one is enough to know one again.

Words are read a range of their values at a time, by whatever equals them. What is held in memory is
of one range, while words and marks of many records lie in a temporary file.
"""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from privpipe.numerics.random.record_grids import FINE, N_GRIDS
from privpipe.protocols import BoolArray, FloatArray, IntArray, WordArray

MOST_AT_ONCE = 1 << 22
"""Words that are hashed at once, and records from which on a temporary file holds theirs."""


@dataclass(frozen=True)
class Overlap:
    """How much two sets of records have in common.

    Parameters
    ----------
    mine, other
        Share of each that the other holds; 0 where no more meet than would by chance.
    by_profile
        Whether records are equal as profiles: then other people may have the same.
    """

    mine: float
    other: float
    by_profile: bool = False


def make_words(n_records: int) -> WordArray:
    """Words of so many records, all of them 0, (n_records, N_GRIDS); a grid's are side by side."""
    return cast(WordArray, _make(n_records * N_GRIDS, np.uint64).reshape(N_GRIDS, n_records).T)


def _make(n: int, kind: type[np.generic]) -> Any:
    if n <= MOST_AT_ONCE:
        return np.zeros(n, kind)
    # Without a name: it is gone with the array, and with a process that is killed.
    with tempfile.TemporaryFile() as file:
        # Of a full disk an error now, not a signal that ends the process when a page is written.
        os.posix_fallocate(file.fileno(), 0, n * np.dtype(kind).itemsize)
        return np.memmap(file, kind, shape=(n,))


@dataclass(frozen=True)
class _Range:
    """Words whose first bits are a number, 0 excepted."""

    number: int
    n_bits: int

    def scan(
        self, words: WordArray, grid: int, unless: BoolArray | None = None
    ) -> Iterator[tuple[IntArray, WordArray]]:
        """Rows whose word of a grid is here, and these words, some records at a time.

        Of grid `N_GRIDS` the sums of words. Rows that are marked are left out.
        """
        for at in range(0, max(len(words), 1), MOST_AT_ONCE):
            some = words[at : at + MOST_AT_ONCE]
            # Words are random: one sum of two different rows is equal once in 2^64.
            found = some[:, grid] if grid < N_GRIDS else some.sum(axis=1, dtype=np.uint64)
            here = found != 0
            if self.n_bits:
                here &= (found >> np.uint64(64 - self.n_bits)) == self.number
            if unless is not None:
                here &= ~unless[at : at + len(some)]
            rows = np.flatnonzero(here)
            yield at + rows, np.asarray(found[rows])

    def count(
        self, words: WordArray, grid: int, unless: BoolArray | None = None
    ) -> tuple[WordArray, IntArray]:
        """Different words of this range in a grid, in order, and how often each is there."""
        # With counts by a sort; without, np.unique hashes, which takes fifty times as long (2.3).
        parts = [np.unique(some, return_counts=True) for _, some in self.scan(words, grid, unless)]
        if len(parts) == 1:
            return parts[0]
        found, counts = (np.concatenate(some) for some in zip(*parts, strict=True))
        found, which = np.unique(found, return_inverse=True)
        return found, np.bincount(which, counts, len(found)).astype(np.int64)


def _locate(words: WordArray, ordered: WordArray) -> IntArray:
    """Place of each word among different ones in order, -1 where it is not among them."""
    if not len(ordered):
        return np.full(len(words), -1)
    # In order, too: as they come, each is a miss of the cache, and takes six times as long.
    order, found = np.argsort(words), np.empty(len(words), np.int64)
    words = words[order]
    at = np.minimum(np.searchsorted(ordered, words), len(ordered) - 1)
    found[order] = np.where(ordered[at] == words, at, -1)
    return found


def _cut(*tables: WordArray) -> list[_Range]:
    """Ranges of about as many words as are hashed at once."""
    n_bits = (max(map(len, tables)) // MOST_AT_ONCE).bit_length()
    return [_Range(number, n_bits) for number in range(1 << n_bits)]


def measure_overlap(mine: WordArray, other: WordArray) -> Overlap:
    """How much of each of two sets of records, in the words of one frame, is in the other.

    Chance meetings are expected as often as different records of the other set meet one another;
    a share counts where clearly more meet. Where records are few profiles every equal one counts.

    Parameters
    ----------
    mine, other : (n_records, N_GRIDS), uint64

    Examples
    --------
    >>> words = np.arange(1, 41, dtype=np.uint64).reshape(10, 4)
    >>> measure_overlap(words[:5], words)
    Overlap(mine=1.0, other=0.5, by_profile=False)
    """
    tables, ranges = (mine, other), _cut(mine, other)
    repeats = [_find_repeated(words, ranges) for words in tables]
    sizes = [sum(len(rows) for one in ranges for rows, _ in one.scan(t, N_GRIDS)) for t in tables]
    if not all(sizes):
        return Overlap(0.0, 0.0)
    distinct = [n - int(rows.sum()) for n, rows in zip(sizes, repeats, strict=True)]
    most = int(np.argmax(distinct))
    chance = _bound_chance(tables[most], repeats[most], distinct[most], ranges)
    found = [_make(len(words), np.bool_) for words in tables]
    for grid, expected in enumerate(chance * distinct[0] * distinct[1]):
        for all_met, met in zip(found, _find_met(tables, grid, ranges), strict=True):
            if met.sum() > expected + 4 * np.sqrt(expected):
                all_met |= met
    shares = [float(met.sum()) / n for met, n in zip(found, sizes, strict=True)]
    repeated = max(1 - a / b for a, b in zip(distinct, sizes, strict=True))
    if by_profile := repeated > max(shares) / 2:
        n_pairs = _count_pairs(tables, ranges)
        shares = [n_pairs / n for n in sizes]
    return Overlap(shares[0], shares[1], by_profile and max(shares) > 0)


def _find_repeated(words: WordArray, ranges: list[_Range]) -> BoolArray:
    """Rows that are equal to an earlier one."""
    found: BoolArray = _make(len(words), np.bool_)
    for one in ranges:
        pieces = []
        for rows, sums in one.scan(words, N_GRIDS):
            again = pd.Series(sums).duplicated().to_numpy()
            found[rows[again]] = True
            pieces.append((rows[~again], sums[~again]))
        rows, sums = (np.concatenate(some) for some in zip(*pieces, strict=True))
        found[rows[pd.Series(sums).duplicated().to_numpy()]] = True
    return found


def _bound_chance(
    words: WordArray, repeated: BoolArray, n_distinct: int, ranges: list[_Range]
) -> FloatArray:
    """Upper limit of how often two different records share a word, (N_GRIDS,).

    By the pairs that do among the different ones of a set. Where none does there may be three
    (Poisson, 95 %); in the fine grid at least 2^16 times fewer do than in the coarse one.
    """
    n_pairs = max(n_distinct * (n_distinct - 1) / 2, 1.0)
    met = np.zeros(N_GRIDS)
    for grid in range(N_GRIDS):
        left = n_distinct
        for one in ranges:
            _, counts = one.count(words, grid, unless=repeated)
            met[grid] += float((counts * (counts - 1.0) / 2).sum())
            left -= int(counts.sum())
        met[grid] += left * (left - 1.0) / 2  # of records without a word any two may be the same
    rates = np.minimum((met + 3.0 + 2 * np.sqrt(met)) / n_pairs, 1.0)
    rates[-1] = min(met[-1] / n_pairs + rates[0] * 2.0**-FINE, 1.0)
    return np.asarray(rates, np.float64)


def _find_met(
    tables: tuple[WordArray, WordArray], grid: int, ranges: list[_Range]
) -> list[BoolArray]:
    """Records of each table whose word is in the other's as well."""
    met = [_make(len(words), np.bool_) for words in tables]
    for one in ranges:
        a, b = (one.count(words, grid)[0] for words in tables)
        common = a[_locate(a, b) >= 0]
        for words, found in zip(tables, met, strict=True) if len(common) else ():
            for rows, some in one.scan(words, grid):
                found[rows[_locate(some, common) >= 0]] = True
    return met


def _count_pairs(tables: tuple[WordArray, WordArray], ranges: list[_Range]) -> int:
    """Pairs of one record each that share a word, no record in two of them."""
    paired = [_make(len(words), np.bool_) for words in tables]
    n_pairs = 0
    for grid in reversed(range(N_GRIDS)):  # the finest first: in coarser ones some meet by chance
        for one in ranges:
            left = list(zip(tables, paired, strict=True))
            (a, times), (b, others) = (one.count(words, grid, found) for words, found in left)
            at = _locate(a, b)
            common, most = a[at >= 0], np.minimum(times[at >= 0], others[at[at >= 0]])
            n_pairs += int(most.sum())
            for words, found in left if len(common) else ():
                _mark_first(words, grid, one, common, most, found)
    return n_pairs


def _mark_first(
    words: WordArray, grid: int, here: _Range, these: WordArray, most: IntArray, found: BoolArray
) -> None:
    """Mark the first so many records of each of these words."""
    seen = np.zeros(len(these), np.int64)
    for rows, some in here.scan(words, grid, unless=found):
        at = _locate(some, these)
        rows, at = rows[at >= 0], at[at >= 0]
        rank = pd.Series(at).groupby(at).cumcount().to_numpy() + seen[at]
        found[rows[rank < most[at]]] = True
        seen += np.bincount(at, minlength=len(seen))


def match_rows(mine: WordArray, other: WordArray) -> IntArray:
    """Row of `other` that each row of `mine` is found again in, -1 where in none.

    Of equal records each is given once while there are some left: the k-th to the k-th.

    Examples
    --------
    >>> words = np.arange(1, 13, dtype=np.uint64).reshape(3, 4)
    >>> match_rows(words[[2, 0, 0]], words)
    array([ 2,  0, -1])
    """
    ranges, rows = _cut(mine, other), _make(len(mine), np.int64)
    rows[:] = -1
    found, taken = (_make(len(words), np.bool_) for words in (mine, other))
    for grid in reversed(range(N_GRIDS)):
        for one in ranges:
            a = _count_up(one.scan(mine, grid, unless=found))
            # Joined by hashing: NumPy compares pairs one by one, and took twenty times as long.
            met = a.merge(_count_up(one.scan(other, grid, unless=taken)), on=["word", "rank"])
            rows[met["row_x"]] = met["row_y"]
            found[met["row_x"]] = taken[met["row_y"]] = True
    return np.asarray(rows)


def _count_up(scanned: Iterator[tuple[IntArray, WordArray]]) -> pd.DataFrame:
    """Words of some rows with how often each was met before, so that all pairs are different."""
    rows, words = (np.concatenate(some) for some in zip(*scanned, strict=True))
    rank = pd.Series(words).groupby(words).cumcount()
    return pd.DataFrame({"word": words, "rank": rank, "row": rows})


def is_among(some: WordArray, others: WordArray) -> BoolArray:
    """Which words are among others; none where nothing was read.

    Examples
    --------
    >>> is_among(np.array([0, 1, 2], np.uint64), np.array([2, 0], np.uint64))
    array([False, False,  True])
    """
    # Not np.isin, whose np.unique takes fifty times as long as a sort for words (NumPy 2.3).
    return np.asarray(pd.Series(some).isin(others) & (some != 0), bool)
