"""Inference attacks: adversaries trained on released records guess confidential variables.

Follows the protocol of Xu et al. 2017 (Figure 5) and Hamm 2017 (Algorithm 3): adversaries
see released records with their labels, and are judged on others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from privpipe.attacks.adversaries import ADVERSARIES
from privpipe.attacks.evidence import Evidence, prepare_evidence
from privpipe.attacks.measures import Score, measure_class_scores, measure_number_scores
from privpipe.attacks.options import AttackOptions
from privpipe.attacks.outcomes import Attack, AttackOutcome
from privpipe.attacks.problem import Problem
from privpipe.attacks.splits import Split, draw_rows, draw_split
from privpipe.attacks.verdicts import AttackReport, count_compared, summarise_outcomes
from privpipe.errors import ConvergenceError, PrivpipeError
from privpipe.protocols import Column, FloatArray, IntArray

__all__ = [
    "measure_attacks",
    "plan_attacks",
    "run_attack",
]


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
        The records with noise of equal utility; see `privpipe.attacks.noise`.
    columns
        Name and kind of each confidential column.
    features
        Name and kind of each column of the sources, where some are categorical.
    groups : (n_records,), optional
        Subject of each record; splits and intervals then go by subject.
    seen : (n_records,), optional
        True for records the sanitiser learned from; `AttackOptions.seen_records` says what
        becomes of them.
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
        options=options,
    )
    plan = plan_attacks(evidence, options)
    outcomes = []
    for attack in plan:
        outcomes.append(run_attack(evidence, attack, options))
        if progress is not None:
            progress(len(outcomes), len(plan), outcomes[-1])
    return summarise_outcomes(outcomes, plan, options, **evidence.counts())


def plan_attacks(evidence: Evidence, options: AttackOptions) -> tuple[Attack, ...]:
    """Every adversary that suits a variable, against each variable of each source."""
    return tuple(
        Attack(column.name, "classes" if column.is_categorical else "numbers", source, name)
        for source in evidence.sources
        for column in evidence.columns
        for name in options.adversaries
        if column.is_categorical or ADVERSARIES[name].numbers
    )


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
    source = evidence.sources[attack.source]
    outcome = AttackOutcome(
        attack,
        "unknown",
        n_features=source.n_features,
        n_coordinates=source.values.shape[1],
    )
    try:
        outcome = _attack(evidence, position, outcome, options)
    except PrivpipeError as error:
        outcome = replace(outcome, reason=str(error))
    except Exception as error:  # a library's message may hold values, its class does not
        outcome = replace(outcome, reason=type(error).__name__)
    return replace(outcome, seconds=time.perf_counter() - started)


def _attack(
    evidence: Evidence, position: int, outcome: AttackOutcome, options: AttackOptions
) -> AttackOutcome:
    adversary = ADVERSARIES[outcome.attack.adversary]
    n_classes = evidence.columns[position].n_categories
    truth = evidence.truth[:, position]
    split = _split_target(evidence, truth, n_classes, options)
    x = evidence.sources[outcome.attack.source].values
    centre, spread = (0.0, 1.0) if n_classes else _measure_target(truth[split.train])
    problem = Problem(
        x_train=x[split.train],
        y_train=(truth[split.train] - centre) / spread,
        x_tune=x[split.tune],
        y_tune=(truth[split.tune] - centre) / spread,
        n_classes=n_classes,
        seed=options.seed,
    ).sample(adversary.max_train, adversary.max_tune)
    fitted = adversary.fit(problem)
    classes = truth[split.test].astype(np.int64) if n_classes else None
    most = min(adversary.max_test, options.max_test)
    test = draw_rows(split.test, classes, most, options.seed)
    decision = np.asarray(fitted.decide(x[test]), np.float64)
    expected = (len(test), n_classes) if n_classes else (len(test),)
    if decision.shape != expected or not np.isfinite(decision).all():
        raise ConvergenceError("The adversary's decisions are not finite, or too few.")
    guess = _guess(truth[split.train], n_classes)
    return replace(
        outcome,
        status="measured",
        scores=_score(
            evidence, test, truth[test], centre + spread * decision, guess, n_classes, options
        ),
        settings=fitted.settings,
        n_train=len(problem.x_train),
        n_tune=len(problem.x_tune),
        n_test=len(test),
    )


def _score(
    evidence: Evidence,
    test: IntArray,
    truth: FloatArray,
    decision: FloatArray,
    guess: float,
    n_classes: int | None,
    options: AttackOptions,
) -> tuple[Score, ...]:
    suited = [a for a in options.adversaries if n_classes or ADVERSARIES[a].numbers]
    kind = "classes" if n_classes else "numbers"
    level = options.plan_level(count_compared(len(suited), kind, options))
    groups = None if evidence.groups is None else evidence.groups[test]
    n, seed = options.n_replicates, options.seed
    if n_classes is None:
        return measure_number_scores(
            truth, decision, guess=guess, groups=groups, level=level, n_replicates=n, seed=seed
        )
    return measure_class_scores(
        truth.astype(np.int64),
        decision,
        guess=int(guess),
        groups=groups,
        level=level,
        n_replicates=n,
        seed=seed,
    )


def _split_target(
    evidence: Evidence, truth: FloatArray, n_classes: int | None, options: AttackOptions
) -> Split:
    """The split of one variable: the same for all its attacks, since it is drawn by seed."""
    rows = np.flatnonzero(~np.isnan(truth))
    groups, train_only = evidence.groups, evidence.train_only
    return draw_split(
        rows,
        classes=None if n_classes is None else truth[rows].astype(np.int64),
        groups=None if groups is None else groups[rows],
        train_only=None if train_only is None else train_only[rows],
        tune_share=options.tune_share,
        test_share=options.test_share,
        seed=options.seed,
    )


def _measure_target(numbers: FloatArray) -> tuple[float, float]:
    spread = float(numbers.std())
    return float(numbers.mean()), spread if spread > 0 else 1.0


def _guess(truth: FloatArray, n_classes: int | None) -> float:
    """What one would say without the records: the majority class, or the mean."""
    if n_classes is None:
        return float(truth.mean())
    return float(np.argmax(np.bincount(truth.astype(np.int64), minlength=n_classes)))
