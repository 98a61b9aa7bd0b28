"""Tables as sources: record batches of columns become blocks of a feature matrix and variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from privpipe.errors import InputError, OptionError
from privpipe.store.sources.reading.roles import (
    MOST_COLUMNS,
    ColumnKind,
    Form,
    Roles,
    TableColumn,
    assign_roles,
    check_keys,
    check_names,
    too_wide,
)
from privpipe.store.sources.reading.source import Block, Coded, SourceLayout, SourceVariable


def kind_of(type_: Any) -> ColumnKind:
    """What a column of an Arrow type holds.

    >>> kind_of(pa.int8()), kind_of(pa.dictionary(pa.int32(), pa.string())), kind_of(pa.date32())
    ('integer', 'text', 'other')
    """
    t = pa.types
    if t.is_dictionary(type_):
        return "text"
    if t.is_boolean(type_):
        return "boolean"
    if t.is_integer(type_):
        return "integer"
    if t.is_floating(type_) or t.is_decimal(type_) or t.is_null(type_):
        return "number"
    is_text = t.is_string(type_) or t.is_large_string(type_) or t.is_string_view(type_)
    return "text" if is_text else "other"


def is_narrow(type_: Any) -> bool:
    """Whether float32 holds each number of an Arrow type exactly."""
    t = pa.types
    if t.is_floating(type_):
        return int(type_.bit_width) <= 32
    return bool(t.is_boolean(type_) or (t.is_integer(type_) and type_.bit_width <= 16))


MICROSECONDS = 86_400e6
"""Of a day."""


class Table(Protocol):
    """A table in some format: its columns, and batches of some of them."""

    @property
    def where(self) -> str:
        """The table, for messages."""
        ...

    @property
    def columns(self) -> tuple[TableColumn, ...]: ...

    @property
    def partitions(self) -> tuple[str, ...]: ...

    def batches(self, forms: Mapping[str, Form], rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read columns in the forms asked for, at most `rows` records at a time.

        Yields
        ------
        partition, batch
            Number of the partition, and a batch with a column for each of `forms`, in its order:
            a number as any numeric type, text as text or a dictionary.
        """
        ...

    def count_records(self) -> Sequence[int] | None:
        """Records of each partition where metadata tells them, else None."""
        ...

    def locate_text(self, name: str) -> str:
        """Where the first text of a column stands, to follow its name; nothing if not known."""
        ...


class TableSource:
    """Records of a table.

    Parameters
    ----------
    table
        The table.
    layout
        What its columns are.
    labels
        Columns that a list of labels beside the table names.

    Raises
    ------
    OptionError, InputError
        If columns and options do not fit; see `assign_roles`.
    FormatError
        If there are more than `MOST_COLUMNS`.
    """

    def __init__(self, table: Table, layout: SourceLayout, labels: Sequence[str] = ()) -> None:
        if layout.label_names is not None:
            raise OptionError(
                f"--label-names names the columns of a label matrix, and {table.where} is a table.",
                remedy="Name the table's own columns with --labels.",
            )
        columns = table.columns
        if len(columns) > MOST_COLUMNS:
            raise too_wide(table.where)
        check_names([c.name for c in columns], table.where, {c.name: c.label for c in columns})
        self._table = table
        self._booleans = {column.name for column in columns if column.is_boolean}
        self._unnamed = [c for c in columns if c.name not in layout.features]
        self._roles: Roles = assign_roles(columns, layout, labels, table.where, table.locate_text)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self._roles.features

    @property
    def n_features(self) -> int:
        return len(self._roles.features)

    @property
    def features_dtype(self) -> np.dtype[Any]:
        return self._roles.features_dtype

    @property
    def variables(self) -> tuple[SourceVariable, ...]:
        return self._roles.variables

    @property
    def partitions(self) -> tuple[str, ...]:
        return self._table.partitions

    def blocks(self, rows: int, *, with_features: bool = True) -> Iterator[Block]:
        """Read consecutive blocks; see `RecordSource`."""
        names = self.feature_names if with_features else ()
        forms: dict[str, Form] = {**dict.fromkeys(names, "number"), **self._roles.forms}
        if not forms:
            yield from self._empty_blocks(rows)
            return
        first = True
        for partition, batch in self._table.batches(forms, rows):
            matrix = as_matrix(batch.select(list(names)), self.features_dtype)
            if first:
                held = dict(zip(names, matrix.T, strict=True))
                unnamed = [c for c in self._unnamed if c.name in held]
                check_keys(unnamed, held, self._table.where)
            first = False
            yield Block(
                partition,
                batch.num_rows,
                matrix,
                {
                    name: self._as_coded(name, batch.column(name))
                    if form == "text"
                    else as_numbers(batch.column(name))
                    for name, form in self._roles.forms.items()
                },
            )

    def _as_coded(self, name: str, column: pa.Array) -> Coded:
        """Text as codes; truth values are written in one way whatever the source."""
        coded = as_coded(column)
        if name not in self._booleans:
            return coded
        lower = (value.lower() for value in coded.names)
        pairs = zip(lower, coded.names, strict=True)
        return Coded(coded.codes, tuple(a if a in ("true", "false") else b for a, b in pairs))

    def _empty_blocks(self, rows: int) -> Iterator[Block]:
        """Blocks that only count: from metadata, or by the first column as text."""
        counts = self._table.count_records()
        if counts is None:
            first: dict[str, Form] = {self._table.columns[0].name: "text"}
            for partition, batch in self._table.batches(first, rows):
                yield _counted(partition, batch.num_rows)
            return
        for partition, n_records in enumerate(counts):
            for start in range(0, n_records, rows):
                yield _counted(partition, min(rows, n_records - start))


def as_matrix(batch: pa.RecordBatch, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Numeric columns as a matrix, (n_records, n_columns), NaN where missing."""
    if batch.num_columns == 0:
        return np.empty((batch.num_rows, 0), dtype)
    same = all(pa.types.is_floating(field.type) for field in batch.schema)
    if same and len({field.type for field in batch.schema}) == 1:
        if batch.schema.types[0] == pa.from_numpy_dtype(dtype):
            matrix: npt.NDArray[Any] = batch.to_tensor(null_to_nan=True, row_major=True).to_numpy()
            return matrix
    matrix = np.empty((batch.num_rows, batch.num_columns), _wide_enough(batch, dtype))
    for j, column in enumerate(batch.columns):
        matrix[:, j] = as_numbers(column)
    return matrix


def as_numbers(column: pa.Array) -> npt.NDArray[Any]:
    """A numeric column as an array, NaN where missing; dates as days since 1970-01-01."""
    if pa.types.is_boolean(column.type) or pa.types.is_null(column.type):
        column = column.cast(pa.float32())
    elif pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    elif pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        column = pc.divide(column.cast(pa.timestamp("us")).cast(pa.int64()), MICROSECONDS)
    found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def as_coded(column: pa.Array) -> Coded:
    """A column of text, or of anything that can be written as text, as codes."""
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column)
    codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    values = column.dictionary
    names = values if pa.types.is_string(values.type) else _write_as_text(values)
    gone = np.flatnonzero(names.is_null().to_numpy(zero_copy_only=False))
    if len(gone):
        codes[np.isin(codes, gone)] = -1
    return Coded(codes, tuple(str(name) for name in names.to_pylist()))


def _write_as_text(values: pa.Array) -> pa.Array:
    problem = ""
    try:
        return values.cast(pa.string())
    except pa.ArrowException:
        problem = str(values.type)
    raise InputError(
        f"A column of type {problem} cannot be written as text.",
        remedy="Leave it out with --drop.",
        code="column-type",
    )


def _wide_enough(batch: pa.RecordBatch, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """float64 wherever narrower numbers would lose something."""
    narrow = dtype == np.float32 and all(
        pa.types.is_float32(t) or pa.types.is_float16(t) or t.bit_width <= 16
        for t in batch.schema.types
    )
    return np.dtype(np.float32 if narrow else np.float64)


def _counted(partition: int, n_records: int) -> Block:
    return Block(partition, n_records, np.empty((n_records, 0)), {})
