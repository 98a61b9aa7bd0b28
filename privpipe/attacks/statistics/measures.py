"""Scores of a prediction as functions of record weights, so that each can be bootstrapped.

Classes: accuracy, balanced accuracy, F1 (macro), area under the ROC curve (macro, one against
the rest). Numbers: R squared and root mean squared error. Both: true-positive rates at few false
alarms, see `exposure`; of a number the claims are "above" and "not above the median".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy
from scipy import sparse

from privpipe.attacks.statistics.uncertainty.bootstrap import Link, measure_bootstrap_interval
from privpipe.attacks.statistics.uncertainty.exposure import measure_exposure
from privpipe.attacks.statistics.uncertainty.intervals import (
    Interval,
    measure_grouped_wilson_interval,
    measure_wilson_interval,
)
from privpipe.protocols import FloatArray, IntArray

EXPOSURES = {"tpr_at_0.001": 0.001, "tpr_at_0.01": 0.01}
"""Scores that are true-positive rates, and at which false-positive rate."""

CLASS_SCORES = ("accuracy", "balanced_accuracy", "f1", "auc", *EXPOSURES)
NUMBER_SCORES = ("r2", "rmse", *EXPOSURES)

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
    beyond
        Advantage minus that of who knows the wanted answer and no more, on the same records;
        None where nothing is wanted. See `beyond`.
    """

    name: str
    interval: Interval
    baseline: float
    beyond: Interval | None = None

    @property
    def gain(self) -> float:
        """Advantage beyond knowing the wanted answer; all of it where none is wanted."""
        return self.advantage if self.beyond is None else self.beyond.estimate

    @property
    def gain_lower(self) -> float:
        """Smallest gain within the limits."""
        return self.advantage_lower if self.beyond is None else self.beyond.lower

    @property
    def gain_upper(self) -> float:
        """Largest gain within the limits."""
        return self.advantage_upper if self.beyond is None else self.beyond.upper

    @property
    def advantage(self) -> float:
        """Share of the way from guessing to knowing; see `measure_advantage`."""
        return measure_advantage(self.name, self.interval.estimate, self.baseline)

    @property
    def advantage_lower(self) -> float:
        """Smallest advantage within the limits; of an error that is at the upper one."""
        return float(np.min(self._ends()))

    @property
    def advantage_upper(self) -> float:
        """Largest advantage within the limits."""
        return float(np.max(self._ends()))

    def at(self, level: float) -> Score:
        """The same score with limits at a lower level; see `Interval.at`."""
        beyond = None if self.beyond is None else self.beyond.at(level)
        return replace(self, interval=self.interval.at(level), beyond=beyond)

    def _ends(self) -> list[float]:
        # NumPy's extremes of a limit that is no number are no numbers either.
        ends = (self.interval.lower, self.interval.upper)
        return [measure_advantage(self.name, end, self.baseline) for end in ends]


def measure_advantage(name: str, value: float, baseline: float) -> float:
    """Share of the way from the baseline to a perfect prediction; 0 is guessing, 1 knowing.

    For an accuracy, an area or a true-positive rate ``(value - baseline) / (1 - baseline)``,
    where an area's baseline is a half and that of a true-positive rate the false-positive rate;
    for R squared and errors the share of the baseline's squared error that is gone. An area
    under a half is no advantage: whoever can use it has turned the sign on other records, see
    `orient_ranking`.

    >>> measure_advantage("accuracy", 0.75, 0.5), measure_advantage("rmse", 1.0, 2.0)
    (0.5, 0.75)
    """
    if name == "rmse":
        return 1 - (value / baseline) ** 2 if baseline > 0 else 0.0
    return (value - baseline) / (1 - baseline) if baseline < 1 else 0.0


def measure_class_scores(
    truth: IntArray,
    decision: FloatArray,
    *,
    guess: int,
    ranking: FloatArray | None = None,
    groups: IntArray | None = None,
    level: float = 0.95,
    also: Sequence[float] = (),
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
    ranking : (n_records, n_classes), optional
        How records rank for each class, for areas and true-positive rates; `decision` itself
        where its signs were not turned.
    groups : (n_records,), optional
        Subjects that share records; then all intervals are over subjects.
    level, also
        Confidence of the intervals, and lower levels at which limits are kept as well.
    n_replicates, seed
        Bootstrap of the intervals.

    Returns
    -------
    tuple of Score
        In the order of `CLASS_SCORES`.
    """
    n_classes = decision.shape[1]
    predicted = np.argmax(decision, axis=1)
    ranking = decision if ranking is None else ranking
    hits = predicted == truth
    interval = partial(
        measure_bootstrap_interval,
        n_records=len(truth),
        groups=groups,
        link="logit",
        level=level,
        also=also,
        n_replicates=n_replicates,
        seed=seed,
        decisive=_count_decisive(truth, groups),
    )
    if groups is None:
        accuracy = measure_wilson_interval(int(hits.sum()), len(hits), level=level, also=also)
    else:
        accuracy = measure_grouped_wilson_interval(hits, groups, level=level, also=also)
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
            # Who says each class as often as it occurs does better than the majority class.
            max(float(harmonise_confusion(guessed)[0]), 1 / len(np.unique(truth))),
        ),
        Score("auc", interval(weigh_areas(truth, ranking)), 0.5),
        *_measure_exposures(truth, ranking, groups=groups, level=level, also=also, seed=seed),
    )


def _count_decisive(truth: IntArray, groups: IntArray | None) -> IntArray:
    """Of each class, the units of it, or those of all others where they are fewer.

    Groups that are of one class each are units, for their records are alike; else records are.
    """
    units = truth
    if groups is not None:
        pairs = np.unique(np.column_stack([groups, truth]), axis=0)
        if len(pairs) == len(np.unique(groups)):
            units = pairs[:, 1]
    sizes = np.unique(units, return_counts=True)[1]
    return np.asarray(np.minimum(sizes, len(units) - sizes))


def _measure_exposures(
    truth: IntArray,
    ranking: FloatArray,
    *,
    groups: IntArray | None,
    level: float,
    also: Sequence[float],
    seed: int,
) -> list[Score]:
    measure = partial(
        measure_exposure, truth, ranking, groups=groups, level=level, also=also, seed=seed
    )
    return [Score(name, measure(false_positive=rate), rate) for name, rate in EXPOSURES.items()]


def measure_number_scores(
    truth: FloatArray,
    predicted: FloatArray,
    *,
    guess: float,
    groups: IntArray | None = None,
    level: float = 0.95,
    also: Sequence[float] = (),
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
    groups, level, also, n_replicates, seed
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
            also=also,
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
        *_measure_exposures(
            halve_numbers(truth),
            np.column_stack([-predicted, predicted]),
            groups=groups,
            level=level,
            also=also,
            seed=seed,
        ),
    )


def halve_numbers(truth: FloatArray) -> IntArray:
    """1 above the median; where nothing is above, at it."""
    middle = np.median(truth)
    above = truth > middle
    return np.asarray(above if above.any() else truth >= middle, np.int64)


def orient_ranking(truth: IntArray, ranking: FloatArray) -> FloatArray:
    """Signs that turn a ranking so that its areas on these records are at least a half.

    Parameters
    ----------
    truth : (n_records,)
        Codes of the classes of records that do not judge.
    ranking : (n_records, n_classes)
        How they rank for each class.

    Returns
    -------
    signs : (n_classes,)
        1 or -1; equal for two classes, whose difference ranks.
    """
    ones = np.ones((1, len(truth)))
    if ranking.shape[1] == 2:
        areas = np.repeat(measure_area(truth, ranking), 2)
    else:
        columns = range(ranking.shape[1])
        areas = np.array([_weigh_area(truth == k, ranking[:, k])(ones)[0] for k in columns])
    return np.where(areas < 0.5, -1.0, 1.0)


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


def measure_area(truth: IntArray, decision: FloatArray) -> float:
    """The area of `weigh_areas` where every record counts once; a half where it is undefined.

    >>> measure_area(np.array([0, 0, 1, 1]), np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0, 1]]))
    0.75
    """
    ranking, n_classes = decision, decision.shape[1]
    is_class = truth[:, None] == np.arange(n_classes)
    if n_classes == 2:
        ranking, is_class = decision[:, 1:] - decision[:, :1], is_class[:, 1:]
    sizes = is_class.sum(axis=0)
    pairs = sizes * (len(truth) - sizes)
    won = (scipy.stats.rankdata(ranking, axis=0) * is_class).sum(axis=0) - sizes * (sizes + 1) / 2
    return float((won[pairs > 0] / pairs[pairs > 0]).mean()) if pairs.any() else 0.5


def _weigh_area(positive: np.ndarray, value: FloatArray) -> WeightedScore:
    """Pairs won by positives, from cumulated weights at the two ends of their ties."""
    order = np.argsort(value, kind="stable")
    ordered, is_positive = value[order], positive[order].astype(np.bool_)
    at = np.flatnonzero(is_positive)
    ends = [np.searchsorted(ordered, ordered[at], side) for side in ("left", "right")]
    passed = np.concatenate([[0], np.cumsum(is_positive)])

    def area(weights: FloatArray) -> FloatArray:
        w = weights[:, order]
        whole, up = _cumulate(w), w[:, at]
        ups = _cumulate(up)
        total = ups[:, -1] * (whole[:, -1] - ups[:, -1])
        below = sum(whole[:, end] - ups[:, passed[end]] for end in ends)
        won = np.einsum("ij,ij->i", up, below) / 2
        return np.asarray(np.divide(won, total, out=np.full(len(w), np.nan), where=total > 0))

    return area


def _cumulate(weights: FloatArray) -> FloatArray:
    """Sums of the first 0, 1, ... columns."""
    sums = np.zeros((len(weights), weights.shape[1] + 1))
    np.cumsum(weights, axis=1, out=sums[:, 1:])
    return sums
