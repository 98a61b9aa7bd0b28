"""The boosted-tree adversary: gradient boosting on histograms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from privpipe.attacks.adversaries.problem import Fitted, Problem, decide_with, fit_tuned
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
