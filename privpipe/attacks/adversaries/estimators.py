"""Adversaries that are estimators of scikit-learn: trees, forests, neighbours, a network.

And the baseline of an audit: who knows the true desired variables and nothing else. What such an
adversary guesses of a confidential variable is no fault of the release.
"""

from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
from sklearn import ensemble, neighbors, neural_network

from privpipe.attacks.adversaries import problem as problems
from privpipe.attacks.adversaries.problem import Features, Fitted, Problem, decide_with
from privpipe.attacks.adversaries.ridges import fit_least_squares
from privpipe.protocols import FloatArray, IntArray

LEAVES = (6, 31)

TREES = 300
"""Trees in all; with several classes each round of boosting costs one per class."""

IDLE_ROUNDS = 10
"""Rounds without a smaller loss on the tuning records after which boosting stops."""

FOREST_TREES, TREES_TRIED = 100, 40
"""Trees of a forest, and of those that are tried: as many as show which is the better."""

LEAST_RECORDS = (1, 5)
"""Fewest records of a leaf: one remembers, several average."""

NEIGHBOURS = (1, 5, 15, 50)

HIDDEN_UNITS = 100

PENALTIES = (1e-4, 1.0)
"""Ridge of the weights, as scikit-learn takes it: divided by the records of a step."""

EPOCHS = (5, 20, 60)
"""Passes over the training records after which training may stop."""


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
    usual = {"hidden_layer_sizes": (HIDDEN_UNITS,), "n_iter_no_change": max(EPOCHS)}
    for penalty in PENALTIES if choice is None else choice[:1]:
        # Each stop starts from the one before, with Adam's sums begun anew.
        model = kind(alpha=penalty, random_state=problem.seed, warm_start=True, **usual)
        # Three calls in all: each stop costs a copy, not a training from the beginning.
        done = 0
        for stop in EPOCHS if choice is None else choice[1:]:
            model.set_params(max_iter=stop - done)
            problems.fit_quietly(model, problem)
            done = stop
            # A copy: further training changes the model itself.
            decide = decide_with(deepcopy(model), problem)
            yield Fitted(decide, f"penalty {penalty:g}, {stop} epochs", (penalty, stop))


BASELINE_ROUNDS, BASELINE_LEAVES = 40, 8

SHUFFLES = 39
"""Orders of values that the true one must beat: one of forty passes without a cause."""

MOST_COUNTED = 256
"""Different values that are counted one by one."""


def fit_desired_baseline(problem: Problem) -> Fitted:
    """The best on tuning records of frequencies per value, least squares and boosting.

    Parameters
    ----------
    problem
        Its inputs are the desired variables, (n_records, n_columns): indicators of categories and
        standardised numbers.

    Notes
    -----
    Chosen by tuning records: the best on those that judge would flatter the release.
    """
    return problems.choose_best(problem, _train_baselines(problem))


def beats_shuffled(problem: Problem, fitted: Fitted) -> bool:
    """Whether desired variables do better on tuning records than those of other records.

    Parameters
    ----------
    problem, fitted
        As given to `fit_desired_baseline`, and what came of it.
    """
    random = np.random.default_rng(problem.seed)
    decision = fitted.decide(problem.x_tune)
    # Decisions are permuted instead of inputs: the same in law, and nothing is decided anew.
    others = (random.permutation(decision) for _ in range(SHUFFLES))
    tuned = partial(problems.measure_tuning, problem)
    return tuned(decision) > max(map(tuned, others))


def _train_baselines(problem: Problem) -> Iterator[Fitted]:
    # Adding zero makes one of both zeros: rows are compared by their bytes.
    values, codes = np.unique(problem.x_train + 0.0, axis=0, return_inverse=True)
    if len(values) <= MOST_COUNTED:
        yield _count(problem, values, codes.ravel())
        if len(values) <= 2:
            return  # two frequencies are all there is to know
    yield fit_least_squares(problem)
    yield boost_briefly(problem, BASELINE_ROUNDS, BASELINE_LEAVES)


def _count(problem: Problem, values: FloatArray, codes: IntArray) -> Fitted:
    """Share of each class, or mean, of every value that training records have."""
    y = problem.y_train
    targets = y[:, None] if problem.n_classes is None else problems.one_hot(y, problem.n_classes)
    overall = targets.mean(axis=0)
    table = np.zeros((len(values), targets.shape[1]))
    np.add.at(table, codes, targets)
    # One record's worth of what is known without a value keeps rare values from certainty.
    table = (table + overall) / (np.bincount(codes, minlength=len(values))[:, None] + 1)
    table = np.vstack([table, overall])
    places = {value.tobytes(): place for place, value in enumerate(values)}

    def decide(x: FloatArray) -> FloatArray:
        rows = np.ascontiguousarray(x + 0.0)  # one zero only: -0.0 has other bytes
        found = table[[places.get(row.tobytes(), -1) for row in rows]]
        return np.asarray(found[:, 0] if problem.n_classes is None else found)

    return Fitted(decide, f"{len(values)} values")
