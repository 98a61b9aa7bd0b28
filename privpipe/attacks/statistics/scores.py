"""Scores of a prediction, each with the influence of every record on it.

Classes: accuracy, balanced accuracy, F1 (macro), area under the ROC curve (macro, one against
the rest). Numbers: R squared and root mean squared error. Both: true-positive rates at few false
alarms; of a number the claims are "above" and "not above the median". Averages hide a few records
that are known for certain. Here the adversary claims a class only where it is surest (Carlini et
al. 2022, Membership Inference Attacks From First Principles).

Whoever knows whether a digit is a zero can guess digits better than who knows nothing. That is no
fault of a release that was to hold it. So each score may be compared, on the same test records,
with that of a guess from the true desired variables alone. The difference of both advantages is
what the release is to blame for: the gain.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from privpipe.attacks.statistics import exposure, intervals, roc
from privpipe.protocols import BoolArray, FloatArray, IntArray

EXPOSURES = {"tpr_at_0.001": 0.001, "tpr_at_0.01": 0.01}
"""Scores that are true-positive rates, and at which false-positive rate."""

Decided = tuple[FloatArray, FloatArray]
"""What an adversary says of test records, and how it ranks them."""


@dataclass(frozen=True)
class Score:
    """One score of one attack on the test records.

    Parameters
    ----------
    name
        As in the module's first lines; "rmse" is in units of the confidential variable, the
        others have none.
    interval
        Estimate and limits.
    baseline
        What a guess without the records reaches: the majority class or the mean of the
        training records, scored on the test records.
    gained
        Advantage minus that of who knows the desired variables and no more, on the same records;
        None where nothing is desired. See `measure_class_scores`.
    advanced
        Advantage with limits of its own, where the baseline is drawn as the estimate is; None
        where it is a number.
    """

    name: str
    interval: intervals.Interval
    baseline: float
    gained: intervals.Interval | None = None
    advanced: intervals.Interval | None = None

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

    @property
    def is_more(self) -> bool:
        """Whether the gain is shown to be more than nothing; see `Interval.above_nothing`."""
        return self.gain_lower > (self.gain - self.gain_lower) / 2

    def at(self, level: float) -> "Score":
        """The same score with limits at a lower level; see `Interval.at`."""
        gained, advanced = (one and one.at(level) for one in (self.gained, self.advanced))
        return replace(self, interval=self.interval.at(level), gained=gained, advanced=advanced)

    def _ends(self) -> list[float]:
        if self.advanced is not None:
            return [self.advanced.lower, self.advanced.upper]
        # NumPy's extremes of a limit that is no number are no numbers either.
        ends = (self.interval.lower, self.interval.upper)
        return [measure_advantage(self.name, end, self.baseline) for end in ends]


def measure_advantage(name: str, value: float, baseline: float) -> float:
    """Share of the way from the baseline to a perfect prediction; 0 is guessing, 1 knowing.

    For an accuracy, an area or a true-positive rate it is ``(value - baseline) / (1 - baseline)``.
    An area's baseline is a half, that of a true-positive rate the false-positive rate. For R
    squared and errors it is the share of the baseline's squared error that is gone. An area under a
    half is no advantage: whoever can use it has turned the sign on other records, see
    `orient_ranking`.

    >>> measure_advantage("accuracy", 0.75, 0.5), measure_advantage("rmse", 1.0, 2.0)
    (0.5, 0.75)
    """
    if name == "rmse":
        return 1 - (value / baseline) ** 2 if baseline > 0 else 0.0
    return (value - baseline) / (1 - baseline) if baseline < 1 else 0.0


@dataclass(frozen=True, eq=False)
class ScoredAgainst:
    """What a prediction is scored against.

    Parameters
    ----------
    known : as the prediction, optional
        The same of who knows less: scores have gains, paired with it.
    folds : (n_records,), optional
        Which adversary decided of each record: those of several are not on one scale.
    cells : (n_records,), optional
        Fold and target of each record: gains of rankings are those among records of one cell,
        where the target alone ranks no one; see `folds.cut_cells`.
    partners : (n_records,), optional
        Another record of nearly the same target for each, where cells hold many.
    exchanged : as the prediction, optional
        What the same adversary says where partners have exchanged their releases: where there are
        such, gains are beyond it.
    """

    known: Decided | None = None
    folds: IntArray | None = None
    cells: IntArray | None = None
    partners: IntArray | None = None
    exchanged: Decided | None = None

    @property
    def pairs(self) -> IntArray:
        """First row of those that exchanged: what one gains by it the other may, too."""
        # Of three, who takes from whom goes round.
        of = np.asarray(self.partners)
        return np.asarray(np.min([np.arange(len(of)), of, of[of]], axis=0))


NO_REFERENCE = ScoredAgainst()

Estimated = tuple[float, FloatArray]
"""A score, and each record's influence on it."""


def measure_class_scores(
    truth: IntArray,
    decided: Decided,
    guess: int,
    confidence: intervals.Confidence = intervals.USUAL,
    reference: ScoredAgainst = NO_REFERENCE,
) -> tuple[Score, ...]:
    """Score a prediction of classes, each score with its interval and baseline.

    Parameters
    ----------
    truth : (n_records,)
        Codes of the true classes, 0 .. n_classes - 1.
    decided : two of (n_records, n_classes)
        The larger, the likelier the class; the largest is the prediction. And how records rank for
        each class, for areas and true-positive rates.
    guess
        The majority class of the training records.
    confidence
        Of the intervals.
    reference
        What scores have gains beyond.

    Returns
    -------
    tuple of Score
        accuracy, balanced_accuracy, f1, auc and those of `EXPOSURES`.

    Notes
    -----
    As of numbers, what folds lose by a wrong mean is no safety. Of a few hundred subjects it cost a
    tenth of the gain, and .17 of 300 audits at the limit passed by accuracy; .06 do. So the upper
    limit of its gain is also of the indicators of the classes by the best mean and scale of a fold.
    """
    # Few groups that are in order by chance are in order in every replicate, too: one audit in ten
    # of five judged groups was said to leak, of a release that reveals nothing.
    decisive = _count_decisive(truth, confidence.groups)
    counts = count_confusion(truth, np.full_like(truth, guess), decided[0].shape[1])
    baselines = {
        "accuracy": float(np.mean(truth == guess)),
        "balanced_accuracy": balance_confusion(counts),
        # Who says each class as often as it occurs does better than the majority class.
        "f1": max(harmonise_confusion(counts), 1 / len(np.unique(truth))),
        "auc": 0.5,
    }
    folds = np.zeros(len(truth), np.int64) if reference.folds is None else reference.folds
    reference = _compare_enough(truth, reference)
    # Areas are of folds, and of each of them whole groups.
    parts = len(np.unique(folds))
    influence = partial(intervals.measure_influence_interval, confidence=confidence, centred=parts)
    estimated, hits = _estimate(truth, decided, folds), np.argmax(decided[0], axis=1) == truth
    columns = zip(np.eye(decided[0].shape[1])[truth].T, decided[0].T, strict=True)
    best = np.argmax([_rescale(*one, folds) for one in columns], axis=0) == truth
    found = {"accuracy": intervals.measure_hits_interval(hits, confidence)} | {
        name: influence(*one, link="logit", decisive=decisive) for name, one in estimated.items()
    }
    gains = dict[str, intervals.Interval]()
    if reference.known is not None:
        # Both on the same records: what they share cancels in the difference.
        expected = np.argmax(reference.known[0], axis=1) == truth
        differ = partial(intervals.measure_difference_interval, confidence=confidence)
        gains["accuracy"] = _raise_upper(differ(hits, expected), differ(best, expected))
        for name, (value, moved) in _estimate(truth, reference.known, folds).items():
            value, moved = estimated[name][0] - value, estimated[name][1] - moved
            gains[name] = influence(value, moved)
    if (cells := reference.cells) is not None:
        value, moved = roc.average_areas(truth, decided[1], cells)
        if reference.partners is not None and reference.exchanged is not None:
            less, shared = roc.average_areas(truth, reference.exchanged[1], cells)
            value, moved = 0.5 + value - less, moved - shared
            # Of a pair of two classes both differ alike, of a pair of one class oppositely: as much
            # or less than records that were independent.
        gains["auc"] = _shift(influence(value, moved, decisive=decisive), 0.5)
    scores = [Score(name, found[name], baseline) for name, baseline in baselines.items()]
    ahead = _raise_upper(*(_measure_lead(truth, one, guess, confidence) for one in (hits, best)))
    scores[0] = replace(scores[0], advanced=_scale(ahead, baselines["accuracy"]))
    scores = [_add_gain(one, gains[one.name]) if one.name in gains else one for one in scores]
    return (*scores, *_measure_exposures(truth, decided[1], confidence, reference))


def _compare_enough(truth: IntArray, reference: ScoredAgainst) -> ScoredAgainst:
    """The same with nothing to compare where the target decides, and hardly any partners differ."""
    others, fewest = reference.partners, min(FEWEST_APART, len(truth) // 10)
    if others is None or np.count_nonzero(truth != truth[others]) >= fewest:
        return reference
    return replace(reference, cells=np.arange(len(truth)))


FEWEST_APART = 100
"""Records with a partner of another class, a tenth of fewer than a thousand, below which a gain is
not known. Where a target nearly determines what is confidential, what is left of it may be all
revealed, and no average shows it."""

RIVAL = 0.998
"""Level at which a class is no longer as frequent as the majority."""


def _measure_lead(
    truth: IntArray, hits: BoolArray, guess: int, confidence: intervals.Confidence
) -> intervals.Interval:
    """How many more records are named rightly than the majority class names.

    Notes
    -----
    The majority's share is drawn with the records: held as a number, it let .13 of audits exactly
    at the limit pass. Where several classes may be the majority, that of the records is the luckier
    one. The upper limit must hold against each, and shares its error among them.
    """
    said, groups = truth == guess, confidence.groups
    lead = partial(intervals.limit_difference, groups=groups)
    rivals = sum(lead(truth == k, said, level=RIVAL)[1] >= 0 for k in np.unique(truth))

    def limits(level: float) -> tuple[float, float]:
        strict = 1 - (1 - level) / max(1, rivals)
        return lead(hits, said, level=level)[0], lead(hits, said, level=strict)[1]

    return confidence.find(float(np.mean(hits) - np.mean(said)), limits, "wilson")


def _estimate(truth: IntArray, decided: Decided, folds: IntArray) -> dict[str, Estimated]:
    """Scores of classes with their influences, by name."""
    decision, ranking = decided
    predicted, k = np.argmax(decision, axis=1), decision.shape[1]
    counts = count_confusion(truth, predicted, k)
    sizes, predictions, hits = counts.sum(axis=1), counts.sum(axis=0), np.diag(counts)
    right, area = predicted == truth, roc.average_areas(truth, ranking, folds)
    moved = (right - (hits / np.maximum(sizes, 1))[truth]) / sizes[truth] / np.count_nonzero(sizes)
    both = np.maximum(sizes + predictions, 1)
    # The derivative of 2 hits / (size + said) of every class that a record is of, or said to be.
    slope = -2 * hits / both**2
    swayed = slope[truth] + slope[predicted] + np.where(right, 2 / both[truth], 0.0)
    f1 = harmonise_confusion(counts), swayed / np.count_nonzero(sizes + predictions)
    return {"balanced_accuracy": (balance_confusion(counts), moved), "f1": f1, "auc": area}


def _count_decisive(truth: IntArray, groups: IntArray | None) -> IntArray:
    """Of each class, the units of it, or those of all others where they are fewer.

    Groups that are of one class each are units, for their records are alike; else records are.
    """
    units = truth
    if groups is not None:
        codes, n_groups = intervals.code_groups(groups, len(truth))
        last = np.empty(n_groups, truth.dtype)
        last[codes] = truth
        units = last if np.array_equal(last[codes], truth) else truth
    sizes = np.unique(units, return_counts=True)[1]
    return np.asarray(np.minimum(sizes, len(units) - sizes))


def _measure_exposures(
    truth: IntArray, ranking: FloatArray, confidence: intervals.Confidence, reference: ScoredAgainst
) -> list[Score]:
    """True-positive rates, with their gains where cells of equal target are known."""
    rates = list(EXPOSURES.values())
    measure = partial(exposure.measure_exposures, truth, ranking, rates, confidence)
    measured = zip(EXPOSURES.items(), measure(cells=reference.folds), strict=True)
    scores = [Score(name, found, rate) for (name, rate), found in measured]
    if (cells := reference.cells) is None:
        return scores
    if reference.partners is None or reference.exchanged is None:
        gains = [_shift(one, by) for one, by in zip(measure(cells=cells), rates, strict=True)]
    else:
        other = reference.exchanged[1]
        other = other if other.ndim == 2 else np.column_stack([-other, other])
        gains = measure(cells=cells, baseline=(other, reference.pairs))
    return [_add_gain(*one) for one in zip(scores, gains, strict=True)]


def measure_number_scores(
    truth: FloatArray,
    decided: Decided,
    guess: float,
    confidence: intervals.Confidence = intervals.USUAL,
    reference: ScoredAgainst = NO_REFERENCE,
) -> tuple[Score, ...]:
    """Score a prediction of numbers, each score with its interval and baseline.

    Parameters
    ----------
    truth : (n_records,)
        In the unit of the confidential variable.
    decided : two of (n_records,)
        The numbers that are predicted, and what ranks records.
    guess
        Mean of the training records, the baseline; R squared is relative to it.
    confidence, reference
        As of `measure_class_scores`; the error in the variable's own unit has no gain.

    Returns
    -------
    tuple of Score
        r2, rmse and those of `EXPOSURES`.

    Notes
    -----
    Folds learn mean, slope and ridge from few records, and what they lose by that is no safety. So
    the upper limit of R squared is of predictions with the best mean and scale of each fold (of
    all, where subjects share records). By the plain one .079 of 253 audits exactly at the limit
    passed.
    """
    # R squared against the training mean: the mean of the test records is not known to who guesses.
    residual, spread = (truth - decided[0]) ** 2, (truth - guess) ** 2
    interval, n, total = intervals.measure_influence_interval, len(truth), float(spread.sum())

    def explain(saved: FloatArray) -> Estimated:
        """Share of the spread that is saved."""
        share = float(saved.sum()) / total if total else np.nan
        return share, (saved - share * spread) / total if total else 0 * saved

    error, base = (float(np.sqrt(one.mean())) for one in (residual, spread))
    swayed = (residual - residual.mean()) / (2 * n * error) if error else 0 * residual
    folds = np.zeros(n, np.int64) if reference.folds is None else reference.folds
    left = (truth - _rescale(truth, decided[0], folds * (confidence.groups is None))) ** 2
    explained = (explain(spread - one) for one in (residual, left))
    found, most = (interval(*one, confidence, link="log_complement") for one in explained)
    r2 = Score("r2", _raise_upper(found, most), 0.0)
    rmse = Score("rmse", interval(error, swayed, confidence, link="log"), base)
    if reference.known is not None:
        known = (truth - reference.known[0]) ** 2
        found, most = (interval(*explain(known - one), confidence) for one in (residual, left))
        r2 = _add_gain(r2, _raise_upper(found, most))
    halves, mine = roc.halve_numbers(truth), np.column_stack([-decided[0], decided[0]])
    reference = _compare_enough(halves, reference)
    return (r2, rmse, *_measure_exposures(halves, mine, confidence, reference))


def _rescale(truth: FloatArray, predicted: FloatArray, folds: IntArray) -> FloatArray:
    """Predictions by the best mean and scale of each fold, which never turn their order."""
    found = np.empty(len(truth))
    for fold in np.unique(folds):
        rows = folds == fold
        x, y = predicted[rows] - predicted[rows].mean(), truth[rows]
        scale = max(0.0, float(x @ y)) / max(float(x @ x), np.finfo(float).tiny)
        found[rows] = y.mean() + scale * x
    return found


def _raise_upper(interval: intervals.Interval, most: intervals.Interval) -> intervals.Interval:
    """An interval whose upper limits are no less than those of another."""
    pairs = zip(interval.relaxed, most.relaxed, strict=True)
    relaxed = tuple((at, low, max(up, other)) for (at, low, up), (_, _, other) in pairs)
    return replace(interval, upper=max(interval.upper, most.upper), relaxed=relaxed)


def _shift(interval: intervals.Interval, by: float) -> intervals.Interval:
    """An interval of what is beyond a number."""
    relaxed = tuple((at, low - by, up - by) for at, low, up in interval.relaxed)
    lower, upper = interval.lower - by, interval.upper - by
    estimate = interval.estimate - by
    return replace(interval, estimate=estimate, lower=lower, upper=upper, relaxed=relaxed)


def _add_gain(score: Score, difference: intervals.Interval) -> Score:
    return replace(score, gained=_scale(difference, score.baseline))


def _scale(difference: intervals.Interval, baseline: float) -> intervals.Interval:
    """A difference of scores as one of advantages, which share their baseline."""
    # Advantages are shares of the way to knowing, and so are their differences.
    unit = 1 / (1 - baseline) if baseline < 1 else 0.0

    def scale(value: float) -> float:
        # Who knows the desired variables does no worse than guess: no gain is above knowing.
        return float(np.minimum(1.0, value * unit))  # NaN stays: `min` would make it a gain of 1

    estimate, lower, upper = map(scale, (difference.estimate, difference.lower, difference.upper))
    relaxed = tuple((at, low * unit, scale(up)) for at, low, up in difference.relaxed)
    return replace(difference, estimate=estimate, lower=lower, upper=upper, relaxed=relaxed)


def count_confusion(truth: IntArray, predicted: IntArray, n_classes: int) -> IntArray:
    """Records by true class (rows) and predicted one."""
    cells = truth.astype(np.int64) * n_classes + predicted
    return np.bincount(cells, minlength=n_classes**2).reshape(n_classes, n_classes)


def balance_confusion(counts: IntArray) -> float:
    """Mean recall over the classes present."""
    sizes = counts.sum(axis=1)
    return float(np.mean(np.diag(counts)[sizes > 0] / sizes[sizes > 0]))


def harmonise_confusion(counts: IntArray) -> float:
    """Mean F1 over the classes present or predicted."""
    both = counts.sum(axis=0) + counts.sum(axis=1)
    return float(np.mean(2 * np.diag(counts)[both > 0] / both[both > 0]))
