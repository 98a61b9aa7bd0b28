"""Inference attacks: adversaries trained on released records guess confidential variables.

Follows the protocol of Xu et al. 2017 (Figure 5) and Hamm 2017 (Algorithm 3): adversaries
see released records with their labels, and are judged on others.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from privpipe.attacks.adversaries.attack_options import (
    GROUPS,
    RAW_GROUPS,
    AttackOptions,
    choose_adversaries,
)
from privpipe.attacks.adversaries.auxiliary import Auxiliary
from privpipe.attacks.adversaries.evidence import Evidence, find_units
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.adversaries.problem import Decided
from privpipe.attacks.statistics import scores as scoring
from privpipe.attacks.statistics.roc import sample_curve
from privpipe.attacks.threats import group_inference
from privpipe.attacks.threats.trained_adversary import decide_by_desired, train_adversary
from privpipe.attacks.threats.verdicts.attack_report import AttackReport, summarise_outcomes
from privpipe.attacks.threats.verdicts.detectable_effect import count_compared
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome, is_of_release
from privpipe.errors import PrivpipeError
from privpipe.protocols import Column, IntArray


def plan_attacks(evidence: Evidence, options: AttackOptions) -> tuple[Attack, ...]:
    """Every adversary that suits a variable, against each variable of each source.

    Further readings of the release are for those who make something of them; see
    `choose_adversaries`. Where records have groups, and a variable is one of whole groups, several
    records of a group are read jointly; see `group_inference`. So are those of the raw records,
    where they are given: who learns nothing of them could not have found it in the release.
    """
    single = tuple(
        Attack(column.name, "classes" if column.is_categorical else "numbers", source, name)
        for source in evidence.sources
        for column in evidence.columns
        for name in choose_adversaries(source, column.is_categorical, options)
    )
    # One adversary more per size: each shares the level of its variable, so that the sizes are few.
    joint = tuple(
        Attack(column.name, "classes", source, group_inference.name_size(size))
        for source in (GROUPS, *([RAW_GROUPS] if "raw" in evidence.sources else []))
        for position, column in enumerate(evidence.columns)
        for size in _choose_sizes(source, group_inference.list_sizes(evidence, position, options))
    )
    return single + joint


def _choose_sizes(source: str, sizes: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Of the raw records, which only control, the fewest and the most."""
    return sizes if source == GROUPS else tuple(dict.fromkeys((*sizes[:1], *sizes[-1:])))


def plan_levels(evidence: Evidence, position: int, options: AttackOptions) -> tuple[float, ...]:
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
    """Train every adversary on a release and report what each learns of confidential variables.

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
        The records with noise of equal utility; see `privpipe.attacks.equal_noise`.
    columns
        Name and kind of each confidential column.
    features
        Name and kind of each column of the sources, where some are categorical.
    groups : (n_records,), optional
        Subject of each record; splits and intervals are then by subject, and several records of
        one are read jointly.
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
        The true desired variables: limits then count what is gained beyond knowing them.
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
        If the arrays cannot be attacked so; see `prepare_evidence`.

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
    # The same plan as on workers, so that both give the same levels.
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
    source = evidence.sources[group_inference.SOURCES.get(attack.source, attack.source)]
    outcome = AttackOutcome(
        attack, "unknown", n_features=source.n_features, n_coordinates=source.values.shape[1]
    )
    try:
        judge = _attack_groups if attack.source in group_inference.SOURCES else _attack
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
    if is_of_release(source):
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

    What the desired variables of a set reveal is not deducted: the limits bear the whole advantage.
    """
    attack = outcome.attack
    found = group_inference.infer_jointly(
        evidence, position, attack.source, attack.adversary, options
    )
    strict, *also = plan_levels(evidence, position, options)
    return replace(
        outcome,
        status="measured",
        scores=scoring.measure_class_scores(
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
) -> tuple[scoring.Score, ...]:
    """Scores of what was decided of test records, by class or number, with their limits."""
    # Limits at all levels that Holm may need are found at once: what is bootstrapped is
    # bootstrapped once.
    strict, *also = plan_levels(evidence, position, options)
    given: dict[str, Any] = {
        "groups": find_test_units(evidence, position, test),
        "level": strict,
        "also": also,
        "n_replicates": options.n_replicates,
        "seed": options.seed,
    }
    truth, (decision, ranking) = evidence.truth[test, position], decided
    if not evidence.columns[position].is_categorical:
        scores = scoring.measure_number_scores(truth, decision, guess=guess, **given)
    else:
        truth = truth.astype(np.int64)
        scores = scoring.measure_class_scores(
            truth, decision, guess=int(guess), ranking=ranking, **given
        )
    if known is None:
        return scores
    return compare_decided(scores, truth, decided, known, guess, given)


def compare_decided(
    scores: tuple[scoring.Score, ...],
    truth: np.ndarray,
    mine: Decided,
    theirs: Decided,
    guess: float,
    given: dict[str, Any],
) -> tuple[scoring.Score, ...]:
    """The scores with what one adversary has beyond another, on the same test records.

    Parameters
    ----------
    scores, truth
        Of the one, and the true values; integers are classes.
    mine, theirs
        What both say.
    guess
        Of numbers: what one would say without records.
    given
        Groups, level and bootstrap of the intervals.
    """
    if not np.issubdtype(truth.dtype, np.integer):
        return scoring.compare_number_scores(
            scores, truth, mine[0], theirs[0], guess=guess, **given
        )
    return scoring.compare_class_scores(
        scores, truth, mine[0], theirs[0], ranking=mine[1], known_ranking=theirs[1], **given
    )


def find_test_units(evidence: Evidence, position: int, test: IntArray) -> IntArray | None:
    """Of each test record what intervals are over: its group, or a stretch of its time."""
    units = find_units(evidence, position)
    return None if units is None else units[test]
