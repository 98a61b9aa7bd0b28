"""The ends of the trade-off: nothing may change, and one symbol for all."""

from __future__ import annotations

import numpy as np

from privpipe.numerics.mapping.problem.distortion import CodeDistance, Distance
from privpipe.numerics.mapping.problem.mutual_information import LOWEST, normalise_potentials
from privpipe.numerics.mapping.problem.programme import Duals, MappingProblem
from privpipe.protocols import FloatArray

_BLOCK_PAIRS = 2**22


def measure_mean_distances(problem: MappingProblem) -> FloatArray:
    """Mean distortion of releasing one symbol for all, for each symbol.

    Returns
    -------
    means : (n_symbols,)
        In closed form for codes; block by block otherwise.
    """
    distance, mass = problem.distance, problem.mass
    if not isinstance(distance, CodeDistance):
        step = max(1, _BLOCK_PAIRS // problem.n_symbols)
        total = np.zeros(problem.n_symbols)
        for a in range(0, problem.n_columns, step):
            b = min(a + step, problem.n_columns)
            total += mass[a:b] @ distance.block(a, b)
        return total
    pairs = zip(distance.symbols.T, distance.columns.T, strict=True)
    parts = [_mean_along(distance.kind, s, c, mass) for s, c in pairs]
    return np.asarray(np.sum(parts, axis=0))


def _mean_along(kind: str, s: FloatArray, c: FloatArray, mass: FloatArray) -> FloatArray:
    if kind == "squared":
        centre = float(mass @ c)
        return np.asarray((s - centre) ** 2 + float(mass @ (c - centre) ** 2))
    values, inverse = np.unique(c, return_inverse=True)
    weight = np.bincount(inverse.ravel(), mass)
    if kind == "hamming":
        place = np.minimum(np.searchsorted(values, s), len(values) - 1)
        return np.asarray(1.0 - np.where(values[place] == s, weight[place], 0.0))
    below = np.searchsorted(values, s, side="right")
    mass_below = np.concatenate([[0.0], np.cumsum(weight)])[below]
    moment = np.concatenate([[0.0], np.cumsum(weight * values)])
    return np.asarray(s * (2 * mass_below - 1) + moment[-1] - 2 * moment[below])


def identity_duals(problem: MappingProblem) -> Duals:
    """Duals that certify the identity where no distortion is allowed.

    Potentials are the log-ratios of the symbols' own posteriors; the multiplier is so large
    that no column gains by leaving its own symbol.
    """
    own = np.tile(problem.prior, (problem.n_symbols, 1))
    own[problem.stay] = problem.posterior
    with np.errstate(divide="ignore"):
        ratios = np.log(own / problem.prior)
    potentials = normalise_potentials(np.maximum(ratios, LOWEST), problem.prior)
    return Duals(potentials, -2 * LOWEST / _least_distance(problem.distance))


def _least_distance(distance: Distance) -> float:
    """Smallest positive distance, at most 1."""
    if isinstance(distance, CodeDistance):
        if distance.kind == "hamming":
            return 1.0
        gaps = [np.diff(np.unique(column)) for column in distance.symbols.T]
        least = min((float(gap.min()) for gap in gaps if len(gap)), default=1.0)
        return min(1.0, least**2 if distance.kind == "squared" else least)
    least, step = 1.0, max(1, _BLOCK_PAIRS // distance.n_symbols)
    for a in range(0, distance.n_columns, step):
        block = distance.block(a, min(a + step, distance.n_columns))
        least = min(least, float(block[block > 0].min(initial=1.0)))
    return least
