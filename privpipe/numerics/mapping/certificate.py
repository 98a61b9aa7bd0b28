"""Recompute what a privacy mapping claims, from its numbers alone, over all pairs.

This module and its kernels share no code with the solvers: the definitions, and nothing else.
Weak duality in one line: for potentials with ``sum_a p_a exp(g_ia) <= 1`` and ``lam >= 0`` every
feasible mapping has information at least
``sum_j p_j min_i [sum_a p(a|j) g_ia + lam d_ij] - lam Delta``, because
``m log(m / (p_a q)) >= m g - p_a q exp(g) + m`` for every cell. The bound reported is that number
less the rounding error of all that was added up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.errors import InputError, OptionError
from privpipe.numerics.mapping.certificate_kernels import (
    sum_block_prices,
    sum_code_prices,
    sum_ordered_prices,
)
from privpipe.protocols import FloatArray, IntArray

# Distances held at once: 32 MiB, whatever the alphabet.
_BLOCK = 2**22
_EPS = 2.0**-52
# Potentials below this count as this: exp of it is the least positive float64.
_FARTHEST = -745.0
_SUM_TOLERANCE = 1e-6
_KINDS = {"hamming": 0, "squared": 1, "absolute": 2}
# Below it pricing all pairs costs less than sorting. Above, runs of symbols are passed over where
# a bound of the whole run is dearer than the best symbol found: narrow runs within wide ones, of
# about 8 * n ** .5 symbols, so that neither level has many to look at. Which pairs are passed over
# is proved in floats, 4 eps of the terms on the safe side (`_least`).
_LINE_FROM = 512
_NARROW = 32


@dataclass(frozen=True)
class MappingCertificate:
    """What a mapping achieves and what no mapping can.

    Parameters
    ----------
    information
        Mutual information of private value and released symbol, nats.
    lower_bound
        No mapping within the budget has less, nats; rounding is taken off.
    gap
        Their difference, nats. Negative only for a mapping beyond the budget, or within
        `rounding`.
    distortion
        Mean distortion of the mapping.
    excess
        Distortion beyond the budget, not negative.
    column_error
        Largest deviation of a column's sum from 1.
    rounding
        Largest error of information and bound together, nats.
    """

    information: float
    lower_bound: float
    gap: float
    distortion: float
    excess: float
    column_error: float
    rounding: float


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
        If `multiplier` is negative or not finite, or the distortion is not known.
    InputError
        If the joint, the mapping or the potentials are none: a negative or non-finite number,
        another shape, a column whose sum is not 1 within 1e-6.

    Notes
    -----
    Guarantee: the optimum is at least `lower_bound` in exact arithmetic, for distances as they
    are computed in float64. Every cost is lowered by its own rounding error before the least
    is taken. The work is n_symbols squared; on an ordered alphabet runs of symbols that cannot
    be cheapest are passed over.

    References
    ----------
    Salamatian et al., SPPM, problem (1); the bound is its Lagrangian dual.
    """
    if not np.isfinite(multiplier) or multiplier < 0:
        raise OptionError(f"multiplier is {multiplier}.", remedy="Use a finite number, 0 or more.")
    # Nothing of the solvers is used from here on: not their sums, nor their distances or prices.
    p = np.asarray(joint, dtype=np.float64)
    x = np.asarray(codes)
    x = x[:, None] if x.ndim == 1 else x
    g = np.asarray(potentials, dtype=np.float64)
    sparse = mapping.tocoo()
    column_error = _check_numbers(p, x, g, sparse)
    p = p / p.sum()
    prior, mass = p.sum(axis=1), p.sum(axis=0)
    released = np.stack(
        [np.bincount(sparse.row, sparse.data * row[sparse.col], len(x)) for row in p]
    ).astype(np.float64)
    information, error = _measure_information(released, len(sparse.data))
    # Any normalised potentials and any multiplier give a bound: a wrong solver costs tightness
    # here, never truth.
    potential, slack = _normalise(g, prior)
    spent = _measure_distortion(x, distortion, sparse, mass)
    # Some roundings per term, and one per addition of the sum over columns.
    eps = _EPS * (len(p) + x.shape[1] + 8)
    priced, size = _price(p, mass, x, potential, float(multiplier), distortion, eps)
    paid = multiplier * distortion_budget
    # Priced costs are lowered one by one; what is left are the sum over columns, of n_symbols + 4
    # additions and so of as many roundings, and the potentials' own normalisation.
    error_bound = (eps + _EPS * (len(x) + 4)) * (size + paid) + slack
    # Information is never negative, so that a bound below 0 says nothing.
    lower = max(0.0, priced - paid - error_bound)
    return MappingCertificate(
        information,
        lower,
        information - lower,
        spent,
        max(0.0, spent - distortion_budget),
        column_error,
        error + error_bound,
    )


def _check_numbers(p: FloatArray, x: npt.NDArray[Any], g: FloatArray, sparse: Any) -> float:
    """Refuse what is no joint, no mapping or no potentials; the largest error of a column."""
    if p.ndim != 2 or not np.isfinite(p).all() or (p < 0).any() or not p.sum() > 0:
        raise InputError(
            f"joint, of shape {p.shape}, is no distribution.",
            remedy="Give finite probabilities of 0 or more (n_private, n_symbols).",
        )
    n = p.shape[1]
    if len(x) != n or sparse.shape != (n, n) or g.shape != (n, len(p)):
        raise InputError(
            f"joint has {len(p)} private values and {n} symbols, but codes has shape {x.shape}, "
            f"mapping {sparse.shape}, potentials {g.shape}.",
            remedy="Give all of one alphabet.",
        )
    if np.isnan(g).any() or (g == np.inf).any():
        raise InputError("potentials are NaN or infinite.", remedy="Give numbers in nats.")
    if not np.isfinite(sparse.data).all() or (sparse.data < 0).any():
        raise InputError(
            "mapping holds a negative or non-finite probability.",
            remedy="Give probabilities of 0 or more.",
        )
    error = float(np.abs(np.bincount(sparse.col, sparse.data, n) - 1).max())
    if error > _SUM_TOLERANCE:
        raise InputError(
            f"a column of mapping sums to 1 within {error:.3g} only.",
            remedy="Divide each column by its sum.",
        )
    return error


def _measure_information(released: FloatArray, n_terms: int) -> tuple[float, float]:
    """Information in nats and its largest rounding error; logarithms are never of a product."""
    prior, q = released.sum(axis=1), released.sum(axis=0)
    a, i = np.nonzero(released > 0)
    cell = released[a, i]
    # Four logarithms rather than one of a ratio: products of small masses would underflow.
    terms = cell * (np.log(cell) - np.log(prior[a]) - np.log(q[i]) + np.log(released.sum()))
    sizes = cell * (8 - np.log(cell) - np.log(prior[a]) - np.log(q[i]))
    # fsum rounds once, so that only the terms' own errors count.
    information = max(0.0, math.fsum(terms))
    return information, _EPS * (math.log2(n_terms + 2) + len(released) + 8) * math.fsum(sizes)


def _normalise(g: FloatArray, prior: FloatArray) -> tuple[FloatArray, float]:
    """Potentials whose sums are at most 1, and by how much in nats they may exceed it."""
    # From below: a larger potential can only be shifted down again, and no inf meets a mass of 0.
    g = np.maximum(g, _FARTHEST)
    top = g.max(axis=1, keepdims=True)
    total = top[:, 0] + np.log(np.exp(g - top) @ prior)
    # Down alone: a sum below 1 is a valid, if weaker, potential, and is not trusted to be raised.
    g = g - np.maximum(total, 0.0)[:, None]
    highest = float(np.abs(top).max()) + float(np.abs(total).max())
    return g, _EPS * (len(prior) + 8 + 2 * highest)


def _price(
    p: FloatArray,
    mass: FloatArray,
    x: npt.NDArray[Any],
    g: FloatArray,
    multiplier: float,
    distortion: Any,
    eps: float,
) -> tuple[float, float]:
    """Sum of the columns' least costs, each less its rounding error, and the size of the terms."""
    joint = np.ascontiguousarray(p.T)
    if isinstance(distortion, str) and distortion in _KINDS:
        kind, place = _KINDS[distortion], x.astype(np.float64)
        # Hamming distance has no order along which a run of symbols could be bounded.
        if kind and x.shape[1] == 1 and len(x) >= _LINE_FROM:
            order = np.argsort(place[:, 0], kind="stable")
            given = (joint[order], mass[order], np.ascontiguousarray(g[order]), multiplier)
            # About 8 sqrt(n) symbols: looking at all wide runs costs what looking into a few costs.
            wide = _NARROW * max(1, math.isqrt(len(x)) // 4)
            positions = np.ascontiguousarray(place[order, 0])
            return _as_pair(sum_ordered_prices(*given, positions, kind == 1, _NARROW, wide, eps))
        given = (joint, mass, np.ascontiguousarray(g), multiplier)
        return _as_pair(sum_code_prices(*given, np.ascontiguousarray(place), kind, eps))
    total, size, step = 0.0, 0.0, max(1, _BLOCK // len(x))
    for a in range(0, len(x), step):
        rows = slice(a, min(a + step, len(x)))
        d = np.ascontiguousarray(_distances(distortion, x, rows, slice(None)))
        given = (joint[rows], mass[rows], np.ascontiguousarray(g), multiplier)
        found = sum_block_prices(*given, d, eps)
        total, size = total + float(found[0]), size + float(found[1])
    return total, size


def _as_pair(found: tuple[float, float]) -> tuple[float, float]:
    return float(found[0]), float(found[1])


def _measure_distortion(
    x: npt.NDArray[Any], distortion: Any, sparse: Any, mass: FloatArray
) -> float:
    """Mean distortion of the mapping."""
    y = sparse.data * mass[sparse.col]
    if isinstance(distortion, str):
        return math.fsum(y * _of_codes(distortion, x[sparse.col], x[sparse.row]))
    # Only a block of the distances is held; each block takes the pairs of its own columns.
    order = np.argsort(sparse.col, kind="stable")
    spent, step = [], max(1, _BLOCK // len(x))
    for a in range(0, len(x), step):
        rows = slice(a, min(a + step, len(x)))
        inside = order[slice(*np.searchsorted(sparse.col[order], [rows.start, rows.stop]))]
        d = _distances(distortion, x, rows, slice(None))
        spent.append(math.fsum(y[inside] * d[sparse.col[inside] - a, sparse.row[inside]]))
    return math.fsum(spent)


def _distances(distortion: Any, x: npt.NDArray[Any], rows: slice, columns: slice) -> FloatArray:
    if callable(distortion):
        return np.asarray(distortion(x[rows], x[columns]), dtype=np.float64)
    if isinstance(distortion, str):
        return _of_codes(distortion, x[rows, None], x[None, columns])
    return np.asarray(distortion, dtype=np.float64)[rows, columns]


def _of_codes(kind: str, left: npt.NDArray[Any], right: npt.NDArray[Any]) -> FloatArray:
    if kind == "hamming":
        return np.asarray((left != right).sum(axis=-1), dtype=np.float64)
    away = left.astype(np.float64) - right
    if kind == "squared":
        return np.asarray((away**2).sum(axis=-1))
    if kind == "absolute":
        return np.asarray(np.abs(away).sum(axis=-1))
    raise OptionError(
        f"distortion is {kind!r}.",
        remedy="Use 'hamming', 'squared', 'absolute', a matrix or a function.",
    )
