"""Scores of a prediction as functions of record weights, so that each can be bootstrapped.

Classes: accuracy, balanced accuracy, F1 (macro), area under the ROC curve (macro, one against
the rest). Numbers: R squared and root mean squared error. Both: true-positive rates at few false
alarms; of a number the claims are "above" and "not above the median". Averages hide a few records
that are known for certain: here the adversary claims a class only where it is surest (Carlini et
al. 2022, Membership Inference Attacks From First Principles).

Whoever knows whether a digit is a zero can guess digits better than who knows nothing. That is no
fault of a release that was to hold it. So each score may be compared, on the same test records,
with that of a guess from the true desired variables alone; the difference of both advantages is
what the release is to blame for: the gain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy
from scipy import sparse

from privpipe.attacks.statistics import intervals
from privpipe.attacks.statistics.roc import WeightedScore, halve_numbers, weigh_areas
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
    """

    name: str
    interval: intervals.Interval
    baseline: float
    gained: intervals.Interval | None = None

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
    decided: Decided,
    guess: int,
    confidence: intervals.Confidence = intervals.USUAL,
    *,
    known: Decided | None = None,
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
    known : two of (n_records, n_classes), optional
        The same of who knows the desired variables alone: then each score has its gain.

    Returns
    -------
    tuple of Score
        accuracy, balanced_accuracy, f1, auc and those of `EXPOSURES`.
    """
    # Few groups that are in order by chance are in order in every replicate, too: one audit in ten
    # of five judged groups was said to leak, of a release that reveals nothing.
    decisive = _count_decisive(truth, confidence.groups)
    guessed = weigh_confusion(truth, np.full_like(truth, guess), decided[0].shape[1])
    counts = guessed(np.ones((1, len(truth))))
    baselines = {
        "accuracy": float(np.mean(truth == guess)),
        "balanced_accuracy": float(balance_confusion(counts)[0]),
        # Who says each class as often as it occurs does better than the majority class.
        "f1": max(float(harmonise_confusion(counts)[0]), 1 / len(np.unique(truth))),
        "auc": 0.5,
    }
    weighted, hits = _weigh_classes(truth, decided), np.argmax(decided[0], axis=1) == truth
    found = {"accuracy": intervals.measure_hits_interval(hits, confidence)} | {
        name: intervals.measure_bootstrap_interval(
            score, len(truth), confidence, link="logit", decisive=decisive
        )
        for name, score in weighted.items()
    }
    scores = [Score(name, found[name], baseline) for name, baseline in baselines.items()]
    if known is not None:
        # Both on the same records and replicates: what they share cancels in the difference.
        theirs, expected = _weigh_classes(truth, known), np.argmax(known[0], axis=1) == truth
        gains = {"accuracy": intervals.measure_difference_interval(hits, expected, confidence)} | {
            name: intervals.measure_bootstrap_interval(
                _subtract(score, theirs[name]), len(truth), confidence
            )
            for name, score in weighted.items()
        }
        scores = [_add_gain(score, gains[score.name]) for score in scores]
    ranking = None if known is None else known[1]
    return (*scores, *_measure_exposures(truth, decided[1], ranking, confidence))


def _weigh_classes(truth: IntArray, decided: Decided) -> dict[str, WeightedScore]:
    """Scores of classes that are bootstrapped, by name."""
    decision, ranking = decided
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


def _measure_exposures(
    truth: IntArray, ranking: FloatArray, known: FloatArray | None, confidence: intervals.Confidence
) -> Iterator[Score]:
    """True-positive rates, with their gains where it is known how others rank."""
    for name, rate in EXPOSURES.items():
        score = Score(name, measure_exposure(truth, ranking, rate, confidence), rate)
        if known is None:
            yield score
        else:
            yield _add_gain(score, measure_exposure(truth, ranking, rate, confidence, known=known))


def measure_number_scores(
    truth: FloatArray,
    decided: Decided,
    guess: float,
    confidence: intervals.Confidence = intervals.USUAL,
    *,
    known: Decided | None = None,
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
    confidence, known
        As of `measure_class_scores`; the error in the variable's own unit has no gain.

    Returns
    -------
    tuple of Score
        r2, rmse and those of `EXPOSURES`.
    """
    # R squared against the training mean: the mean of the test records is not known to who guesses.
    residual, spread = (truth - decided[0]) ** 2, (truth - guess) ** 2

    def rms(weights: FloatArray) -> FloatArray:
        return np.asarray(np.sqrt(weights @ residual / weights.sum(axis=1)))

    n, bootstrap = len(truth), intervals.measure_bootstrap_interval
    explained = _explain(spread - residual, spread)
    r2 = Score("r2", bootstrap(explained, n, confidence, link="log_complement"), 0.0)
    rmse = Score("rmse", bootstrap(rms, n, confidence, link="log"), float(np.sqrt(spread.mean())))
    ranking = None
    if known is not None:
        saved = (truth - known[0]) ** 2 - residual
        r2 = _add_gain(r2, bootstrap(_explain(saved, spread), n, confidence))
        ranking = _rank_halves(known[0])
    halves, mine = halve_numbers(truth), _rank_halves(decided[0])
    return (r2, rmse, *_measure_exposures(halves, mine, ranking, confidence))


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


def _add_gain(score: Score, difference: intervals.Interval) -> Score:
    """A difference of scores as one of advantages, which share their baseline."""
    # Advantages are shares of the way to knowing, and so are their differences.
    unit = 1 / (1 - score.baseline) if score.baseline < 1 else 0.0

    def scale(value: float) -> float:
        # Who knows the desired variables does no worse than guess: no gain is above knowing.
        return min(1.0, value * unit)

    estimate, lower, upper = map(scale, (difference.estimate, difference.lower, difference.upper))
    relaxed = tuple((at, low * unit, scale(up)) for at, low, up in difference.relaxed)
    gained = replace(difference, estimate=estimate, lower=lower, upper=upper, relaxed=relaxed)
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


def measure_exposure(
    truth: IntArray,
    ranking: FloatArray,
    false_positive: float,
    confidence: intervals.Confidence = intervals.USUAL,
    *,
    known: FloatArray | None = None,
) -> intervals.Interval:
    """True-positive rate at a false-positive rate, over all claims "this record is of class c".

    Every record is claimed for every class, most certainly where its ranking exceeds the class's
    median most. A claim of the true class is positive, any other negative; of two classes either
    may be the one that shows. The negative claims of a class weigh together as much as its
    positive ones, and what is unknown ranks in random order, so that a release that reveals nothing
    has a rate equal to the false-positive rate, however uneven the classes.

    Parameters
    ----------
    truth : (n_records,)
        Codes of the true classes, 0 .. n_classes - 1.
    ranking : (n_records, n_classes)
        The larger, the likelier the class, on one scale but for an offset per class. Of two
        classes their difference counts.
    false_positive
        Share of negative claims that may be made.
    confidence
        Level, and groups; numbers of claims of these become effective ones. Its seed orders ties.
    known : (n_records, n_classes), optional
        The ranking of who knows less: what is measured is the difference of both rates.

    Returns
    -------
    Interval
        NaN where there is no negative claim; of a difference between -1 and 1.

    Notes
    -----
    Two things are uncertain: where the threshold of the given rate lies (order statistics of the
    negative claims) and how many positive claims exceed it (Clopper and Pearson). The distances
    of both from the estimate are joined by their squares, as Zou and Donner do.

    Who is claimed rightly by both rankings says nothing of their difference: its limits are those
    of the shares that one alone claims, joined by their squares with what both thresholds leave
    open. As far as both claim the same records their thresholds move together, else on their own.

    References
    ----------
    Zou and Donner 2008, Construction of Confidence Limits About Effect Measures; Newcombe 1998,
    Improved Confidence Intervals for the Difference Between Binomial Proportions Based on Paired
    Data.

    Examples
    --------
    >>> truth = np.arange(4000) % 2
    >>> sure = np.where(np.arange(4000) < 200, truth - 0.5, 0.0)
    >>> found = measure_exposure(truth, np.column_stack([-sure, sure]), 0.001)
    >>> 0.045 < found.estimate < 0.055, found.lower > 0.03, found.upper < 0.07
    (True, True, True)
    """
    if len(np.unique(truth)) < 2:
        return confidence.find(np.nan, lambda _: (np.nan, np.nan), "ranks")
    mine = _rank_claims(truth, ranking, false_positive, confidence)
    if known is None:
        return confidence.find(mine.estimate, mine.limits, "ranks")
    theirs = _rank_claims(truth, known, false_positive, confidence)
    limits = partial(_limit_gain, mine, theirs, confidence.groups)
    return confidence.find(mine.estimate - theirs.estimate, limits, "ranks")


def _limit_gain(
    mine: _Claims, theirs: _Claims, groups: IntArray | None, level: float
) -> tuple[float, float]:
    estimate = mine.estimate - theirs.estimate
    down, up = intervals.limit_difference(mine.shown, theirs.shown, groups, level)
    below, above = _vary_thresholds(mine, theirs, (1 - level) / 2)
    lower = estimate - np.hypot(estimate - down, below)
    upper = estimate + np.hypot(up - estimate, above)
    return max(-1.0, float(lower)), min(1.0, float(upper))


def _vary_thresholds(mine: _Claims, theirs: _Claims, tail: float) -> tuple[float, float]:
    """How far below and above the estimate a difference lies where both thresholds may be."""
    both = int((mine.shown & theirs.shown).sum())
    alike = both / max(int(mine.shown.sum()), int(theirs.shown.sum()), 1)
    (down, up), (their_down, their_up) = mine.vary(tail), theirs.vary(tail)
    moved = (their_down - down, up - their_up)  # both thresholds early, both late
    apart = float(np.sqrt(1 - alike**2))
    below = np.hypot(max(0.0, *(-one for one in moved)), apart * np.hypot(down, their_up))
    above = np.hypot(max(0.0, *moved), apart * np.hypot(up, their_down))
    return float(below), float(above)


def plan_null_exposure(n_records: int, n_classes: int, rate: float, level: float) -> float:
    """Upper limit of the exposure of a release that reveals nothing, beyond the rate itself.

    Parameters
    ----------
    n_records
        Test records, of classes of one size.
    n_classes, rate, level
        As `measure_exposure`.
    """
    n_negative = n_records * (n_classes - 1)
    steps = np.arange(n_negative + 1)
    above = np.asarray(np.round(steps * (n_records / n_negative)), np.int64)
    real, shown = (float(n_records), float(n_negative)), np.zeros(n_records, np.bool_)
    claims = _Claims(above, steps / n_negative, n_records, rate, *real, shown)
    return (claims.limits(level)[1] - rate) / (1 - rate)


@dataclass(frozen=True, eq=False)
class _Claims:
    """Positive claims above each negative one, and how many independent ones they are worth.

    Parameters
    ----------
    above : (n_negative + 1,)
        Positive claims above the j-th highest negative one; none above the 0-th.
    weight : (n_negative + 1,)
        Share of the negative claims down to the j-th.
    n_positive
        Positive claims.
    allowed
        False-positive rate.
    real_positive, real_negative
        Effective numbers of claims.
    shown : (n_records,)
        Whether the positive claim of a record is above the threshold.
    """

    above: IntArray
    weight: FloatArray
    n_positive: int
    allowed: float
    real_positive: float
    real_negative: float
    shown: BoolArray

    def rate(self, j: int) -> float:
        """True-positive rate with the threshold at the j-th highest negative claim."""
        return float(self.above[min(max(j, 0), len(self.above) - 1)]) / self.n_positive

    @property
    def estimate(self) -> float:
        return self.rate(int(np.searchsorted(self.weight, self.allowed + _ROUNDING, "right")))

    def vary(self, tail: float) -> tuple[float, float]:
        """How far below and above the estimate the rate lies where the threshold may be."""
        early, late = self._thresholds(tail)
        found = self.estimate
        return max(0.0, found - self.rate(early)), max(0.0, self.rate(late) - found)

    def limits(self, level: float) -> tuple[float, float]:
        found = self.estimate
        below, above = self.vary((1 - level) / 2)
        # Of an effective number of claims, which need not be whole.
        low, high = intervals.limit_exactly(found * self.real_positive, self.real_positive, level)
        lower = found - np.hypot(below, found - low)
        upper = found + np.hypot(above, high - found)
        return max(0.0, float(lower)), min(1.0, float(upper))

    def _thresholds(self, tail: float) -> tuple[int, int]:
        """Negative claims by which the rate is surely not yet, and surely reached."""
        n = max(1, int(self.real_negative))
        fewest = int(scipy.stats.binom.ppf(tail, n, self.allowed))
        if scipy.stats.binom.cdf(fewest, n, self.allowed) > tail:
            fewest -= 1  # the j-th lies beyond the rate when fewer than j negatives are within
        most = int(scipy.stats.binom.isf(tail, n, self.allowed)) + 1
        early = np.searchsorted(self.weight, (fewest + 1) / n + _ROUNDING, "right") - 1
        late = np.searchsorted(self.weight, min(most / n, 1.0) - _ROUNDING, "left")
        return int(early), int(late)


_ROUNDING = 1e-9
"""Of sums of weights."""


def _rank_claims(
    truth: IntArray, ranking: FloatArray, allowed: float, confidence: intervals.Confidence
) -> _Claims:
    """All claims of records of at least two classes."""
    n, k = ranking.shape
    if k == 2:
        margin = ranking[:, 1] - ranking[:, 0]
        # Of two classes one number ranks for both: who is surely not the one is surely the other.
        ranking = np.column_stack([-margin, margin])
    is_true = truth[:, None] == np.arange(k)
    sizes = is_true.sum(axis=0)
    place = _order(ranking - np.median(ranking, axis=0), confidence.seed)
    order = np.argsort(-place[~is_true])
    negative = place[~is_true][order]
    # The negative claims of a class weigh together as much as its positive ones.
    shares = np.broadcast_to(sizes / n / (n - sizes), (n, k))[~is_true][order]
    above = np.concatenate([[0], n - np.searchsorted(np.sort(place[is_true]), negative)])
    weight = np.concatenate([[0.0], np.cumsum(shares)])
    made = place > negative[np.searchsorted(weight[1:], allowed + _ROUNDING, "right")]
    # Kish's effective number of claims of unequal weight; the weights add up to 1.
    real = 1 / float(shares @ shares)
    claims = _Claims(above, weight, n, allowed, float(n), real, made[is_true])
    if confidence.groups is None:
        return claims
    codes, n_groups = intervals.code_groups(confidence.groups, n)
    subject = np.broadcast_to(codes[:, None], (n, k))[~is_true]
    # Records of one subject are alike: their claims are worth fewer independent ones.
    alike = intervals.plan_effective(made[~is_true], subject, n_groups) / len(negative)
    effective = intervals.plan_effective(made[is_true], codes, n_groups)
    return replace(claims, real_positive=effective, real_negative=real * alike)


def _order(values: FloatArray, seed: int) -> IntArray:
    """Place of every claim among all, the surest last, equal ones in random order."""
    flat = values.ravel()
    place = np.empty(flat.size, np.int64)
    # Ties in random order: in that of the records a sorted collection would seem exposed.
    place[np.lexsort((np.random.default_rng(seed).random(flat.size), flat))] = np.arange(flat.size)
    return place.reshape(values.shape)
