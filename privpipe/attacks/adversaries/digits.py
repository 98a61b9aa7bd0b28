"""Digits of released values, one binary item at a time: what parities are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privpipe.protocols import FloatArray, IntArray, WordArray

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
