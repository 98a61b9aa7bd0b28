"""A joint distribution, codes and a distortion, checked and written as a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.errors import InputError, OptionError
from privpipe.numerics.distortion import (
    CodeDistance,
    Distance,
    FunctionDistance,
    MatrixDistance,
)
from privpipe.numerics.mapping_problem import MappingProblem
from privpipe.protocols import FloatArray, IntArray

__all__ = ["Alphabet", "Distortion", "prepare_alphabet"]

CodeArray = npt.NDArray[Any]
Distortion = str | npt.NDArray[np.floating] | Callable[[CodeArray, CodeArray], FloatArray]

_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Alphabet:
    """A checked problem and the way back to the user's symbols.

    Parameters
    ----------
    problem
        Symbols in `order`; columns are those of positive probability, in the same order.
    codes : (n_symbols, n_attributes)
        As given.
    order : (n_symbols,)
        The user's number of each of the problem's symbols.
    private : (n_kept,)
        The private values of positive probability.
    n_private
        All private values.
    kind
        Name of the distortion.
    """

    problem: MappingProblem
    codes: CodeArray
    order: IntArray
    private: IntArray
    n_private: int
    kind: str


def prepare_alphabet(
    joint: npt.ArrayLike, codes: npt.ArrayLike, distortion: Distortion, budget: float
) -> Alphabet:
    """Check a joint distribution, its codes and the distortion, and write the problem."""
    p, x = _check_joint(joint), np.asarray(codes)
    x = x[:, None] if x.ndim == 1 else x
    _check_codes(x, p.shape[1])
    line = distortion in ("squared", "absolute") if isinstance(distortion, str) else False
    ordered = line and x.shape[1] == 1
    order = np.argsort(x[:, 0], kind="stable") if ordered else np.arange(len(x))
    private = np.flatnonzero(p.sum(axis=1) > 0)
    p = p[private][:, order]
    stay = np.flatnonzero(p.sum(axis=0) > 0)
    mass = p.sum(axis=0)[stay]
    problem = MappingProblem(
        mass / mass.sum(),
        np.ascontiguousarray((p[:, stay] / mass).T),
        _build_distance(distortion, x[order], order, stay),
        float(budget),
        stay,
    )
    kind = distortion if isinstance(distortion, str) else _kind_of(distortion)
    return Alphabet(problem, x, order, private, len(np.asarray(joint)), kind)


def _kind_of(distortion: Distortion) -> str:
    return "function" if callable(distortion) else "matrix"


def _check_joint(joint: npt.ArrayLike) -> FloatArray:
    p = np.asarray(joint, dtype=np.float64)
    if p.ndim != 2 or p.size == 0:
        raise InputError(
            f"joint has shape {p.shape}.", remedy="Give probabilities (n_private, n_symbols)."
        )
    if not np.isfinite(p).all() or (p < 0).any():
        raise InputError(
            "joint holds negative or non-finite probabilities.",
            remedy="Give finite probabilities of 0 or more.",
        )
    if abs(p.sum() - 1) > _SUM_TOLERANCE:
        raise InputError(
            f"joint sums to {p.sum():.9g}, not to 1.",
            remedy="Divide the counts by their sum.",
        )
    return np.asarray(p / p.sum())


def _check_codes(x: CodeArray, n_symbols: int) -> None:
    if x.ndim != 2 or len(x) != n_symbols or x.shape[1] == 0:
        raise InputError(
            f"codes has shape {x.shape}, but joint has {n_symbols} symbols.",
            remedy="Give one row of attribute codes per symbol.",
        )
    if not np.issubdtype(x.dtype, np.number) or not np.isfinite(x.astype(np.float64)).all():
        raise InputError(
            f"codes has dtype {x.dtype} or values that are not finite.",
            remedy="Give integer codes or finite positions.",
        )
    doubles = len(x) - len(np.unique(x, axis=0))
    if doubles:
        raise InputError(
            f"codes holds {doubles} symbols twice.",
            remedy="Add the probabilities of equal symbols up.",
        )


def _build_distance(
    distortion: Distortion, x: CodeArray, order: IntArray, stay: IntArray
) -> Distance:
    if callable(distortion):
        given = FunctionDistance(distortion, x, x[stay])
        own = given.pairs(stay, np.arange(len(stay)))
        _check_own(own)
        return given
    if not isinstance(distortion, str):
        matrix = np.asarray(distortion, dtype=np.float64)
        if matrix.shape != (len(x), len(x)):
            raise InputError(
                f"distortion has shape {matrix.shape} for {len(x)} symbols.",
                remedy="Give one row per original and one column per released symbol.",
            )
        if not np.isfinite(matrix).all() or (matrix < 0).any():
            raise InputError(
                "distortion holds negative or non-finite distances.",
                remedy="Give finite distances of 0 or more.",
            )
        _check_own(np.diag(matrix)[order[stay]])
        return MatrixDistance(np.ascontiguousarray(matrix[np.ix_(order[stay], order)]))
    if distortion not in ("hamming", "squared", "absolute"):
        raise OptionError(
            f"distortion is {distortion!r}.",
            remedy="Use 'hamming', 'squared', 'absolute', a matrix or a function.",
        )
    positions = x.astype(np.float64)
    return CodeDistance(distortion, positions, positions[stay])  # type: ignore[arg-type]


def _check_own(own: FloatArray) -> None:
    if (own != 0).any():
        raise InputError(
            "distortion is not 0 from every symbol to itself.",
            remedy="Subtract each symbol's distance to itself, and lower the budget by the mean.",
        )
