"""What every source of records answers, and the options that say which column is what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from privpipe.errors import OptionError
from privpipe.protocols import IntArray
from privpipe.records.schema import as_names

Kind = Literal["number", "integer", "boolean", "text"]
"""What a source holds of a variable, before it is decided how to store it."""

MISSING_TEXT = ("", " ", "NA", "N/A", "NaN", "nan", "null", "NULL")
"""Cells of a text file that stand for a missing value, unless others are named."""


@dataclass(frozen=True, eq=False)
class Coded:
    """Text values of a block, as codes into a table of the block's own.

    Parameters
    ----------
    codes : (n_rows,)
        Place of each value in `names`; -1 where missing.
    names
        Different values, in any order; not every one need occur.
    """

    codes: IntArray
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive records of one partition, as a source has them.

    Parameters
    ----------
    partition
        Number of the source partition.
    n_records
        Records in the block.
    features : (n_records, n_features)
        Numbers, NaN where missing; no columns when they were not asked for.
    variables
        Values of each variable: numbers (NaN where missing), or coded text.
    """

    partition: int
    n_records: int
    features: npt.NDArray[Any]
    variables: Mapping[str, npt.NDArray[Any] | Coded]


@dataclass(frozen=True)
class SourceVariable:
    """A variable as the source names and types it."""

    name: str
    kind: Kind


class RecordSource(Protocol):
    """A source that can be read more than once, in the same order each time."""

    @property
    def feature_names(self) -> tuple[str, ...]: ...

    @property
    def n_features(self) -> int: ...

    @property
    def features_dtype(self) -> np.dtype[Any]: ...

    @property
    def variables(self) -> tuple[SourceVariable, ...]: ...

    @property
    def partitions(self) -> tuple[str, ...]:
        """Names of the source partitions, in the order of their records."""
        ...

    def blocks(self, rows: int, *, with_features: bool = True) -> Iterator[Block]:
        """Read consecutive blocks of at most `rows` records; none crosses a partition."""
        ...


@dataclass(frozen=True)
class SourceLayout:
    """Which array or column of a source is what.

    Parameters
    ----------
    features
        Arrays: the one that holds the features, by default the first of features, X, x, data.
        Tables: the columns that are features; by default all that are nothing else.
    labels
        Arrays or columns that become variables. Arrays: by default all with one row per
        record, a matrix one variable per column. Tables: by default the columns that
        `features` leaves over, where it names any.
    label_names
        Arrays: names for the columns of a label matrix; by default ``target_names`` of the
        source, or the array's name with a number.
    label_file
        XML file with Mulan's list of labels; for an ARFF file by default the one of the same
        name beside it, where there is one.
    categorical, numeric
        Variables whose kind is forced; a table's columns named here are variables.
    one_hot
        Tables: columns of text that become features, one of 0 and 1 per category. Names of
        categories become names of features, which are published.
    dates
        Tables: columns of dates or times that become features, as days since 1970-01-01.
    bins
        Tables: columns of numbers that become categorical variables, as ``age=8`` for 8 bins of
        about as many records each, or ``age=25:40:60`` for these edges. Edges become names of
        categories, which are published.
    drop
        Columns and arrays to leave out, such as identifiers.
    missing
        Cells of a text file that stand for a missing value.
    delimiter
        What separates the cells of a CSV file.
    """

    features: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None
    label_names: tuple[str, ...] | None = None
    label_file: str | None = None
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    one_hot: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    bins: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    missing: tuple[str, ...] = MISSING_TEXT
    delimiter: str = ","

    def __post_init__(self) -> None:
        """Take a single name, or a list, for a tuple of names."""
        kinds = ("categorical", "numeric", "one_hot", "dates", "bins")
        for name in ("features", "labels", "label_names", *kinds, "drop"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, as_names(value))
        mark = self.delimiter
        if not isinstance(mark, str) or len(mark) != 1 or not mark.isascii() or mark in '"\r\n\0':
            raise OptionError(
                f"The delimiter is {mark!r}.",
                remedy=r"Give one ASCII character other than a quote or a line break, as ';' or "
                r"'\t' for a tabulator.",
            )
