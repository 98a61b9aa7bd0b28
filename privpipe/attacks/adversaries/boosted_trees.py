"""The boosted-tree adversary: gradient boosting on histograms."""

from __future__ import annotations

from collections.abc import Iterator

from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from privpipe.attacks.adversaries.problem import (
    Fitted,
    Problem,
    decide_with,
    fit_tuned,
)

__all__ = ["fit_boosting"]

LEAVES = (6, 31)

TREES = 300
"""Trees in all; with several classes each round of boosting costs one per class."""


def fit_boosting(problem: Problem) -> Fitted:
    """Gradient boosting on histograms, stopped on the tuning records.

    Two sizes of tree are tried; `TREES` bounds the number of trees of each.
    """
    return fit_tuned(problem, _train_boosting)


def _train_boosting(problem: Problem, choice: tuple[int, int] | None) -> Iterator[Fitted]:
    n_classes = problem.n_classes or 1
    several = n_classes if n_classes > 2 else 1
    regress = problem.n_classes is None
    kind = HistGradientBoostingRegressor if regress else HistGradientBoostingClassifier
    x, y = problem.x_tune, problem.y_tune
    for leaves in LEAVES if choice is None else choice[:1]:
        model = kind(
            max_iter=max(20, TREES // several) if choice is None else choice[1],
            max_leaf_nodes=leaves,
            early_stopping=choice is None,
            n_iter_no_change=15,
            random_state=problem.seed,
        )
        watched = {"X_val": x, "y_val": y} if choice is None else {}
        model.fit(problem.x_train, problem.y_train, **watched)
        settings = f"{leaves} leaves, {model.n_iter_} rounds"
        yield Fitted(decide_with(model, problem), settings, (leaves, model.n_iter_))
