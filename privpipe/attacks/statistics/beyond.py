"""What an adversary gains beyond knowing the wanted answer, which the user asked to keep.

Whoever is told whether a digit is a zero can guess digits better than who is told nothing. That
is no fault of a release. Each score is compared on the same test records with that of a guess
from the true wanted answer alone; the difference of both advantages is what the release is to
blame for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from privpipe.attacks.statistics.measures import (
    EXPOSURES,
    Score,
    balance_confusion,
    halve_numbers,
    harmonise_confusion,
    weigh_areas,
    weigh_confusion,
)
from privpipe.attacks.statistics.uncertainty.bootstrap import measure_bootstrap_interval
from privpipe.attacks.statistics.uncertainty.exposure import measure_exposure_beyond
from privpipe.attacks.statistics.uncertainty.intervals import Interval, measure_difference_interval
from privpipe.protocols import FloatArray, IntArray

WeightedScore = Callable[[FloatArray], FloatArray]


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
