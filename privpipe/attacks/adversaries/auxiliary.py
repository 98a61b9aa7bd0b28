"""Auxiliary information: what a release reveals besides the features of its records.

Whoever publishes included variables, withheld rows, an order or partitions publishes them to the
adversary too. The surroundings of a record are rows before and after, gaps and repeated values.
They are computed where a block of the release is read, for neighbours of a sampled record are
seldom sampled themselves. Every row of the block is described by the rows of that block alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from privpipe.numerics.finite import find_empty_rows
from privpipe.numerics.random.record_hash import identify_records
from privpipe.protocols import AnyArray, BoolArray, Column, FloatArray, IntArray

INDICATORS = 64
"""Categories of one variable that become indicators: all, or the most frequent."""

MOST_COLUMNS = 32
"""Released columns that are described, evenly spread over those there are."""

STRIDES = (2, 4, 8, 16, 32)
"""Lengths of the stretches of rows in which the place of a withheld one may be a code."""

FARTHEST = 255
"""Rows to the next gap, and records of one value, above which they are the same."""


@dataclass(frozen=True, eq=False)
class Auxiliary:
    """What is released with each record besides its features.

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
        Partition of each record, where their lengths are published.
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
    surroundings: AnyArray | None = None

    def take(self, rows: IntArray) -> "Auxiliary":
        """The same of some records."""
        return replace(
            self,
            **{name: array[rows] for name, array in self.arrays().items()},  # type: ignore[arg-type]
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
        table = np.column_stack(found) if found else np.empty((0, 0))
        return np.where(np.isfinite(table), table, 0.0)

    def variables(self) -> list[tuple[Column, FloatArray]]:
        """Each included variable with its values."""
        if self.included is None:
            return []
        return list(zip(self.columns, np.asarray(self.included, np.float64).T, strict=False))


def expand_auxiliary(auxiliary: Auxiliary, withheld: BoolArray) -> FloatArray:
    """Auxiliary information as columns of numbers, (n_records, n_columns).

    Parameters
    ----------
    auxiliary
        Included variables, place and partition.
    withheld : (n_records,)
        True for records whose row holds nothing.
    """
    parts: list[FloatArray] = [withheld[:, None].astype(np.float64)]
    parts += [_expand(values, column.is_categorical) for column, values in auxiliary.variables()]
    if auxiliary.position is not None:
        parts.append(np.asarray(auxiliary.position, np.float64)[:, None])
    if auxiliary.partition is not None:
        parts.append(_expand(np.asarray(auxiliary.partition, np.float64), is_categorical=True))
    return np.hstack(parts)


def code_tasks(desired: Auxiliary) -> IntArray | None:
    """Code of what each record's desired variables are, (n_records,); numbers by their thirds."""
    parts = []
    for column, values in desired.variables():
        known = np.nan_to_num(values, nan=-1.0)
        ends = np.quantile(known, [1 / 3, 2 / 3])
        parts.append(known if column.is_categorical else np.searchsorted(ends, known))
    if not parts:
        return None
    return np.asarray(np.unique(np.column_stack(parts), axis=0, return_inverse=True)[1].ravel())


def expand_variables(auxiliary: Auxiliary) -> dict[str, FloatArray]:
    """Each included variable as columns of numbers, by its name; those that do not vary are out."""
    some = auxiliary.variables()[: auxiliary.n_variables]
    expanded = {one.name: standardise(_expand(x, one.is_categorical)) for one, x in some}
    return {name: columns for name, columns in expanded.items() if columns.shape[1]}


def standardise(columns: FloatArray) -> FloatArray:
    """Columns of mean 0 and variance 1, without those that do not vary."""
    varying = columns[:, np.ptp(columns, axis=0) > 0] if len(columns) else columns[:, :0]
    spread: FloatArray = varying.std(axis=0)
    # A column that varies in its last bit may have a deviation that rounds to 0.
    return np.asarray((varying - varying.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def _expand(values: FloatArray, is_categorical: bool) -> FloatArray:
    """A number with its absence; a code with indicators, and how frequent its category is."""
    known = np.isfinite(values) & ((values >= 0) | (not is_categorical))
    parts = [np.where(known, values, float(values[known].mean()) if known.any() else 0.0), ~known]
    if is_categorical:
        filled = np.where(known, values, -1.0)
        codes, sizes = np.unique(filled, return_inverse=True, return_counts=True)[1:]
        # Frequent categories have records enough to be learned one by one; of others the size is
        # read.
        parts += [sizes[codes], codes[:, None] == np.argsort(-sizes, kind="stable")[:INDICATORS]]
    return np.column_stack(parts).astype(np.float64)


def describe_surroundings(
    released: AnyArray, position: IntArray | None = None, rows: IntArray | None = None
) -> AnyArray:
    """Auxiliary columns of rows of a block of a release.

    Parameters
    ----------
    released : (n_rows, n_columns)
        Whole rows of the release; one of NaN is withheld.
    position : (n_rows,), optional
        Place of each row in the release; None where the order is not released.
    rows : (n_described,), optional
        The rows that are described, of all that count; None for every row.

    Returns
    -------
    columns : (n_described, count_surroundings(n_columns, position is not None)), float32
        Values of the row itself, then how many rows share the value of each described column, and
        the whole row. With an order, values of the row before and of the row after follow, then
        rows to the last gap and to the next. Last, for each of `STRIDES`, is a code of the row's
        place in its stretch and of the first gap there. NaN where there is no such row.

    Notes
    -----
    Linear in the block, but for a sort of each described column. Values are in single precision.
    """
    table = np.asarray(released[:, _choose(released.shape[1])], np.float64)
    gone = find_empty_rows(table) if table.shape[1] else np.zeros(len(table), np.bool_)
    rows = np.arange(len(table)) if rows is None else rows
    whole = identify_records(np.nan_to_num(table)).view(np.float64)
    counts = (_count_equal(column, gone, rows) for column in (*table.T, whole))
    parts = [table[rows], *counts]
    if position is not None:
        parts.append(_describe_order(table, position, gone, rows))
    return np.column_stack(parts).astype(np.float32)


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


def expand_surroundings(columns: AnyArray, is_ordered: bool) -> FloatArray:
    """What an adversary reads of sampled rows: surroundings, differences, and their values.

    Parameters
    ----------
    columns : (n_records, count_surroundings(n_columns, is_ordered))
        Of sampled rows.
    is_ordered
        Whether rows before and after are described.

    Returns
    -------
    table : (n_records, n_read)
        Finite, the row's values last; of no columns where nothing varies around the records.
    """
    n_more = 3 + len(STRIDES) if is_ordered else 1
    n_chosen = (columns.shape[1] - n_more) // (4 if is_ordered else 2)
    values, around = np.split(columns.astype(np.float64), [n_chosen], axis=1)
    parts = [around]
    if is_ordered:
        near = around[:, n_chosen + 1 : 3 * n_chosen + 1]
        parts += [values - one for one in np.split(near, 2, axis=1)]
    found = np.nan_to_num(np.hstack(parts))
    varying = np.ptp(found, axis=0) > 0 if len(found) else np.zeros(found.shape[1], np.bool_)
    found = found[:, varying]
    return np.hstack([found, np.nan_to_num(values)]) if varying.any() else found


def _choose(n_columns: int) -> IntArray:
    most = min(n_columns, MOST_COLUMNS)
    return np.unique(np.linspace(0, n_columns - 1, most).astype(np.int64)) if most else np.arange(0)


def _count_equal(values: FloatArray, gone: BoolArray, rows: IntArray) -> FloatArray:
    """Rows that hold the same value, bit for bit, up to `FARTHEST`; 1 of withheld ones."""
    # Bit for bit: a copied value is the same in every digit, two draws of a number hardly ever.
    words = np.ascontiguousarray(values).view(np.uint64)
    # Sorted without places, and searched for the rows that are described: mostly they are few.
    kinds, counts = np.unique(words[~gone], return_counts=True)
    sizes = np.append(counts, 1)[np.searchsorted(kinds, words[rows])]
    return np.where(gone[rows], 1.0, np.minimum(sizes, FARTHEST))


def _describe_order(
    table: FloatArray, position: IntArray, gone: BoolArray, rows: IntArray
) -> FloatArray:
    """Of rows in order: the rows before and after, and where rows are withheld around."""
    order = np.argsort(position, kind="stable")
    at = np.argsort(order, kind="stable")[rows]
    position, gone = position[order], gone[order]
    parts = []
    for step in (1, -1):
        neighbours = (at - step) % max(len(table), 1)
        near = table[order[neighbours]]
        # Of a sample of rows the next one may lie far away, and the first follows the last.
        near[position[neighbours] != position[at] - step] = np.nan
        parts.append(near)
    gaps = position[gone]
    parts += [_to_gap(gaps, position[at]), -_to_gap(-gaps[::-1], -position[at])]
    for stride in STRIDES:
        stretch, place = np.divmod(position, stride)
        stretch -= stretch[:1]
        first = np.full(int(stretch.max(initial=0)) + 1, stride)
        np.minimum.at(first, stretch[gone], place[gone])
        # A record's place and the first gap of its stretch as one code, which is read value by
        # value.
        parts.append((place * (stride + 1) + first[stretch])[at].astype(np.float64))
    return np.column_stack(parts)


def _to_gap(gaps: IntArray, position: IntArray) -> FloatArray:
    """Rows since the last of sorted gaps, itself not counted, up to `FARTHEST`."""
    before = np.searchsorted(gaps, position) - 1
    last = np.append(gaps, 0)[before]
    return np.where(before >= 0, np.minimum(position - last, FARTHEST), FARTHEST).astype(np.float64)
