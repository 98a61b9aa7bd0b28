"""The forest adversary: many trees with random thresholds, averaged."""

from __future__ import annotations

from collections.abc import Iterator

from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

from privpipe.attacks.adversaries.problem import Fitted, Problem, decide_with, fit_tuned

TREES = 100

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
    n_trees = TREES_TRIED if choice is None else TREES
    for least in LEAST_RECORDS if choice is None else (choice,):
        model = kind(n_estimators=n_trees, min_samples_leaf=least, random_state=problem.seed)
        model.fit(problem.x_train, problem.y_train)
        yield Fitted(decide_with(model, problem), f"at least {least} records a leaf", least)
