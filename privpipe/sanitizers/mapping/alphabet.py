"""A joint distribution, codes and a distortion, checked and written as a problem."""

import math
from dataclasses import dataclass, replace

import numpy as np

from privpipe.errors import InputError, OptionError
from privpipe.numerics.finite import as_reals
from privpipe.numerics.mapping.problem import programme
from privpipe.protocols import AnyArray, ArrayLike, FloatArray, IntArray

CodeArray = AnyArray
Distortion = str | FloatArray

_SUM_TOLERANCE = 1e-6
# Cells of a joint below this count as empty: products of two of them are still normal float64.
_NOTHING = 1e-140
# Between these float64 has room for products with multipliers and probabilities.
_LEAST, _LARGEST, _WIDEST = 1e-250, 1e250, 1e100


@dataclass(frozen=True, eq=False)
class Alphabet:
    """A checked problem and the way back to the user's symbols and units.

    Parameters
    ----------
    problem
        Symbols in `order`; columns are those of positive probability, in the same order.
        Distances and budget are divided by `unit`, so that solvers meet the same sizes
        whatever the user measures in.
    joint : (n_private, n_symbols)
        As given, of sum 1.
    codes : (n_symbols, n_attributes)
        As given.
    distortion
        As given.
    budget
        Largest mean distortion, in the user's unit.
    unit
        A power of two.
    order : (n_symbols,)
        The user's number of each of the problem's symbols.
    private : (n_kept,)
        The private values of positive probability.
    """

    problem: programme.Programme
    joint: FloatArray
    codes: CodeArray
    distortion: Distortion
    budget: float
    unit: float
    order: IntArray
    private: IntArray

    @property
    def n_private(self) -> int:
        """All private values."""
        return len(self.joint)

    @property
    def kind(self) -> str:
        """Name of the distortion."""
        return self.distortion if isinstance(self.distortion, str) else "matrix"


def prepare_alphabet(
    joint: ArrayLike, codes: ArrayLike, distortion: Distortion, budget: float
) -> Alphabet:
    """Check a joint distribution, its codes and the distortion, and write the problem."""
    p, x = _check_joint(joint), np.asarray(codes)
    x = x[:, None] if x.ndim == 1 else x
    _check_codes(x, p.shape[1])
    line = distortion in ("squared", "absolute") if isinstance(distortion, str) else False
    ordered = line and x.shape[1] == 1
    # Prices along an order need ascending positions; other kinds have none.
    order = np.argsort(x[:, 0], kind="stable") if ordered else np.arange(len(x))
    # A private value that no record has is left out: its potential has nothing to hold it.
    private = np.flatnonzero(p.sum(axis=1) > 0)
    positive = p[private][:, order]
    stay = np.flatnonzero(positive.sum(axis=0) > 0)
    mass = positive.sum(axis=0)[stay]
    distance = _build_distance(distortion, x, order, stay)
    posterior = np.ascontiguousarray((positive[:, stay] / mass).T)
    problem = programme.Programme(mass / mass.sum(), posterior, distance, float(budget), stay)
    unit = _choose_unit(problem)
    given = np.asarray(joint, dtype=np.float64)
    # One too small for a float64 is 0, at no loss, and one that is large enough as good as any.
    scaled = replace(problem, distance=distance.divide(unit), budget=min(budget / unit, 1e300))
    return Alphabet(scaled, given / given.sum(), x, distortion, float(budget), unit, order, private)


def _choose_unit(problem: programme.Programme) -> float:
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
        If distances do not fit between `1e-250` and `1e250`, or the largest is more than 1e100
        times the smallest. There float64 has no room to solve and certify such a problem.
    """
    distance = problem.distance
    if isinstance(distance, programme.CodeDistance) and distance.kind == "hamming":
        return 1.0
    with np.errstate(over="ignore", under="ignore"):
        least, largest = distance.find_extremes()
    if not (_LEAST <= least and largest <= _LARGEST and largest <= _WIDEST * least):
        raise InputError(
            f"distances between different symbols reach from {least:.3g} to {largest:.3g}.",
            remedy=f"Rescale positions or distances: {_LEAST:g} to {_LARGEST:g}, the largest at "
            f"most {_WIDEST:g} times the smallest.",
            code="extreme-distances",
        )
    typical = float(distance.measure_means(problem.mass).min())
    # Between the extremes, or one far outlier would choose the unit.
    typical = min(max(typical, least), largest)
    # A power of four: squared distances divide positions by its root, a power of two.
    return 2.0 ** (2 * round(math.log2(typical) / 2))


def _check_joint(joint: ArrayLike) -> FloatArray:
    p = as_reals(joint, "joint").astype(np.float64)
    if p.ndim != 2 or p.size == 0:
        problem = f"joint has shape {p.shape}."
        raise InputError(problem, remedy="Give probabilities (n_private, n_symbols).")
    if not np.isfinite(p).all() or (p < 0).any():
        problem = "joint holds negative or non-finite probabilities."
        raise InputError(problem, remedy="Give finite probabilities of 0 or more.")
    if abs(p.sum() - 1) > _SUM_TOLERANCE:
        problem = f"joint sums to {p.sum():.9g}, not to 1."
        raise InputError(problem, remedy="Divide the counts by their sum.")
    p = np.where(p < _NOTHING, 0.0, p)
    return np.asarray(p / p.sum())


def _check_codes(x: CodeArray, n_symbols: int) -> None:
    if x.ndim != 2 or len(x) != n_symbols or x.shape[1] == 0:
        problem = f"codes has shape {x.shape}, but joint has {n_symbols} symbols."
        raise InputError(problem, remedy="Give one row of attribute codes per symbol.")
    if not np.issubdtype(x.dtype, np.number) or not np.isfinite(x.astype(np.float64)).all():
        problem = f"codes has dtype {x.dtype} or values that are not finite."
        raise InputError(problem, remedy="Give integer codes or finite positions.")
    doubles = len(x) - len(np.unique(x, axis=0))
    if doubles:
        problem = f"codes holds {doubles} symbols twice."
        raise InputError(problem, remedy="Add the probabilities of equal symbols up.")


def _build_distance(
    distortion: Distortion, x: CodeArray, order: IntArray, stay: IntArray
) -> programme.Distance:
    if not isinstance(distortion, str):
        matrix = np.asarray(distortion, dtype=np.float64)
        if matrix.shape != (len(x), len(x)):
            problem = f"distortion has shape {matrix.shape} for {len(x)} symbols."
            remedy = "Give one row per original and one column per released symbol."
            raise InputError(problem, remedy=remedy)
        if not np.isfinite(matrix).all() or (matrix < 0).any():
            problem = "distortion holds negative or non-finite distances."
            raise InputError(problem, remedy="Give finite distances of 0 or more.")
        if (np.diag(matrix)[order[stay]] != 0).any():
            remedy = "Subtract each symbol's distance to itself; lower the budget by the mean."
            raise InputError("distortion is not 0 from every symbol to itself.", remedy=remedy)
        return programme.MatrixDistance(np.ascontiguousarray(matrix[np.ix_(order[stay], order)]))
    if distortion not in ("hamming", "squared", "absolute"):
        problem = f"distortion is {distortion!r}."
        raise OptionError(problem, remedy="Use 'hamming', 'squared', 'absolute' or a matrix.")
    positions = x[order].astype(np.float64)
    return programme.CodeDistance(distortion, positions, positions[stay])  # type: ignore[arg-type]
