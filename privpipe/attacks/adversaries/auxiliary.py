"""What a release tells beside its features: included variables, withheld rows, place and partition.

Whoever publishes these publishes them to the adversary too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from privpipe.numerics.finite import find_empty_rows
from privpipe.numerics.random.record_hash import identify_records
from privpipe.protocols import BoolArray, Column, FloatArray, IntArray

INDICATORS = 64
"""Categories of one variable that become indicators: all, or the most frequent."""


@dataclass(frozen=True, eq=False)
class Auxiliary:
    """What is released with each record beside its features.

    Parameters
    ----------
    included : (n_records, n_included), optional
        Variables released by name: numbers, NaN where missing, or codes, below 0 or NaN where
        missing.
    columns
        Their names and kinds.
    position : (n_records,), optional
        Place of each record in the order of the release.
    partition : (n_records,), optional
        Partition of each record, where their lengths are told.
    n_variables
        How many of the columns, from the first, are variables that are attacked by themselves as
        well; None for all.
    earlier
        By name, columns of earlier releases of the same records, (n_records, n_columns) each,
        codes as indicators; rows of NaN where nothing was released.
    surroundings : (n_records, n_columns), optional
        Of each record what `describe_surroundings` gives of its row, in order where there is a
        position. Made from the records given, where it is not.
    """

    included: FloatArray | None = None
    columns: tuple[Column, ...] = ()
    position: IntArray | None = None
    partition: IntArray | None = None
    n_variables: int | None = None
    earlier: Mapping[str, FloatArray] = field(default_factory=dict)
    surroundings: npt.NDArray[np.float32] | None = None

    def take(self, rows: IntArray) -> Auxiliary:
        """The same of some records."""
        return replace(
            self,
            included=None if self.included is None else self.included[rows],
            position=None if self.position is None else self.position[rows],
            partition=None if self.partition is None else self.partition[rows],
            earlier={name: table[rows] for name, table in self.earlier.items()},
            surroundings=None if self.surroundings is None else self.surroundings[rows],
        )

    def arrays(self) -> dict[str, FloatArray | IntArray]:
        """What is given, by name."""
        given = {"included": self.included, "position": self.position, "partition": self.partition}
        return {name: array for name, array in given.items() if array is not None}

    def numbers(self) -> FloatArray:
        """Every value as a number, (n_records, n_values), 0 where missing: what has bits."""
        found = [np.asarray(array, np.float64) for array in self.arrays().values()]
        columns = [array if array.ndim == 2 else array[:, None] for array in found]
        table = np.hstack(columns) if columns else np.empty((0, 0))
        return np.where(np.isfinite(table), table, 0.0)


def expand_auxiliary(auxiliary: Auxiliary, withheld: BoolArray) -> FloatArray:
    """What stands beside the features as columns of numbers, (n_records, n_columns).

    Parameters
    ----------
    auxiliary
        Included variables, place and partition.
    withheld : (n_records,)
        True for records whose row holds nothing.
    """
    parts: list[FloatArray] = [withheld[:, None].astype(np.float64)]
    for j, column in enumerate(auxiliary.columns):
        assert auxiliary.included is not None, "columns name what is included"
        parts.append(
            _expand(np.asarray(auxiliary.included[:, j], np.float64), column.is_categorical)
        )
    if auxiliary.position is not None:
        parts.append(np.asarray(auxiliary.position, np.float64)[:, None])
    if auxiliary.partition is not None:
        parts.append(_expand(np.asarray(auxiliary.partition, np.float64), is_categorical=True))
    return np.hstack(parts)


def code_tasks(desired: Auxiliary) -> IntArray | None:
    """Code of what each record's desired variables say, (n_records,); numbers by their thirds."""
    if desired.included is None or not desired.columns:
        return None
    parts = []
    for j, column in enumerate(desired.columns):
        values = np.nan_to_num(np.asarray(desired.included[:, j], np.float64), nan=-1.0)
        ends = np.quantile(values, [1 / 3, 2 / 3])
        parts.append(values if column.is_categorical else np.searchsorted(ends, values))
    return np.asarray(np.unique(np.column_stack(parts), axis=0, return_inverse=True)[1].ravel())


def expand_variables(auxiliary: Auxiliary) -> dict[str, FloatArray]:
    """Each included variable as columns of numbers, by its name; those that do not vary are out."""
    found = {}
    for j, column in enumerate(auxiliary.columns[: auxiliary.n_variables]):
        assert auxiliary.included is not None, "columns name what is included"
        values = np.asarray(auxiliary.included[:, j], np.float64)
        columns = standardise(_expand(values, column.is_categorical))
        if columns.shape[1]:
            found[column.name] = columns
    return found


def standardise(columns: FloatArray) -> FloatArray:
    """Columns of mean 0 and variance 1, without those that do not vary."""
    varying = columns[:, np.ptp(columns, axis=0) > 0] if len(columns) else columns[:, :0]
    spread: FloatArray = varying.std(axis=0)
    found: FloatArray = (varying - varying.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return found


def _expand(values: FloatArray, is_categorical: bool) -> FloatArray:
    """A number with its absence; a code with indicators, and how frequent its category is."""
    known = np.isfinite(values) & ((values >= 0) | (not is_categorical))
    middle = float(values[known].mean()) if known.any() else 0.0
    parts: Sequence[FloatArray] = [np.where(known, values, middle), (~known).astype(np.float64)]
    if is_categorical:
        codes, sizes = np.unique(
            np.where(known, values, -1.0), return_inverse=True, return_counts=True
        )[1:]
        shown = np.argsort(-sizes, kind="stable")[:INDICATORS]
        indicators = (codes[:, None] == shown[None, :]).astype(np.float64)
        return np.column_stack([*parts, sizes[codes].astype(np.float64), indicators])
    return np.column_stack(parts)


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
