"""CSV files as a table: types from the first block, everything else streamed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from privpipe.errors import InputError
from privpipe.store.location import shown
from privpipe.store.sources.delimited import DelimitedText, Dialect
from privpipe.store.sources.files import TableFile, TableFiles, open_input
from privpipe.store.sources.keys import with_key_columns, with_keys
from privpipe.store.sources.roles import Form, TableColumn, check_drift
from privpipe.store.sources.source import SourceLayout
from privpipe.store.sources.types import kind_of

__all__ = ["CsvTable"]


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

    def batches(self, forms: Mapping[str, Form], rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read columns; see `Table`. Files whose columns differ from the first's are refused."""
        stored = {column.name: column for column in self.columns if not column.optional}
        types = {name: _type(form, stored[name]) for name, form in forms.items() if name in stored}
        # Something must be read to know how many records there are.
        types = types or {next(iter(stored)): pa.string()}
        for number, file in enumerate(self._files.files):
            names = [column.name for column in self._describe(file)] if number else list(stored)
            self._check_drift(names, file)
            for batch in self._text(file).read(names, types):
                for start in range(0, batch.num_rows, rows):
                    yield file.partition, with_keys(batch.slice(start, rows), file, forms)

    def _text(self, file: TableFile) -> DelimitedText:
        return DelimitedText(
            lambda: open_input(self._files.system, file.path),
            self._dialect,
            self._files.describe(file),
        )

    def _describe(self, file: TableFile) -> tuple[TableColumn, ...]:
        text = self._text(file)
        schema = text.infer()
        names = _name_columns(schema, text.where)
        _check_unnamed(names, self._layout, text.where)
        _check_delimiter(names, self._layout, text.where)
        return tuple(
            TableColumn(name, kind_of(field.type), str(field.type))
            for name, field in zip(names, schema, strict=True)
        )

    def _check_drift(self, names: Sequence[str], file: TableFile) -> None:
        """Compare names alone: types are those of the first file, and cells must fit them."""
        here = [TableColumn(name, "text", "") for name in names]
        first = [TableColumn(c.name, "text", "") for c in self.columns if not c.optional]
        check_drift(first, here, self._files.describe(file))


def _type(form: Form, column: TableColumn) -> Any:
    if form == "text":
        return pa.string()
    return pa.bool_() if column.kind == "boolean" else pa.float64()


def _name_columns(schema: pa.Schema, where: str) -> tuple[str, ...]:
    """Names of the first row; refused where it looks like a record, whose values they would be.

    So it does when every column of numbers is named by a number, and these do not just count.
    """
    names = schema.names
    kinds = [kind_of(type_) for type_ in schema.types]
    named = [name for name, kind in zip(names, kinds, strict=True) if kind in ("number", "integer")]
    counted = [[str(first + i) for i in range(len(named))] for first in (0, 1)]
    if named and all(map(_is_number, named)) and named not in counted:
        raise InputError(
            f"{where} has numbers in its first row, where names should be.",
            remedy="Put the names of the columns into a first row of their own.",
            code="no-header",
        )
    return tuple(name or f"unnamed_{i + 1}" for i, name in enumerate(names))


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
