"""What stands around a record in a release: rows before and after, gaps, and repeated values.

It is computed where a block of the release is read, for neighbours of a sampled record are seldom
sampled themselves. Every row of the block is described by the rows of that block alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from privpipe.numerics.finite import find_empty_rows
from privpipe.numerics.identity.record_hash import identify_records
from privpipe.protocols import BoolArray, FloatArray, IntArray

MOST_COLUMNS = 32
"""Released columns that are described, evenly spread over those there are."""

STRIDES = (2, 4, 8, 16, 32)
"""Lengths of the stretches of rows in which the place of a withheld one may be a code."""

FARTHEST = 255
"""Rows to the next gap, and records of one value, above which they are the same."""


def describe_surroundings(
    released: npt.NDArray[np.generic], position: IntArray | None = None
) -> npt.NDArray[np.float32]:
    """Auxiliary columns of every row of a block of a release.

    Parameters
    ----------
    released : (n_rows, n_columns)
        Whole rows of the release; one of NaN is withheld.
    position : (n_rows,), optional
        Place of each row in the release; None where the order is not released.

    Returns
    -------
    columns : (n_rows, count_surroundings(n_columns, position is not None)), float32
        Values of the row itself; how many rows share the value, of each described column, and the
        whole row. With an order:
        values of the row before, and of the row after; rows to the last gap and to the next; and
        for each of `STRIDES` a code of the row's place in its stretch and of the first gap there.
        NaN where there is no such row.

    Notes
    -----
    Linear in the block, but for a sort of each described column. Values are in single precision.
    """
    chosen = _choose(released.shape[1])
    table = np.asarray(released[:, chosen], np.float64)
    gone = find_empty_rows(table) if table.shape[1] else np.zeros(len(table), np.bool_)
    parts: list[FloatArray] = [table]
    parts += [_count_equal(column, gone)[:, None] for column in table.T]
    whole = identify_records(np.nan_to_num(table)).view(np.float64)
    parts.append(_count_equal(whole, gone)[:, None])
    if position is not None:
        order = np.argsort(position, kind="stable")
        back = np.argsort(order, kind="stable")
        ordered = _describe_order(table[order], position[order], gone[order])
        parts.append(ordered[back])
    return np.hstack(parts).astype(np.float32)


def count_surroundings(n_columns: int, is_ordered: bool) -> int:
    """Columns that `describe_surroundings` gives.

    >>> table = np.zeros((3, 2))
    >>> describe_surroundings(table).shape[1] == count_surroundings(2, False)
    True
    >>> describe_surroundings(table, np.arange(3)).shape[1] == count_surroundings(2, True)
    True
    """
    n_chosen = len(_choose(n_columns))
    return 2 * n_chosen + 1 + (2 * n_chosen + 2 + len(STRIDES) if is_ordered else 0)


def expand_surroundings(columns: npt.NDArray[np.float32], is_ordered: bool) -> FloatArray:
    """What an adversary reads of sampled rows: what is around, differences, and their own values.

    Parameters
    ----------
    columns : (n_records, count_surroundings(n_columns, is_ordered))
        Of sampled rows.
    is_ordered
        Whether rows before and after are described.

    Returns
    -------
    table : (n_records, n_read)
        Finite, own values last; of no columns where nothing varies around the records.
    """
    n_chosen = (columns.shape[1] - 1) // 2
    if is_ordered:
        n_chosen = (columns.shape[1] - 3 - len(STRIDES)) // 4
    own, around = np.split(columns.astype(np.float64), [n_chosen], axis=1)
    parts = [around]
    if is_ordered:
        first = n_chosen + 1
        parts += [own - one for one in np.split(around[:, first : first + 2 * n_chosen], 2, axis=1)]
    found = np.nan_to_num(np.hstack(parts))
    varying = np.ptp(found, axis=0) > 0 if len(found) else np.zeros(found.shape[1], np.bool_)
    found = found[:, varying]
    return np.hstack([found, np.nan_to_num(own)]) if varying.any() else found


def _choose(n_columns: int) -> IntArray:
    most = min(n_columns, MOST_COLUMNS)
    return np.unique(np.linspace(0, n_columns - 1, most).astype(np.int64)) if most else np.arange(0)


def _count_equal(values: FloatArray, gone: BoolArray) -> FloatArray:
    """Rows that hold the same value, bit for bit, up to `FARTHEST`; 1 of withheld ones."""
    words = np.ascontiguousarray(values).view(np.uint64)
    _, at, sizes = np.unique(words[~gone], return_inverse=True, return_counts=True)
    found = np.ones(len(values))
    found[~gone] = np.minimum(sizes[at], FARTHEST)
    return found


def _describe_order(table: FloatArray, position: IntArray, gone: BoolArray) -> FloatArray:
    """Of rows in order: the rows before and after, and where rows are withheld around."""
    parts = []
    for step in (1, -1):
        near = np.roll(table, step, axis=0)
        near[np.roll(position, step) != position - step] = np.nan
        parts.append(near)
    gaps = position[gone]
    parts += [_to_gap(gaps, position)[:, None], -_to_gap(-gaps[::-1], -position)[:, None]]
    for stride in STRIDES:
        stretch, place = np.divmod(position, stride)
        stretch -= stretch[:1]
        first = np.full(int(stretch.max(initial=0)) + 1, stride)
        np.minimum.at(first, stretch[gone], place[gone])
        parts.append((place * (stride + 1) + first[stretch])[:, None].astype(np.float64))
    return np.hstack(parts)


def _to_gap(gaps: IntArray, position: IntArray) -> FloatArray:
    """Rows since the last of sorted gaps, itself not counted, up to `FARTHEST`."""
    before = np.searchsorted(gaps, position) - 1
    last = np.append(gaps, 0)[before]
    return np.where(before >= 0, np.minimum(position - last, FARTHEST), FARTHEST).astype(np.float64)
