"""Sums of each chunk and partition that is cleaned, which show where a release reveals more.

A worker makes them of the block that it writes and of the labels of the same records. It leaves
them in the private workspace, one object per task; the audit reads them.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from privpipe.attacks.statistics.places import PlaceSums, code_column, count_codes, sum_place
from privpipe.cluster.pass_checkpoints import read_checkpoint, write_checkpoint
from privpipe.protocols import AnyArray, BoolArray, Column, FloatArray, IntArray
from privpipe.records.schema import MISSING
from privpipe.store.access.objects import list_keys, open_store
from privpipe.store.arrays.layout import FEATURES, RELEASED, ArrayPlan
from privpipe.store.collections.collection import Collection

MOST_PARTITIONS = 16
"""Partitions in a chunk that are distinguished; more have too few records each."""

FEWEST_VALUES = 2**16
"""Measured values of a chunk that are read, if there are as many."""

READ_SHARE = 1 / 24
"""Of the measured values of a larger chunk: all would cost a quarter of the cleaning."""


@dataclass(frozen=True)
class PlacePlan:
    """What is looked at in the released records, and where the sums are left.

    Parameters
    ----------
    url
        Folder in the private workspace.
    run
        Identifier of the run.
    collection
        The released records, which have their labels.
    arrays
        Of the release.
    confidential, desired
        Variables of the collection.
    """

    url: str
    run: str
    collection: Collection
    arrays: tuple[ArrayPlan, ...]
    confidential: tuple[str, ...]
    desired: tuple[str, ...] = ()

    @property
    def coded(self) -> tuple[tuple[str, int | None], ...]:
        """Released columns beside the features, with their categories; None of numbers."""
        schema = self.collection.schema_of_records
        names = [array.name for array in self.arrays if array.name not in (FEATURES, RELEASED)]
        found = [(name, schema.variable(name).column.n_categories) for name in names]
        if any(array.name == RELEASED for array in self.arrays):
            found.append((RELEASED, 2))
        return tuple(found)

    @property
    def n_codes(self) -> tuple[int, ...]:
        """Codes of each of these columns."""
        return tuple(count_codes(n_categories) for _, n_categories in self.coded)

    def find_columns(self, names: Sequence[str]) -> list[Column]:
        """Variables of the collection, as a fit sees them."""
        return [self.collection.schema_of_records.variable(name).column for name in names]


class PlaceNotes:
    """The sums of the chunks of a task.

    Parameters
    ----------
    plan
        What is looked at.
    chunks
        The task's chunks, ascending.
    """

    def __init__(self, plan: PlacePlan, chunks: Sequence[int]) -> None:
        self._plan, self._chunks = plan, chunks
        self._sums: list[PlaceSums] = []
        self._first = plan.collection.plan.rows(chunks[0])[0]
        last = plan.collection.plan.rows(chunks[-1])[1]
        names = tuple(dict.fromkeys((*plan.confidential, *plan.desired)))
        read = plan.collection.read_stored(names, self._first, last)
        self._labels = {name: _find_missing(plan, name, read[name]) for name in names}

    def add(self, chunk: int, block: Mapping[str, AnyArray], retained: BoolArray) -> None:
        """Add the sums of a chunk that is written; rows that are not retained hold nothing."""
        start, stop = self._plan.collection.plan.rows(chunk)
        rows = _draw_rows(self._plan, chunk, block, retained)
        for partition, first, last in _cut(self._plan.collection, start, stop):
            part = slice(first, last)
            self._sums.append(
                sum_place(
                    self._find_labels(self._plan.confidential, start, part),
                    self._find_labels(self._plan.desired, start, part),
                    block.get(FEATURES, np.empty((len(retained), 0)))[part],
                    rows[np.searchsorted(rows, first) : np.searchsorted(rows, last)] - first,
                    [
                        (code_column(block[name][part], n_categories), count_codes(n_categories))
                        for name, n_categories in self._plan.coded
                    ],
                    chunk=chunk,
                    partition=partition,
                )
            )

    def store(self) -> None:
        """Leave the sums of the task in the workspace."""
        digest = hashlib.sha256(repr(list(self._chunks)).encode()).hexdigest()[:16]
        name = f"{self._plan.run}-{self._chunks[0]:08d}-{digest}"
        write_checkpoint(self._plan.url, name, PlaceSums.concatenate(self._sums))

    def _find_labels(
        self, names: Sequence[str], start: int, part: slice
    ) -> list[tuple[Column, FloatArray]]:
        first = start - self._first
        rows = slice(first + part.start, first + part.stop)
        columns = self._plan.find_columns(names)
        return [(column, self._labels[column.name][rows]) for column in columns]


def read_places(plan: PlacePlan) -> Iterator[PlaceSums]:
    """The sums of all places of this run, a task at a time; a damaged object counts as none.

    A chunk that was cleaned twice, by a run that was interrupted, comes once.
    """
    seen: set[int] = set()
    for name in sorted(list_keys(open_store(plan.url, read_only=True))):
        table = read_checkpoint(plan.url, name) if name.startswith(plan.run) else None
        if table is None:
            continue
        new = ~np.isin(table.chunk, list(seen))
        seen.update(map(int, table.chunk))
        if new.any():
            yield table if new.all() else table.take(new)


def _find_missing(plan: PlacePlan, name: str, values: AnyArray) -> FloatArray:
    """Codes or numbers with NaN where they are missing."""
    numbers = values.astype(np.float64)
    if plan.find_columns([name])[0].is_categorical:
        numbers[values == MISSING] = np.nan
    return numbers


def _draw_rows(
    plan: PlacePlan, chunk: int, block: Mapping[str, AnyArray], retained: BoolArray
) -> IntArray:
    """Records whose measured columns are read, one of each stretch; the same in every try."""
    there = None if retained.all() else np.flatnonzero(retained)
    n_there = len(retained) if there is None else len(there)
    n_columns = block[FEATURES].shape[1] if FEATURES in block else 0
    n = min(n_there, max(FEWEST_VALUES, int(READ_SHARE * n_there * n_columns)) // max(1, n_columns))
    rows = np.arange(n)
    if n < n_there:
        stretch = (rows + np.random.default_rng([int(plan.run, 16), chunk]).random(n)) / n
        rows = (stretch * n_there).astype(np.int64)
    return rows if there is None else there[rows]


def _cut(collection: Collection, start: int, stop: int) -> list[tuple[int, int, int]]:
    """Number of the partition, and first and last row within the chunk, of each part of it."""
    firsts = [one.first_record for one in collection.schema_of_records.partitions]
    low, high = bisect_right(firsts, start) - 1, bisect_right(firsts, stop - 1)
    if high - low > MOST_PARTITIONS:
        return [(-1, 0, stop - start)]
    edges = [0, *(first - start for first in firsts[low + 1 : high]), stop - start]
    parts = zip(range(low, high), edges[:-1], edges[1:], strict=True)
    return [part for part in parts if part[2] > part[1]]
