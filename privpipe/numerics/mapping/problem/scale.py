"""The scale of a mapping problem: the ends of its trade-off, and the unit it is solved in.

The optimum does not change when distances and budget are divided by one number. Powers of two
divide without rounding.
"""

import math
from dataclasses import replace

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.mapping.problem.distortion import CodeDistance, MatrixDistance
from privpipe.numerics.mapping.problem.programme import (
    LOWEST,
    Distance,
    Duals,
    MappingProblem,
    normalise_potentials,
)
from privpipe.protocols import FloatArray

# Between these float64 has room for products with multipliers and probabilities.
_LEAST, _LARGEST, _WIDEST = 1e-250, 1e250, 1e100


def choose_unit(problem: MappingProblem) -> float:
    """A power of two near the distortion of releasing one symbol for all.

    Parameters
    ----------
    problem
        In the user's unit.

    Returns
    -------
    unit
        1 for counts of changed attributes, which have a scale of their own.

    Raises
    ------
    InputError
        If distances do not fit between 1e-250 and 1e250, or the largest is more than 1e100
        times the smallest: float64 has no room to solve and certify such a problem.
    """
    distance = problem.distance
    if isinstance(distance, CodeDistance) and distance.kind == "hamming":
        return 1.0
    with np.errstate(over="ignore", under="ignore"):
        least, largest = _find_extremes(distance)
    if not (_LEAST <= least and largest <= _LARGEST and largest <= _WIDEST * least):
        raise InputError(
            f"distances between different symbols reach from {least:.3g} to {largest:.3g}.",
            remedy=f"Rescale positions or distances: {_LEAST:g} to {_LARGEST:g}, the largest at "
            f"most {_WIDEST:g} times the smallest.",
            code="extreme-distances",
        )
    typical = float(measure_mean_distances(problem).min())
    # Between the extremes, or one far outlier would choose the unit.
    typical = min(max(typical, least), largest)
    # A power of four: squared distances divide positions by its root, a power of two.
    return 2.0 ** (2 * round(math.log2(typical) / 2))


def divide_budget(budget: float, unit: float) -> float:
    """The budget in units, at most 1e300; one too small for a float64 is 0, at no loss."""
    return min(float(budget) / unit, 1e300)


def divide_distance(distance: Distance, unit: float) -> Distance:
    """The same distance in units, a power of four."""
    if unit == 1.0:
        return distance
    if isinstance(distance, CodeDistance):
        step = math.sqrt(unit) if distance.kind == "squared" else unit
        return replace(distance, symbols=distance.symbols / step, columns=distance.columns / step)
    return MatrixDistance(_matrix(distance) / unit)


def _matrix(distance: Distance) -> FloatArray:
    assert isinstance(distance, MatrixDistance), "alphabets build codes and matrices"
    return distance.matrix


def _find_extremes(distance: Distance) -> tuple[float, float]:
    """Least positive and largest distance between different symbols; 1 and 1 without any."""
    if isinstance(distance, CodeDistance):
        power = 2 if distance.kind == "squared" else 1
        tables = [np.unique(column) for column in distance.symbols.T]
        gaps = [np.diff(table) for table in tables if len(table) > 1]
        spans = np.array([table[-1] - table[0] for table in tables])
        closest = np.array([gap.min() for gap in gaps] or [1.0]).min() ** power
        return float(closest), float(max((spans**power).sum(), closest))
    matrix = _matrix(distance)
    least, largest = matrix.min(initial=math.inf, where=matrix > 0), matrix.max(initial=0.0)
    return (float(least), float(largest)) if largest > 0 else (1.0, 1.0)


def measure_mean_distances(problem: MappingProblem) -> FloatArray:
    """Mean distortion of releasing one symbol for all, for each symbol.

    Returns
    -------
    means : (n_symbols,)
        In closed form for codes.
    """
    distance, mass = problem.distance, problem.mass
    if not isinstance(distance, CodeDistance):
        return np.asarray(mass @ _matrix(distance))
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
    law = np.tile(problem.prior, (problem.n_symbols, 1))
    law[problem.stay] = problem.posterior
    with np.errstate(divide="ignore"):
        ratios = np.log(law / problem.prior)
    potentials = normalise_potentials(np.maximum(ratios, LOWEST), problem.prior)
    # Twice the largest difference of potentials, over the nearest neighbour.
    return Duals(potentials, -2 * LOWEST / _least_distance(problem.distance))


def _least_distance(distance: Distance) -> float:
    """Smallest positive distance, at most 1."""
    if isinstance(distance, CodeDistance):
        if distance.kind == "hamming":
            return 1.0
        gaps = [np.diff(np.unique(column)) for column in distance.symbols.T]
        least = min((float(gap.min()) for gap in gaps if len(gap)), default=1.0)
        return min(1.0, least**2 if distance.kind == "squared" else least)
    matrix = _matrix(distance)
    return float(matrix.min(initial=1.0, where=matrix > 0))
