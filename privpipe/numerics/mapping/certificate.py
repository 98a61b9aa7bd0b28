"""Recompute what a privacy mapping claims, from its numbers alone, over all pairs.

This module shares no code with the solvers: the definitions, and nothing else.

Weak duality: take potentials with ``sum_a p_a exp(g_ia) <= 1`` and ``lam >= 0``. Every feasible
mapping then has information at least
``sum_j p_j min_i [sum_a p(a|j) g_ia + lam d_ij] - lam Delta``. This holds because
``m log(m / (p_a q)) >= m g - p_a q exp(g) + m`` for every cell.

The bound reported is that number less the rounding error of all that was added up. A price computed
in float64 is only evidence within its rounding error, so what is summed is ``cost - error``. The
error covers every operation that made the cost. So the sum is below the exact one, whatever the
sizes of potentials and distances.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from privpipe.errors import InputError, OptionError
from privpipe.numerics.compiler import njit
from privpipe.protocols import AnyArray, ArrayLike, FloatArray

_EPS = 2.0**-52
# Potentials below this count as this: exp of it is the least positive float64.
_FARTHEST = -745.0
_SUM_TOLERANCE = 1e-6
_KINDS = {"hamming": 0, "squared": 1, "absolute": 2}
_MATRIX = 3
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
    joint: ArrayLike,
    codes: ArrayLike,
    mapping: Any,
    *,
    multiplier: float,
    potentials: ArrayLike,
    distortion: str | FloatArray = "hamming",
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
        "hamming", "squared", "absolute", or a matrix (original by released).
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
        If the joint, the mapping, the potentials or the distances are none. That is a negative or
        non-finite number, another shape, or a column whose sum is not 1 within 1e-6.

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
    gap, excess = information - lower, max(0.0, spent - distortion_budget)
    bound = error + error_bound
    return MappingCertificate(information, lower, gap, spent, excess, column_error, bound)


def _check_numbers(p: FloatArray, x: AnyArray, g: FloatArray, sparse: Any) -> float:
    """Refuse what is no joint, no mapping or no potentials; the largest error of a column."""
    if p.ndim != 2 or not np.isfinite(p).all() or (p < 0).any() or not p.sum() > 0:
        remedy = "Give finite probabilities of 0 or more (n_private, n_symbols)."
        raise InputError(f"joint, of shape {p.shape}, is no distribution.", remedy=remedy)
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
        problem = "mapping holds a negative or non-finite probability."
        raise InputError(problem, remedy="Give probabilities of 0 or more.")
    error = float(np.abs(np.bincount(sparse.col, sparse.data, n) - 1).max())
    if error > _SUM_TOLERANCE:
        problem = f"a column of mapping sums to 1 within {error:.3g} only."
        raise InputError(problem, remedy="Divide each column by its sum.")
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
    return g, _EPS * (len(prior) + 8 + 2 * (float(np.abs(top).max()) + float(np.abs(total).max())))


def _price(
    p: FloatArray, mass: FloatArray, x: AnyArray, g: FloatArray, lam: float, cost: Any, eps: float
) -> tuple[float, float]:
    """Sum of the columns' least costs, each less its rounding error, and the size of the terms."""
    kind = _KINDS[cost] if isinstance(cost, str) else _MATRIX
    place = np.ascontiguousarray(x if kind < _MATRIX else cost, dtype=np.float64)
    # That a distance only adds is used below: pairs are passed over without it.
    if kind == _MATRIX and not ((place >= 0) & (place < np.inf)).all():
        problem = "distortion holds negative or non-finite distances."
        raise InputError(problem, remedy="Give finite distances of 0 or more.")
    if np.abs(g).max(initial=0.0) < _EPS * len(p):
        return 0.0, 0.0  # equal potentials: no bound above 0, which holds without them
    joint, g = np.ascontiguousarray(p.T), np.ascontiguousarray(g)
    # Hamming distance has no order along which a run of symbols could be bounded.
    if kind in (1, 2) and x.shape[1] == 1 and len(x) >= _LINE_FROM:
        order = np.argsort(place[:, 0], kind="stable")
        # About 8 sqrt(n) symbols: looking at all wide runs costs what looking into a few costs.
        wide = _NARROW * max(1, math.isqrt(len(x)) // 4)
        line = (joint[order], mass[order], g[order], lam, place[order, 0], kind == 1)
        total, size = sum_ordered_prices(*line, _NARROW, wide, eps)
    else:
        total, size = sum_prices_of_pairs(joint, mass, g, lam, place, kind, eps)
    return float(total), float(size)


def _measure_distortion(x: AnyArray, distortion: Any, sparse: Any, mass: FloatArray) -> float:
    """Mean distortion of the mapping."""
    if not isinstance(distortion, str):
        spent = np.asarray(distortion, dtype=np.float64)[sparse.col, sparse.row]
    elif distortion == "hamming":
        spent = (x[sparse.col] != x[sparse.row]).sum(axis=-1)
    elif distortion in _KINDS:
        away = np.abs(x[sparse.col].astype(np.float64) - x[sparse.row])
        spent = (away**2 if distortion == "squared" else away).sum(axis=-1)
    else:
        problem = f"distortion is {distortion!r}."
        raise OptionError(problem, remedy="Use 'hamming', 'squared', 'absolute' or a matrix.")
    return math.fsum(sparse.data * mass[sparse.col] * spent)


@njit(cache=True, nogil=True)
def _measure(kind: Any, x: Any, j: Any, i: Any) -> Any:
    """Distance of two symbols by the rows of their codes, or as the matrix has it."""
    if kind == _MATRIX:
        return x[j, i]
    left, right, total = x[j], x[i], 0.0
    for k in range(len(left)):
        if kind == 0:
            total += 1.0 if left[k] != right[k] else 0.0
        elif kind == 1:
            total += (left[k] - right[k]) ** 2
        else:
            total += abs(left[k] - right[k])
    return total


@njit(cache=True, nogil=True)
def sum_prices_of_pairs(p: Any, mass: Any, g: Any, lam: Any, x: Any, kind: Any, eps: Any) -> Any:
    """All columns against all symbols; distances of the codes `x`, or `x` itself of a matrix."""
    total, size = 0.0, 0.0
    for j in range(len(mass)):
        # No mass, no price: a column without records adds nothing to the bound.
        if mass[j] == 0.0:
            continue
        low, here = np.inf, 0.0
        for i in range(len(g)):
            cost, scale = 0.0, 0.0
            for a in range(g.shape[1]):
                part = p[j, a] * g[i, a]
                cost += part
                scale += abs(part)
            if cost - eps * scale >= low:  # a distance only adds
                continue
            far = lam * mass[j] * _measure(kind, x, j, i)
            # The least of lowered costs, not the lowered least: another's error may be larger.
            if cost + far - eps * (scale + far) < low:
                low, here = cost + far - eps * (scale + far), scale + far
        total += low
        size += here
    return total, size


@njit(cache=True, nogil=True)
def _span(distance: Any, lowest: Any, highest: Any, square: Any) -> Any:
    """Least distance from a position to an interval."""
    away = max(lowest - distance, distance - highest, 0.0)
    return away * away if square else away


@njit(cache=True, nogil=True)
def _least(p: Any, lows: Any, far: Any, eps: Any) -> Any:
    """A number below the cost of every symbol whose potentials are at least `lows`."""
    cost, scale = far, far
    for a in range(len(p)):
        part = p[a] * lows[a]
        cost += part
        scale += abs(part)
    # Four errors: of this sum, of the symbol's own, of the run's distance and of the comparison.
    return cost - 4.0 * eps * scale


@njit(cache=True, nogil=True)
def _lowest(g: Any, width: Any) -> Any:
    """Least potential of each private value over each run of `width` symbols."""
    lows = np.full(((len(g) + width - 1) // width, g.shape[1]), np.inf)
    for i in range(len(g)):
        for a in range(g.shape[1]):
            lows[i // width, a] = min(lows[i // width, a], g[i, a])
    return lows


@njit(cache=True, nogil=True)
def sum_ordered_prices(
    joint: Any, mass: Any, g: Any, lam: Any, x: Any, square: Any, narrow: Any, wide: Any, eps: Any
) -> Any:
    """As `sum_prices_of_pairs` for positions `x` that ascend; runs of symbols are passed over.

    A run is passed over where its least potentials and its nearest end already cost more than the
    best symbol found. `wide` is a multiple of `narrow`.
    """
    n, total, size = len(g), 0.0, 0.0
    wide_lows, narrow_lows = _lowest(g, wide), _lowest(g, narrow)
    for j in range(n):
        if mass[j] == 0.0:
            continue
        low, here = np.inf, 0.0
        rate = lam * mass[j]
        # Where the column is itself: its run goes first.
        home = j // wide
        for turn in range(len(wide_lows)):
            # The column's own run first: it holds the symbols most likely to be cheap.
            run = home if turn == 0 else (turn - 1 if turn <= home else turn)
            start, stop = run * wide, min((run + 1) * wide, n)
            away = rate * _span(x[j], x[start], x[stop - 1], square)
            if _least(joint[j], wide_lows[run], away, eps) > low:
                continue
            for first in range(start, stop, narrow):
                last = min(first + narrow, stop)
                away = rate * _span(x[j], x[first], x[last - 1], square)
                if _least(joint[j], narrow_lows[first // narrow], away, eps) > low:
                    continue
                for i in range(first, last):
                    step = abs(x[j] - x[i])
                    far = rate * (step * step if square else step)
                    cost, scale = far, far
                    for a in range(g.shape[1]):
                        part = joint[j, a] * g[i, a]
                        cost += part
                        scale += abs(part)
                    if cost - eps * scale < low:
                        low, here = cost - eps * scale, scale
        total += low
        size += here
    return total, size
