"""Inference attacks: adversaries trained on released records guess confidential variables.

Follows the protocol of Xu et al. 2017 (Figure 5) and Hamm 2017 (Algorithm 3): adversaries
see released records with their labels, and are judged on others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.beside import Beside
from privpipe.attacks.adversaries.evidence import Evidence, prepare_evidence
from privpipe.attacks.adversaries.problem import Fitted, Problem
from privpipe.attacks.adversaries.readers import KNOWS_WANTED, choose_readers, find_adversary
from privpipe.attacks.adversaries.table import ADVERSARIES
from privpipe.attacks.kinds.attack_table import Sample
from privpipe.attacks.kinds.group_inference import (
    GROUPS,
    infer_together,
    list_sizes,
    name_size,
    split_in_time,
    tells_groups,
)
from privpipe.attacks.kinds.verdicts.attack_report import AttackReport, summarise_outcomes
from privpipe.attacks.kinds.verdicts.judgement import count_compared, is_of_release
from privpipe.attacks.kinds.verdicts.outcomes import Attack, AttackOutcome
from privpipe.attacks.statistics.beyond import compare_class_scores, compare_number_scores
from privpipe.attacks.statistics.measures import (
    Score,
    measure_class_scores,
    measure_number_scores,
    orient_ranking,
)
from privpipe.attacks.statistics.roc import sample_curve
from privpipe.attacks.statistics.splits import Split, draw_rows, draw_split
from privpipe.errors import ConvergenceError, PrivpipeError
from privpipe.protocols import Column, FloatArray, IntArray

__all__ = [
    "Decided",
    "attack",
    "decide_wanted",
    "guess_target",
    "measure_attacks",
    "measure_target",
    "plan_attacks",
    "run_attack",
    "score_decisions",
    "split_target",
    "train_adversary",
]


def attack(sample: Sample, options: AttackOptions) -> AttackReport:
    """The row "inference" of the kinds of attack."""
    assert sample.released is not None
    assert sample.confidential is not None
    return measure_attacks(
        sample.released,
        sample.confidential,
        raw=sample.raw,
        noise=sample.noise,
        wanted=sample.wanted,
        columns=sample.columns,
        groups=sample.groups,
        seen=sample.seen,
        beside=sample.beside,
        options=options,
    )


def measure_attacks(
    released: npt.ArrayLike,
    confidential: npt.ArrayLike,
    *,
    raw: npt.ArrayLike | None = None,
    noise: npt.ArrayLike | None = None,
    columns: Sequence[Column] | None = None,
    features: Sequence[Column] | None = None,
    groups: npt.ArrayLike | None = None,
    seen: npt.ArrayLike | None = None,
    places: npt.ArrayLike | None = None,
    beside: Beside | None = None,
    wanted: Beside | None = None,
    options: AttackOptions | None = None,
    progress: Callable[[int, int, AttackOutcome], None] | None = None,
) -> AttackReport:
    """Train every adversary on a release and report what each learns of what was hidden.

    Parameters
    ----------
    released : (n_records, n_features_released)
        What an outsider sees.
    confidential : (n_records,) or (n_records, n_columns)
        What must not be guessed; integers, booleans and strings are classes, floats numbers,
        unless `columns` says otherwise.
    raw : (n_records, n_features), optional
        The records before the release: the control, on which adversaries should succeed.
    noise : (n_records, any), optional
        The records with noise of equal utility; see `privpipe.attacks.kinds.noise`.
    columns
        Name and kind of each confidential column.
    features
        Name and kind of each column of the sources, where some are categorical.
    groups : (n_records,), optional
        Subject of each record; splits and intervals then go by subject, and several records of
        one are read together.
    seen : (n_records,), optional
        True for records the sanitiser learned from; `AttackOptions.seen_records` says what
        becomes of them.
    places : (n_records,), optional
        Order of the records in time, the order given where nothing is said: neighbours of a group
        that is itself to be named stay on one side.
    beside
        What is released beside the features: included variables, the order of the records,
        their partitions. Without it these are not attacked.
    wanted
        The true wanted answers: limits then count what is gained beyond knowing them.
    options
        Adversaries, bounds, limit and confidence.
    progress
        Called after each attack with the number done, the number planned and the outcome.

    Returns
    -------
    AttackReport
        With `table`, `decisions`, `verdict` and `to_json`.

    Raises
    ------
    InputError
        If the arrays cannot be attacked as asked; see `prepare_evidence`.

    Notes
    -----
    A verdict "safe" speaks of these adversaries, of a sample of this size and of this
    confidence; it is no proof against others.

    References
    ----------
    Xu et al. 2017, Figure 5; Hamm 2017, Algorithm 3.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> secret = random.integers(0, 2, 400)
    >>> leaky = random.normal(size=(400, 3)) + 3 * secret[:, None]
    >>> report = measure_attacks(
    ...     leaky, secret, options=AttackOptions(adversaries=("logistic", "naive_bayes"))
    ... )
    >>> report.verdict
    'leaks'
    """
    options = options or AttackOptions()
    evidence = prepare_evidence(
        released,
        confidential,
        raw=raw,
        noise=noise,
        columns=columns,
        features=features,
        groups=groups,
        seen=seen,
        places=places,
        beside=beside,
        wanted=wanted,
        options=options,
    )
    plan = plan_attacks(evidence, options)
    outcomes = []
    for attack in plan:
        outcomes.append(run_attack(evidence, attack, options))
        if progress is not None:
            progress(len(outcomes), len(plan), outcomes[-1])
    return summarise_outcomes(
        outcomes, plan, options, left_out=evidence.left_out, **evidence.counts()
    )


def plan_attacks(evidence: Evidence, options: AttackOptions) -> tuple[Attack, ...]:
    """Every adversary that suits a variable, against each variable of each source.

    Further readings of the release are for those who make something of them; see `readers`. Where
    records have groups, and a variable is one of whole groups, several records of a group are
    read together; see `group_inference`.
    """
    single = tuple(
        Attack(column.name, "classes" if column.is_categorical else "numbers", source, name)
        for source in evidence.sources
        for column in evidence.columns
        for name in choose_readers(source, column.is_categorical, options)
    )
    together = tuple(
        Attack(column.name, "classes", GROUPS, name_size(size))
        for position, column in enumerate(evidence.columns)
        for size in list_sizes(evidence, position, options)
    )
    return single + together


def run_attack(evidence: Evidence, attack: Attack, options: AttackOptions) -> AttackOutcome:
    """Train and judge one adversary; whatever goes wrong makes it unknown, never safe.

    Parameters
    ----------
    evidence
        The prepared audit.
    attack
        Which adversary, source and variable.
    options
        Bounds, split and confidence.

    Returns
    -------
    AttackOutcome
        Numbers about records, no value of any: it may travel.
    """
    started = time.perf_counter()
    position = [column.name for column in evidence.columns].index(attack.target)
    source = evidence.sources["released" if attack.source == GROUPS else attack.source]
    outcome = AttackOutcome(
        attack,
        "unknown",
        n_features=source.n_features,
        n_coordinates=source.values.shape[1],
    )
    try:
        judge = _attack_groups if attack.source == GROUPS else _attack
        # Attacks run beside one another: on small fits OpenMP's threads wait more than they work.
        with threadpool_limits(1, user_api="openmp"):
            outcome = judge(evidence, position, outcome, options)
    except PrivpipeError as error:
        outcome = replace(outcome, reason=str(error))
    except Exception as error:  # a library's message may hold values, its class does not
        outcome = replace(outcome, reason=type(error).__name__)
    return replace(outcome, seconds=time.perf_counter() - started)


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


def _attack(
    evidence: Evidence, position: int, outcome: AttackOutcome, options: AttackOptions
) -> AttackOutcome:
    source = outcome.attack.source
    made = train_adversary(evidence, position, source, outcome.attack.adversary, options)
    known = None
    if is_of_release(source) and "wanted" in evidence.sources:
        known = decide_wanted(evidence, position, made.split, made.scale, made.test, options)
    truth = evidence.truth[made.test, position]
    return replace(
        outcome,
        status="measured",
        scores=score_decisions(
            evidence, position, made.test, made.decided, known, made.guess, options
        ),
        settings=made.settings,
        n_train=made.n_train,
        n_tune=made.n_tune,
        n_test=len(made.test),
        roc=sample_curve(truth, made.decided[1], outcome.attack.kind),
    )


def _attack_groups(
    evidence: Evidence, position: int, outcome: AttackOutcome, options: AttackOptions
) -> AttackOutcome:
    """Judge who knows several records of a group; one decision per set, intervals by group.

    What the wanted answers of a set tell is not deducted: the limits bear the whole advantage.
    """
    truth, column = evidence.truth[:, position], evidence.columns[position]
    split = split_target(evidence, truth, column.n_categories, options)
    found = infer_together(evidence, position, outcome.attack.adversary, split, options)
    strict, *also = _plan_levels(evidence, position, options)
    return replace(
        outcome,
        status="measured",
        scores=measure_class_scores(
            found.truth,
            found.decision,
            guess=int(guess_target(truth[split.train], column.n_categories)),
            ranking=found.ranking,
            groups=found.groups,
            level=strict,
            also=also,
            n_replicates=options.n_replicates,
            seed=options.seed,
        ),
        settings=found.settings,
        n_train=found.n_train,
        n_tune=len(split.tune),
        n_test=len(found.truth),
    )


Decided = tuple[FloatArray, FloatArray]
"""What an adversary says of test records, and how it ranks them."""

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


def score_decisions(
    evidence: Evidence,
    position: int,
    test: IntArray,
    decided: Decided,
    known: Decided | None,
    guess: float,
    options: AttackOptions,
) -> tuple[Score, ...]:
    """Scores of what was decided of test records, by class or number, with their limits."""
    decision, ranking = decided
    column, truth = evidence.columns[position], evidence.truth[test, position]
    strict, *also = _plan_levels(evidence, position, options)
    groups = None if evidence.groups is None else evidence.groups[test]
    given: dict[str, Any] = {"groups": groups, "level": strict, "also": also, "seed": options.seed}
    given["n_replicates"] = options.n_replicates
    if not column.is_categorical:
        scores = measure_number_scores(truth, decision, guess=guess, **given)
        if known is None:
            return scores
        return compare_number_scores(scores, truth, decision, known[0], guess=guess, **given)
    classes = truth.astype(np.int64)
    scores = measure_class_scores(classes, decision, guess=int(guess), ranking=ranking, **given)
    if known is None:
        return scores
    return compare_class_scores(
        scores, classes, decision, known[0], ranking=ranking, known_ranking=known[1], **given
    )


def _plan_levels(evidence: Evidence, position: int, options: AttackOptions) -> tuple[float, ...]:
    """Levels of the intervals of a variable, the strictest first."""
    column = evidence.columns[position]
    planned = [
        attack
        for attack in plan_attacks(evidence, options)
        if attack.target == column.name and is_of_release(attack.source)
    ]
    kind = "classes" if column.is_categorical else "numbers"
    n_compared = count_compared(len(planned), kind, options)
    return options.plan_levels(n_compared, len(evidence.columns))


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
