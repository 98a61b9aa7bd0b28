"""How many records of each cell have a parity: words joined by exclusive-or, and counted."""

from collections.abc import Iterator

import numpy as np

from privpipe.numerics.compiler import can_compile, compiled
from privpipe.protocols import IntArray, WordArray

COUNTED = 1 << 16
"""Products that are counted at a time: their counts and statistics fit a cache."""

_PAIRS, _FOURS = np.uint64(0x3333333333333333), np.uint64(0x0F0F0F0F0F0F0F0F)
_HALVES, _BYTES = np.uint64(0x5555555555555555), np.uint64(0x0101010101010101)
_ONE, _TWO, _FOUR, _LAST = (np.uint64(shift) for shift in (1, 2, 4, 56))


def list_products(n_columns: int, factors: int, n_groups: int) -> Iterator[IntArray]:
    """All sets of so many columns in order, (n_sets, factors), as many as are counted at a time."""
    sets = np.arange(n_columns)[:, None]
    for left in range(factors - 1, 0, -1):
        # Each is continued by every later column that leaves room for those that follow.
        more = np.maximum(n_columns - left - sets[:, -1], 0)
        firsts = np.repeat(np.cumsum(more) - more, more)
        last = np.repeat(sets[:, -1], more) + 1 + np.arange(more.sum()) - firsts
        sets = np.column_stack([np.repeat(sets, more, axis=0), last])
    step = max(1, COUNTED // n_groups)
    yield from (sets[at : at + step] for at in range(0, len(sets), step))


def count_ones(words: WordArray, sets: IntArray, starts: IntArray) -> IntArray:
    """Ones of each product in each cell, (n_cells, n_groups, n_sets).

    Parameters
    ----------
    words : (n_groups, n_columns, n_words)
    sets : (n_sets, factors)
        Columns whose words are joined.
    starts : (n_cells,)
        First word of each cell; each cell has a word.
    """
    if can_compile():
        return np.asarray(_count(words, sets, np.append(starts, words.shape[2])))
    joined = np.bitwise_count(np.bitwise_xor.reduce(words[:, sets], axis=2))
    return np.asarray(np.add.reduceat(joined, starts, axis=-1, dtype=np.uint32).transpose(2, 0, 1))


@compiled
def _count(words: WordArray, sets: IntArray, ends: IntArray) -> IntArray:
    n_sets, factors = sets.shape
    found = np.empty((len(ends) - 1, len(words), n_sets), np.uint32)
    joined = np.empty(words.shape[2], np.uint64)
    for group in range(len(words)):
        for at in range(n_sets):
            # All but the last column are mostly those of the set before.
            same = at > 0
            for factor in range(factors - 1):
                same &= sets[at, factor] == sets[at - 1, factor]
            if not same:
                joined[:] = 0
                for factor in range(factors - 1):
                    joined ^= words[group, sets[at, factor]]
            last = words[group, sets[at, factors - 1]]
            for cell in range(len(ends) - 1):
                ones, first, end = np.uint64(0), ends[cell], ends[cell + 1]
                # Of parts that are walked side by side LLVM knows that none is left: vectors.
                for one, other in zip(joined[first:end], last[first:end]):  # noqa: B905  numba has no strict
                    # This sum is known to LLVM as the instruction that counts bits.
                    bits = one ^ other
                    bits -= (bits >> _ONE) & _HALVES
                    bits = (bits & _PAIRS) + ((bits >> _TWO) & _PAIRS)
                    ones += (((bits + (bits >> _FOUR)) & _FOURS) * _BYTES) >> _LAST
                found[cell, group, at] = ones
    return found
