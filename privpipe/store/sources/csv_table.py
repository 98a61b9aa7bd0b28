"""CSV files as a table: types from the first block, everything else streamed."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc

from privpipe.errors import InputError
from privpipe.store.sources.reading.delimited import DelimitedText
from privpipe.store.sources.reading.files import TableFile, TableFiles, open_input
from privpipe.store.sources.reading.source import Form, RecordSource, SourceLayout, TableColumn
from privpipe.store.sources.reading.table_source import FileTable, kind_of, open_table


def open_csv(files: TableFiles, layout: SourceLayout) -> RecordSource:
    """CSV files as a source."""
    return open_table(CsvTable(files, layout))


class CsvTable(FileTable):
    """CSV files with the same columns, the first row naming them.

    The type of a column is that of its cells in the first block of the first file; a later cell
    that does not fit is refused, unless the options force the column's kind.
    """

    declares_types = False

    def describe(self, file: TableFile) -> tuple[TableColumn, ...]:
        """Names of the first row, types of the first block."""
        text = self._text(file)
        schema = text.infer()
        is_header = _check_header(schema, self.layout, text.where)
        return tuple(
            TableColumn(
                field.name or _unnamed(place),
                kind_of(field.type),
                str(field.type),
                # A first row that may be a record is called by numbers: its cells may be values.
                place=None if is_header else place,
            )
            for place, field in enumerate(schema, start=1)
        )

    def read(
        self, file: TableFile, columns: Sequence[TableColumn], forms: Mapping[str, Form], rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Read columns; see `FileTable.read`."""
        first = {column.name: column for column in self.columns}
        types = {name: _type(form, first[name]) for name, form in forms.items()}
        # Something must be read to know how many records there are.
        types = types or {columns[0].name: pa.string()}
        yield from self._text(file, columns).read([column.name for column in columns], types)

    def locate_text(self, name: str) -> str:
        """The row of a text in a column whose first records hold numbers."""
        file = self.files.files[0]
        names = [column.name for column in self.columns if not column.optional]
        try:
            for _ in self._text(file).read(names, {name: pa.float64()}):
                pass
        except InputError as error:
            # The message is ours, made of numbers alone.
            if found := re.search(r": row (\d+) holds", error.message):
                return f" (row {found[1]})"
        return ""

    def _text(self, file: TableFile, columns: Sequence[TableColumn] = ()) -> DelimitedText:
        return DelimitedText(
            partial(open_input, self.files.system, file.path),
            pc.ParseOptions(delimiter=self.layout.delimiter, newlines_in_values=True),
            self.layout.missing,
            self.files.describe(file),
            labels=tuple(repr(c.name) if c.place is None else str(c.place) for c in columns),
        )


def _type(form: Form, column: TableColumn) -> Any:
    if form == "text":
        return pa.string()
    # Microseconds, the unit of `as_numbers`.
    if column.is_date:
        return pa.timestamp("us")
    return pa.bool_() if column.kind == "boolean" else pa.float64()


def _unnamed(place: int) -> str:
    return f"unnamed_{place}"


def _check_header(schema: pa.Schema, layout: SourceLayout, where: str) -> bool:
    """Refuse a first row that looks like a record, has no names, or is cut at another mark.

    It looks like a record when every column of numbers is named by a number or a missing value,
    and these do not just count.

    Returns
    -------
    is_header
        Whether the first row is surely no record, so that messages may quote it: a column of
        numbers is named by a word, the names count, or the options name something in it. A table of
        nothing but text shows no difference between names and values.
    """
    named = [field.name for field in schema if kind_of(field.type) in ("number", "integer")]
    # pandas names columns 0, 1, 2 where they have none; others begin with 1.
    counts = bool(named) and named in [
        [str(first + place) for place in range(len(named))] for first in (0, 1)
    ]
    like_cells = all(_is_number(name) or name in layout.missing for name in named)
    if any(map(_is_number, named)) and like_cells and not counts:
        raise InputError(
            f"{where} has numbers in its first row, where names should be.",
            remedy="Put the names of the columns into a first row of their own.",
            code="no-header",
        )
    known = {*layout.features, *(layout.labels or ()), *layout.categorical, *layout.numeric}
    known |= set(layout.drop)
    for place, name in enumerate(schema.names, start=1):
        # An index written without a name is an identifier; it must not become a feature unseen.
        made = _unnamed(place)
        if name in ("", made) and made not in known:
            raise InputError(
                f"Column {place} of {where} has no name.",
                remedy=f"Leave it out with --drop {made} if it is an index, or name it.",
                code="unnamed-column",
            )
    others = [mark for mark in (";", "\t", "|", ",") if mark != layout.delimiter]
    found = next((mark for mark in others if len(schema) == 1 and mark in schema.names[0]), None)
    if found is not None:
        raise InputError(
            f"{where} has one column whose name holds {found!r}.",
            remedy=f"Give the delimiter with --delimiter {found!r}.",
            code="delimiter",
        )
    is_word = any(re.search(r"[^\W\d_]", n) and n not in layout.missing for n in named)
    names = {name or _unnamed(place) for place, name in enumerate(schema.names, start=1)}
    return is_word or counts or bool(known & names)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
