"""One prediction problem as an adversary sees it, and what a fitted adversary is."""

import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from privpipe.attacks.statistics import roc, scores, splits
from privpipe.errors import ConvergenceError, InputError
from privpipe.protocols import FloatArray


class _Quiet:
    """Within, warnings of scikit-learn that a fit did not converge are ignored.

    `warnings.catch_warnings` belongs to the process: of two threads the one that leaves first
    would undo what the other has set. Here the first to enter sets, and the last to leave undoes.
    """

    def __init__(self) -> None:
        self._lock, self._n_inside, self._caught = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        from sklearn.exceptions import ConvergenceWarning  # the driver fits nothing

        with self._lock:
            if not self._n_inside:
                self._caught.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore", ConvergenceWarning)
            self._n_inside += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._n_inside -= 1
            if not self._n_inside:
                self._caught.close()


QUIET = _Quiet()
"""The process's only one: ``with QUIET: model.fit(...)``."""


Features = Callable[[FloatArray], FloatArray]
"""Maps records, (n_records, n_coordinates), to what an adversary reads of them, or decides."""

TIE = 1e-9
"""Two settings whose tuning scores are closer than this are equal: rounding may not choose."""


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
    trial
        Where several folds share settings: on what, and which.
    n_known
        Last coordinates, which are no part of the release: what the target says of the record.
    """

    x_train: FloatArray
    y_train: FloatArray
    x_tune: FloatArray
    y_tune: FloatArray
    n_classes: int | None
    seed: int = 0
    trial: "Trial | None" = None
    n_known: int = 0

    def join(self) -> "Problem":
        """The same problem with the tuning records among those to train on."""
        x = np.concatenate([self.x_train, self.x_tune])
        return replace(self, x_train=x, y_train=np.concatenate([self.y_train, self.y_tune]))

    def read(self, features: Features) -> "Problem":
        """The same problem of features of the records."""
        # Settings shared by folds are those of the records as they are.
        x_train, x_tune = features(self.x_train), features(self.x_tune)
        return replace(self, x_train=x_train, x_tune=x_tune, trial=None, n_known=0)

    def sample(self, max_train: int, max_tune: int) -> "Problem":
        """The same problem on a bounded sample; every class keeps its share, and a record."""
        x_train, y_train = self._draw(self.x_train, self.y_train, max_train)
        x_tune, y_tune = self._draw(self.x_tune, self.y_tune, max_tune)
        return replace(self, x_train=x_train, y_train=y_train, x_tune=x_tune, y_tune=y_tune)

    def _draw(self, x: FloatArray, y: FloatArray, most: int) -> tuple[FloatArray, FloatArray]:
        if len(y) <= most:
            return x, y  # no copy
        # Drawn at random a rare class could be left out of what trains, and its columns be missing.
        classes = None if self.n_classes is None else y.astype(np.int64)
        rows = splits.draw_rows(np.arange(len(y)), classes, most, self.seed)
        return x[rows], y[rows]


@dataclass(eq=False)
class Trial:
    """Settings that folds share: chosen once, by records that none of these folds judges.

    Parameters
    ----------
    problem
        To choose them on.
    best
        What did best, once something was chosen: as the adversary itself keeps it.
    """

    problem: Problem
    best: Any = None


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained adversary.

    Parameters
    ----------
    decide
        Maps inputs (n, n_coordinates) to (n, n_classes), or to (n,) for numbers.
    settings
        The settings that did best on the tuning records, in words.
    choice
        The same settings, as the adversary's `Trainer` takes them.
    """

    decide: Features
    settings: str
    choice: Any = None

    @classmethod
    def known(cls, decision: FloatArray, settings: str, choice: Any) -> "Fitted":
        """A candidate whose decision on the tuning records is known already."""
        return cls(lambda _: decision, settings, choice)

    def after(self, features: Features, settings: str = "", choice: Any = None) -> "Fitted":
        """The decision about records whose features it reads; `settings` are put before its."""
        return Fitted(lambda x: self.decide(features(x)), settings + self.settings, choice)


def decide_with(model: Any, problem: Problem) -> Features:
    """The decision of a fitted model of scikit-learn: its numbers, or probabilities of classes."""
    decide = model.predict if problem.n_classes is None else model.predict_proba
    return lambda x: np.asarray(decide(x), np.float64)


def rank_by_probability(decide: Features) -> Features:
    """Log-probabilities of classes: what a record adds to all classes alike ranks no record."""
    return lambda x: np.asarray(special.log_softmax(decide(x), axis=1))


def fit_quietly(model: Any, problem: Problem) -> None:
    """Train; stopping short is one of the settings tried, no reason for a warning."""
    with QUIET:
        model.fit(problem.x_train, problem.y_train)


Trainer = Callable[[Problem, Any], Iterable[Fitted]]
"""Trains one adversary with all its settings, or with one: ``train(problem, choice)``.

`choice` is None for all settings, or the `Fitted.choice` of one of them; then the last adversary
given back is the one that was requested.
"""


def fit_tuned(problem: Problem, train: Trainer) -> Fitted:
    """Choose settings on the tuning records, then train with them on all records.

    An adversary that has chosen its settings need not leave a fifth of its records unused.

    Parameters
    ----------
    problem
        Records to train on, and to choose with.
    train
        See `Trainer`.

    Raises
    ------
    ConvergenceError
        If no setting gives finite decisions.
    """
    trial = problem.trial or Trial(problem)
    if trial.best is None:
        trial.best = choose_best(trial.problem, train(trial.problem, None))
    best: Fitted = trial.best
    # Of an iterative adversary the last one given back has trained to the stop that was chosen.
    *_, final = train(problem.join(), best.choice)
    return replace(final, settings=best.settings)


def choose_best(problem: Problem, candidates: Iterable[Fitted]) -> Fitted:
    """The candidate that does best on the tuning records; the first among equals (see `TIE`).

    Raises
    ------
    InputError
        If there is no tuning record: whole groups are on one side, and few have none to spare.
    ConvergenceError
        If no candidate gives finite decisions.
    """
    if not len(problem.y_tune):
        message = "No record is left to choose an adversary's settings by."
        raise InputError(message, remedy="Use more records or groups.", code="too_few_records")
    best, best_score = None, -np.inf
    for candidate in candidates:
        score = measure_tuning(problem, candidate.decide(problem.x_tune))
        # Not `>=`: among equals the first is chosen, on any machine.
        if score > best_score + TIE:
            best, best_score = candidate, score
    if best is None:
        remedy = "Check the scale of the inputs."
        raise ConvergenceError("No setting of the adversary gave finite decisions.", remedy=remedy)
    return best


def measure_tuning(problem: Problem, decision: FloatArray) -> float:
    """How well a decision on the tuning records does; larger is better.

    Classes: share of hits plus area under the ROC curve, so that settings differ in it
    where one class outnumbers the rest. Numbers: R squared.
    """
    if problem.n_classes is None:
        return 1.0 - float(np.mean((problem.y_tune - decision) ** 2))
    # Hits alone would be equal for all settings where one class outnumbers the rest.
    hits = float(np.mean(np.argmax(decision, axis=1) == problem.y_tune))
    return hits + roc.measure_area(problem.y_tune.astype(np.int64), decision)


def one_hot(codes: FloatArray, n_classes: int) -> FloatArray:
    """Indicators of the classes, (n_records, n_classes), float64.

    >>> one_hot(np.array([1.0, 0.0]), 2)
    array([[0., 1.], [1., 0.]])
    """
    return np.asarray(np.eye(n_classes)[codes.astype(np.int64)])


def join_decided(found: list[scores.Decided], n_classes: int | None) -> scores.Decided:
    """What adversaries of several splits say, as if one had said it.

    Rankings of classes are centred within each split: how sure its adversary is on the whole may
    not rank its records before those of another.
    """
    decision = np.concatenate([said for said, _ in found])
    if len(found) > 1 and n_classes:
        ranked = [ranking - np.median(ranking, axis=0) for _, ranking in found]
        return decision, np.concatenate([one / max(float(one.std()), 1e-300) for one in ranked])
    return decision, np.concatenate([ranking for _, ranking in found])


def measure_target(numbers: FloatArray) -> tuple[float, float]:
    """Mean and deviation of the numbers that are to be guessed; a deviation of 0 is 1."""
    spread = float(numbers.std())
    return float(numbers.mean()), spread if spread > 0 else 1.0


def guess_target(truth: FloatArray, n_classes: int | None) -> float:
    """What one would say without the records: the majority class, or the mean."""
    if n_classes is None:
        return float(truth.mean())
    return float(np.argmax(np.bincount(truth.astype(np.int64), minlength=n_classes)))
