"""Non-linear adversaries: radial basis functions, nearest neighbours, boosted trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.kernel_approximation import Nystroem
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from privpipe.attacks.linear_adversaries import fit_ridge
from privpipe.attacks.problem import Fitted, Problem, choose_best
from privpipe.protocols import FloatArray

__all__ = ["fit_boosting", "fit_nearest_neighbours", "fit_rbf", "measure_width"]

WIDTHS = (0.1, 0.3, 1.0, 3.0)
"""Kernel exponents, in units of one over the median squared distance."""

LANDMARKS = 500
NEIGHBOURS = (1, 5, 15, 50)
LEAVES = (6, 31)
TREES = 300
"""Trees in all; with several classes each round of boosting costs one per class."""


def fit_rbf(problem: Problem) -> Fitted:
    """Ridge regression on Nystroem features of a Gaussian kernel, best width and ridge.

    References
    ----------
    Williams and Seeger 2001, Using the Nystroem Method to Speed Up Kernel Machines.
    """
    return choose_best(problem, _train_kernels(problem))


def _train_kernels(problem: Problem) -> Iterator[Fitted]:
    unit = measure_width(problem.x_train, problem.seed)
    for width in WIDTHS:
        features = Nystroem(
            gamma=width * unit,
            n_components=min(LANDMARKS, len(problem.x_train)),
            random_state=problem.seed,
        ).fit(problem.x_train)
        ridge = fit_ridge(
            problem, features.transform(problem.x_train), features.transform(problem.x_tune)
        )
        yield _compose(features, ridge, f"width {width:g}, {ridge.settings}")


def measure_width(x: FloatArray, seed: int) -> float:
    """One over the median squared distance of a sample: the unit of kernel exponents."""
    random = np.random.default_rng(seed)
    some = random.choice(len(x), min(1000, len(x)), replace=False)
    distance = float(np.median(pdist(x[some], "sqeuclidean")))
    return 1 / distance if distance > 0 else 1.0


def _compose(features: Nystroem, ridge: Fitted, settings: str) -> Fitted:
    return Fitted(lambda x: ridge.decide(features.transform(x)), settings)


def fit_nearest_neighbours(problem: Problem) -> Fitted:
    """Vote or mean of the nearest training records, best of `NEIGHBOURS`."""
    kind = KNeighborsRegressor if problem.n_classes is None else KNeighborsClassifier

    def candidates() -> Iterator[Fitted]:
        for k in NEIGHBOURS:
            if k <= len(problem.x_train):
                model = kind(n_neighbors=k, algorithm="brute")
                model.fit(problem.x_train, problem.y_train)
                yield Fitted(_decision_of(model, problem), f"{k} neighbours")

    return choose_best(problem, candidates())


def fit_boosting(problem: Problem) -> Fitted:
    """Gradient boosting on histograms, stopped on the tuning records.

    Two sizes of tree are tried; `TREES` bounds the number of trees of each.
    """
    n_classes = problem.n_classes or 1
    several = n_classes if n_classes > 2 else 1
    regress = problem.n_classes is None
    kind = HistGradientBoostingRegressor if regress else HistGradientBoostingClassifier

    def candidates() -> Iterator[Fitted]:
        for leaves in LEAVES:
            model = kind(
                max_iter=max(20, TREES // several),
                max_leaf_nodes=leaves,
                early_stopping=True,
                n_iter_no_change=15,
                random_state=problem.seed,
            )
            x, y = problem.x_tune, problem.y_tune
            model.fit(problem.x_train, problem.y_train, X_val=x, y_val=y)
            settings = f"{leaves} leaves, {model.n_iter_} rounds"
            yield Fitted(_decision_of(model, problem), settings)

    return choose_best(problem, candidates())


def _decision_of(model: Any, problem: Problem) -> Callable[[FloatArray], FloatArray]:
    decide = model.predict if problem.n_classes is None else model.predict_proba
    return lambda x: np.asarray(decide(x), np.float64)
