"""Inference attacks: adversaries trained on released records guess confidential variables.

Follows the protocol of Xu et al. 2017 (Figure 5) and Hamm 2017 (Algorithm 3): adversaries
see released records with their labels, and are judged on others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.auxiliary import Auxiliary
from privpipe.attacks.adversaries.evidence import Evidence, find_units
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.statistics.roc import sample_curve
from privpipe.attacks.statistics.scores import (
    Score,
    compare_class_scores,
    compare_number_scores,
    measure_class_scores,
    measure_number_scores,
)
from privpipe.attacks.threats.attack_plan import plan_attacks, plan_levels
from privpipe.attacks.threats.attack_table import Sample
from privpipe.attacks.threats.group_inference import SOURCES, infer_together
from privpipe.attacks.threats.trained_adversary import Decided, decide_by_desired, train_adversary
from privpipe.attacks.threats.verdicts.attack_report import AttackReport, summarise_outcomes
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome, is_of_release
from privpipe.errors import PrivpipeError
from privpipe.protocols import Column, IntArray


def attack(sample: Sample, options: AttackOptions) -> AttackReport:
    """The row "inference" of the kinds of attack."""
    assert sample.released is not None
    assert sample.confidential is not None
    return measure_attacks(
        sample.released,
        sample.confidential,
        raw=sample.raw,
        noise=sample.noise,
        desired=sample.desired,
        columns=sample.columns,
        groups=sample.groups,
        seen=sample.seen,
        auxiliary=sample.auxiliary,
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
    auxiliary: Auxiliary | None = None,
    desired: Auxiliary | None = None,
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
        The records with noise of equal utility; see `privpipe.attacks.threats.noise`.
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
    auxiliary
        What is released beside the features: included variables, the order of the records,
        their partitions. Without it these are not attacked.
    desired
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
        auxiliary=auxiliary,
        desired=desired,
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
    source = evidence.sources[SOURCES.get(attack.source, attack.source)]
    outcome = AttackOutcome(
        attack, "unknown", n_features=source.n_features, n_coordinates=source.values.shape[1]
    )
    try:
        judge = _attack_groups if attack.source in SOURCES else _attack
        # Attacks run beside one another: on small fits OpenMP's threads wait more than they work.
        with threadpool_limits(1, user_api="openmp"):
            outcome = judge(evidence, position, outcome, options)
    except PrivpipeError as error:
        outcome = replace(outcome, reason=str(error))
    except Exception as error:  # a library's message may hold values, its class does not
        outcome = replace(outcome, reason=type(error).__name__)
    return replace(outcome, seconds=time.perf_counter() - started)


def _attack(
    evidence: Evidence, position: int, outcome: AttackOutcome, options: AttackOptions
) -> AttackOutcome:
    source = outcome.attack.source
    made = train_adversary(evidence, position, source, outcome.attack.adversary, options)
    known = None
    if is_of_release(source) and "wanted" in evidence.sources:
        known = decide_by_desired(evidence, position, made.splits, made.tests, options)
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
    attack = outcome.attack
    found = infer_together(evidence, position, attack.source, attack.adversary, options)
    strict, *also = plan_levels(evidence, position, options)
    return replace(
        outcome,
        status="measured",
        scores=measure_class_scores(
            found.truth,
            found.decision,
            guess=found.guess,
            ranking=found.ranking,
            groups=found.units,
            level=strict,
            also=also,
            n_replicates=options.n_replicates,
            seed=options.seed,
        ),
        settings=found.settings,
        n_train=found.n_train,
        n_tune=found.n_tune,
        n_test=len(found.truth),
    )


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
    strict, *also = plan_levels(evidence, position, options)
    units = find_units(evidence, position)
    groups = None if units is None else units[test]
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
