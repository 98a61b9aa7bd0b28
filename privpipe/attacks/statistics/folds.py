"""Splits that judge every record or every group once: groups dealt to folds, or cut in time.

Where people share a trait, other people judge; where people are to be named, records of another
time judge, and neighbours in time lie on one side.
"""

from __future__ import annotations

import numpy as np

from privpipe.attacks.statistics.splits import RecordSplit
from privpipe.errors import InputError
from privpipe.protocols import FloatArray, IntArray

N_FOLDS = 3

PHASES = 2 * N_FOLDS
"""Blocks of time in turn: two judge, the next chooses settings, three train."""

TURNS = 4
"""Times that the phases come round where it is not known what was done when: what lasted a while
is then on every side."""

FEWEST_IN_CELL = 2 * PHASES
"""Records of a group that did one thing, of which neighbours can be kept apart."""


def is_of_groups(groups: IntArray, truth: FloatArray | IntArray) -> bool:
    """Whether all records of a group have one value.

    >>> is_of_groups(np.array([0, 0, 1]), np.array([2, 2, 2]))
    True
    """
    order = np.argsort(groups, kind="stable")
    same = groups[order][1:] == groups[order][:-1]
    return bool((np.diff(truth[order])[same] == 0).all())


def names_groups(groups: IntArray, truth: FloatArray | IntArray) -> bool:
    """Whether a value of whole groups is that of one group alone, which it then names."""
    if not is_of_groups(groups, truth):
        return False
    values = truth[np.unique(groups, return_index=True)[1]]
    return bool((np.unique(values, return_counts=True)[1] == 1).any())


def deal_groups(
    rows: IntArray, groups: IntArray, classes: IntArray | None, *, tune_share: float, seed: int
) -> tuple[RecordSplit, ...]:
    """Deal whole groups to folds, each class evenly; every group judges in one of them.

    Parameters
    ----------
    rows : (n,)
        Row numbers.
    groups, classes : (n,)
        Group of each row, and its class, one and the same for a group; None for numbers.
    tune_share
        Share of the groups that do not judge which choose settings.
    seed
        Seed of the dealing.

    Raises
    ------
    InputError
        If a class has a single group, or nothing is left to choose settings by.
    """
    names, first = np.unique(groups, return_index=True)
    kinds = np.zeros(len(names), np.int64) if classes is None else classes[first]
    counts = np.unique(kinds, return_counts=True)[1]
    n_folds = min(N_FOLDS, int(counts.min()))
    if n_folds < 2 or counts.max() < 3:
        raise InputError(
            f"A class has {counts.min()} of {len(names)} groups: other groups of its class are to "
            "be learned from, to choose settings by and to judge.",
            remedy="Audit at least three groups of every class, or none.",
            code="too_few_records",
        )
    order = np.random.default_rng(seed).permutation(len(names))
    order = order[np.argsort(kinds[order], kind="stable")]
    fold = np.empty(len(names), np.int64)
    fold[order] = np.arange(len(names)) % n_folds
    splits = []
    for judged in range(n_folds):
        tunes = np.zeros(len(names), np.bool_)
        for kind in np.unique(kinds):
            left = order[(kinds[order] == kind) & (fold[order] != judged)]
            n_tune = min(len(left) - 1, max(1, round(tune_share * len(left))))
            tunes[np.roll(left, -judged)[:n_tune]] = True
        tests = fold == judged
        sides = (~tests & ~tunes, tunes, tests)
        splits.append(RecordSplit(*(rows[np.isin(groups, names[side])] for side in sides)))
    return tuple(splits)


def cut_in_time(
    rows: IntArray, groups: IntArray, places: IntArray, tasks: IntArray | None
) -> tuple[RecordSplit, ...]:
    """Cut the records of every group, and of each thing it did, by their place in time.

    Parameters
    ----------
    rows : (n,)
        Row numbers.
    groups, places : (n,)
        Group of each row, and its place in time.
    tasks : (n,), optional
        What was done, as codes: every side has the same mix of it. Without it the time of a group
        is cut into more pieces.

    Returns
    -------
    splits
        Of which each judges a third. Around what judges, and between what trains and what chooses
        settings, a twentieth is left out, since neighbours in time may overlap. Of what a group
        did too rarely (`FEWEST_IN_CELL`) all is taken together, and trains where that is rare too.

    Raises
    ------
    InputError
        If no group has records enough.
    """
    cells, turns = _list_cells(groups, places, tasks), TURNS if tasks is None else 1
    order, splits = np.lexsort([places, groups]), []
    for fold in range(N_FOLDS):
        side = np.empty(len(rows), np.int64)
        for mine in cells:
            side[mine] = _side_of(len(mine), fold, turns)
        # Where one thing ends and another begins neighbours are of two cells.
        side[order] = _keep_apart(side[order], groups[order], 1)
        splits.append(RecordSplit(*(rows[side == number] for number in range(3))))
    if not all(min(len(s.train), len(s.tune), len(s.test)) for s in splits):
        most = int(np.unique(groups, return_counts=True)[1].max(initial=0))
        raise InputError(
            f"A group has {most} records at most, too few to train, tune and judge an adversary "
            f"that is to name it.",
            remedy=f"Audit at least {FEWEST_IN_CELL} records of each group.",
            code="too_few_records",
        )
    return tuple(splits)


def number_stretches(groups: IntArray, places: IntArray, tasks: IntArray | None) -> IntArray:
    """Number the stretches of records of one group, (n,), that are at one thing without a break.

    A stretch has at most as many records as the third root of those of its group: blocks of that
    length, of which there are ever more, carry an interval whatever neighbours share.

    References
    ----------
    Künsch 1989, The Jackknife and the Bootstrap for General Stationary Observations.

    Examples
    --------
    >>> number_stretches(np.zeros(9, int), np.arange(9), np.array([0, 0, 0, 0, 1, 0, 0, 0, 0]))
    array([0, 0, 0, 1, 2, 3, 3, 3, 4])
    """
    order = np.lexsort([places, groups])
    who, done = groups[order], np.zeros(len(order), np.int64) if tasks is None else tasks[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (who[1:] != who[:-1]) | (done[1:] != done[:-1])
    starts = np.flatnonzero(begins)
    within = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    sizes = np.unique(who, return_inverse=True, return_counts=True)
    longest = np.ceil(np.round(np.cbrt(sizes[2]), 9)).astype(np.int64)[sizes[1]]
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(within % longest == 0) - 1
    return numbers


def _list_cells(groups: IntArray, places: IntArray, tasks: IntArray | None) -> list[IntArray]:
    """Indices of the records of each group at one thing, in time; rare things are one."""
    order, cells = np.lexsort([places, groups]), []
    for mine in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        done = np.zeros(len(mine), np.int64) if tasks is None else tasks[mine]
        _, codes, counts = np.unique(done, return_inverse=True, return_counts=True)
        joined = np.where(counts[codes] < FEWEST_IN_CELL, -1, codes)
        cells += [mine[joined == code] for code in np.unique(joined)]
    return cells


def _side_of(n: int, fold: int, turns: int) -> IntArray:
    """Where each of so many records in time goes: 0 trains, 1 tunes, 2 judges, 3 is left out."""
    if n < FEWEST_IN_CELL:
        return np.zeros(n, np.int64)
    turns = min(turns, n // FEWEST_IN_CELL)
    phase = (np.arange(n) * PHASES * turns // n - 2 * fold) % PHASES
    side = np.where(phase < 2, 2, np.where(phase == 2, 1, 0))
    return _keep_apart(side, np.zeros(n, np.int64), max(1, n // (20 * turns)))


def _keep_apart(side: IntArray, groups: IntArray, gap: int) -> IntArray:
    """Leave out what lies so near a judging record of its group, and what trains near tuning."""
    kept = side.copy()
    for judge in (2, 1):
        for shift in range(1, gap + 1):
            alike = groups[shift:] == groups[:-shift]
            before, after = side[:-shift], side[shift:]
            kept[shift:][alike & (before == judge) & (after < judge)] = 3
            kept[:-shift][alike & (after == judge) & (before < judge)] = 3
    return kept
