"""Splits of records into train, tune and test: disjoint, stratified by class or cut by group.

Records that are equal are no two witnesses: they stay on one side of every split. Whoever saw one
of two equal records when training knows the other's label by heart. They count as often as they
occur, and as one unit of an interval. Where a table has no more profiles than records, equal rows
are no repeats but what such a table is made of. There each counts for itself.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from privpipe.errors import InputError
from privpipe.numerics.finite import find_finite_rows
from privpipe.numerics.random.record_hash import identify_records
from privpipe.protocols import AnyArray, FloatArray, IntArray

_TRIALS = 50
"""Orders of the groups tried before a split by group is given up."""

EDGES = (0.5, 0.7)
"""Shares of the records up to which they train, and tune; the others judge."""


@dataclass(frozen=True, eq=False)
class RecordSplit:
    """Row numbers of three disjoint sets of records.

    Parameters
    ----------
    train
        Records the adversary is fitted on.
    tune
        Records that choose its settings.
    test
        Records it is judged by, used for nothing else.
    choose
        Of those to train on, the ones with which settings are tried where several folds share
        them; None where each fold chooses its own.
    """

    train: IntArray
    tune: IntArray
    test: IntArray
    choose: IntArray | None = None

    @classmethod
    def of(cls, rows: IntArray, side: IntArray) -> "RecordSplit":
        """By the side of each row: 0 trains, 1 tunes, 2 judges, any other is left out."""
        return cls(*(rows[side == number] for number in range(3)))


def draw_split(
    rows: IntArray, *, classes: IntArray | None = None, groups: IntArray | None = None, seed: int
) -> RecordSplit:
    """Split records at random; a group never falls into two sets.

    Without groups each class is divided at `EDGES`. With groups whole groups are dealt out, in an
    order that leaves every class in train and in test.

    Parameters
    ----------
    rows : (n_records,)
        Row numbers to split.
    classes : (n_records,), optional
        Class of each of these rows; none for numbers.
    groups : (n_records,), optional
        Subject of each of these rows.
    seed
        Seed of the split.

    Raises
    ------
    InputError
        If a set would be empty, or no order of the groups leaves every class in both.

    Examples
    --------
    >>> split = draw_split(np.arange(10), classes=np.arange(10) % 2, seed=0)
    >>> len(split.train), len(split.tune), len(split.test)
    (4, 2, 4)
    """
    random = np.random.default_rng(seed)
    for _ in range(1 if groups is None else _TRIALS):
        if groups is None:
            position = _place_records(classes, len(rows), random)
        else:
            position = _place_groups(groups, random)
        side = np.digitize(position, EDGES)
        if not np.bincount(side, minlength=3).all():
            problem = f"{len(rows)} records (or their groups) are too few for train, tune and test."
            raise InputError(problem, remedy="Use more records or groups.", code="too_few_records")
        # A class that trains no adversary, or judges none, would pass unseen.
        if classes is None or all(
            len(np.unique(classes[side == one])) == len(np.unique(classes)) for one in (0, 2)
        ):
            return RecordSplit.of(rows, side)
    problem = f"No split by groups leaves every class in both train and test ({len(rows)} records)."
    remedy = "Group by a finer unit, use more groups, or leave the rare classes out."
    raise InputError(problem, remedy=remedy, code="split_confines_classes")


def draw_rows(rows: IntArray, classes: IntArray | None, most: int, seed: int) -> IntArray:
    """At most so many of the rows, each class in proportion and none left out.

    Parameters
    ----------
    rows : (n_records,)
        Row numbers.
    classes : (n_records,), optional
        Class of each row; none for numbers.
    most
        Rows to keep; at least as many as there are classes.
    seed
        Seed of the draw.

    Examples
    --------
    >>> rare = np.arange(1000) == 7
    >>> 7 in draw_rows(np.arange(1000), rare.astype(int), 10, seed=0)
    True
    """
    # Systematic within each class: shares are exact, and a class of one record is in.
    if len(rows) <= most:
        return rows
    position = _place_records(classes, len(rows), np.random.default_rng(seed), middle=0.0)
    # The first record of every class is at 0, before all others.
    return np.asarray(np.sort(rows[np.argsort(position, kind="stable")[:most]]))


def _place_records(
    classes: IntArray | None, n_records: int, random: np.random.Generator, middle: float = 0.5
) -> np.ndarray:
    """Position in 0..1 of each record, evenly spread within each class."""
    order = random.permutation(n_records)
    if classes is None:
        classes = np.zeros(n_records, np.int64)
    # Stable, so that the random order holds within a class.
    order = order[np.argsort(classes[order], kind="stable")]
    sizes = np.unique(classes, return_counts=True)[1]
    rank = np.concatenate([(np.arange(size) + middle) / size for size in sizes])
    position = np.empty(n_records)
    position[order] = rank
    return position


def _place_groups(groups: IntArray, random: np.random.Generator) -> np.ndarray:
    """Position in 0..1 of each record: where the middle of its group lies in a random order."""
    _, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = random.permutation(len(sizes))
    ends = np.cumsum(sizes[order])
    middle = np.empty(len(sizes))
    middle[order] = (ends - sizes[order] / 2) / len(groups)
    return np.asarray(middle[codes])


N_FOLDS = 3

PHASES = 2 * N_FOLDS
"""Blocks of time in turn: two judge, the next chooses settings, three train."""

TURNS = 4
"""Times that the phases come round where it is not known what was done when: what lasted a while
is then on every side."""

FEWEST_IN_CELL = 2 * PHASES
"""Records of a group that did one thing, of which neighbours can be held apart."""


def is_of_groups(groups: IntArray, truth: FloatArray | IntArray) -> bool:
    """Whether all records of a group have one value.

    >>> is_of_groups(np.array([0, 0, 1]), np.array([2, 2, 2]))
    True
    """
    order = np.argsort(groups, kind="stable")
    return bool((np.diff(truth[order])[groups[order][1:] == groups[order][:-1]] == 0).all())


def names_groups(groups: IntArray, truth: FloatArray | IntArray) -> bool:
    """Whether a value of whole groups is that of one group alone, which it then names."""
    if not is_of_groups(groups, truth):
        return False
    values = truth[np.unique(groups, return_index=True)[1]]
    return bool((np.unique(values, return_counts=True)[1] == 1).any())


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
        splits.append(RecordSplit.of(rows, side))
    if not all(min(len(s.train), len(s.tune), len(s.test)) for s in splits):
        most = int(np.unique(groups, return_counts=True)[1].max(initial=0))
        problem = f"A group has {most} records at most, too few to learn its name and judge."
        remedy = f"Audit at least {FEWEST_IN_CELL} records of each group."
        raise InputError(problem, remedy=remedy, code="too_few_records")
    return tuple(splits)


def number_stretches(groups: IntArray, places: IntArray, tasks: IntArray | None) -> IntArray:
    """Number the stretches of records of one group, (n,), that are at one thing without a break.

    A stretch has at most as many records as the third root of those of its group. Blocks of that
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
    # Blocks of ever more records, and ever more of them: both that the interval's theory needs.
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
    """Code of where each of so many records in time goes.

    A record of 0 trains, of 1 tunes and of 2 judges. One of 3 is left out.
    """
    if n < FEWEST_IN_CELL:
        return np.zeros(n, np.int64)
    turns = min(turns, n // FEWEST_IN_CELL)
    # Two phases on, each fold: after all of them every phase has judged once.
    phase = (np.arange(n) * PHASES * turns // n - 2 * fold) % PHASES
    side = np.where(phase < 2, 2, np.where(phase == 2, 1, 0))
    return _keep_apart(side, np.zeros(n, np.int64), max(1, n // (20 * turns)))


def _keep_apart(side: IntArray, groups: IntArray, gap: int) -> IntArray:
    """Leave out what lies so near a judging record of its group, and what trains near tuning."""
    apart = side.copy()
    # First around what judges; then what trains stays away from what chooses settings.
    for judge in (2, 1):
        for shift in range(1, gap + 1):
            alike = groups[shift:] == groups[:-shift]
            before, after = side[:-shift], side[shift:]
            apart[shift:][alike & (before == judge) & (after < judge)] = 3
            apart[:-shift][alike & (after == judge) & (before < judge)] = 3
    return apart


def find_ties(released: AnyArray, raw: AnyArray | None = None) -> IntArray | None:
    """Number the sets of records that are equal, raw or released, directly or by others.

    Of records whose raw ones lie as far apart as any, equal released ones are no repeats. The
    release no longer separates them, and knowing one says nothing of who the others are.

    Parameters
    ----------
    released, raw : (n_records, any)
        Numbers; rows that are not finite are equal to no other. Of raw records of few profiles
        no two are tied, whatever is released of them.

    Returns
    -------
    ties : (n_records,), optional
        None where no two records are tied.

    Examples
    --------
    >>> find_ties(np.array([[.1, 7.0], [.3, 5.0], [.1, 7.0], [.6, 1.0]]))
    array([0, 1, 0, 2])
    """
    given = [released] if raw is None else [raw, released]
    found = list[IntArray]()
    for table in given:
        if (codes := _number_equal(table)) is None:
            continue
        if not has_few_profiles(table[find_finite_rows(table)]):
            found.append(codes if raw is None else _part_strangers(codes, raw))
        # Of few profiles equal raw records are other people: released ones are equal for that
        # reason.
        elif table is raw:
            return None
    if not found:
        return None
    n = len(released)
    rows = np.tile(np.arange(n), len(found))
    columns = np.concatenate([n + i * n + codes for i, codes in enumerate(found)])
    size = n * (1 + len(found))
    # Records and profiles as a graph: who is equal raw to one and released to another ties both.
    links = coo_array((np.ones(len(rows), bool), (rows, columns)), shape=(size, size))
    codes = connected_components(links, directed=False)[1][:n]
    return np.asarray(np.unique(codes, return_inverse=True)[1], np.int64)


def _part_strangers(codes: IntArray, raw: AnyArray) -> IntArray:
    """Codes of equal rows, where raw records that differ like any are each for themselves."""
    apart = find_finite_rows(raw)
    sets, sizes = np.unique(codes[apart], return_inverse=True, return_counts=True)[1:]
    n_apart = np.zeros(len(sizes))
    for numbers in np.asarray(raw[apart], np.float64).T:
        column = numbers / np.abs(numbers).max(initial=np.finfo(float).tiny)
        away = column - (np.bincount(sets, column) / sizes)[sets]
        n_apart += np.bincount(sets, away**2) > np.maximum(sizes - 1, 1) * column.var() / 2
    # In most columns: one of rare values has all of its variance in a few sets.
    apart[apart] = (2 * n_apart > raw.shape[1])[sets]
    return np.where(apart, np.arange(len(codes)), codes)


def has_few_profiles(table: AnyArray) -> bool:
    """Whether columns that had nothing to do with one another would have equal rows as well.

    The number of their typical rows is ``exp`` of the sum of the columns' entropies. Where these
    are no more than the records, some come twice whoever the records are.

    >>> random = np.random.default_rng(0)
    >>> has_few_profiles(random.integers(0, 2, (2000, 10)))
    True
    >>> has_few_profiles(np.repeat(random.normal(size=(20, 10)), 100, axis=0))
    False
    """
    # The logarithm of records per typical row: below 0 repeats are no chance.
    room = float(np.log(max(len(table), 1)))
    for column in table.T:
        counts = np.unique(column, return_counts=True)[1] / len(table)
        room += float(counts @ np.log(counts))
        if room < 0:
            return False
    return True


def _number_equal(table: AnyArray) -> IntArray | None:
    """Codes of equal rows, below the number of rows; None where no two are equal."""
    if table.ndim != 2 or not table.shape[1]:
        return None
    held = find_finite_rows(table)
    words = identify_records(np.asarray(table[held], np.float64))
    kinds, first, places = np.unique(words, return_index=True, return_inverse=True)
    if len(kinds) == len(words):
        return None
    codes = np.arange(len(table))
    codes[held] = np.flatnonzero(held)[first][places]
    return codes
