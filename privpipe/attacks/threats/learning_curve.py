"""Learning curves: the strongest adversary again, with a quarter, half and all of its labels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence, find_units
from privpipe.attacks.statistics.scores import (
    EXPOSURES,
    Score,
    compare_class_scores,
    compare_number_scores,
)
from privpipe.attacks.threats.group_inference import GROUPS
from privpipe.attacks.threats.inference import score_decisions
from privpipe.attacks.threats.trained_adversary import (
    TrainedAdversary,
    decide_by_desired,
    train_adversary,
)
from privpipe.attacks.threats.verdicts.learning import LearningCurve, expect_gain
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome, is_of_release
from privpipe.errors import PrivpipeError

SHARES = (0.25, 0.5, 1.0)


def choose_strongest(
    outcomes: Iterable[AttackOutcome], target: str, options: AttackOptions
) -> Attack | None:
    """The attack on the release with the largest gain, by a score of all records; None for none."""
    best: tuple[float, Attack] | None = None
    for outcome in outcomes:
        attack = outcome.attack
        if attack.target != target or not is_of_release(attack.source) or attack.source == GROUPS:
            continue
        for score in outcome.scores:
            if score.name in _list_followed(attack.kind, options) and math.isfinite(score.gain):
                gain = score.gain - options.allowed(score.name)
                if best is None or gain > best[0]:
                    best = gain, attack
    return None if best is None else best[1]


def measure_curve(
    evidence: Evidence, attack: Attack, options: AttackOptions, n_total: int, n_attacks: int
) -> LearningCurve:
    """What an attack gains with more and more of its labels; what goes wrong makes it unknown.

    Parameters
    ----------
    evidence
        The prepared audit.
    attack
        The strongest of the variable.
    options
        With the limits.
    n_total
        Labels that somebody may have.
    n_attacks
        Attacks of which it was the strongest: its rise is one of so many.
    """
    try:
        return _measure(evidence, attack, options, n_total, n_attacks)
    except PrivpipeError as error:
        return LearningCurve(attack.target, reason=error.code)
    except Exception as error:  # a library's message may hold values, its class does not
        return LearningCurve(attack.target, reason=type(error).__name__)


def _measure(
    evidence: Evidence, attack: Attack, options: AttackOptions, n_total: int, n_attacks: int
) -> LearningCurve:
    position = [column.name for column in evidence.columns].index(attack.target)
    made = [
        train_adversary(
            evidence, position, attack.source, attack.adversary, options, share_train=share
        )
        for share in SHARES
    ]
    scores = [_score(evidence, position, one, options) for one in made]
    followed = _list_followed(attack.kind, options)
    level = options.plan_level(n_attacks * len(followed))
    rises = _measure_rise(evidence, position, made[-1], made[0], scores[-1], level, options)
    n_labels = tuple(one.n_train for one in made)
    curves = []
    for name in followed:
        gains = tuple(next(s.gain for s in some if s.name == name) for some in scores)
        expected = expect_gain(n_labels, gains, n_total)
        curves.append(
            LearningCurve(
                attack.target,
                attack.source,
                attack.adversary,
                name,
                n_labels,
                gains,
                rises[name],
                n_total,
                expected,
                options.allowed(name),
            )
        )
    return max(curves, key=lambda one: (one.rises_beyond, one.expected - one.allowed))


def _list_followed(kind: str, options: AttackOptions) -> tuple[str, ...]:
    """Deciding scores that are means over records; the others where there is no such."""
    deciding = options.deciding(kind)
    return tuple(name for name in deciding if name not in EXPOSURES) or deciding


def _score(
    evidence: Evidence, position: int, made: TrainedAdversary, options: AttackOptions
) -> tuple[Score, ...]:
    known = None
    if "wanted" in evidence.sources:
        known = decide_by_desired(evidence, position, made.splits, made.tests, options)
    quick = replace(options, n_replicates=50)  # of these the estimates are used alone
    return score_decisions(evidence, position, made.test, made.decided, known, made.guess, quick)


def _measure_rise(
    evidence: Evidence,
    position: int,
    full: TrainedAdversary,
    few: TrainedAdversary,
    scores: tuple[Score, ...],
    level: float,
    options: AttackOptions,
) -> dict[str, float]:
    """By score the lower limit of what all labels gain over few, on the same test records."""
    truth = evidence.truth[full.test, position]
    units = find_units(evidence, position)
    groups = None if units is None else units[full.test]
    (mine, ranking), (theirs, their_ranking) = full.decided, few.decided
    if evidence.columns[position].is_categorical:
        found = compare_class_scores(
            scores,
            truth.astype(np.int64),
            mine,
            theirs,
            ranking=ranking,
            known_ranking=their_ranking,
            groups=groups,
            level=level,
            n_replicates=options.n_replicates,
            seed=options.seed,
        )
    else:
        found = compare_number_scores(
            scores,
            truth,
            mine,
            theirs,
            guess=full.guess,
            groups=groups,
            level=level,
            n_replicates=options.n_replicates,
            seed=options.seed,
        )
    return {one.name: math.nan if one.gained is None else one.gained.lower for one in found}
