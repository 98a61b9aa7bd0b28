"""A source of records as a value, and the options that say which column is what."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from privpipe.errors import OptionError, StoreError
from privpipe.protocols import AnyArray, IntArray
from privpipe.records.schema import as_names

Kind = Literal["number", "integer", "boolean", "text"]
"""What a source holds of a variable, before it is decided how to store it."""

MISSING_TEXT = ("", " ", "NA", "N/A", "NaN", "nan", "null", "NULL")
"""Cells of a text file that mean a missing value, unless others are named."""


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
        Numbers, NaN where missing; no columns where they are not needed.
    variables
        Values of each variable: numbers (NaN where missing), or coded text. Whole numbers that
        float64 would round are coded text, too.
    """

    partition: int
    n_records: int
    features: AnyArray
    variables: Mapping[str, AnyArray | Coded]


@dataclass(frozen=True)
class SourceVariable:
    """A variable as the source names and types it."""

    name: str
    kind: Kind


@dataclass(frozen=True)
class BinningLoss:
    """What is lost of a variable when only its bin is known.

    Parameters
    ----------
    n_bins
    n_chosen
        Records that chose the edges and that these numbers are means over.
    distance
        Mean distance of a value from the median of its bin, in the variable's unit.
    share
        Mean squared distance from the mean of its bin, over the variance; 0 to 1.
    information
        What earlier versions measured beside: nats about each other variable, within bins.
    """

    n_bins: int
    n_chosen: int
    distance: float
    share: float
    # Headers of collections have had it under this name from the first on.
    information: Annotated[Mapping[str, float], Field(alias="hidden")] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RecordSource:
    """A source that can be read more than once, in the same order each time.

    Parameters
    ----------
    feature_names
        One per feature, or empty.
    n_features, features_dtype
        Columns of the feature matrix, and the dtype that holds all of them exactly.
    variables
        What it holds beside the features.
    partitions
        Names of the source partitions, in the order of their records.
    read
        Called with a number of records and whether features are needed; yields consecutive blocks
        of at most so many records, none across partitions.
    losses
        What bins lost, by variable that was a number.
    rounds
        Called with a variable of floating numbers: whether they are whole ones, maybe rounded.
    """

    feature_names: tuple[str, ...]
    n_features: int
    features_dtype: np.dtype[Any]
    variables: tuple[SourceVariable, ...]
    partitions: tuple[str, ...]
    read: Callable[[int, bool], Iterator[Block]] = field(repr=False)
    losses: Mapping[str, BinningLoss] = field(default_factory=dict)
    rounds: Callable[[str], bool] = field(default=lambda _: False, repr=False)


def unstable(problem: str) -> StoreError:
    """The error for a source that is another when it is read again."""
    problem = f"The source {problem} when it was read first."
    remedy = "Ingest when nothing writes to the source."
    return StoreError(problem, remedy=remedy, code="source-changed")


TextKind = Literal["number", "text", "boolean", "date", "ordered"]
"""What the cells of a column mean, as a reviewed schema says."""


@dataclass(frozen=True)
class ColumnText:
    """How the cells of one column are read.

    Parameters
    ----------
    kind
        What they mean.
    format
        Of dates, as `strftime` writes it; ISO 8601 where empty. Of numbers "zeros" where they may
        begin with zeros, else the unit that each cell has, such as "€" or "%", behind "()" where
        (5) or 5- is less than 0.
    missing
        Cells that mean a missing value in this column alone.
    order
        Cells that are read as 0, 1, 2 and so on, where the kind is "ordered".
    """

    kind: TextKind
    format: str = ""
    missing: tuple[str, ...] = ()
    order: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dialect:
    """How a text is written, beside its delimiter.

    Parameters
    ----------
    encoding
        As Python names it.
    decimal, thousands
        Signs within numbers; a sign for thousands or none.
    skip_first, skip_last
        Lines before the names or the first record, and after the last.
    names
        Of the columns, where no single row of the text holds them.
    trim
        Whether blanks around cells are no part of them.
    multiline
        Whether cells in quotes may hold line breaks.
    columns
        How each column is read; of others it is inferred.
    table
        Sheet of a workbook, or table of a database, where there are several.
    """

    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str = ""
    skip_first: int = 0
    skip_last: int = 0
    names: tuple[str, ...] = ()
    trim: bool = False
    multiline: bool = True
    columns: Mapping[str, ColumnText] = field(default_factory=dict, hash=False)
    table: str = ""


ColumnKind = Literal["number", "integer", "boolean", "text", "other"]

Form = Literal["number", "text"]
"""How a column is to be read."""

Forms = Mapping[str, Form]
"""How each of some columns is to be read, by its name."""

TRUTH_VALUES = "nominal of true and false"
"""Type name of a column of text that declares truth values alone."""

_DATES = ("date", "timestamp")
"""How Arrow begins the names of types of dates and of times of a day."""


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Parameters
    ----------
    name
        Its name.
    kind
        What it holds; "other" are dates, lists and the like.
    type_name
        Its type as the format calls it, for messages.
    narrow
        Whether float32 holds each of its numbers exactly.
    optional
        Read only when it is named: keys of Hive folders.
    place
        Its number, from 1, where its name may be a value of a record and must not be published.
    """

    name: str
    kind: ColumnKind
    type_name: str
    narrow: bool = False
    optional: bool = False
    place: int | None = None

    @property
    def is_boolean(self) -> bool:
        """Whether it holds truth values, however they are written."""
        return self.kind == "boolean" or self.type_name == TRUTH_VALUES

    @property
    def is_date(self) -> bool:
        """Whether it holds dates or times."""
        return self.type_name.startswith(_DATES)

    @property
    def label(self) -> str:
        """How messages call it."""
        return self.name if self.place is None else f"column {self.place}"


Columns = Sequence[TableColumn]
"""Columns of a table, in its order."""


@dataclass(frozen=True)
class SourceLayout:
    """Which array or column of a source is what.

    Parameters
    ----------
    features
        Arrays: the one that holds the features, by default the first of features, X, x, data.
        Tables: the columns that are features; by default all that are nothing else.
    labels
        Arrays or columns that become variables. Arrays: by default all with one row per record, a
        matrix one variable per column, named by an array ``target_names`` or by number. Tables: by
        default the columns that `features` leaves over, where it names any. Of an ARFF file those
        of Mulan's list, an XML file of its name beside it.
    categorical, numeric
        Variables whose kind is forced; a table's columns named here are variables.
    one_hot
        Tables: columns of text that become features, one of 0 and 1 per category. Names of
        categories become names of features, which are published.
    spread
        Tables: names of the features that `one_hot` makes, as those of an earlier table. Cells of
        no such category are 0 in all, and counted in a warning.
    dates
        Tables: columns of dates or times that become features, as days since 1970-01-01.
    calendar
        Tables: columns of dates that become four features, year, month, weekday and days.
    marked
        Tables: features beside which another says, by 0 and 1, where they are missing.
    bins
        Tables: columns of numbers that become categorical variables. ``age=8`` makes 8 bins of
        about as many records each, ``age=25:40:60`` makes bins of these edges. Edges become names
        of categories, which are published.
    drop
        Columns and arrays to leave out, such as identifiers.
    missing
        Cells of a text file that mean a missing value.
    delimiter
        What separates the cells of a CSV file.
    dialect
        How its cells are written otherwise; a schema of `propose_schema` says it.
    """

    features: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    one_hot: tuple[str, ...] = ()
    spread: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    calendar: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()
    bins: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    missing: tuple[str, ...] = MISSING_TEXT
    delimiter: str = ","
    dialect: Dialect = Dialect()

    def __post_init__(self) -> None:
        """Take a single name, or a list, for a tuple of names."""
        kinds = ("categorical", "numeric", "one_hot", "dates", "calendar", "marked", "bins")
        for name in ("features", "labels", *kinds, "drop"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, as_names(value))
        mark = self.delimiter
        # What pyarrow's parser takes: a single byte that is neither its quote nor ends a row.
        if not isinstance(mark, str) or len(mark) != 1 or not mark.isascii() or mark in '"\r\n\0':
            problem = f"The delimiter is {mark!r}."
            remedy = r"Give one ASCII character, no quote or line break: ';', or '\t' for a tab."
            raise OptionError(problem, remedy=remedy)
