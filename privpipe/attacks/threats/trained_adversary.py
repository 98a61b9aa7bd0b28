"""An adversary that is trained on some records and decides about others of the same evidence."""

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from privpipe.attacks.adversaries import ADVERSARIES, KNOWS_DESIRED
from privpipe.attacks.adversaries import problem as problems
from privpipe.attacks.adversaries.attack_options import AttackOptions, find_adversary
from privpipe.attacks.adversaries.coordinates import TrainingMatrix
from privpipe.attacks.adversaries.evidence import Evidence, split_records
from privpipe.attacks.statistics.roc import orient_ranking
from privpipe.attacks.statistics.splits import RecordSplit, draw_rows
from privpipe.errors import ConvergenceError
from privpipe.protocols import FloatArray, IntArray


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
    decided: problems.Decided
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
    truth, n_classes = evidence.truth[:, position], evidence.columns[position].n_categories
    splits = split_records(evidence, position, options)
    # Of several splits all judge, and the bound is of all of them.
    most = min(adversary.max_test, options.max_test) // len(splits)
    tests = draw_tests(evidence, position, splits, most, options)
    x, found, learners = evidence.sources[source].values, list[problems.Decided](), list[_Learner]()
    for split, test in zip(splits, tests, strict=True):
        problem, scale = _pose(x, truth, split, n_classes, options)
        # The share is of the labels that it would use, not of those that there are: half of what a
        # bounded adversary never reads would change nothing.
        most_train = math.ceil(share_train * min(adversary.max_train, len(split.train)))
        problem = problem.sample(most_train, adversary.max_tune)
        learners.append(_Learner(problem, adversary.fit(problem), scale))
        found.append(learners[-1].decide(x[test]))
    learned = np.unique(np.concatenate([split.train for split in splits]))
    first = learners[0]
    return TrainedAdversary(
        splits,
        tests,
        problems.join_decided(found, n_classes),
        problems.guess_target(truth[learned], n_classes),
        first.fitted.settings,
        len(first.problem.x_train),
        len(first.problem.x_tune),
    )


@dataclass(frozen=True, eq=False)
class _Learner:
    """An adversary fitted to one split, with mean and deviation of the numbers that it guesses."""

    problem: problems.Problem
    fitted: problems.Fitted
    scale: tuple[float, float]

    def decide(self, x: FloatArray) -> problems.Decided:
        """What is said of records, in the unit of the variable, and how it ranks them."""
        problem, decision = self.problem, np.asarray(self.fitted.decide(x), np.float64)
        expected = (len(x), problem.n_classes) if problem.n_classes else (len(x),)
        if decision.shape != expected or not np.isfinite(decision).all():
            raise ConvergenceError("The adversary's decisions are not finite, or too few.")
        signs: FloatArray = np.ones(1)
        if problem.n_classes is not None:
            # Signs with which classes are ranked are chosen by tuning records: the records that
            # judge would turn every area above a half.
            tuned = np.asarray(self.fitted.decide(problem.x_tune), np.float64)
            signs = orient_ranking(problem.y_tune.astype(np.int64), tuned)
        return self.scale[0] + self.scale[1] * decision, decision * signs


_BASELINES: WeakKeyDictionary[TrainingMatrix, dict[tuple[int, int], _Learner | None]]
_BASELINES = WeakKeyDictionary()
"""Who knows the desired variables, of each variable and fold: fitted once, for all attacks of a
worker, and for the leaks that it plants in copies of the evidence."""


def decide_by_desired(
    evidence: Evidence,
    position: int,
    splits: tuple[RecordSplit, ...],
    tests: tuple[IntArray, ...],
    options: AttackOptions,
) -> problems.Decided | None:
    """What is said of test records by who knows the true desired variables and no more.

    None without such, or where they reveal nothing of tuning records: then all that is found is
    gained, and limits need not bear what a second guess adds to them.
    """
    if "wanted" not in evidence.sources:
        return None
    desired, truth = evidence.sources["wanted"], evidence.truth[:, position]
    x, n_classes = desired.values, evidence.columns[position].n_categories
    fitted, found = _BASELINES.setdefault(desired, {}), list[problems.Decided]()
    for fold, (split, test) in enumerate(zip(splits, tests, strict=True)):
        if (position, fold) not in fitted:
            fitted[position, fold] = _fit_baseline(x, truth, split, n_classes, options)
        if (learner := fitted[position, fold]) is not None:
            found.append(learner.decide(x[test]))
            continue
        # A fold without a baseline guesses, so that all folds are scored alike.
        if n_classes is None:
            same = np.full(len(test), float(truth[split.train].mean()))
        else:
            counts = np.bincount(truth[split.train].astype(np.int64), minlength=n_classes)
            same = np.tile(counts / counts.sum(), (len(test), 1))
        found.append((same, same))
    knows = any(fitted[position, fold] is not None for fold in range(len(splits)))
    return problems.join_decided(found, n_classes) if knows else None


def _fit_baseline(
    x: FloatArray,
    truth: FloatArray,
    split: RecordSplit,
    n_classes: int | None,
    options: AttackOptions,
) -> _Learner | None:
    from privpipe.attacks.adversaries.desired_baseline import beats_shuffled  # slow to import

    adversary = find_adversary(KNOWS_DESIRED, ADVERSARIES)
    problem, scale = _pose(x, truth, split, n_classes, options)
    problem = problem.sample(adversary.max_train, adversary.max_tune)
    fitted = adversary.fit(problem)
    return _Learner(problem, fitted, scale) if beats_shuffled(problem, fitted) else None


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


def _pose(
    x: FloatArray,
    truth: FloatArray,
    split: RecordSplit,
    n_classes: int | None,
    options: AttackOptions,
) -> tuple[problems.Problem, tuple[float, float]]:
    """What is to be learned from a split, and mean and deviation of its numbers."""
    centre, spread = (0.0, 1.0) if n_classes else problems.measure_target(truth[split.train])
    problem = problems.Problem(
        x_train=x[split.train],
        y_train=(truth[split.train] - centre) / spread,
        x_tune=x[split.tune],
        y_tune=(truth[split.tune] - centre) / spread,
        n_classes=n_classes,
        seed=options.seed,
    )
    return problem, (centre, spread)
