"""Who knows the true wanted answer and nothing else: the measure of what a release may tell."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from privpipe.attacks.adversaries.problem import (
    Fitted,
    Problem,
    choose_best,
    decide_with,
    measure_tuning,
    one_hot,
)
from privpipe.attacks.adversaries.ridges import fit_least_squares
from privpipe.protocols import FloatArray

ROUNDS, LEAVES = 40, 8

SHUFFLES = 39
"""Orders of answers that the true one must beat: one of forty passes without a cause."""

MOST_ANSWERS = 256
"""Different answers that are counted one by one."""


def fit_desired_baseline(problem: Problem) -> Fitted:
    """The best on tuning records of frequencies per answer, least squares and boosting.

    Parameters
    ----------
    problem
        Its inputs are the wanted answers, (n_records, n_columns): indicators of categories and
        standardised numbers.

    Notes
    -----
    Chosen by tuning records: the best on those that judge would flatter the release.
    """
    return choose_best(problem, _train(problem))


def tells_something(problem: Problem, fitted: Fitted) -> bool:
    """Whether wanted answers do better on tuning records than the answers of other records.

    Parameters
    ----------
    problem, fitted
        As given to `fit_desired_baseline`, and what came of it.
    """
    random = np.random.default_rng(problem.seed)
    decision = fitted.decide(problem.x_tune)
    others = (random.permutation(decision) for _ in range(SHUFFLES))
    return measure_tuning(problem, decision) > max(measure_tuning(problem, one) for one in others)


def _train(problem: Problem) -> Iterator[Fitted]:
    answers, codes = np.unique(problem.x_train + 0.0, axis=0, return_inverse=True)
    if len(answers) <= MOST_ANSWERS:
        yield _count(problem, answers, codes.ravel())
        if len(answers) <= 2:
            return  # two frequencies are all there is to know
    yield fit_least_squares(problem)
    regress = problem.n_classes is None
    kind = HistGradientBoostingRegressor if regress else HistGradientBoostingClassifier
    model = kind(
        max_iter=ROUNDS, max_leaf_nodes=LEAVES, early_stopping=False, random_state=problem.seed
    ).fit(problem.x_train, problem.y_train)
    yield Fitted(decide_with(model, problem), f"{ROUNDS} rounds")


def _count(problem: Problem, answers: FloatArray, codes: np.ndarray) -> Fitted:
    """Share of each class, or mean, of every answer that training records give."""
    y = problem.y_train
    targets = y[:, None] if problem.n_classes is None else one_hot(y, problem.n_classes)
    overall = targets.mean(axis=0)
    table = np.zeros((len(answers), targets.shape[1]))
    np.add.at(table, codes, targets)
    sizes = np.bincount(codes, minlength=len(answers))[:, None]
    # One record's worth of what is known without an answer keeps rare answers from certainty.
    table = (table + overall) / (sizes + 1)
    places = {answer.tobytes(): place for place, answer in enumerate(answers)}

    def decide(x: FloatArray) -> FloatArray:
        rows = np.ascontiguousarray(x + 0.0)  # one zero only
        at = [places.get(row.tobytes(), -1) for row in rows]
        found = np.vstack([table, overall])[at]
        return np.asarray(found[:, 0] if problem.n_classes is None else found)

    return Fitted(decide, f"{len(answers)} answers")
