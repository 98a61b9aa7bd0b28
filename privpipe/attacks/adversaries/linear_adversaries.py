"""Linear adversaries: least squares, logistic regression, support vectors, naive Bayes.

Each tries several strengths of regularisation, and iterative ones several lengths of
training, and keeps what does best on the tuning records: a fully converged adversary with
weak regularisation is weaker than an early stopped one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy

import numpy as np
from scipy import linalg, special
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC, LinearSVR

from privpipe.attacks.adversaries.problem import (
    Fitted,
    Problem,
    fit_quietly,
    fit_tuned,
    one_hot,
)
from privpipe.protocols import FloatArray

__all__ = [
    "fit_least_squares",
    "fit_linear_svm",
    "fit_logistic",
    "fit_naive_bayes",
    "rank_by_probability",
    "solve_ridges",
    "train_logistic",
    "train_ridges",
]

RIDGES = (1e-9, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Ridge per record, in units of the mean eigenvalue of the inputs' second moment."""

LOGISTIC_RIDGES = (1.0, 1e-2, 1e-4, 1e-6)
"""Weight of half the squared norm against the mean loss (the papers use 1e-6)."""

LOGISTIC_STOPS = (3, 10, 30, 100, 300)
"""Iterations after which training may stop."""

MARGINS = (1.0, 1e-1, 1e-2, 1e-3)

SMOOTHINGS = (1e-9, 1e-3, 1e-1)


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
        yield _freeze(slope, offset, f"ridge {ridge:g}", problem.n_classes, ridge)


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


def fit_logistic(problem: Problem) -> Fitted:
    """Multinomial logistic regression, best over `LOGISTIC_RIDGES` and `LOGISTIC_STOPS`.

    References
    ----------
    Hamm 2017 (logistic regression with factor 1e-6, trained to convergence).
    """
    return fit_tuned(problem, train_logistic)


def train_logistic(
    problem: Problem,
    choice: tuple[float, int] | None,
    ridges: Sequence[float] = LOGISTIC_RIDGES,
    stops: Sequence[int] = LOGISTIC_STOPS,
) -> Iterator[Fitted]:
    """Multinomial logistic regression with each ridge and stop, or with one of each."""
    for ridge in ridges if choice is None else choice[:1]:
        model = LogisticRegression(C=1 / (ridge * len(problem.x_train)), warm_start=True)
        done = 0
        for stop in stops if choice is None else choice[1:]:
            model.set_params(max_iter=stop - done)
            fit_quietly(model, problem)
            settings = f"ridge {ridge:g}, {stop} iterations"
            linear = _freeze(model.coef_.T, model.intercept_, settings, problem.n_classes)
            yield Fitted(rank_by_probability(linear.decide), settings, (ridge, stop))
            if model.n_iter_[0] < stop - done:
                break
            done = stop


def fit_linear_svm(problem: Problem) -> Fitted:
    """Linear support vector machine (squared hinge, one against the rest) or regression."""
    return fit_tuned(problem, _train_margins)


def _train_margins(problem: Problem, choice: float | None) -> Iterator[Fitted]:
    for margin in MARGINS if choice is None else (choice,):
        strength = margin * 1000 / len(problem.x_train)
        if problem.n_classes is None:
            model = LinearSVR(
                C=strength, epsilon=0.1, loss="squared_epsilon_insensitive", dual=False
            )
        else:
            model = LinearSVC(C=strength, dual=False)
        fit_quietly(model, problem)
        slope = np.atleast_2d(model.coef_).T
        yield _freeze(slope, model.intercept_, f"C {strength:.3g}", problem.n_classes, margin)


def fit_naive_bayes(problem: Problem) -> Fitted:
    """Gaussian naive Bayes with the smoothing that does best; classes only."""
    return fit_tuned(problem, _train_naive_bayes)


def _train_naive_bayes(problem: Problem, choice: float | None) -> Iterator[Fitted]:
    plain = GaussianNB(var_smoothing=0.0).fit(problem.x_train, problem.y_train)
    for smoothing in SMOOTHINGS if choice is None else (choice,):
        model = copy(plain)
        # Inputs have variance 1, so that this is relative; scikit-learn's own smoothing is
        # relative to the largest variance, which is 0 for a constant release.
        model.var_ = plain.var_ + smoothing
        decide = rank_by_probability(model.predict_joint_log_proba)
        yield Fitted(decide, f"smoothing {smoothing:g}", smoothing)


def rank_by_probability(decide: Callable[[FloatArray], FloatArray]) -> Callable[..., FloatArray]:
    """Log-probabilities of classes: what a record adds to all classes alike ranks no record."""
    return lambda x: np.asarray(special.log_softmax(decide(x), axis=1))


def _freeze(
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
