"""Adversaries that are estimators of scikit-learn: trees, forests, neighbours, a network."""

from collections.abc import Iterator
from copy import deepcopy
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
from sklearn import ensemble, neighbors, neural_network

from privpipe.attacks.adversaries.problem import Features, Fitted, Problem, decide_with, fit_quietly
from privpipe.protocols import FloatArray

LEAVES = (6, 31)

TREES = 300
"""Trees in all; with several classes each round of boosting costs one per class."""

BANDS = 255
"""Values, or bands of them, that boosting sees of a column, as in scikit-learn."""

IDLE_ROUNDS = 10
"""Rounds without a smaller loss on the tuning records after which boosting stops."""

FOREST_TREES, TREES_TRIED = 40, 20
"""Trees of a forest, and of those that are tried: as many as show which is the better."""

LEAST_RECORDS = (1, 5)
"""Fewest records of a leaf: one remembers, several average."""

NEIGHBOURS = (1, 5, 15, 50)

HIDDEN_UNITS = 100

PENALTIES = (1e-4, 1.0)
"""Ridge of the weights, as scikit-learn takes it: divided by the records of a step."""

EPOCHS = (5, 15, 40)
"""Passes over the training records after which training may stop."""


def find_bands(x: FloatArray) -> Features:
    """What reads columns as codes of values, or of `BANDS` bands of as many records each.

    Boosting reads no more of a column. Of codes it finds its own bands in half the time, and one
    search does for all folds.
    """
    edges = []
    for column in x.T:
        ordered = np.sort(column)
        last = np.flatnonzero(ordered[1:] != ordered[:-1])  # of each value but the largest
        if len(last) >= BANDS:
            last = np.linspace(0, len(x) - 1, BANDS + 1)[1:-1].astype(np.int64)
        edges.append(np.unique(ordered[last]))

    def read(rows: FloatArray) -> Any:
        codes = np.empty(rows.shape, np.uint8)
        for j, column in enumerate(rows.T):
            codes[:, j] = np.searchsorted(edges[j], column)
        return codes

    return read


def train_boosting(problem: Problem, choice: tuple[int, int] | None) -> Iterator[Fitted]:
    """Gradient boosting on histograms, as many rounds as do best on the tuning records.

    Two sizes of tree are tried; `TREES` bounds the number of trees of each. Besides the round of
    least loss the last one is tried: guesses still get better where certainty no longer does.
    """
    if choice is not None:
        leaves, rounds = choice
        model = _make_boosting(problem, rounds, leaves).fit(problem.x_train, problem.y_train)
        yield Fitted(decide_with(model, problem), f"{leaves} leaves, {rounds} rounds", choice)
        return
    n_classes = problem.n_classes or 1
    # Rounds of several classes grow a tree each: trees are what takes time.
    most = max(20, TREES // (n_classes if n_classes > 2 else 1))
    stopping = {"early_stopping": True, "n_iter_no_change": IDLE_ROUNDS}
    for leaves in LEAVES:
        model = _make_boosting(problem, most, leaves, **stopping)
        # Stopped by the tuning records: scikit-learn would set apart some of those that train.
        model.fit(problem.x_train, problem.y_train, X_val=problem.x_tune, y_val=problem.y_tune)
        least = int(np.argmax(model.validation_score_[1:])) + 1  # the first score is of no round
        for rounds in sorted({least, model.n_iter_}):
            settings = f"{leaves} leaves, {rounds} rounds"
            yield Fitted(_stop_at(model, problem, rounds), settings, (leaves, rounds))


def _make_boosting(problem: Problem, rounds: int, leaves: int, **more: Any) -> Any:
    options = {"early_stopping": False, "random_state": problem.seed} | more
    kind = _find_kind(ensemble, "HistGradientBoosting", problem)
    return kind(max_iter=rounds, max_leaf_nodes=leaves, **options)


def _find_kind(module: ModuleType, name: str, problem: Problem) -> Any:
    """The class of scikit-learn for numbers, or that for classes."""
    return getattr(module, name + ("Regressor" if problem.n_classes is None else "Classifier"))


def _stop_at(model: Any, problem: Problem, rounds: int) -> Features:
    """The decision after so many rounds."""
    # One long training holds all shorter ones: no second fit is needed to stop early.
    stages = model.staged_predict if problem.n_classes is None else model.staged_predict_proba
    return lambda x: np.asarray(next(islice(stages(x), rounds - 1, None)), np.float64)


def boost_briefly(problem: Problem, rounds: int, leaves: int, **more: Any) -> Fitted:
    """Boosted trees of settings that are given, for adversaries that read little."""
    model = _make_boosting(problem, rounds, leaves, **more).fit(problem.x_train, problem.y_train)
    return Fitted(decide_with(model, problem), f"{rounds} rounds")


def train_forests(problem: Problem, choice: int | None) -> Iterator[Fitted]:
    """Extremely randomised trees, best of `LEAST_RECORDS`.

    Where classes lie close together and features are many, averaged trees find what boosting,
    which follows its errors, does not.

    References
    ----------
    Geurts, Ernst and Wehenkel 2006, Extremely randomized trees.
    """
    kind = _find_kind(ensemble, "ExtraTrees", problem)
    # What is tried is chosen by few trees; what attacks has all of them.
    n_trees = TREES_TRIED if choice is None else FOREST_TREES
    for least in LEAST_RECORDS if choice is None else (choice,):
        model = kind(n_estimators=n_trees, min_samples_leaf=least, random_state=problem.seed)
        model.fit(problem.x_train, problem.y_train)
        yield Fitted(decide_with(model, problem), f"at least {least} records a leaf", least)


def train_neighbours(problem: Problem, choice: int | None) -> Iterator[Fitted]:
    """Vote or mean of the nearest training records, best of `NEIGHBOURS`."""
    kind = _find_kind(neighbors, "KNeighbors", problem)
    for k in NEIGHBOURS if choice is None else (choice,):
        if k <= len(problem.x_train):
            # Search trees help in few dimensions only; records have many.
            model = kind(n_neighbors=k, algorithm="brute").fit(problem.x_train, problem.y_train)
            yield Fitted(decide_with(model, problem), f"{k} neighbours", k)


def train_networks(problem: Problem, choice: tuple[float, int] | None) -> Iterator[Fitted]:
    """One layer of rectified units, trained by Adam; best of `PENALTIES` and `EPOCHS`.

    References
    ----------
    Kingma and Ba 2015, Adam: A Method for Stochastic Optimization.
    """
    kind = _find_kind(neural_network, "MLP", problem)
    # Steps are noisy by far more than single precision rounds.
    problem = problem.read(lambda x: x.astype(np.float32))
    usual = {"hidden_layer_sizes": (HIDDEN_UNITS,), "n_iter_no_change": max(EPOCHS)}
    for penalty in PENALTIES if choice is None else choice[:1]:
        # Each stop starts from the one before, with Adam's sums begun anew.
        model = kind(alpha=penalty, random_state=problem.seed, warm_start=True, **usual)
        # Three calls in all: each stop costs a copy, not a training from the beginning.
        done = 0
        for stop in EPOCHS if choice is None else choice[1:]:
            model.set_params(max_iter=stop - done)
            fit_quietly(model, problem)
            done = stop
            # A copy: further training changes the model itself.
            decide = decide_with(deepcopy(model), problem)
            yield Fitted(decide, f"penalty {penalty:g}, {stop} epochs", (penalty, stop))
