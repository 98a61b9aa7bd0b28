"""Splits of records into train, tune and test: disjoint, stratified by class or cut by group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privpipe.errors import InputError
from privpipe.protocols import BoolArray, IntArray

_TRIALS = 50
"""Orders of the groups tried before a split by group is given up."""


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
    """

    train: IntArray
    tune: IntArray
    test: IntArray


def draw_split(
    rows: IntArray,
    *,
    classes: IntArray | None = None,
    groups: IntArray | None = None,
    ties: IntArray | None = None,
    train_only: BoolArray | None = None,
    tune_share: float = 0.2,
    test_share: float = 0.3,
    seed: int = 0,
) -> RecordSplit:
    """Split records at random; a group never falls into two sets.

    Without groups each class is divided in the shares asked for. With groups whole groups
    are dealt out, in an order that leaves every class in train and in test.

    Parameters
    ----------
    rows : (n_records,)
        Row numbers to split.
    classes : (n_records,), optional
        Class of each of these rows; none for numbers.
    groups : (n_records,), optional
        Subject of each of these rows.
    ties : (n_records,), optional
        Set of equal records of each of these rows, where no subject is known: a set stays whole,
        and goes where its first record would.
    train_only : (n_records,), optional
        True for rows that may train and tune but not test; then all others test and
        `test_share` only fixes how the rest is divided.
    tune_share, test_share
        Shares of the records (approximate with groups).
    seed
        Seed of the split.

    Raises
    ------
    InputError
        If a set would be empty, or no order of the groups leaves every class in both.

    Examples
    --------
    >>> split = draw_split(np.arange(10), classes=np.arange(10) % 2)
    >>> len(split.train), len(split.tune), len(split.test)
    (4, 2, 4)
    """
    random = np.random.default_rng(seed)
    may_fail = any(one is not None for one in (groups, ties, train_only))
    for _ in range(_TRIALS if may_fail else 1):
        if groups is None:
            position = _place_records(classes, len(rows), random)
            if ties is not None:
                _, first, place = np.unique(ties, return_index=True, return_inverse=True)
                position = position[first][place]
        else:
            position = _place_groups(groups, random)
        if train_only is not None:
            position = _move_tests(position, train_only, groups, test_share)
        split = _cut(np.arange(len(rows)), position, tune_share, test_share)
        if classes is None or _holds_all_classes(classes, split):
            return RecordSplit(rows[split.train], rows[split.tune], rows[split.test])
    raise InputError(
        "No split by groups or equal records, or with the given test records, leaves every class "
        f"in both train and test ({len(rows)} records).",
        remedy="Group by a finer unit, use more groups, or leave the rare classes out.",
        code="split_confines_classes",
    )


def draw_rows(rows: IntArray, classes: IntArray | None, most: int, seed: int) -> IntArray:
    """At most so many of the rows, each class in proportion and none of them left out.

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


def _move_tests(
    position: np.ndarray, train_only: BoolArray, groups: IntArray | None, test_share: float
) -> np.ndarray:
    """Squeeze records that only train below the cut, and lift all others above it."""
    if groups is not None and np.intersect1d(groups[train_only], groups[~train_only]).size:
        raise InputError(
            "Some groups have records on both sides of the given train and test records.",
            remedy="Give test records of subjects of their own, or no groups.",
            code="groups_straddle",
        )
    lowered = np.empty_like(position)
    lowered[train_only] = position[train_only] * (1 - test_share)
    lowered[~train_only] = 1.0
    return lowered


def _cut(rows: IntArray, position: np.ndarray, tune_share: float, test_share: float) -> RecordSplit:
    tune_from = 1 - tune_share - test_share
    train: BoolArray = position < tune_from
    test: BoolArray = position >= 1 - test_share
    split = RecordSplit(rows[train], rows[~train & ~test], rows[test])
    if min(len(split.train), len(split.tune), len(split.test)) == 0:
        raise InputError(
            f"{len(rows)} records (or their groups) are too few for train, tune and test.",
            remedy="Use more records or groups.",
            code="too_few_records",
        )
    return split


def _holds_all_classes(classes: IntArray, split: RecordSplit) -> bool:
    kinds = np.unique(classes)
    return all(len(np.unique(classes[part])) == len(kinds) for part in (split.train, split.test))
