"""The same adversary trained several times and judged on the same records: the pairs are compared.

A learning curve is the strongest adversary with a quarter, half and all of its labels. Retained
utility is one predictor on raw and on released records. A difference of pairs has a much narrower
interval than two figures apart.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from privpipe.attacks.adversaries.attack_options import GROUPS, AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence, Target
from privpipe.attacks.statistics import intervals
from privpipe.attacks.statistics.intervals import Confidence, Interval
from privpipe.attacks.statistics.scores import EXPOSURES, ScoredAgainst, measure_number_scores
from privpipe.attacks.threats import inference
from privpipe.attacks.threats.inference import TrainedAdversary
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome, is_of_release
from privpipe.attacks.threats.verdicts.safeguards import LearningCurve, expect_gain
from privpipe.errors import PrivpipeError
from privpipe.protocols import FloatArray

SHARES = (0.25, 0.5, 1.0)
"""Of the labels: two doublings show whether errors shrink as a power of their number."""


def choose_strongest(
    outcomes: Iterable[AttackOutcome], target: str, options: AttackOptions
) -> Attack | None:
    """The attack on the release with the largest gain, by a score of all records; None for none."""
    gains = [
        (score.gain - options.allowed(score.name), outcome.attack)
        for outcome in outcomes
        if outcome.attack.target == target and is_of_release(outcome.attack.source)
        # Sets of a group are too few to be quartered.
        if outcome.attack.source != GROUPS
        for score in outcome.scores
        if score.name in _list_followed(outcome.attack.kind, options) and math.isfinite(score.gain)
    ]
    return max(gains, key=lambda pair: pair[0])[1] if gains else None


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
        # As attacks are run: on small fits OpenMP's threads wait more than they work.
        with threadpool_limits(1, user_api="openmp"):
            return _measure_curve(evidence, attack, options, n_total, n_attacks)
    except PrivpipeError as error:
        return LearningCurve(attack.target, reason=error.code)
    except Exception as error:  # a library's message may hold values, its class does not
        return LearningCurve(attack.target, reason=type(error).__name__)


def _measure_curve(
    evidence: Evidence, attack: Attack, options: AttackOptions, n_total: int, n_attacks: int
) -> LearningCurve:
    target = Target.named(evidence, attack.target, options)
    train = partial(inference.train_adversary, target, attack.source, attack.adversary)
    score = partial(inference.score_decisions, target)
    trained = [train(share_train=share) for share in SHARES]
    full = trained[-1]
    each = ((one, one.compare_to_desired(target, attack.source)) for one in trained)
    scores = [score(one.test, one.decided, one.guess, reference) for one, reference in each]
    followed, few = _list_followed(attack.kind, options), trained[0]
    # The rise is of the same records, paired: two gains apart have limits that hide it.
    level = options.plan_level(n_attacks * len(followed))
    reference = ScoredAgainst(few.decided, full.folds)
    last = full.test, full.decided, full.guess
    rises = {one.name: one.gained for one in score(*last, reference, level)}
    n_labels = tuple(one.n_train for one in trained)
    curves = []
    for name in followed:
        gains = tuple(next(s.gain for s in some if s.name == name) for some in scores)
        expected = expect_gain(n_labels, gains, n_total)
        rise = math.nan if (found := rises[name]) is None else found.above_nothing
        about = attack.target, attack.source, attack.adversary, name, n_labels, gains
        curves.append(LearningCurve(*about, rise, n_total, expected, options.allowed(name)))
    # The score that is nearest to withdrawing the verdict is the one to show.
    return max(curves, key=lambda one: (one.rises_too_far, one.expected - one.allowed))


def _list_followed(kind: str, options: AttackOptions) -> tuple[str, ...]:
    """Deciding scores that are means over records; the others where there is no such."""
    return tuple(name for name in options.deciding(kind) if name not in EXPOSURES) or ("auc",)


@dataclass(frozen=True)
class RetainedUtility:
    """A desired variable, predicted from raw and from released records.

    Parameters
    ----------
    target
        The variable.
    score
        "accuracy" of classes, "r2" of numbers.
    predictor
        Who predicts; trained on what it reads.
    raw, released
        The score, each with limits at the level of the audit.
    loss
        Raw minus released, of the same records.
    n_test
        Records that judge.
    guess
        The score of the best constant prediction: the share of the largest class, or 0.
    unsaid, unsaid_raw
        Shares of the judging records that are of a class which whoever reads released, or raw,
        records takes none for.
    """

    target: str
    score: str
    predictor: str
    raw: Interval
    released: Interval
    loss: Interval
    n_test: int
    guess: float = 0.0
    unsaid: float = 0.0
    unsaid_raw: float = 0.0


def measure_retained(target: Target) -> RetainedUtility:
    """Train one predictor on raw and on released records, and judge both on the same others.

    Parameters
    ----------
    target
        A desired variable: confidential in evidence with the sources "raw" and "released".

    Raises
    ------
    ConvergenceError
        If a prediction is not finite.
    """
    column, options = target.column, target.options
    name = "logistic" if column.is_categorical else "least_squares"
    with threadpool_limits(1, user_api="openmp"):
        raw, released = (inference.train_adversary(target, of, name) for of in ("raw", "released"))
    truth, units = target.truth[raw.test], target.units
    confidence = Confidence(options.level, groups=None if units is None else units[raw.test])
    score, by = ("accuracy", _measure_accuracy) if column.is_categorical else ("r2", _measure_r2)
    measured = by(truth, raw, released, confidence)
    guess = float(np.unique(truth, return_counts=True)[1].max()) / len(truth)
    found = column.name, score, name, *measured, len(truth)
    if not column.is_categorical:
        return RetainedUtility(*found)
    return RetainedUtility(*found, guess, *(count_unsaid(target, one) for one in (released, raw)))


def count_unsaid(target: Target, made: TrainedAdversary) -> float:
    """The share of test records that are of a class which no test record is taken for.

    Parameters
    ----------
    target
        Of classes: a rare one may be the likeliest of no record.
    made
        Who says what class each record is of.
    """
    said = np.unique(np.argmax(made.decided[0], axis=1))
    return float(np.mean(~np.isin(target.truth[made.test], said)))


def _measure_accuracy(
    truth: FloatArray, raw: TrainedAdversary, released: TrainedAdversary, confidence: Confidence
) -> tuple[Interval, Interval, Interval]:
    """Accuracy on raw and on released records, and the difference."""
    mine, theirs = (np.argmax(one.decided[0], axis=1) == truth for one in (raw, released))
    found = [intervals.measure_hits_interval(hits, confidence) for hits in (mine, theirs)]
    return found[0], found[1], intervals.measure_difference_interval(mine, theirs, confidence)


def _measure_r2(
    truth: FloatArray, raw: TrainedAdversary, released: TrainedAdversary, confidence: Confidence
) -> tuple[Interval, Interval, Interval]:
    """R squared on raw and on released records, and the difference."""
    rival = ScoredAgainst(released.decided)
    better, *_ = measure_number_scores(truth, raw.decided, raw.guess, confidence, rival)
    worse, *_ = measure_number_scores(truth, released.decided, released.guess, confidence)
    assert better.gained is not None, "R squared is compared"
    return better.interval, worse.interval, better.gained
