"""Distances between symbols: Hamming, squared, absolute over codes; a matrix.

A distance answers for given pairs and for blocks of columns, and never holds n x n numbers
unless the user gave them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from privpipe.protocols import FloatArray, IntArray, WordArray

DistanceKind = Literal["hamming", "squared", "absolute"]


@dataclass(frozen=True, eq=False)
class CodeDistance:
    """A distance between rows of codes.

    Parameters
    ----------
    kind
        "hamming": number of differing attributes. "squared": sum of squared differences.
        "absolute": sum of absolute differences.
    symbols : (n_symbols, n_attributes)
        Codes or positions of the symbols that may be released, float64.
    columns : (n_columns, n_attributes)
        Those of the original symbols.
    """

    kind: DistanceKind
    symbols: FloatArray
    columns: FloatArray

    @property
    def n_symbols(self) -> int:
        return len(self.symbols)

    @property
    def n_columns(self) -> int:
        return len(self.columns)

    def pairs(self, symbols: IntArray, columns: IntArray) -> FloatArray:
        total = np.zeros(len(symbols))
        for k in range(self.symbols.shape[1]):
            total += self._one(self.symbols[symbols, k], self.columns[columns, k])
        return total

    def block(self, start: int, stop: int) -> FloatArray:
        total = np.zeros((stop - start, self.n_symbols))
        for k in range(self.symbols.shape[1]):
            total += self._one(self.symbols[:, k], self.columns[start:stop, k, None])
        return total

    def columns_of(self, columns: IntArray) -> CodeDistance:
        return CodeDistance(self.kind, self.symbols, self.columns[columns])

    def _one(self, a: FloatArray, b: FloatArray) -> FloatArray:
        if self.kind == "hamming":
            return np.asarray(a != b, dtype=np.float64)
        return np.asarray((a - b) ** 2) if self.kind == "squared" else np.abs(a - b)


@dataclass(frozen=True, eq=False)
class MatrixDistance:
    """A distance given as numbers, (n_columns, n_symbols), for small alphabets."""

    matrix: FloatArray

    @property
    def n_symbols(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def n_columns(self) -> int:
        return int(self.matrix.shape[0])

    def pairs(self, symbols: IntArray, columns: IntArray) -> FloatArray:
        return np.asarray(self.matrix[columns, symbols])

    def block(self, start: int, stop: int) -> FloatArray:
        return np.asarray(self.matrix[start:stop])

    def columns_of(self, columns: IntArray) -> MatrixDistance:
        return MatrixDistance(self.matrix[columns])


def pack_codes(codes: FloatArray) -> WordArray | None:
    """Pack up to eight attributes in each 64-bit word, one byte each, for counting differences.

    Parameters
    ----------
    codes : (n, n_attributes)
        Integer codes.

    Returns
    -------
    words : (n_words, n), or None where a code is outside -1 .. 254 or no whole number.
    """
    # -1 is a missing attribute, and +1 makes it 0: 256 values fit a byte.
    if codes.size and (codes.min() < -1 or codes.max() > 254 or (codes % 1).any()):
        return None
    n, n_attributes = codes.shape
    table = np.zeros((n, -(-n_attributes // 8) * 8), np.uint8)
    table[:, :n_attributes] = (codes + 1).astype(np.uint8)
    return np.ascontiguousarray(table.view(np.uint64).T)
