"""Scores of a prediction as functions of record weights, so that each can be bootstrapped.

Classes: accuracy, balanced accuracy, F1 (macro), area under the ROC curve (macro, one against
the rest). Numbers: R squared and root mean squared error. Both: true-positive rates at few false
alarms, see `exposure`; of a number the claims are "above" and "not above the median".

Whoever knows whether a digit is a zero can guess digits better than who knows nothing. That is no
fault of a release that was to hold it. So each score may be compared, on the same test records,
with that of a guess from the true desired variables alone; the difference of both advantages is
what the release is to blame for: the gain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from scipy import sparse

from privpipe.attacks.statistics.exposure import measure_exposure, measure_exposure_gain
from privpipe.attacks.statistics.intervals import (
    Interval,
    Link,
    measure_bootstrap_interval,
    measure_difference_interval,
    measure_hits_interval,
)
from privpipe.attacks.statistics.roc import WeightedScore, halve_numbers, weigh_areas
from privpipe.protocols import FloatArray, IntArray

EXPOSURES = {"tpr_at_0.001": 0.001, "tpr_at_0.01": 0.01}
"""Scores that are true-positive rates, and at which false-positive rate."""

CLASS_SCORES = ("accuracy", "balanced_accuracy", "f1", "auc", *EXPOSURES)
NUMBER_SCORES = ("r2", "rmse", *EXPOSURES)


class Confidence(TypedDict, total=False):
    """How intervals of scores are found.

    Parameters
    ----------
    groups : (n_records,), optional
        Subjects that share records; then all intervals are over subjects.
    level, also
        Confidence of the intervals, .95, and lower levels at which limits are found as well.
    n_replicates, seed
        Bootstrap of the intervals, 400.
    """

    groups: IntArray | None
    level: float
    also: Sequence[float]
    n_replicates: int
    seed: int


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
    gained
        Advantage minus that of who knows the desired variables and no more, on the same records;
        None where nothing is desired. See `compare_class_scores`.
    """

    name: str
    interval: Interval
    baseline: float
    gained: Interval | None = None

    @property
    def gain(self) -> float:
        """Advantage beyond knowing the desired variables; all of it where there are none."""
        return self.advantage if self.gained is None else self.gained.estimate

    @property
    def gain_lower(self) -> float:
        """Smallest gain within the limits."""
        return self.advantage_lower if self.gained is None else self.gained.lower

    @property
    def gain_upper(self) -> float:
        """Largest gain within the limits."""
        return self.advantage_upper if self.gained is None else self.gained.upper

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
        gained = None if self.gained is None else self.gained.at(level)
        return replace(self, interval=self.interval.at(level), gained=gained)

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
    **confidence: Unpack[Confidence],
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
    confidence
        See `Confidence`.

    Returns
    -------
    tuple of Score
        In the order of `CLASS_SCORES`.
    """
    ranking = decision if ranking is None else ranking
    # Few groups that are in order by chance are in order in every replicate, too: one audit in ten
    # of five judged groups was said to leak, of a release that reveals nothing.
    decisive = _count_decisive(truth, confidence.get("groups"))
    guessed = weigh_confusion(truth, np.full_like(truth, guess), decision.shape[1])
    counts = guessed(np.ones((1, len(truth))))
    baselines = {
        "balanced_accuracy": float(balance_confusion(counts)[0]),
        # Who says each class as often as it occurs does better than the majority class.
        "f1": max(float(harmonise_confusion(counts)[0]), 1 / len(np.unique(truth))),
        "auc": 0.5,
    }
    accuracy = measure_hits_interval(
        np.argmax(decision, axis=1) == truth, **_without_bootstrap(confidence)
    )
    return (
        Score("accuracy", accuracy, float(np.mean(truth == guess))),
        *(
            Score(
                name,
                measure_bootstrap_interval(
                    score, len(truth), link="logit", decisive=decisive, **confidence
                ),
                baselines[name],
            )
            for name, score in _weigh_classes(truth, decision, ranking).items()
        ),
        *_measure_exposures(truth, ranking, confidence),
    )


def _weigh_classes(
    truth: IntArray, decision: FloatArray, ranking: FloatArray
) -> dict[str, WeightedScore]:
    """Scores of classes that are bootstrapped, by name."""
    confusion = weigh_confusion(truth, np.argmax(decision, axis=1), decision.shape[1])
    return {
        "balanced_accuracy": lambda weights: balance_confusion(confusion(weights)),
        "f1": lambda weights: harmonise_confusion(confusion(weights)),
        "auc": weigh_areas(truth, ranking),
    }


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


def _without_bootstrap(confidence: Confidence) -> dict[str, Any]:
    """What intervals of proportions take."""
    return {name: confidence[name] for name in _SHARED if name in confidence}


_SHARED: tuple[Literal["groups"], Literal["level"], Literal["also"]] = ("groups", "level", "also")


def _measure_exposures(truth: IntArray, ranking: FloatArray, confidence: Confidence) -> list[Score]:
    measure = partial(
        measure_exposure,
        truth,
        ranking,
        seed=confidence.get("seed", 0),
        **_without_bootstrap(confidence),
    )
    return [Score(name, measure(false_positive=rate), rate) for name, rate in EXPOSURES.items()]


def compare_class_scores(
    scores: Sequence[Score],
    truth: IntArray,
    decision: FloatArray,
    known: FloatArray,
    *,
    ranking: FloatArray,
    known_ranking: FloatArray,
    **confidence: Unpack[Confidence],
) -> tuple[Score, ...]:
    """The scores of a prediction of classes, each with its gain over another prediction.

    Parameters
    ----------
    scores
        Of `measure_class_scores`.
    truth, decision, ranking, confidence
        As given to `measure_class_scores`.
    known, known_ranking : (n_records, n_classes)
        Decision and ranking of who knows the desired variables alone.
    """
    # Both on the same records and replicates: what they share cancels in the difference.
    mine = _weigh_classes(truth, decision, ranking)
    theirs = _weigh_classes(truth, known, known_ranking)
    hits, expected = (np.argmax(one, axis=1) == truth for one in (decision, known))
    found: dict[str, Callable[[], Interval]] = {
        name: partial(
            measure_bootstrap_interval,
            _subtract(mine[name], theirs[name]),
            len(truth),
            **confidence,
        )
        for name in mine
    }
    found["accuracy"] = partial(
        measure_difference_interval, hits, expected, **_without_bootstrap(confidence)
    )
    found |= _compare_exposures(truth, ranking, known_ranking, confidence)
    return tuple(_add_gain(score, found[score.name]()) for score in scores)


def _compare_exposures(
    truth: IntArray, ranking: FloatArray, known: FloatArray, confidence: Confidence
) -> dict[str, Callable[[], Interval]]:
    measure = partial(
        measure_exposure_gain,
        truth,
        ranking,
        known,
        seed=confidence.get("seed", 0),
        **_without_bootstrap(confidence),
    )
    return {name: partial(measure, false_positive=rate) for name, rate in EXPOSURES.items()}


def measure_number_scores(
    truth: FloatArray, predicted: FloatArray, *, guess: float, **confidence: Unpack[Confidence]
) -> tuple[Score, ...]:
    """Score a prediction of numbers, each score with its interval and baseline.

    Parameters
    ----------
    truth, predicted : (n_records,)
        In the unit of the confidential variable.
    guess
        Mean of the training records, the baseline; R squared is relative to it.
    confidence
        See `Confidence`.

    Returns
    -------
    tuple of Score
        In the order of `NUMBER_SCORES`.
    """
    # R squared against the training mean: the mean of the test records is not known to who guesses.
    residual, spread = (truth - predicted) ** 2, (truth - guess) ** 2

    def rms(weights: FloatArray) -> FloatArray:
        return np.asarray(np.sqrt(weights @ residual / weights.sum(axis=1)))

    def bootstrap(score: WeightedScore, link: Link) -> Interval:
        return measure_bootstrap_interval(score, len(truth), link=link, **confidence)

    return (
        Score("r2", bootstrap(_explain(spread - residual, spread), "log_complement"), 0.0),
        Score("rmse", bootstrap(rms, "log"), float(np.sqrt(spread.mean()))),
        *_measure_exposures(halve_numbers(truth), _rank_halves(predicted), confidence),
    )


def compare_number_scores(
    scores: Sequence[Score],
    truth: FloatArray,
    predicted: FloatArray,
    known: FloatArray,
    *,
    guess: float,
    **confidence: Unpack[Confidence],
) -> tuple[Score, ...]:
    """The same of a prediction of numbers; the error in the variable's own unit has no gain.

    Parameters
    ----------
    scores
        Of `measure_number_scores`.
    truth, predicted, guess, confidence
        As given to `measure_number_scores`.
    known : (n_records,)
        Prediction of who knows the desired variables alone.
    """
    saved, spread = (truth - known) ** 2 - (truth - predicted) ** 2, (truth - guess) ** 2
    found: dict[str, Callable[[], Interval]] = {
        "r2": partial(measure_bootstrap_interval, _explain(saved, spread), len(truth), **confidence)
    }
    mine, theirs = _rank_halves(predicted), _rank_halves(known)
    found |= _compare_exposures(halve_numbers(truth), mine, theirs, confidence)
    return tuple(_add_gain(s, found[s.name]()) if s.name in found else s for s in scores)


def _explain(saved: FloatArray, spread: FloatArray) -> WeightedScore:
    """Share of the spread that is saved, as a function of weights."""

    def explained(weights: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((weights @ saved) / (weights @ spread))

    return explained


def _rank_halves(predicted: FloatArray) -> FloatArray:
    """How records rank as not above, and above the median."""
    return np.column_stack([-predicted, predicted])


def _subtract(mine: WeightedScore, theirs: WeightedScore) -> WeightedScore:
    return lambda weights: np.asarray(mine(weights) - theirs(weights))


def _add_gain(score: Score, difference: Interval) -> Score:
    """A difference of scores as one of advantages, which share their baseline."""
    # Advantages are shares of the way to knowing, and so are their differences.
    unit = 1 / (1 - score.baseline) if score.baseline < 1 else 0.0

    def scale(value: float) -> float:
        # Who knows the desired variables does no worse than guess: no gain is above knowing.
        return min(1.0, value * unit)

    gained = replace(
        difference,
        estimate=scale(difference.estimate),
        lower=scale(difference.lower),
        upper=scale(difference.upper),
        relaxed=tuple((at, low * unit, scale(up)) for at, low, up in difference.relaxed),
    )
    return replace(score, gained=gained)


def weigh_confusion(truth: IntArray, predicted: IntArray, n_classes: int) -> WeightedScore:
    """Confusion counts as a function of weights: (b, n_records) to (b, n_classes, n_classes)."""
    cells = truth.astype(np.int64) * n_classes + predicted
    indicators = sparse.csr_array(
        (np.ones(len(cells)), (np.arange(len(cells)), cells)), shape=(len(cells), n_classes**2)
    )
    return lambda weights: np.asarray(weights @ indicators).reshape(-1, n_classes, n_classes)


def balance_confusion(counts: FloatArray) -> FloatArray:
    """Mean recall over the classes present, (b, n_classes, n_classes) to (b,)."""
    sizes, hits = counts.sum(axis=2), np.einsum("bii->bi", counts)
    return _average(hits, sizes)


def harmonise_confusion(counts: FloatArray) -> FloatArray:
    """Mean F1 over the classes present or predicted, (b, n_classes, n_classes) to (b,)."""
    both = counts.sum(axis=1) + counts.sum(axis=2)
    return _average(2 * np.einsum("bii->bi", counts), both)


def _average(hits: FloatArray, sizes: FloatArray) -> FloatArray:
    """Mean ratio over the classes that a replicate holds."""
    ratio = np.divide(hits, sizes, out=np.zeros_like(hits), where=sizes > 0)
    return np.asarray(ratio.sum(axis=1) / np.maximum((sizes > 0).sum(axis=1), 1))
