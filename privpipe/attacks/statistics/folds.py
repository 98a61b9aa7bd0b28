"""Folds: every record judges once, by adversaries that did not see it, and cells of equal target.

Who knows the target alone is to gain nothing. So records are compared within cells, of one fold and
one value of the target. There the target ranks no one before another, and nothing need be
subtracted (Janes and Pepe 2009, Adjusting for Covariate Effects on Classification Accuracy).
"""

from collections.abc import Iterator

import numpy as np
import scipy

from privpipe.attacks.statistics.splits import RecordSplit
from privpipe.errors import InputError
from privpipe.protocols import BoolArray, FloatArray, IntArray

FOLDS = 5

FOREMOST = 10.0
"""Weight of what is predicted, in deviations, against the target's columns, where partners are
sought."""

MOST_VALUES = 12
"""Values of the target up to which each is a cell of its own."""

LEAST_MIXED = 5
"""Groups of several classes that a fold holds."""

LEAST_IN_CELL = 20
"""Records of a cell on average, below which folds are compared with one another."""

TRIED_SHARE, FEWEST_TRIED = 0.25, 50
"""Share of the folds that choose settings for others by which these are chosen, and the fewest
units of a class there. With fewer each fold chooses for itself."""

_TRIALS = 50
"""Deals of the groups tried before folds are given up."""


def deal_folds(
    rows: IntArray,
    *,
    classes: IntArray | None = None,
    strata: IntArray | None = None,
    units: IntArray | None = None,
    train_only: BoolArray | None = None,
    tune_share: float = 0.15,
    seed: int = 0,
) -> tuple[RecordSplit, ...]:
    """Deal records to folds, evenly over classes and strata; a unit never falls into two sets.

    Settings of an adversary are chosen once for several folds, by records of other folds than
    these. No record that judges has had a say in them. Where records are too few for that, each
    fold chooses for itself.

    Parameters
    ----------
    rows : (n_records,)
        Row numbers to deal.
    classes, strata : (n_records,), optional
        Class of each of these rows, and what else folds are to hold evenly.
    units : (n_records,), optional
        Subject, or set of equal records, of each of these rows; it goes where its first record
        would.
    train_only : (n_records,), optional
        True for rows that may train and tune but not judge.
    tune_share
        Share of what does not judge that chooses settings.
    seed
        Seed of the deal.

    Raises
    ------
    InputError
        If there are too few units, or no deal leaves every class to learn from in every fold.

    Examples
    --------
    >>> splits = deal_folds(np.arange(100), classes=np.arange(100) % 2)
    >>> len(splits), sorted(np.concatenate([s.test for s in splits])) == list(range(100))
    (5, True)
    """
    kinds = np.zeros(len(rows), np.int64) if classes is None else classes
    units = np.arange(len(rows)) if units is None else units
    _, first, codes = np.unique(units, return_index=True, return_inverse=True)
    judges = np.ones(len(first), np.bool_)
    if train_only is not None:
        judges[codes[train_only]] = False
        if (judges[codes] != ~train_only).any():
            problem = "Some groups have records on both sides of the given train and test records."
            remedy = "Give test records of subjects of their own, or no groups."
            raise InputError(problem, remedy=remedy, code="groups_straddle")
    # Units of several classes have none, and are dealt at random until every fold sees all.
    whole = bool((kinds[first][codes] == kinds).all())
    mine = kinds[first] if whole else np.zeros(len(first), np.int64)
    n_folds = _count_folds(mine, judges)
    wide = np.zeros(len(first), np.int64) if strata is None else strata[first]
    sizes, random = np.bincount(codes), np.random.default_rng(seed)
    for _ in range(1 if whole else _TRIALS):
        # Within a class and stratum the largest first: folds are then about alike.
        order = np.lexsort([random.random(len(first)), -sizes, wide, mine])
        fold = np.full(len(first), -1)
        judged = order[judges[order]]
        fold[judged] = np.arange(len(judged)) % n_folds
        sides = list(_share_settings(order, fold, mine, n_folds)) or [
            np.where(fold == k, 2, 0) + _draw_evenly(order[fold[order] != k], mine, tune_share, k)
            for k in range(n_folds)
        ]
        if all(
            len(np.unique(kinds[np.isin(side, (0, 4))[codes]])) == len(np.unique(kinds))
            for side in sides
        ):
            return tuple(_split(rows, side[codes]) for side in sides)
    raise InputError(
        "No deal of groups or equal records, or with the given test records, leaves every class "
        f"to learn from in every fold ({len(rows)} records).",
        remedy="Group by a finer unit, use more groups, or leave the rare classes out.",
        code="split_confines_classes",
    )


def _split(rows: IntArray, side: IntArray) -> RecordSplit:
    """Split rows by the codes of their sides.

    Rows of 0 train, of 1 choose and of 2 judge. Rows of 4 train and of 5 choose as well: they are
    those of shared settings.
    """
    choose = rows[side == 4] if (side == 4).any() else None
    return RecordSplit(rows[side % 4 == 0], rows[side % 4 == 1], rows[side == 2], choose)


def _count_folds(mine: IntArray, judges: BoolArray) -> int:
    """Folds that the units of the rarest class allow; InputError where these are too few."""
    kinds, counts = np.unique(mine, return_counts=True)
    fewest = int(np.bincount(np.searchsorted(kinds, mine[judges]), minlength=len(kinds)).min())
    if fewest < (2 if judges.all() else 1) or counts.max() < 3:
        raise InputError(
            f"A class has {fewest} of {len(mine)} records or groups that judge. Others of it "
            "are to be learned from, to choose settings by and to judge.",
            remedy="Audit at least three records, or groups, of every class.",
            code="too_few_records",
        )
    # Of several classes each, two groups of a fold differ by so little that by chance .05 leaked.
    return min(FOLDS, fewest, FOLDS if len(kinds) > 1 else max(2, fewest // LEAST_MIXED))


def _draw_evenly(order: IntArray, mine: IntArray, share: float, turn: int) -> IntArray:
    """1 of a share of the units in an order, class by class, 0 of all others, (n_units,)."""
    drawn = np.zeros(len(mine), np.int64)
    for kind in np.unique(mine[order]):
        left = order[mine[order] == kind]
        # At least one chooses settings, and one is left to train.
        n = min(len(left) - 1, max(1, round(share * len(left))))
        drawn[np.roll(left, -turn)[(np.arange(n) * len(left)) // max(n, 1)]] = 1
    return drawn


def _share_settings(order: IntArray, fold: IntArray, mine: IntArray, n: int) -> Iterator[IntArray]:
    """Sides of the units in each fold, where settings are shared; nothing where units are too few.

    The last folds choose for the first, and these for the last.
    """
    half, parts = n // 2, list[IntArray]()
    for givers in (fold >= n - half, (fold >= 0) & (fold < half)):
        drawn = _draw_evenly(order[givers[order]], mine, TRIED_SHARE, 0)
        parts.append(np.where(givers, 4 + drawn, 0))
    if np.bincount(mine[parts[0] == 5], minlength=int(mine.max()) + 1).min() < FEWEST_TRIED:
        return
    for k in range(n):
        yield np.where(fold == k, 2, parts[0] if k < n - half else parts[1])


def cut_cells(
    folds: IntArray, desired: FloatArray, known: FloatArray | None, units: IntArray | None = None
) -> tuple[IntArray, IntArray | None]:
    """Cells of one fold and equal target; of a target of many values, of neighbouring ones.

    In these the target still ranks, for which the release is not to blame. Where partners exchange
    their releases the target reveals what it did before, and a leak nothing.

    Parameters
    ----------
    folds : (n_records,)
        Fold of each record.
    desired : (n_records, n_columns)
        True desired variables, numbers standardised.
    known : (n_records, n_classes) or (n_records,), optional
        What is predicted, or how it ranks, of who knows these and no more.
    units : (n_records,), optional
        Subject, or set of equal records, of each: partners are of two. Exchanged within one, what a
        release reveals of it stayed, and .06 of a gain of .7 was left.

    Returns
    -------
    cells : (n_records,)
    partners : (n_records,)
        Another row of these, without units each given once: one of the nearest in what is
        predicted, foremost, and in the target. None where the targets of a cell are equal, or
        predict nothing.

    References
    ----------
    Berrett et al. 2020, The Conditional Permutation Test for Independence While Controlling for
    Confounders.
    """
    values: IntArray = np.unique(desired, axis=0, return_inverse=True)[1].ravel()
    n = len(values)
    if values.max(initial=0) < MOST_VALUES:
        both = np.asarray(folds * (values.max(initial=0) + 1) + values, np.int64)
        return both if n >= LEAST_IN_CELL * len(np.unique(both)) else values, None
    if known is None:
        return folds, None
    guess = known.reshape(n, -1)
    guess = FOREMOST * guess / np.maximum(guess.std(axis=0), np.finfo(float).tiny)
    # Of equal targets any is the nearest: in random order.
    place = np.column_stack([guess, desired, np.random.default_rng(0).random(n) * 1e-6])
    cells, partners = folds.copy(), np.empty(n, np.int64)
    for fold in np.unique(folds):
        rows = np.flatnonzero(folds == fold)
        order, starts = _halve_blocks(place[rows], 2 * LEAST_IN_CELL)
        cells[rows[order]] = rows[0] * n + np.repeat(starts, np.diff(starts, append=len(rows)))
        partners[rows] = rows[_pair_nearest(place[rows], None if units is None else units[rows])]
    return cells, partners


def _pair_nearest(place: FloatArray, units: IntArray | None) -> IntArray:
    """A near row for each: of pairs either is the other's; of units one of another unit."""
    partner = np.empty(len(place), np.int64)
    if units is None:
        order, starts = _halve_blocks(place, 3)
        following = np.arange(1, len(place) + 1)  # of three the last takes the first one's place
        following[np.append(starts[1:], len(place)) - 1] = starts
        partner[order] = order[following]
        return partner
    # Half of the units look among the other half: so that none finds itself.
    codes = np.unique(units, return_inverse=True)[1]
    if codes.max() == 0:  # alone it has no one, and shows no difference
        return np.arange(len(place))
    side = np.random.default_rng(0).permutation(codes.max() + 1)[codes] % 2
    for one, other in ((side == 0, side == 1), (side == 1, side == 0)):
        near = scipy.spatial.KDTree(place[other]).query(place[one])[1]
        partner[one] = np.flatnonzero(other)[near]
    return partner


def _halve_blocks(place: FloatArray, most: int) -> tuple[IntArray, IntArray]:
    """An order of rows, and where its blocks start.

    Blocks are halved by their widest column until they hold at most so many rows, an even number
    but for the last.
    """
    n, starts, order = len(place), np.zeros(1, np.int64), np.arange(len(place))
    while (sizes := np.diff(starts, append=n)).max() > most:
        held, block = place[order], np.repeat(np.arange(len(starts)), sizes)
        most_of, least_of = np.maximum.reduceat(held, starts), np.minimum.reduceat(held, starts)
        widest = np.argmax(most_of - least_of, axis=1)
        # Of predictions that are equal those of neighbouring targets stay together.
        order = order[np.lexsort([*held.T[::-1], held[np.arange(n), widest[block]], block])]
        # Long ones are cut in the middle, at an even place.
        starts = np.sort(np.append(starts, (starts + (sizes + 1) // 4 * 2)[sizes > most]))
    return order, starts
