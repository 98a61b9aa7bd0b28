"""Least squares: ridge regression of several strengths, from one eigendecomposition.

Apart from the other linear adversaries because it needs no scikit-learn, which takes longer to
load than linkage and reconstruction of a small release take together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy import linalg

from privpipe.attacks.adversaries.problem import Fitted, Problem, fit_tuned, one_hot
from privpipe.protocols import FloatArray

RIDGES = (1e-9, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Ridge per record, in units of the mean eigenvalue of the inputs' second moment."""


def fit_least_squares(problem: Problem) -> Fitted:
    """Ridge regression on numbers or on indicators of the classes, best of `RIDGES`.

    Stopping a descent early filters the same spectrum as a ridge does, so the ridges stand
    for both.
    """
    return fit_tuned(problem, train_ridges)


def train_ridges(problem: Problem, choice: float | None) -> Iterator[Fitted]:
    """Ridge regression of the problem's targets on its inputs, for each of `RIDGES` or for one."""
    y = problem.y_train
    y = y[:, None] if problem.n_classes is None else one_hot(y, problem.n_classes)
    ridges = RIDGES if choice is None else (choice,)
    for ridge, slope, offset in solve_ridges(problem.x_train, y, ridges):
        yield freeze_linear(slope, offset, f"ridge {ridge:g}", problem.n_classes, ridge)


def solve_ridges(
    x: FloatArray, y: FloatArray, ridges: Sequence[float] = RIDGES
) -> Iterator[tuple[float, FloatArray, FloatArray]]:
    """Yield each ridge with its slope and offset, from one eigendecomposition.

    Parameters
    ----------
    x : (n_records, n_features)
        Inputs; products keep their dtype.
    y : (n_records, n_outputs)
        What to predict.
    ridges
        See `RIDGES`.

    Yields
    ------
    ridge, slope : (n_features, n_outputs), offset : (n_outputs,)
        So that ``x @ slope + offset`` predicts `y`.
    """
    centre, middle = x.mean(axis=0, dtype=np.float64), y.mean(axis=0)
    z, t = x - centre.astype(x.dtype), (y - middle).astype(x.dtype)
    wide = z.shape[1] > len(z)
    values, vectors = linalg.eigh((z @ z.T if wide else z.T @ z).astype(np.float64) / len(z))
    size = max(float(values.sum()) / z.shape[1], np.finfo(float).tiny)
    turned = vectors.T @ (t if wide else z.T @ t) / len(z)
    for ridge in ridges:
        slope = vectors @ (turned / (np.maximum(values, 0.0) + ridge * size)[:, None])
        slope = z.T @ slope if wide else slope
        yield ridge, slope, middle - centre @ slope


def freeze_linear(
    slope: FloatArray,
    offset: FloatArray,
    settings: str,
    n_classes: int | None,
    choice: float | None = None,
) -> Fitted:
    """A linear decision; a copy, so that further training leaves it alone."""
    coefficients, offsets = slope.copy(), np.atleast_1d(offset).copy()

    def decide(x: FloatArray) -> FloatArray:
        decision = x @ coefficients.astype(x.dtype) + offsets
        if n_classes is None:
            return np.asarray(decision[:, 0])
        if decision.shape[1] == 1:  # two classes, one margin
            decision = np.column_stack([np.zeros(len(decision)), decision[:, 0]])
        return np.asarray(decision)

    return Fitted(decide, settings, choice)
