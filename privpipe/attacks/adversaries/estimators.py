"""Adversaries that are estimators of scikit-learn: trees, forests, neighbours, a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import islice
from typing import Any

import numpy as np
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor

from privpipe.attacks.adversaries.problem import (
    Fitted,
    Problem,
    decide_with,
    fit_quietly,
    fit_tuned,
)
from privpipe.protocols import FloatArray

LEAVES = (6, 31)

TREES = 300
"""Trees in all; with several classes each round of boosting costs one per class."""

PATIENCE = 10
"""Rounds without a smaller loss on the tuning records after which boosting stops."""


def fit_boosting(problem: Problem) -> Fitted:
    """Gradient boosting on histograms, as many rounds as do best on the tuning records.

    Two sizes of tree are tried; `TREES` bounds the number of trees of each. Besides the round of
    least loss the last one is tried: guesses go on getting better where certainty no longer does.
    """
    return fit_tuned(problem, _train_boosting)


def _train_boosting(problem: Problem, choice: tuple[int, int] | None) -> Iterator[Fitted]:
    if choice is not None:
        model = _make(problem, *choice, early_stopping=False)
        model.fit(problem.x_train, problem.y_train)
        yield Fitted(decide_with(model, problem), _name(*choice), choice)
        return
    n_classes = problem.n_classes or 1
    most = max(20, TREES // (n_classes if n_classes > 2 else 1))
    for leaves in LEAVES:
        model = _make(problem, leaves, most, early_stopping=True)
        model.fit(problem.x_train, problem.y_train, X_val=problem.x_tune, y_val=problem.y_tune)
        least = int(np.argmax(model.validation_score_[1:])) + 1
        for rounds in sorted({least, model.n_iter_}):
            yield Fitted(_stop_at(model, problem, rounds), _name(leaves, rounds), (leaves, rounds))


def _make(problem: Problem, leaves: int, rounds: int, *, early_stopping: bool) -> Any:
    regress = problem.n_classes is None
    kind = HistGradientBoostingRegressor if regress else HistGradientBoostingClassifier
    return kind(
        max_iter=rounds,
        max_leaf_nodes=leaves,
        early_stopping=early_stopping,
        n_iter_no_change=PATIENCE,
        random_state=problem.seed,
    )


def _stop_at(model: Any, problem: Problem, rounds: int) -> Callable[[FloatArray], FloatArray]:
    """The decision after so many rounds."""
    stages = model.staged_predict if problem.n_classes is None else model.staged_predict_proba
    return lambda x: np.asarray(next(islice(stages(x), rounds - 1, None)), np.float64)


def _name(leaves: int, rounds: int) -> str:
    return f"{leaves} leaves, {rounds} rounds"


FOREST_TREES = 100

TREES_TRIED = 40
"""Trees of the forests that are tried: as many as tell which is the better."""

LEAST_RECORDS = (1, 5)
"""Fewest records of a leaf: one remembers, several average."""


def fit_forest(problem: Problem) -> Fitted:
    """Extremely randomised trees, best of `LEAST_RECORDS`.

    Where classes lie close together and features are many, averaged trees find what boosting,
    which follows its errors, does not.

    References
    ----------
    Geurts, Ernst and Wehenkel 2006, Extremely randomized trees.
    """
    return fit_tuned(problem, _train_forests)


def _train_forests(problem: Problem, choice: int | None) -> Iterator[Fitted]:
    kind = ExtraTreesRegressor if problem.n_classes is None else ExtraTreesClassifier
    n_trees = TREES_TRIED if choice is None else FOREST_TREES
    for least in LEAST_RECORDS if choice is None else (choice,):
        model = kind(n_estimators=n_trees, min_samples_leaf=least, random_state=problem.seed)
        model.fit(problem.x_train, problem.y_train)
        yield Fitted(decide_with(model, problem), f"at least {least} records a leaf", least)


NEIGHBOURS = (1, 5, 15, 50)


def fit_nearest_neighbours(problem: Problem) -> Fitted:
    """Vote or mean of the nearest training records, best of `NEIGHBOURS`."""
    return fit_tuned(problem, _train_neighbours)


def _train_neighbours(problem: Problem, choice: int | None) -> Iterator[Fitted]:
    kind = KNeighborsRegressor if problem.n_classes is None else KNeighborsClassifier
    for k in NEIGHBOURS if choice is None else (choice,):
        if k <= len(problem.x_train):
            model = kind(n_neighbors=k, algorithm="brute")
            model.fit(problem.x_train, problem.y_train)
            yield Fitted(decide_with(model, problem), f"{k} neighbours", k)


HIDDEN = 100
"""Units of the hidden layer."""

PENALTIES = (1e-4, 1.0)
"""Ridge of the weights, as scikit-learn takes it: divided by the records of a step."""

EPOCHS = (5, 20, 60)
"""Passes over the training records after which training may stop."""


def fit_network(problem: Problem) -> Fitted:
    """Rectified units, Adam; best of `PENALTIES` and `EPOCHS`.

    References
    ----------
    Kingma and Ba 2015, Adam: A Method for Stochastic Optimization.
    """
    return fit_tuned(problem, _train_networks)


def _train_networks(problem: Problem, choice: tuple[float, int] | None) -> Iterator[Fitted]:
    kind = MLPRegressor if problem.n_classes is None else MLPClassifier
    for penalty in PENALTIES if choice is None else choice[:1]:
        model = kind(
            hidden_layer_sizes=(HIDDEN,),
            alpha=penalty,
            random_state=problem.seed,
            warm_start=True,  # each stop goes on from the one before, with Adam's sums begun anew
            n_iter_no_change=max(EPOCHS),
        )
        done = 0
        for stop in EPOCHS if choice is None else choice[1:]:
            model.set_params(max_iter=stop - done)
            fit_quietly(model, problem)
            done = stop
            settings = f"penalty {penalty:g}, {stop} epochs"
            yield Fitted(_freeze(model, problem), settings, (penalty, stop))


def _freeze(model: Any, problem: Problem) -> Callable[[FloatArray], FloatArray]:
    """Its decision; a copy, so that further training leaves it alone."""
    frozen = deepcopy(model)
    decide = frozen.predict if problem.n_classes is None else frozen.predict_proba
    return lambda x: np.asarray(decide(x), np.float64)
