"""A referee of mappings in sixty decimal digits: what is claimed, against what the numbers give.

Small alphabets only. Every float is taken as the exact rational it is; sums, products and
logarithms are decimal. No array, no block, no shortcut, and nothing of the package.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import numpy as np

DIGITS = 60


def _exact(table: np.ndarray) -> list[list[Decimal]]:
    return [[Decimal(float(v)) for v in row] for row in np.asarray(table, dtype=np.float64)]


def judge(
    joint: np.ndarray, distances: np.ndarray, mapping: Any, budget: float
) -> tuple[Decimal, Decimal, Decimal, Decimal]:
    """Information, bound, distortion beyond the budget, and error of the worst column.

    Parameters
    ----------
    joint : (n_private, n_symbols)
    distances : (n_symbols, n_symbols)
        Original (row) to released (column).
    mapping
        With `mapping` (released by original), `potentials` and `multiplier`.
    budget
    """
    with localcontext() as context:
        context.prec = DIGITS
        context.Emax, context.Emin = 10**9, -(10**9)
        p, d = _exact(joint), _exact(distances)
        x, g = _exact(mapping.mapping.toarray()), _exact(mapping.potentials)
        total = sum(map(sum, p), Decimal(0))
        p = [[v / total for v in row] for row in p]
        values, symbols = range(len(p)), range(len(p[0]))
        assert all(x[i][j] >= 0 for i in symbols for j in symbols)
        sums = [sum(x[i][j] for i in symbols) for j in symbols]
        column_error = max(abs(s - 1) for s in sums)
        x = [[x[i][j] / sums[j] for j in symbols] for i in symbols]
        mass = [sum(p[a][j] for a in values) for j in symbols]
        prior = [sum(p[a]) for a in values]
        information = Decimal(0)
        for i in symbols:
            cells = [sum(p[a][j] * x[i][j] for j in symbols) for a in values]
            q = sum(cells)
            for a in values:
                if cells[a] > 0:
                    information += cells[a] * (cells[a] / (prior[a] * q)).ln()
        spent = sum(mass[j] * x[i][j] * d[j][i] for i in symbols for j in symbols)
        bound = _bound(p, prior, d, g, Decimal(float(mapping.multiplier)), Decimal(float(budget)))
        return information, bound, spent - Decimal(float(budget)), column_error


def _bound(
    p: list[list[Decimal]],
    prior: list[Decimal],
    d: list[list[Decimal]],
    g: list[list[Decimal]],
    multiplier: Decimal,
    budget: Decimal,
) -> Decimal:
    """The Lagrangian dual at the potentials, each symbol's shifted down where it sums above 1."""
    values, symbols = range(len(p)), range(len(d))
    shift = [
        max(Decimal(0), sum((prior[a] * g[i][a].exp() for a in values), Decimal(0)).ln())
        for i in symbols
    ]
    mass = [sum(p[a][j] for a in values) for j in symbols]
    total = Decimal(0)
    for j in symbols:
        total += min(
            sum((p[a][j] * (g[i][a] - shift[i]) for a in values), Decimal(0))
            + multiplier * mass[j] * d[j][i]
            for i in symbols
        )
    return total - multiplier * budget
