"""An adversary that is trained on some records and decides about others of the same evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from privpipe.attacks.adversaries import ADVERSARIES, KNOWS_DESIRED
from privpipe.attacks.adversaries.attack_options import AttackOptions, find_adversary
from privpipe.attacks.adversaries.coordinates import TrainingMatrix
from privpipe.attacks.adversaries.evidence import Evidence, split_records
from privpipe.attacks.adversaries.problem import Fitted, Problem
from privpipe.attacks.statistics.roc import orient_ranking
from privpipe.attacks.statistics.splits import RecordSplit, draw_rows
from privpipe.errors import ConvergenceError
from privpipe.protocols import FloatArray, IntArray

Decided = tuple[FloatArray, FloatArray]
"""What an adversary says of test records, and how it ranks them."""


@dataclass(frozen=True, eq=False)
class TrainedAdversary:
    """An adversary that was trained, and what it says of test records.

    Parameters
    ----------
    splits
        Records to train on, to choose settings by, and to judge by; of a trait several, so that
        all groups judge.
    tests
        Records of each that judge.
    decided
        What it says of them all, in the unit of the variable, and how it ranks them.
    guess
        What one would say without records.
    settings, n_train, n_tune
        As in `AttackOutcome`; of the first split.
    """

    splits: tuple[RecordSplit, ...]
    tests: tuple[IntArray, ...]
    decided: Decided
    guess: float
    settings: str
    n_train: int
    n_tune: int

    @property
    def test(self) -> IntArray:
        """All records that judge, (n_test,)."""
        return np.concatenate(self.tests)


def train_adversary(
    evidence: Evidence,
    position: int,
    source: str,
    name: str,
    options: AttackOptions,
    *,
    share_train: float = 1.0,
) -> TrainedAdversary:
    """Train one adversary on a source of the evidence and let it decide about test records.

    With `share_train` below one it has such a share of the labels that it would use.

    Raises
    ------
    ConvergenceError
        If its decisions are not finite.
    """
    adversary = find_adversary(name, ADVERSARIES)
    truth = evidence.truth[:, position]
    n_classes = evidence.columns[position].n_categories
    splits = split_records(evidence, position, options)
    most = min(adversary.max_test, options.max_test) // len(splits)
    tests = draw_tests(evidence, position, splits, most, options)
    x, found, of = evidence.sources[source].values, list[Decided](), list[tuple[Fitted, Problem]]()
    for split, test in zip(splits, tests, strict=True):
        problem, scale = _pose(x, truth, split, n_classes, options)
        most_train = math.ceil(share_train * min(adversary.max_train, len(split.train)))
        problem = problem.sample(most_train, adversary.max_tune)
        fitted = adversary.fit(problem)
        found.append(_decide(x[test], problem, fitted, scale))
        of.append((fitted, problem))
    learned = np.unique(np.concatenate([split.train for split in splits]))
    return TrainedAdversary(
        splits,
        tests,
        join_decided(found, n_classes),
        guess_target(truth[learned], n_classes),
        of[0][0].settings,
        len(of[0][1].x_train),
        len(of[0][1].x_tune),
    )


_Knower = tuple[Problem, Fitted, tuple[float, float]] | None


_KNOWERS: WeakKeyDictionary[TrainingMatrix, dict[tuple[int, int], _Knower]] = WeakKeyDictionary()
"""Who knows the wanted answer, of each variable and fold: fitted once, for all attacks of a
worker, and for the leaks that it plants in copies of the evidence."""


def decide_by_desired(
    evidence: Evidence,
    position: int,
    splits: tuple[RecordSplit, ...],
    tests: tuple[IntArray, ...],
    options: AttackOptions,
) -> Decided | None:
    """What is said of test records by who knows the wanted answer and no more.

    None where the answer tells nothing of tuning records: then all that is found is gained, and
    limits need not bear what a second guess adds to them.
    """
    desired, truth = evidence.sources["wanted"], evidence.truth[:, position]
    answers, n_classes = desired.values, evidence.columns[position].n_categories
    kept, found, knows = _KNOWERS.setdefault(desired, {}), list[Decided](), False
    for fold, (split, test) in enumerate(zip(splits, tests, strict=True)):
        if (position, fold) not in kept:
            kept[position, fold] = _fit_knower(answers, truth, split, n_classes, options)
        knower = kept[position, fold]
        if knower is not None:
            knows = True
            problem, fitted, scale = knower
            found.append(_decide(answers[test], problem, fitted, scale))
        elif n_classes is None:
            mean = np.full(len(test), float(truth[split.train].mean()))
            found.append((mean, mean))
        else:
            counts = np.bincount(truth[split.train].astype(np.int64), minlength=n_classes)
            shares = np.tile(counts / counts.sum(), (len(test), 1))
            found.append((shares, shares))
    return join_decided(found, n_classes) if knows else None


def _fit_knower(
    answers: FloatArray,
    truth: FloatArray,
    split: RecordSplit,
    n_classes: int | None,
    options: AttackOptions,
) -> _Knower:
    adversary = find_adversary(KNOWS_DESIRED, ADVERSARIES)
    problem, scale = _pose(answers, truth, split, n_classes, options)
    problem = replace(problem, deadline=math.inf).sample(adversary.max_train, adversary.max_tune)
    fitted = adversary.fit(problem)
    from privpipe.attacks.adversaries.desired_baseline import beats_shuffled  # slow to import

    return (problem, fitted, scale) if beats_shuffled(problem, fitted) else None


def draw_tests(
    evidence: Evidence,
    position: int,
    splits: tuple[RecordSplit, ...],
    most: int,
    options: AttackOptions,
) -> tuple[IntArray, ...]:
    """At most so many judging records of each split."""
    truth = evidence.truth[:, position]
    is_class = evidence.columns[position].is_categorical
    return tuple(
        draw_rows(
            split.test, truth[split.test].astype(np.int64) if is_class else None, most, options.seed
        )
        for split in splits
    )


def join_decided(found: list[Decided], n_classes: int | None) -> Decided:
    """What adversaries of several splits say, as if one had said it.

    Rankings of classes are centred within each split: how sure its adversary is on the whole may
    not rank its records before those of another.
    """
    decision = np.concatenate([said for said, _ in found])
    if len(found) > 1 and n_classes:
        ranked = [ranking - np.median(ranking, axis=0) for _, ranking in found]
        return decision, np.concatenate([one / max(float(one.std()), 1e-300) for one in ranked])
    return decision, np.concatenate([ranking for _, ranking in found])


def _pose(
    x: FloatArray,
    truth: FloatArray,
    split: RecordSplit,
    n_classes: int | None,
    options: AttackOptions,
) -> tuple[Problem, tuple[float, float]]:
    """What is to be learned from a split, and mean and deviation of its numbers."""
    centre, spread = (0.0, 1.0) if n_classes else measure_target(truth[split.train])
    problem = Problem(
        x_train=x[split.train],
        y_train=(truth[split.train] - centre) / spread,
        x_tune=x[split.tune],
        y_tune=(truth[split.tune] - centre) / spread,
        n_classes=n_classes,
        seed=options.seed,
        deadline=options.find_deadline(),
    )
    return problem, (centre, spread)


def _decide(x: FloatArray, problem: Problem, fitted: Fitted, scale: tuple[float, float]) -> Decided:
    """What is said of records, in the unit of the variable, and how it ranks them."""
    decision = np.asarray(fitted.decide(x), np.float64)
    expected = (len(x), problem.n_classes) if problem.n_classes else (len(x),)
    if decision.shape != expected or not np.isfinite(decision).all():
        raise ConvergenceError("The adversary's decisions are not finite, or too few.")
    return scale[0] + scale[1] * decision, decision * _orient(problem, fitted)


def _orient(problem: Problem, fitted: Fitted) -> FloatArray:
    """Signs with which classes are ranked: chosen by tuning records, never by those that judge."""
    if problem.n_classes is None:
        return np.ones(1)
    decision = np.asarray(fitted.decide(problem.x_tune), np.float64)
    return orient_ranking(problem.y_tune.astype(np.int64), decision)


def measure_target(numbers: FloatArray) -> tuple[float, float]:
    """Mean and deviation of the numbers that are to be guessed; a deviation of 0 is 1."""
    spread = float(numbers.std())
    return float(numbers.mean()), spread if spread > 0 else 1.0


def guess_target(truth: FloatArray, n_classes: int | None) -> float:
    """What one would say without the records: the majority class, or the mean."""
    if n_classes is None:
        return float(truth.mean())
    return float(np.argmax(np.bincount(truth.astype(np.int64), minlength=n_classes)))
