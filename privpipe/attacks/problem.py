"""One prediction problem as an adversary sees it, and what a fitted adversary is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from privpipe.attacks.measures import weigh_areas
from privpipe.attacks.splits import draw_rows
from privpipe.errors import ConvergenceError
from privpipe.protocols import FloatArray, IntArray

__all__ = ["Fitted", "Problem", "choose_best", "measure_tuning", "one_hot"]


@dataclass(frozen=True, eq=False)
class Problem:
    """Records to train on and records to choose settings with.

    Parameters
    ----------
    x_train, x_tune : (n_records, n_coordinates)
        Standardised inputs.
    y_train, y_tune : (n_records,)
        Codes of the classes, or numbers of mean 0 and variance 1 over the training records.
    n_classes
        Number of classes; None for numbers.
    seed
        Seed of all that is drawn.
    """

    x_train: FloatArray
    y_train: FloatArray
    x_tune: FloatArray
    y_tune: FloatArray
    n_classes: int | None
    seed: int = 0

    def sample(self, max_train: int, max_tune: int) -> Problem:
        """The same problem on a bounded sample; every class keeps its share, and a record."""
        train, tune = self._draw(self.y_train, max_train), self._draw(self.y_tune, max_tune)
        return replace(
            self,
            x_train=self.x_train[train],
            y_train=self.y_train[train],
            x_tune=self.x_tune[tune],
            y_tune=self.y_tune[tune],
        )

    def _draw(self, y: FloatArray, most: int) -> slice | IntArray:
        if len(y) <= most:
            return slice(None)  # no copy
        classes = None if self.n_classes is None else y.astype(np.int64)
        return draw_rows(np.arange(len(y)), classes, most, self.seed)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained adversary.

    Parameters
    ----------
    decide
        Maps inputs (n, n_coordinates) to (n, n_classes), or to (n,) for numbers.
    settings
        The settings that did best on the tuning records, in words.
    """

    decide: Callable[[FloatArray], FloatArray]
    settings: str


def choose_best(problem: Problem, candidates: Iterable[Fitted]) -> Fitted:
    """The candidate that does best on the tuning records; the first among equals.

    Raises
    ------
    ConvergenceError
        If no candidate gives finite decisions.
    """
    best, best_score = None, -np.inf
    for candidate in candidates:
        score = measure_tuning(problem, candidate.decide(problem.x_tune))
        if score > best_score:
            best, best_score = candidate, score
    if best is None:
        raise ConvergenceError(
            "No setting of the adversary gave finite decisions.",
            remedy="Check the scale of the inputs.",
        )
    return best


def measure_tuning(problem: Problem, decision: FloatArray) -> float:
    """How well a decision on the tuning records does; larger is better.

    Classes: share of hits plus area under the ROC curve, so that settings are told apart
    where one class outnumbers the rest. Numbers: R squared.
    """
    if problem.n_classes is None:
        return 1.0 - float(np.mean((problem.y_tune - decision) ** 2))
    hits = float(np.mean(np.argmax(decision, axis=1) == problem.y_tune))
    area = weigh_areas(problem.y_tune.astype(np.int64), decision)
    return hits + float(np.nan_to_num(area(np.ones((1, len(decision))))[0], nan=0.5))


def one_hot(codes: FloatArray, n_classes: int) -> FloatArray:
    """Indicators of the classes, (n_records, n_classes), float64.

    >>> one_hot(np.array([1.0, 0.0]), 2)
    array([[0., 1.], [1., 0.]])
    """
    return np.asarray(np.eye(n_classes)[codes.astype(np.int64)])
