"""Counts over bits, 64 at a time: compiled where the compiler loads, else the same in NumPy."""

from __future__ import annotations

import numpy as np

from privpipe.numerics.compiler import can_compile, njit
from privpipe.protocols import BoolArray, FloatArray, IntArray, WordArray


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
