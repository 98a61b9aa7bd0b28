"""The nearest-neighbour adversary: votes and means of the training records closest by."""

from __future__ import annotations

from collections.abc import Iterator

from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from privpipe.attacks.adversaries.problem import Fitted, Problem, decide_with, fit_tuned

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
