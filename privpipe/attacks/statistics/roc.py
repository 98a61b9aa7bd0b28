"""The ROC curve of an adversary that ranks records, and its area as a function of weights."""

from collections.abc import Callable

import numpy as np

from privpipe.protocols import BoolArray, FloatArray, IntArray

WeightedScore = Callable[[FloatArray], FloatArray]

GRID = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
"""False-positive rates at which the curve of an attack is reported."""


def sample_curve(truth: FloatArray, ranking: FloatArray, kind: str) -> tuple[float, ...]:
    """True-positive rates of an adversary at the false-positive rates of `GRID`.

    Parameters
    ----------
    truth : (n_records,)
        Codes of classes, or numbers.
    ranking : (n_records, n_classes) or (n_records,)
        How records rank for each class, or a predicted number, which ranks what is above the
        median.
    kind
        "classes" or "numbers".

    Returns
    -------
    rates
        Of several classes the mean over each against the rest; a threshold passes whole ties.

    Examples
    --------
    >>> rates = sample_curve(np.array([0, 0, 1, 1]), np.eye(2)[[0, 0, 1, 1]], "classes")
    >>> rates[0], rates[-1]
    (1.0, 1.0)
    """
    pairs = _list_rankings(truth, ranking)
    if kind == "numbers":
        pairs = [(halve_numbers(truth) == 1, ranking)]
    curves = []
    for positive, value in pairs:
        if 0 < positive.mean() < 1:
            false, found = _trace(positive, value)
            # Shares are ratios of counts: one that is .01 may be a rounding above it.
            curves.append(found[np.searchsorted(false, np.array(GRID) + 1e-12, side="right") - 1])
    return tuple(np.mean(curves, axis=0).tolist()) if curves else ()


def _list_rankings(
    truth: IntArray | FloatArray, ranking: FloatArray
) -> list[tuple[BoolArray, FloatArray]]:
    """Each class against the rest, of two the second alone, and the values that rank for it."""
    if ranking.ndim == 2 and ranking.shape[1] == 2:
        return [(truth == 1, ranking[:, 1] - ranking[:, 0])]
    return [(truth == k, values) for k, values in enumerate(ranking.T)]


def _trace(positive: BoolArray, value: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Shares of false and of true positives above each value, from none to all."""
    order = np.argsort(-value, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(value[order]) != 0, True))  # ties pass at once
    false, found = (
        np.concatenate([[0], np.cumsum(one[order])[ends]]) / one.sum()
        for one in (~positive, positive)
    )
    return false, found


def halve_numbers(truth: FloatArray) -> IntArray:
    """1 above the median; where nothing is above, at it."""
    # Claims of a number are about halves, so that a guess is right half of the time.
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
    areas = [_weigh_area(*one)(ones)[0] for one in _list_rankings(truth, ranking)]
    signs = np.where(np.array(areas) < 0.5, -1.0, 1.0)  # 1 where the area is undefined
    return np.array(np.broadcast_to(signs, ranking.shape[1]))


def weigh_areas(truth: IntArray, decision: FloatArray) -> WeightedScore:
    """Area under the ROC curve as a function of weights, ties counted half.

    With two classes the area of the second against the first; with more the mean of each
    class against the rest, over the classes that a replicate holds.
    """
    areas = [_weigh_area(*one) for one in _list_rankings(truth, decision)]

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
    area = float(weigh_areas(truth, decision)(np.ones((1, len(truth))))[0])
    return area if np.isfinite(area) else 0.5


def _weigh_area(positive: BoolArray, value: FloatArray) -> WeightedScore:
    """Pairs won by positives, from cumulated weights at the two ends of their ties."""
    order = np.argsort(value, kind="stable")
    ordered, is_positive = value[order], positive[order]
    at = np.flatnonzero(is_positive)
    # Ties count half: both ends of each tie are summed.
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
    return np.pad(np.cumsum(weights, axis=1), ((0, 0), (1, 0)))
