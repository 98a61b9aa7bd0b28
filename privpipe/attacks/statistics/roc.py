"""The ROC curve of an adversary that ranks records, and its area."""

import numpy as np

from privpipe.protocols import BoolArray, FloatArray, IntArray

GRID = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
"""False-positive rates at which the curve of an attack is reported."""


TURNED = 2.0
"""Standard errors below a half from which a ranking is reversed."""


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
    sides = ~positive, positive
    false, found = (np.concatenate([[0], np.cumsum(one[order])[ends]]) / one.sum() for one in sides)
    return false, found


def halve_numbers(truth: FloatArray) -> IntArray:
    """1 above the median; where nothing is above, at it."""
    # Claims of a number are about halves, so that a guess is right half of the time.
    middle = np.median(truth)
    above = truth > middle
    return np.asarray(above if above.any() else truth >= middle, np.int64)


def orient_ranking(truth: IntArray, ranking: FloatArray) -> FloatArray:
    """Signs that turn a ranking where these records show that its area is below a half.

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
    # What was learned is right unless it is shown to be wrong: turned by chance, in some folds, a
    # leak of a rare class looked like nothing.
    signs = [
        -1.0 if area + TURNED * np.sqrt(moved @ moved) < 0.5 else 1.0  # 1 where it is undefined
        for area, moved in (
            _average_cells(*one, np.zeros(len(truth), np.int64))
            for one in _list_rankings(truth, ranking)
        )
    ]
    return np.array(np.broadcast_to(signs, ranking.shape[1]))


def average_areas(truth: IntArray, ranks: FloatArray, cells: IntArray) -> tuple[float, FloatArray]:
    """Area under the ROC curve among records of one cell, and each record's influence on it.

    Of several classes the mean of each against the rest. Cells count by what their order can show,
    both sides' numbers multiplied, over their records. One that holds a class alone compares
    nothing, and one that holds hardly any other compares little. By their records, a cell with
    three of a class decided the area of thousands: .28 of orders by chance were shown to leak.

    Parameters
    ----------
    truth : (n_records,)
        Codes of the classes.
    ranks : (n_records, n_classes)
        How records rank for each class.
    cells : (n_records,)
        Code of the cell of each record.

    Returns
    -------
    area
        NaN where no cell holds two classes.
    influence : (n_records,)

    References
    ----------
    DeLong, DeLong and Clarke-Pearson 1988, Comparing the Areas under Two or More Correlated
    Receiver Operating Characteristic Curves; Janes and Pepe 2009, Adjusting for Covariate Effects
    on Classification Accuracy Using the Covariate-Adjusted ROC Curve; van Elteren 1960, On the
    Combination of Independent Two Sample Tests of Wilcoxon (the weights).

    Examples
    --------
    >>> ranking = np.array([[0, 1.0], [0, 3.0], [0, 7.0], [0, 9.0]])
    >>> average_areas(np.array([0, 1, 0, 1]), ranking, np.array([0, 0, 1, 1]))[0]
    1.0
    """
    areas, moved = list[float](), list[FloatArray]()
    for positive, value in _list_rankings(truth, ranks):
        area, influence = _average_cells(positive, value, cells)
        if np.isfinite(area):
            areas.append(area)
            moved.append(influence)
    if not areas:
        return np.nan, np.zeros(len(truth))
    return float(np.mean(areas)), np.asarray(np.mean(moved, axis=0))


def _average_cells(true: BoolArray, value: FloatArray, cells: IntArray) -> tuple[float, FloatArray]:
    """Mean area of the cells, and the influence of each record: how many of the other side it
    beats in its cell."""
    # All cells in one sort: a call of `rankdata` for each side of each took a third of an audit.
    order = np.argsort(value)
    order = order[np.argsort(cells[order], kind="stable")]
    mine, cell, level = true[order], cells[order], value[order]
    begins = np.append(True, cell[1:] != cell[:-1])
    number = np.cumsum(begins) - 1
    ties = np.cumsum(begins | np.append(True, level[1:] != level[:-1])) - 1
    sides = (~mine, mine)
    in_cell, tied = (np.stack([np.bincount(of, one) for one in sides]) for of in (number, ties))
    before = (np.cumsum(tied, axis=1) - tied)[:, ties]
    start = (np.cumsum(in_cell, axis=1) - in_cell)[:, number]
    shown = in_cell.prod(axis=0) / in_cell.sum(axis=0)
    n = np.maximum(in_cell, 1)
    # Whom each record has below it, ties counting half, as a share of that side of its cell.
    below = (before - start + tied[:, ties] / 2) / n[:, number]
    beaten = np.where(mine, below[0], 1 - below[1])
    weights = shown / (shown.sum() or 1.0)
    areas = np.bincount(number, beaten * mine) / n[1]
    influence = np.empty(len(value))
    # Divided as DeLong et al. do, by one less: cells are many, and each has a mean of its own.
    side = np.where(mine, n[1][number], n[0][number])
    moved = (beaten - areas[number]) / np.sqrt(side * np.maximum(side - 1, 1))
    influence[order] = weights[number] * moved
    return (0.5 + float(weights @ (areas - 0.5)) if shown.any() else np.nan), influence


def measure_area(truth: IntArray, ranking: FloatArray) -> float:
    """The area of `average_areas` of one cell; a half where it is undefined.

    >>> measure_area(np.array([0, 0, 1, 1]), np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0, 1]]))
    0.75
    """
    area, _ = average_areas(truth, ranking, np.zeros(len(truth), np.int64))
    return area if np.isfinite(area) else 0.5
