"""Scores of a prediction as functions of record weights, so that each can be bootstrapped.

Classes: accuracy, balanced accuracy, F1 (macro), area under the ROC curve (macro, one against
the rest). Numbers: R squared and root mean squared error. Both: true-positive rates at few false
alarms, see `exposure`; of a number the claims are "above" and "not above the median".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from privpipe.attacks.statistics.exposure import measure_exposure, measure_exposure_beyond
from privpipe.attacks.statistics.intervals import (
    Interval,
    Link,
    measure_bootstrap_interval,
    measure_difference_interval,
    measure_grouped_wilson_interval,
    measure_wilson_interval,
)
from privpipe.attacks.statistics.roc import WeightedScore, halve_numbers, weigh_areas
from privpipe.protocols import FloatArray, IntArray

EXPOSURES = {"tpr_at_0.001": 0.001, "tpr_at_0.01": 0.01}
"""Scores that are true-positive rates, and at which false-positive rate."""

CLASS_SCORES = ("accuracy", "balanced_accuracy", "f1", "auc", *EXPOSURES)
NUMBER_SCORES = ("r2", "rmse", *EXPOSURES)


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


def compare_class_scores(
    scores: Sequence[Score],
    truth: IntArray,
    decision: FloatArray,
    known: FloatArray,
    *,
    ranking: FloatArray,
    known_ranking: FloatArray,
    groups: IntArray | None = None,
    level: float = 0.95,
    also: Sequence[float] = (),
    n_replicates: int = 400,
    seed: int = 0,
) -> tuple[Score, ...]:
    """The scores of a prediction of classes, each with what it has beyond another prediction.

    Parameters
    ----------
    scores
        Of `measure_class_scores`.
    truth, decision, ranking, groups, level, also, n_replicates, seed
        As given to `measure_class_scores`.
    known, known_ranking : (n_records, n_classes)
        Decision and ranking of who knows the wanted answer alone.
    """
    n_classes = decision.shape[1]
    predicted, expected = np.argmax(decision, axis=1), np.argmax(known, axis=1)
    given: dict[str, Any] = {"groups": groups, "level": level, "also": also}

    def bootstrap(score: WeightedScore) -> Interval:
        return measure_bootstrap_interval(
            score, len(truth), n_replicates=n_replicates, seed=seed, **given
        )

    mine = weigh_confusion(truth, predicted, n_classes)
    theirs = weigh_confusion(truth, expected, n_classes)
    found: dict[str, Callable[[], Interval]] = {
        "accuracy": lambda: measure_difference_interval(
            predicted == truth, expected == truth, **given
        ),
        "balanced_accuracy": lambda: bootstrap(
            lambda w: balance_confusion(mine(w)) - balance_confusion(theirs(w))
        ),
        "f1": lambda: bootstrap(
            lambda w: harmonise_confusion(mine(w)) - harmonise_confusion(theirs(w))
        ),
        "auc": lambda: bootstrap(
            _subtract(weigh_areas(truth, ranking), weigh_areas(truth, known_ranking))
        ),
    }
    exposed = partial(measure_exposure_beyond, truth, ranking, known_ranking, seed=seed, **given)
    found |= {name: partial(exposed, false_positive=rate) for name, rate in EXPOSURES.items()}
    return tuple(_add(score, found[score.name]()) for score in scores)


def compare_number_scores(
    scores: Sequence[Score],
    truth: FloatArray,
    predicted: FloatArray,
    known: FloatArray,
    *,
    guess: float,
    groups: IntArray | None = None,
    level: float = 0.95,
    also: Sequence[float] = (),
    n_replicates: int = 400,
    seed: int = 0,
) -> tuple[Score, ...]:
    """The same of a prediction of numbers; the error in the variable's own unit has none.

    Parameters
    ----------
    scores
        Of `measure_number_scores`.
    truth, predicted, guess, groups, level, also, n_replicates, seed
        As given to `measure_number_scores`.
    known : (n_records,)
        Prediction of who knows the wanted answer alone.
    """
    saved, spread = (truth - known) ** 2 - (truth - predicted) ** 2, (truth - guess) ** 2

    def explained(weights: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((weights @ saved) / (weights @ spread))

    given: dict[str, Any] = {"groups": groups, "level": level, "also": also, "seed": seed}
    found: dict[str, Callable[[], Interval]] = {
        "r2": lambda: measure_bootstrap_interval(
            explained, len(truth), n_replicates=n_replicates, **given
        )
    }
    halves = halve_numbers(truth)
    mine, theirs = (np.column_stack([-values, values]) for values in (predicted, known))
    exposed = partial(measure_exposure_beyond, halves, mine, theirs, **given)
    found |= {name: partial(exposed, false_positive=rate) for name, rate in EXPOSURES.items()}
    return tuple(_add(s, found[s.name]()) if s.name in found else s for s in scores)


def _subtract(mine: WeightedScore, theirs: WeightedScore) -> WeightedScore:
    return lambda weights: np.asarray(mine(weights) - theirs(weights))


def _add(score: Score, difference: Interval) -> Score:
    """A difference of scores as one of advantages, which share their baseline."""
    unit = 1 / (1 - score.baseline) if score.baseline < 1 else 0.0

    def scale(one: tuple[float, float, float]) -> tuple[float, float, float]:
        # Nobody who knows the wanted answer does worse than guess: no gain is above knowing.
        return one[0], one[1] * unit, min(1.0, one[2] * unit)

    _, lower, upper = scale((difference.level, difference.lower, difference.upper))
    beyond = replace(
        difference,
        estimate=min(1.0, difference.estimate * unit),
        lower=min(1.0, lower),
        upper=upper,
        relaxed=tuple(map(scale, difference.relaxed)),
    )
    return replace(score, beyond=beyond)
