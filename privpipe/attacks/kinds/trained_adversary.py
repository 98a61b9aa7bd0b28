"""An adversary that is trained on some records and decides about others of the same evidence."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence
from privpipe.attacks.adversaries.problem import Fitted, Problem
from privpipe.attacks.adversaries.readers import KNOWS_WANTED, find_adversary
from privpipe.attacks.adversaries.table import ADVERSARIES
from privpipe.attacks.kinds.group_inference import split_in_time, tells_groups
from privpipe.attacks.statistics.measures import orient_ranking
from privpipe.attacks.statistics.splits import Split, draw_rows, draw_split
from privpipe.errors import ConvergenceError
from privpipe.protocols import FloatArray, IntArray

__all__ = [
    "Decided",
    "Trained",
    "decide_wanted",
    "guess_target",
    "measure_target",
    "split_target",
    "train_adversary",
]

Decided = tuple[FloatArray, FloatArray]
"""What an adversary says of test records, and how it ranks them."""


@dataclass(frozen=True, eq=False)
class Trained:
    """An adversary that was trained, and what it says of test records.

    Parameters
    ----------
    split
        Records to train on, to choose settings by, and to judge by.
    scale
        Mean and deviation of the training records of a number; (0, 1) of classes.
    test : (n_test,)
        Records that judge.
    decided
        What it says of them, in the unit of the variable, and how it ranks them.
    guess
        What one would say without records.
    settings, n_train, n_tune
        As in `AttackOutcome`.
    """

    split: Split
    scale: tuple[float, float]
    test: IntArray
    decided: Decided
    guess: float
    settings: str
    n_train: int
    n_tune: int


def train_adversary(
    evidence: Evidence, position: int, source: str, name: str, options: AttackOptions
) -> Trained:
    """Train one adversary on a source of the evidence and let it decide about test records.

    Raises
    ------
    ConvergenceError
        If its decisions are not finite.
    """
    adversary = find_adversary(name, ADVERSARIES)
    n_classes = evidence.columns[position].n_categories
    truth = evidence.truth[:, position]
    split = split_target(evidence, truth, n_classes, options)
    x = evidence.sources[source].values
    centre, spread = (0.0, 1.0) if n_classes else measure_target(truth[split.train])
    problem = Problem(
        x_train=x[split.train],
        y_train=(truth[split.train] - centre) / spread,
        x_tune=x[split.tune],
        y_tune=(truth[split.tune] - centre) / spread,
        n_classes=n_classes,
        seed=options.seed,
        deadline=options.find_deadline(),
    ).sample(adversary.max_train, adversary.max_tune)
    fitted = adversary.fit(problem)
    classes = truth[split.test].astype(np.int64) if n_classes else None
    most = min(adversary.max_test, options.max_test)
    test = draw_rows(split.test, classes, most, options.seed)
    decision = np.asarray(fitted.decide(x[test]), np.float64)
    expected = (len(test), n_classes) if n_classes else (len(test),)
    if decision.shape != expected or not np.isfinite(decision).all():
        raise ConvergenceError("The adversary's decisions are not finite, or too few.")
    return Trained(
        split,
        (centre, spread),
        test,
        (centre + spread * decision, decision * _orient(problem, fitted)),
        guess_target(truth[split.train], n_classes),
        fitted.settings,
        len(problem.x_train),
        len(problem.x_tune),
    )


_Knower = tuple[Fitted, FloatArray] | None


_KNOWERS: WeakKeyDictionary[Evidence, dict[int, _Knower]] = WeakKeyDictionary()
"""Who knows the wanted answer, of each variable: fitted once, for all attacks of a worker."""


def decide_wanted(
    evidence: Evidence,
    position: int,
    split: Split,
    scale: tuple[float, float],
    test: IntArray,
    options: AttackOptions,
) -> Decided | None:
    """What is said of test records by who knows the wanted answer and no more.

    None where the answer tells nothing of tuning records: then all that is found is gained, and
    limits need not bear what a second guess adds to them.
    """
    answers, truth = evidence.sources["wanted"].values, evidence.truth[:, position]
    n_classes, (centre, spread) = evidence.columns[position].n_categories, scale
    kept = _KNOWERS.setdefault(evidence, {})
    if position not in kept:
        adversary = find_adversary(KNOWS_WANTED, ADVERSARIES)
        problem = Problem(
            x_train=answers[split.train],
            y_train=(truth[split.train] - centre) / spread,
            x_tune=answers[split.tune],
            y_tune=(truth[split.tune] - centre) / spread,
            n_classes=n_classes,
            seed=options.seed,
        ).sample(adversary.max_train, adversary.max_tune)
        fitted = adversary.fit(problem)
        from privpipe.attacks.adversaries.wanted_answer import tells_something  # slow to import

        told = tells_something(problem, fitted)
        kept[position] = (fitted, _orient(problem, fitted)) if told else None
    knower = kept[position]
    if knower is None:
        return None
    fitted, signs = knower
    decision = np.asarray(fitted.decide(answers[test]), np.float64)
    return centre + spread * decision, decision * signs


def _orient(problem: Problem, fitted: Fitted) -> FloatArray:
    """Signs with which classes are ranked: chosen by tuning records, never by those that judge."""
    if problem.n_classes is None:
        return np.ones(1)
    decision = np.asarray(fitted.decide(problem.x_tune), np.float64)
    return orient_ranking(problem.y_tune.astype(np.int64), decision)


def split_target(
    evidence: Evidence, truth: FloatArray, n_classes: int | None, options: AttackOptions
) -> Split:
    """The split of one variable: the same for all its attacks, since it is drawn by seed."""
    rows = np.flatnonzero(~np.isnan(truth))
    groups, train_only, places = evidence.groups, evidence.train_only, evidence.places
    if groups is not None and n_classes and tells_groups(groups[rows], truth[rows]):
        # Who is to be named is the group: some of its records train, and neighbours do not judge.
        at = rows if places is None else places[rows]
        return split_in_time(rows, groups[rows], at, options.tune_share, options.test_share)
    return draw_split(
        rows,
        classes=None if n_classes is None else truth[rows].astype(np.int64),
        groups=None if groups is None else groups[rows],
        train_only=None if train_only is None else train_only[rows],
        tune_share=options.tune_share,
        test_share=options.test_share,
        seed=options.seed,
    )


def measure_target(numbers: FloatArray) -> tuple[float, float]:
    """Mean and deviation of the numbers that are to be guessed; a deviation of 0 is 1."""
    spread = float(numbers.std())
    return float(numbers.mean()), spread if spread > 0 else 1.0


def guess_target(truth: FloatArray, n_classes: int | None) -> float:
    """What one would say without the records: the majority class, or the mean."""
    if n_classes is None:
        return float(truth.mean())
    return float(np.argmax(np.bincount(truth.astype(np.int64), minlength=n_classes)))
