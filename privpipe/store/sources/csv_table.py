"""CSV files as a table: types from the first block, everything else streamed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from privpipe.errors import InputError
from privpipe.store.access.location import shown
from privpipe.store.sources.reading.delimited import DelimitedText, Dialect
from privpipe.store.sources.reading.files import (
    TableFile,
    TableFiles,
    open_input,
    read_label_file,
    with_key_columns,
    with_keys,
)
from privpipe.store.sources.reading.roles import Form, TableColumn, check_drift
from privpipe.store.sources.reading.source import SourceLayout
from privpipe.store.sources.reading.table_source import TableSource, kind_of


def open_csv(files: TableFiles, layout: SourceLayout) -> TableSource:
    """CSV files as a source."""
    return TableSource(CsvTable(files, layout), layout, read_label_file(layout.label_file))


class CsvTable:
    """CSV files with the same columns, the first row naming them.

    The type of a column is that of its cells in the first block; a later cell that does not
    fit is refused, unless the options force the column's kind.

    Parameters
    ----------
    files
        The files.
    layout
        Delimiter, and cells that stand for a missing value.
    """

    def __init__(self, files: TableFiles, layout: SourceLayout) -> None:
        self._files = files
        self._layout = layout
        self._dialect = Dialect(layout.delimiter, missing=layout.missing)

    @property
    def where(self) -> str:
        return shown(self._files.url)

    @property
    def partitions(self) -> tuple[str, ...]:
        return self._files.partitions

    @cached_property
    def columns(self) -> tuple[TableColumn, ...]:
        """Columns of the first file, and the Hive keys."""
        return with_key_columns(self._describe(self._files.files[0]), self._files)

    def count_records(self) -> Sequence[int] | None:
        """None: a text must be read to count its records."""
        return None

    def locate_text(self, name: str) -> str:
        """The row of a text in a column whose first records hold numbers."""
        for file in self._files.files[:1]:
            names = [column.name for column in self.columns if not column.optional]
            try:
                for _ in self._text(file).read(names, {name: pa.float64()}):
                    pass
            except InputError as error:
                if found := re.search(r": row (\d+) holds", error.message):
                    return f" (row {found.group(1)})"
        return ""

    def batches(self, forms: Mapping[str, Form], rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read columns; see `Table`. Files whose columns differ from the first's are refused."""
        stored = {column.name: column for column in self.columns if not column.optional}
        types = {name: _type(form, stored[name]) for name, form in forms.items() if name in stored}
        # Something must be read to know how many records there are.
        types = types or {next(iter(stored)): pa.string()}
        for number, file in enumerate(self._files.files):
            here = self._describe(file) if number else tuple(stored.values())
            self._check_drift(here, file)
            for batch in self._text(file, here).read([c.name for c in here], types):
                for start in range(0, batch.num_rows, rows):
                    yield file.partition, with_keys(batch.slice(start, rows), file, forms)

    def _text(self, file: TableFile, columns: Sequence[TableColumn] = ()) -> DelimitedText:
        return DelimitedText(
            lambda: open_input(self._files.system, file.path),
            self._dialect,
            self._files.describe(file),
            labels=tuple(
                repr(column.name) if column.place is None else str(column.place)
                for column in columns
            ),
        )

    def _describe(self, file: TableFile) -> tuple[TableColumn, ...]:
        text = self._text(file)
        schema = text.infer()
        names = _name_columns(schema, self._layout, text.where)
        is_sure = _is_header(names, schema, self._layout)
        _check_unnamed(names, self._layout, text.where)
        _check_delimiter(names, self._layout, text.where)
        return tuple(
            TableColumn(
                name, kind_of(field.type), str(field.type), place=None if is_sure else place
            )
            for place, (name, field) in enumerate(zip(names, schema, strict=True), start=1)
        )

    def _check_drift(self, columns: Sequence[TableColumn], file: TableFile) -> None:
        """Compare names alone: types are those of the first file, and cells must fit them."""
        here = [replace(c, kind="text", type_name="") for c in columns]
        first = [replace(c, kind="text", type_name="") for c in self.columns if not c.optional]
        check_drift(first, here, self._files.describe(file))


def _type(form: Form, column: TableColumn) -> Any:
    if form == "text":
        return pa.string()
    if column.is_date:
        return pa.timestamp("us")
    return pa.bool_() if column.kind == "boolean" else pa.float64()


def _name_columns(schema: pa.Schema, layout: SourceLayout, where: str) -> tuple[str, ...]:
    """Names of the first row; refused where it looks like a record, whose values they would be.

    So it does when every column of numbers is named by a number or a missing value, and these do
    not just count.
    """
    names = schema.names
    named = _names_of_numbers(names, schema)
    counted = [[str(first + i) for i in range(len(named))] for first in (0, 1)]
    like_cells = all(_is_number(name) or name in layout.missing for name in named)
    if any(map(_is_number, named)) and like_cells and named not in counted:
        raise InputError(
            f"{where} has numbers in its first row, where names should be.",
            remedy="Put the names of the columns into a first row of their own.",
            code="no-header",
        )
    return tuple(name or f"unnamed_{i + 1}" for i, name in enumerate(names))


def _is_header(names: Sequence[str], schema: pa.Schema, layout: SourceLayout) -> bool:
    """Whether the first row is surely no record, so that messages may quote it.

    It is when a column of numbers is named by a word, when it counts, or when the options name
    something in it. A table of nothing but text shows no difference between names and values.
    """
    asked = {*layout.features, *(layout.labels or ()), *layout.categorical, *layout.numeric}
    named = _names_of_numbers(schema.names, schema)
    is_named = any(re.search(r"[^\W\d_]", n) and n not in layout.missing for n in named)
    counts = bool(named) and all(map(str.isdecimal, named))  # others were refused
    return is_named or counts or bool((asked | set(layout.drop)) & set(names))


def _names_of_numbers(names: Sequence[str], schema: pa.Schema) -> list[str]:
    kinds = [kind_of(type_) for type_ in schema.types]
    return [name for name, kind in zip(names, kinds, strict=True) if kind in ("number", "integer")]


def _check_unnamed(names: Sequence[str], layout: SourceLayout, where: str) -> None:
    """An index written without a name is an identifier; it must not become a feature unseen."""
    named = {*layout.features, *(layout.labels or ()), *layout.categorical, *layout.numeric}
    for name in names:
        if name.startswith("unnamed_") and name not in named | set(layout.drop):
            raise InputError(
                f"Column {name.removeprefix('unnamed_')} of {where} has no name.",
                remedy=f"Leave it out with --drop {name} if it is an index, or name it.",
                code="unnamed-column",
            )


def _check_delimiter(names: Sequence[str], layout: SourceLayout, where: str) -> None:
    others = [mark for mark in (";", "\t", "|", ",") if mark != layout.delimiter]
    found = next((mark for mark in others if len(names) == 1 and mark in names[0]), None)
    if found is not None:
        raise InputError(
            f"{where} has one column whose name holds {found!r}.",
            remedy=f"Give the delimiter with --delimiter {found!r}.",
            code="delimiter",
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
