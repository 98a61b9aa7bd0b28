"""Factorisation of the interior point's Newton matrix, dense or sparse.

The matrix ``[[D2, -C], [-C', D1]]`` has a small block per symbol and a number per column, and
one edge per pair. Eliminating the columns leaves a matrix over the symbols, dense for
categories; on an ordered alphabet the pairs are a union of monotone staircases and a
fill-reducing order leaves next to no fill.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as spl

from privpipe.numerics.mapping.problem.programme import Pairs
from privpipe.protocols import FloatArray, IntArray


class DenseNewton:
    """Cholesky of the Schur complement over the symbols; for up to a few thousand unknowns."""

    def __init__(self, pairs: Pairs, n_symbols: int, n_columns: int, n_free: int) -> None:
        self._shape = (n_symbols, n_free)
        self._rows = (pairs.symbols[:, None] * n_free + np.arange(n_free)).ravel()
        self._columns = np.repeat(pairs.columns, n_free)
        self._size = (n_symbols * n_free, n_columns)

    def factor(self, blocks: FloatArray, d1: FloatArray, c: FloatArray) -> None:
        """Factorise; blocks (n_symbols, f, f), d1 (n_columns,), c (n_pairs, f)."""
        n, f = self._shape
        self._d1 = d1
        self._c = sp.csr_array((c.ravel(), (self._rows, self._columns)), shape=self._size)
        scaled = self._c.multiply(1.0 / np.sqrt(d1)).toarray()
        schur = -(scaled @ scaled.T)
        view = schur.reshape(n, f, n, f)
        index = np.arange(n)
        view[index, :, index, :] += blocks
        diagonal = np.einsum("iaa->ia", blocks).ravel()
        schur[np.arange(n * f), np.arange(n * f)] += 1e-13 * diagonal + 1e-300
        self._factor = scipy.linalg.cho_factor(
            schur, lower=True, overwrite_a=True, check_finite=False
        )

    def solve(self, bt: FloatArray, bn: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Solve for the symbols' and the columns' unknowns."""
        right = bt.ravel() + self._c @ (bn / self._d1)
        dt = scipy.linalg.cho_solve(self._factor, right, check_finite=False)
        return dt.reshape(self._shape), (bn + self._c.T @ dt) / self._d1


class SparseNewton:
    """Sparse factorisation of the whole matrix; the order is found once per set of pairs."""

    def __init__(self, pairs: Pairs, n_symbols: int, n_columns: int, n_free: int) -> None:
        self._shape = (n_symbols, n_free)
        size = self._size = n_symbols * n_free + n_columns
        block = np.arange(n_symbols * n_free).reshape(n_symbols, n_free)
        symbol = block[pairs.symbols].ravel()
        column = n_symbols * n_free + np.repeat(pairs.columns, n_free)
        diagonal = np.arange(n_symbols * n_free, size)
        rows = [np.repeat(block, n_free, axis=1).ravel(), diagonal, symbol, column]
        columns = [np.tile(block, (1, n_free)).ravel(), diagonal, column, symbol]
        row, col = np.concatenate(rows), np.concatenate(columns)
        self._order = _fill_reducing_order(row, col, size)
        inverse = np.empty(size, np.int64)
        inverse[self._order] = np.arange(size)
        key = inverse[col] * size + inverse[row]
        self._take = np.argsort(key)
        self._indices = inverse[row][self._take].astype(np.int32)
        self._pointers = np.zeros(size + 1, np.int32)
        np.cumsum(np.bincount(inverse[col], minlength=size), out=self._pointers[1:])

    def factor(self, blocks: FloatArray, d1: FloatArray, c: FloatArray) -> None:
        """Factorise; blocks (n_symbols, f, f), d1 (n_columns,), c (n_pairs, f)."""
        edges = -c.ravel()
        data = np.concatenate([blocks.ravel(), d1, edges, edges])[self._take]
        matrix = sp.csc_array((data, self._indices, self._pointers), shape=(self._size,) * 2)
        self._factor = _symmetric_lu(matrix, "NATURAL")

    def solve(self, bt: FloatArray, bn: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Solve for the symbols' and the columns' unknowns."""
        x = np.empty(self._size)
        x[self._order] = self._factor.solve(np.concatenate([bt.ravel(), bn])[self._order])
        n = self._shape[0] * self._shape[1]
        return x[:n].reshape(self._shape), x[n:]


def _symmetric_lu(matrix: Any, order: str) -> Any:
    return spl.splu(
        matrix, permc_spec=order, diag_pivot_thresh=0.0, options={"SymmetricMode": True}
    )


def _fill_reducing_order(row: IntArray, col: IntArray, size: int) -> IntArray:
    """Minimum degree on a diagonally dominant matrix of the same pattern."""
    off = row != col
    graph = sp.csc_array((np.full(int(off.sum()), -1.0), (row[off], col[off])), shape=(size, size))
    degree = np.bincount(col[off], minlength=size) + 1.0
    factor = _symmetric_lu(sp.csc_array(graph + sp.diags_array(degree)), "MMD_AT_PLUS_A")
    order = np.empty(size, np.int64)
    order[factor.perm_c] = np.arange(size)
    return order
