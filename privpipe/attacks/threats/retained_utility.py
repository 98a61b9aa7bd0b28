"""How well a wanted variable is predicted from raw and from released records, with what is lost.

The same predictor is trained on either and judged on the same records, so that the loss is a
difference of pairs, whose interval is much narrower than that of two figures apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence, find_units
from privpipe.attacks.statistics.intervals import Interval, measure_difference_interval
from privpipe.attacks.statistics.scores import (
    compare_number_scores,
    measure_class_scores,
    measure_number_scores,
)
from privpipe.attacks.threats.trained_adversary import TrainedAdversary, train_adversary


@dataclass(frozen=True)
class KeptUtility:
    """A wanted variable, predicted from raw and from released records.

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
    """

    target: str
    score: str
    predictor: str
    raw: Interval
    released: Interval
    loss: Interval
    n_test: int


def measure_kept(evidence: Evidence, position: int, options: AttackOptions) -> KeptUtility:
    """Train one predictor on raw and on released records, and judge both on the same others.

    Parameters
    ----------
    evidence
        With the sources "raw" and "released", whose confidential variables are the wanted ones.
    position
        Which of them.
    options
        Level, split and bounds.

    Raises
    ------
    ConvergenceError
        If a prediction is not finite.
    """
    column = evidence.columns[position]
    name = "logistic" if column.is_categorical else "least_squares"
    with threadpool_limits(1, user_api="openmp"):
        raw, released = (
            train_adversary(evidence, position, source, name, options)
            for source in ("raw", "released")
        )
    truth = evidence.truth[raw.test, position]
    units = find_units(evidence, position)
    groups = None if units is None else units[raw.test]
    score = "accuracy" if column.is_categorical else "r2"
    return KeptUtility(
        column.name,
        score,
        name,
        _score(truth, raw, score, groups, options),
        _score(truth, released, score, groups, options),
        _lose(truth, raw, released, score, groups, options),
        len(truth),
    )


def _score(
    truth: np.ndarray,
    made: TrainedAdversary,
    score: str,
    groups: np.ndarray | None,
    options: AttackOptions,
) -> Interval:
    if score == "accuracy":
        scores = measure_class_scores(
            truth.astype(np.int64),
            made.decided[0],
            guess=int(made.guess),
            groups=groups,
            level=options.level,
            n_replicates=50,
        )
    else:
        scores = measure_number_scores(
            truth,
            made.decided[0],
            guess=made.guess,
            groups=groups,
            level=options.level,
            n_replicates=options.n_replicates,
        )
    return next(one.interval for one in scores if one.name == score)


def _lose(
    truth: np.ndarray,
    raw: TrainedAdversary,
    released: TrainedAdversary,
    score: str,
    groups: np.ndarray | None,
    options: AttackOptions,
) -> Interval:
    if score == "accuracy":
        hits = [np.argmax(one.decided[0], axis=1) == truth for one in (raw, released)]
        return measure_difference_interval(*hits, groups=groups, level=options.level)
    given = {"guess": raw.guess, "groups": groups, "level": options.level}
    scores = measure_number_scores(truth, raw.decided[0], **given)  # type: ignore[arg-type]
    compared = compare_number_scores(
        scores,
        truth,
        raw.decided[0],
        released.decided[0],
        **given,  # type: ignore[arg-type]
    )
    beyond = next(one.gained for one in compared if one.name == "r2")
    assert beyond is not None, "R squared is compared"
    return beyond
