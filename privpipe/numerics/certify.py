"""Recompute what a privacy mapping claims, from its numbers alone, over all pairs.

This module shares no code with the solvers: numpy, the definitions, and blocks of columns.
Weak duality in one line: for potentials with ``sum_a p_a exp(g_ia) <= 1`` and ``lam >= 0`` every
feasible mapping has information at least
``sum_j p_j min_i [sum_a p(a|j) g_ia + lam d_ij] - lam Delta``, because
``m log(m / (p_a q)) >= m g - p_a q exp(g) + m`` for every cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.errors import OptionError
from privpipe.protocols import FloatArray, IntArray

__all__ = ["MappingCertificate", "certify_mapping"]

_BLOCK = 2**22


@dataclass(frozen=True)
class MappingCertificate:
    """What a mapping achieves and what no mapping can.

    Parameters
    ----------
    information
        Mutual information of private value and released symbol, nats.
    lower_bound
        No mapping within the budget has less, nats.
    gap
        Their difference, nats.
    distortion
        Mean distortion of the mapping.
    excess
        Distortion beyond the budget, not negative.
    column_error
        Largest deviation of a column's sum from 1.
    """

    information: float
    lower_bound: float
    gap: float
    distortion: float
    excess: float
    column_error: float


def certify_mapping(
    joint: npt.ArrayLike,
    codes: npt.ArrayLike,
    mapping: Any,
    *,
    multiplier: float,
    potentials: npt.ArrayLike,
    distortion: str | FloatArray | Callable[[IntArray, IntArray], FloatArray] = "hamming",
    distortion_budget: float,
) -> MappingCertificate:
    """Measure a mapping and its lower bound over all pairs in float64.

    Parameters
    ----------
    joint : (n_private, n_symbols)
        Joint probabilities of private value and symbol.
    codes : (n_symbols, n_attributes)
        Codes or positions of the symbols.
    mapping : (n_symbols, n_symbols), sparse
        Probability of each released symbol (row) given the original one (column).
    multiplier
        Nats per unit of distortion.
    potentials : (n_symbols, n_private)
        Nats. Symbols whose ``sum_a p_a exp(g_ia)`` exceeds 1 are shifted down to 1.
    distortion
        "hamming", "squared", "absolute", a matrix (original by released), or a function of
        two blocks of codes.
    distortion_budget
        Largest mean distortion.

    Returns
    -------
    certificate

    Raises
    ------
    OptionError
        If `multiplier` is negative or not finite.

    References
    ----------
    Salamatian et al., SPPM, problem (1); the bound is its Lagrangian dual.
    """
    if not np.isfinite(multiplier) or multiplier < 0:
        raise OptionError(f"multiplier is {multiplier}.", remedy="Use a finite number, 0 or more.")
    p = np.asarray(joint, dtype=np.float64)
    p = p / p.sum()
    prior, mass = p.sum(axis=1), p.sum(axis=0)
    x = np.asarray(codes)
    sparse = mapping.tocoo()
    y = sparse.data * mass[sparse.col]
    released = np.stack(
        [np.bincount(sparse.row, sparse.data * row[sparse.col], len(x)) for row in p]
    )
    product = prior[:, None] * released.sum(axis=0)
    cells = released > 0
    information = float((released[cells] * np.log(released[cells] / product[cells])).sum())
    bound, spent = _walk(p, x, potentials, multiplier, distortion, sparse, y)
    lower = max(0.0, bound - multiplier * distortion_budget)
    sums = np.bincount(sparse.col, sparse.data, len(x))
    return MappingCertificate(
        information,
        lower,
        information - lower,
        spent,
        max(0.0, spent - distortion_budget),
        float(np.abs(sums - 1).max()),
    )


def _walk(
    p: FloatArray,
    x: npt.NDArray[Any],
    potentials: npt.ArrayLike,
    multiplier: float,
    distortion: Any,
    sparse: Any,
    y: FloatArray,
) -> tuple[float, float]:
    """The priced sum over all columns, and the distortion spent, block by block."""
    prior, mass = p.sum(axis=1), p.sum(axis=0)
    g = np.maximum(np.asarray(potentials, dtype=np.float64), -745.0)
    g = g - np.log(np.maximum(np.exp(g) @ prior, 1.0))[:, None]
    order = np.argsort(sparse.col, kind="stable")
    starts = np.searchsorted(sparse.col[order], np.arange(len(x) + 1))
    bound, spent = 0.0, 0.0
    step = max(1, _BLOCK // len(x))
    for a in range(0, len(x), step):
        b = min(a + step, len(x))
        d = _distances(distortion, x, a, b)
        inside = order[starts[a] : starts[b]]
        spent += float(y[inside] @ d[sparse.col[inside] - a, sparse.row[inside]])
        # p_j posterior_j . g_i is joint . g: columns of no probability add nothing.
        cost = p[:, a:b].T @ g.T + multiplier * mass[a:b, None] * d
        bound += float(cost.min(axis=1).sum())
    return bound, spent


def _distances(distortion: Any, x: npt.NDArray[Any], a: int, b: int) -> FloatArray:
    if callable(distortion):
        return np.asarray(distortion(x[a:b], x), dtype=np.float64)
    if not isinstance(distortion, str):
        return np.asarray(distortion, dtype=np.float64)[a:b]
    total = np.zeros((b - a, len(x)))
    for k in range(x.shape[1]):
        left, right = x[a:b, k, None], x[None, :, k]
        if distortion == "hamming":
            total += left != right
        elif distortion == "squared":
            total += (left.astype(np.float64) - right) ** 2
        elif distortion == "absolute":
            total += np.abs(left.astype(np.float64) - right)
        else:
            raise OptionError(
                f"distortion is {distortion!r}.",
                remedy="Use 'hamming', 'squared', 'absolute', a matrix or a function.",
            )
    return total
