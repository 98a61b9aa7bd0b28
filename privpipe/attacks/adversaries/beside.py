"""What a release tells beside its features: included variables, withheld rows, place and partition.

Whoever publishes these publishes them to the adversary too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from privpipe.protocols import BoolArray, Column, FloatArray, IntArray

INDICATORS = 64
"""Categories of one variable that become indicators: all, or the most frequent."""


@dataclass(frozen=True, eq=False)
class Beside:
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

    def take(self, rows: IntArray) -> Beside:
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


def expand_beside(beside: Beside, withheld: BoolArray) -> FloatArray:
    """What stands beside the features as columns of numbers, (n_records, n_columns).

    Parameters
    ----------
    beside
        Included variables, place and partition.
    withheld : (n_records,)
        True for records whose row holds nothing.
    """
    parts: list[FloatArray] = [withheld[:, None].astype(np.float64)]
    for j, column in enumerate(beside.columns):
        assert beside.included is not None, "columns name what is included"
        parts.append(_expand(np.asarray(beside.included[:, j], np.float64), column.is_categorical))
    if beside.position is not None:
        parts.append(np.asarray(beside.position, np.float64)[:, None])
    if beside.partition is not None:
        parts.append(_expand(np.asarray(beside.partition, np.float64), is_categorical=True))
    return np.hstack(parts)


def code_tasks(wanted: Beside) -> IntArray | None:
    """Code of what each record's desired variables say, (n_records,); numbers by their thirds."""
    if wanted.included is None or not wanted.columns:
        return None
    parts = []
    for j, column in enumerate(wanted.columns):
        values = np.nan_to_num(np.asarray(wanted.included[:, j], np.float64), nan=-1.0)
        ends = np.quantile(values, [1 / 3, 2 / 3])
        parts.append(values if column.is_categorical else np.searchsorted(ends, values))
    return np.asarray(np.unique(np.column_stack(parts), axis=0, return_inverse=True)[1].ravel())


def expand_variables(beside: Beside) -> dict[str, FloatArray]:
    """Each included variable as columns of numbers, by its name; those that do not vary are out."""
    found = {}
    for j, column in enumerate(beside.columns[: beside.n_variables]):
        assert beside.included is not None, "columns name what is included"
        values = np.asarray(beside.included[:, j], np.float64)
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
