"""Scores of a prediction as functions of record weights, so that each can be bootstrapped.

Classes: accuracy, balanced accuracy, F1 (macro), area under the ROC curve (macro, one against
the rest). Numbers: R squared and root mean squared error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import sparse

from privpipe.attacks.bootstrap import Link, measure_bootstrap_interval
from privpipe.attacks.intervals import (
    Interval,
    measure_grouped_wilson_interval,
    measure_wilson_interval,
)
from privpipe.protocols import FloatArray, IntArray

__all__ = [
    "CLASS_SCORES",
    "NUMBER_SCORES",
    "Score",
    "measure_advantage",
    "measure_class_scores",
    "measure_number_scores",
    "weigh_areas",
]

CLASS_SCORES = ("accuracy", "balanced_accuracy", "f1", "auc")
NUMBER_SCORES = ("r2", "rmse")

WeightedScore = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Score:
    """One score of one attack on the test records.

    Parameters
    ----------
    name
        One of `CLASS_SCORES` or `NUMBER_SCORES`; "rmse" is in units of the confidential
        variable, the others have none.
    interval
        Estimate and limits.
    baseline
        What a guess without the records reaches: the majority class or the mean of the
        training records, scored on the test records.
    """

    name: str
    interval: Interval
    baseline: float

    @property
    def advantage(self) -> float:
        """Share of the way from guessing to knowing; see `measure_advantage`."""
        return measure_advantage(self.name, self.interval.estimate, self.baseline)

    @property
    def advantage_upper(self) -> float:
        """Largest advantage at either limit: of an area both count, of an error the lower."""
        ends = (self.interval.lower, self.interval.upper)
        # NumPy's maximum of a limit that is no number is no number either.
        return float(np.max([measure_advantage(self.name, end, self.baseline) for end in ends]))


def measure_advantage(name: str, value: float, baseline: float) -> float:
    """Share of the way from the baseline to a perfect prediction; 0 is guessing, 1 knowing.

    For an accuracy ``(value - baseline) / (1 - baseline)``, for an area ``|2 value - 1|``,
    since one under a half is information read with the wrong sign, and for R squared and
    errors the share of the baseline's squared error that is gone.

    >>> measure_advantage("accuracy", 0.75, 0.5), measure_advantage("rmse", 1.0, 2.0)
    (0.5, 0.75)
    """
    if name == "rmse":
        return 1 - (value / baseline) ** 2 if baseline > 0 else 0.0
    if name == "auc":
        return abs(2 * value - 1)
    return (value - baseline) / (1 - baseline) if baseline < 1 else 0.0


def measure_class_scores(
    truth: IntArray,
    decision: FloatArray,
    *,
    guess: int,
    groups: IntArray | None = None,
    level: float = 0.95,
    n_replicates: int = 400,
    seed: int = 0,
) -> tuple[Score, ...]:
    """Score a prediction of classes, each score with its interval and baseline.

    Parameters
    ----------
    truth : (n_records,)
        Codes of the true classes, 0 .. n_classes - 1.
    decision : (n_records, n_classes)
        The larger, the likelier the class; the largest is the prediction.
    guess
        The majority class of the training records.
    groups : (n_records,), optional
        Subjects that share records; then all intervals are over subjects.
    level, n_replicates, seed
        Confidence and bootstrap of the intervals.

    Returns
    -------
    tuple of Score
        In the order of `CLASS_SCORES`.
    """
    n_classes = decision.shape[1]
    predicted = np.argmax(decision, axis=1)
    hits = predicted == truth
    interval = partial(
        measure_bootstrap_interval,
        n_records=len(truth),
        groups=groups,
        link="logit",
        level=level,
        n_replicates=n_replicates,
        seed=seed,
    )
    if groups is None:
        accuracy = measure_wilson_interval(int(hits.sum()), len(hits), level=level)
    else:
        accuracy = measure_grouped_wilson_interval(hits, groups, level=level)
    guessed = weigh_confusion(truth, np.full_like(truth, guess), n_classes)(
        np.ones((1, len(truth)))
    )
    confusion = weigh_confusion(truth, predicted, n_classes)
    return (
        Score("accuracy", accuracy, float(np.mean(truth == guess))),
        Score(
            "balanced_accuracy",
            interval(lambda w: balance_confusion(confusion(w))),
            float(balance_confusion(guessed)[0]),
        ),
        Score(
            "f1",
            interval(lambda w: harmonise_confusion(confusion(w))),
            float(harmonise_confusion(guessed)[0]),
        ),
        Score("auc", interval(weigh_areas(truth, decision)), 0.5),
    )


def measure_number_scores(
    truth: FloatArray,
    predicted: FloatArray,
    *,
    guess: float,
    groups: IntArray | None = None,
    level: float = 0.95,
    n_replicates: int = 400,
    seed: int = 0,
) -> tuple[Score, ...]:
    """Score a prediction of numbers, each score with its interval and baseline.

    Parameters
    ----------
    truth, predicted : (n_records,)
        In the unit of the confidential variable.
    guess
        Mean of the training records, the baseline; R squared is relative to it.
    groups, level, n_replicates, seed
        As `measure_class_scores`.

    Returns
    -------
    tuple of Score
        In the order of `NUMBER_SCORES`.
    """
    residual, spread = (truth - predicted) ** 2, (truth - guess) ** 2

    def bootstrap(score: WeightedScore, link: Link) -> Interval:
        return measure_bootstrap_interval(
            score,
            len(truth),
            groups=groups,
            link=link,
            level=level,
            n_replicates=n_replicates,
            seed=seed,
        )

    def explained(weights: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(1 - (weights @ residual) / (weights @ spread))

    def rms(weights: FloatArray) -> FloatArray:
        return np.asarray(np.sqrt(weights @ residual / weights.sum(axis=1)))

    return (
        Score("r2", bootstrap(explained, "log_complement"), 0.0),
        Score("rmse", bootstrap(rms, "log"), float(np.sqrt(spread.mean()))),
    )


def weigh_confusion(
    truth: IntArray, predicted: IntArray, n_classes: int
) -> Callable[[FloatArray], FloatArray]:
    """Confusion counts as a function of weights: (b, n_records) to (b, n_classes, n_classes)."""
    cells = truth.astype(np.int64) * n_classes + predicted
    one_hot = sparse.csr_array(
        (np.ones(len(cells)), (np.arange(len(cells)), cells)), shape=(len(cells), n_classes**2)
    )

    def count(weights: FloatArray) -> FloatArray:
        return np.asarray(weights @ one_hot).reshape(-1, n_classes, n_classes)

    return count


def balance_confusion(counts: FloatArray) -> FloatArray:
    """Mean recall over the classes present, (b, n_classes, n_classes) to (b,)."""
    sizes, hits = counts.sum(axis=2), np.einsum("bii->bi", counts)
    recall = np.divide(hits, sizes, out=np.zeros_like(hits), where=sizes > 0)
    return np.asarray(recall.sum(axis=1) / np.maximum((sizes > 0).sum(axis=1), 1))


def harmonise_confusion(counts: FloatArray) -> FloatArray:
    """Mean F1 over the classes present or predicted, (b, n_classes, n_classes) to (b,)."""
    hits = np.einsum("bii->bi", counts)
    both = counts.sum(axis=1) + counts.sum(axis=2)
    f1 = np.divide(2 * hits, both, out=np.zeros_like(hits), where=both > 0)
    return np.asarray(f1.sum(axis=1) / np.maximum((both > 0).sum(axis=1), 1))


def weigh_areas(truth: IntArray, decision: FloatArray) -> WeightedScore:
    """Area under the ROC curve as a function of weights, ties counted half.

    With two classes the area of the second against the first; with more the mean of each
    class against the rest, over the classes that a replicate holds.
    """
    n_classes = decision.shape[1]
    if n_classes == 2:
        return _weigh_area(truth == 1, decision[:, 1] - decision[:, 0])
    areas = [_weigh_area(truth == k, decision[:, k]) for k in range(n_classes)]

    def mean(weights: FloatArray) -> FloatArray:
        found = np.array([area(weights) for area in areas])
        defined = np.isfinite(found)
        total = np.where(defined, found, 0.0).sum(axis=0)
        with np.errstate(invalid="ignore"):
            return np.asarray(total / defined.sum(axis=0))

    return mean


def _weigh_area(positive: np.ndarray, value: FloatArray) -> WeightedScore:
    order = np.argsort(value, kind="stable")
    ordered = value[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    is_positive = positive[order].astype(np.float64)

    def area(weights: FloatArray) -> FloatArray:
        w = weights[:, order]
        up = np.add.reduceat(w * is_positive, starts, axis=1)
        down = np.add.reduceat(w, starts, axis=1) - up
        below = np.cumsum(down, axis=1) - down / 2
        total = up.sum(axis=1) * down.sum(axis=1)
        won = np.einsum("ij,ij->i", up, below)
        return np.asarray(np.divide(won, total, out=np.full(len(w), np.nan), where=total > 0))

    return area
