"""Adversaries of the reproductions: scikit-learn estimators, settings by cross-validation.

Once settings are chosen, the adversary trains on all training records: at the papers' sizes a
part set aside to choose with is worth two points of accuracy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize as so
from scipy.optimize._linesearch import line_search_wolfe1  # the one of minimize(method="BFGS")
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from privpipe.protocols import FloatArray, IntArray

FOLDS = 3
BFGS_STEPS = 50
Loss = Callable[[FloatArray], tuple[float, FloatArray]]
Candidates = Callable[[int, int, int], list[Any]]
"""From numbers of features and classes and a seed to estimators, the simplest first."""


def list_logistic(n_features: int, n_classes: int, seed: int) -> list[Any]:
    """Logistic regression over regularisation and early stopping."""
    settings = [(1e-3, 200), (1e-2, 200), (1e-1, 200), (1.0, 200), (10.0, 200)]
    settings += [(1000.0, 10), (1000.0, 30), (1000.0, 200)]
    return [LogisticRegression(C=strength, max_iter=stop) for strength, stop in settings]


def list_rbf(n_features: int, n_classes: int, seed: int) -> list[Any]:
    """Support vectors with a Gaussian kernel over cost and width."""
    return [
        SVC(C=cost, gamma=width / n_features)
        for cost in (1.0, 10.0, 100.0)
        for width in (0.2, 1.0, 4.0)
    ]


def list_nearest_neighbours(n_features: int, n_classes: int, seed: int) -> list[Any]:
    """Nearest neighbours over their number."""
    return [KNeighborsClassifier(k) for k in (1, 5, 25)]


def list_boosting(n_features: int, n_classes: int, seed: int) -> list[Any]:
    """Boosted trees; every round grows one tree per class."""
    rounds = max(20, 100 // max(n_classes - 1, 1))
    return [
        HistGradientBoostingClassifier(
            max_iter=rounds, max_leaf_nodes=15, early_stopping=False, random_state=seed
        )
    ]


ADVERSARIES: dict[str, Candidates] = {
    "logistic": list_logistic,
    "rbf": list_rbf,
    "nearest_neighbours": list_nearest_neighbours,
    "boosting": list_boosting,
}


def measure_accuracy(
    name: str,
    released: tuple[FloatArray, FloatArray],
    labels: tuple[IntArray, IntArray],
    *,
    seed: int = 0,
) -> float:
    """Accuracy on test records of an adversary that trained on released training records.

    Parameters
    ----------
    name
        One of `ADVERSARIES`.
    released : (train, test), each (n_records, n_released)
        Standardised by the training records before use.
    labels : (train, test), each (n_records,)
        Class numbers ``0 .. n_classes - 1``.
    seed
        Of the folds that choose settings.
    """
    centre, spread = released[0].mean(axis=0), released[0].std(axis=0)
    spread = np.where(spread > 1e-12 * np.abs(centre).max(initial=1e-300), spread, 1.0)
    x, x_test = ((part - centre) / spread for part in released)
    y, y_test = labels
    candidates = ADVERSARIES[name](x.shape[1], int(y.max()) + 1, seed)
    folds = np.random.default_rng(seed).integers(0, FOLDS, len(x))
    if len(candidates) > 1:
        scores = np.zeros(len(candidates))
        for fold in range(FOLDS):
            apart = folds == fold
            for i, candidate in enumerate(candidates):
                scores[i] += _train(candidate, x[~apart], y[~apart]).score(x[apart], y[apart])
        candidates = [candidates[int(np.argmax(scores))]]
    return float(_train(candidates[0], x, y).score(x_test, y_test))


def measure_papers_accuracy(
    released: tuple[FloatArray, FloatArray], labels: tuple[IntArray, IntArray]
) -> float:
    """Accuracy of the original authors' adversary, for comparison with their stored results.

    Multinomial logistic regression on the records as they are, without intercept, ridge 1e-6,
    fifty steps of BFGS from zero.
    """
    x, y = released[0].astype(np.float64), labels[0]
    k = int(y.max()) + 1
    rows = np.arange(len(y))

    def loss(w: FloatArray) -> tuple[float, FloatArray]:
        logits = x @ w.reshape(-1, k)
        logits -= logits.max(axis=1, keepdims=True)
        taken = logits[rows, y]
        p = np.exp(logits)
        total = p.sum(axis=1)
        p /= total[:, None]
        p[rows, y] -= 1.0
        value = float((np.log(total) - taken).mean() + 1e-6 * w @ w)
        return value, (x.T @ p / len(y)).ravel() + 2e-6 * w

    w = descend_bfgs(loss, np.zeros(x.shape[1] * k), BFGS_STEPS)
    guessed = (released[1] @ w.reshape(-1, k)).argmax(axis=1)
    return float((guessed == labels[1]).mean())


def descend_bfgs(loss: Loss, start: FloatArray, n_steps: int) -> FloatArray:
    """Steps of BFGS from the identity, as ``scipy.optimize.minimize(method="BFGS")`` takes them.

    The inverse Hessian is stored as its updates (Nocedal and Wright 2006, algorithm 7.4, with all
    pairs): the same direction as of the matrix, which SciPy updates by products of matrices as
    wide as there are parameters, for a step most of the time of 750.

    Parameters
    ----------
    loss
        From parameters to value and gradient.
    start : (n_parameters,)
    n_steps
        Most of them; fewer where no entry of the gradient is above 1e-5.
    """
    seen = _LastPoint(loss)
    w, (value, slope) = start, seen.ask(start)
    before = value + float(np.linalg.norm(slope)) / 2
    pairs: list[tuple[FloatArray, FloatArray]] = []
    for _ in range(n_steps):
        if np.abs(slope).max() <= 1e-5:
            break
        direction = -_divide_by_curvature(slope, pairs)
        along = seen.value, seen.slope, w, direction, slope, value, before
        step = line_search_wolfe1(*along, c1=1e-4, c2=0.9, amin=1e-100, amax=1e100)[0]
        if step is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # none found: answered with None
                step = so.line_search(*along)[0]
        if step is None:
            break
        before = value
        moved, (value, new_slope) = w + step * direction, seen.ask(w + step * direction)
        pairs.append((moved - w, new_slope - slope))
        w, slope = moved, new_slope
    return w


class _LastPoint:
    """Value and gradient of a loss, one after the other at one point."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._at: FloatArray = np.empty(0)
        self._answer: tuple[float, FloatArray] = (np.nan, np.empty(0))

    def ask(self, w: FloatArray) -> tuple[float, FloatArray]:
        if not np.array_equal(self._at, w):
            self._at, self._answer = w.copy(), self._loss(w)
        return self._answer

    def value(self, w: FloatArray) -> float:
        return self.ask(w)[0]

    def slope(self, w: FloatArray) -> FloatArray:
        return self.ask(w)[1]


def _divide_by_curvature(
    slope: FloatArray, pairs: list[tuple[FloatArray, FloatArray]]
) -> FloatArray:
    """The inverse Hessian of these steps and changes of slope, times a slope."""
    left, shares = slope.copy(), []
    for step, change in reversed(pairs):
        shares.append(float(step @ left) / float(step @ change))
        left -= shares[-1] * change
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        left += (share - float(change @ left) / float(step @ change)) * step
    return left


def _train(model: Any, x: FloatArray, y: IntArray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # stopping early is the point
        return model.fit(x, y)
