"""CSV files as a table: types from the first block, everything else streamed."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.csv as pc

from privpipe.errors import InputError
from privpipe.store.sources.reading import roles, source
from privpipe.store.sources.reading.conversions import LOST_ZERO, ZEROS, needs_text
from privpipe.store.sources.reading.delimited import BUFFER_BYTES, DelimitedText
from privpipe.store.sources.reading.dialect import HEAD_BYTES, read_cells, sniff_dialect
from privpipe.store.sources.reading.files import Batches, TableFile, open_input
from privpipe.store.sources.reading.source import Columns, Dialect, Forms, TableColumn
from privpipe.store.sources.reading.table_source import FileTable, kind_of

NUMBER = (
    r"(?i)^\s*[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)(e[+-]?[0-9]+)?\s*$|^\s*[+-]?(inf(inity)?|nan)\s*$"
)
"""What Arrow takes for a number."""

CODE = r"^\s*[+-]?[0-9]+[eE][0-9]+\s*$"
"""A label that is a number by chance, as some hashes are; programs write 1e+20 or 1.5e20."""


class CsvTable(FileTable):
    """CSV files with the same columns, the first row naming them.

    The type of a column is that of its cells in the first block of the first file. A later cell
    that does not fit is refused, unless the options force the column's kind.
    """

    declares_types = False
    has_text = True

    @cached_property
    def _n_lines(self) -> dict[TableFile, int | None]:
        """Lines of files that were looked through, where each is a row."""
        return {}

    def look(self) -> tuple[str, Dialect, Columns, pa.Table]:
        """How the first file is written, and all its cells of a sample as text."""
        file = self.files.files[0]
        open_file = partial(open_input, self.files.system, file.path)
        delimiter, dialect, sample = sniff_dialect(open_file, self.files.describe(file))
        lines = sample.text.splitlines(keepends=True)[dialect.skip_first :]
        text = "".join(lines[: len(lines) - dialect.skip_last]).encode()
        names = list(dialect.names) or read_cells("".join(lines[:100]), delimiter, 1)[0][1]
        names = [name or _unnamed(place) for place, name in enumerate(names, start=1)]
        roles.check_names(names, self.where)
        table = pc.read_csv(
            io.BytesIO(text),
            pc.ReadOptions(column_names=names, skip_rows_after_names=0 if dialect.names else 1),
            # Rows that were cut where a piece begins are no part of a sample.
            pc.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, invalid_row_handler=lambda _: "skip"
            ),
            pc.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
        return delimiter, dialect, tuple(TableColumn(n, "text", "string") for n in names), table

    def describe(self, file: TableFile) -> Columns:
        """Names of the first row, types of the first block."""
        text, dialect = self._text(file), self.layout.dialect
        if dialect.names and dialect.skip_first:
            self._check_order(file)
        schema = text.infer()
        # Of names that a schema says no cell was a record's.
        is_header = bool(dialect.columns) or _check_header(schema, self.layout, text.where)
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

    def _check_order(self, file: TableFile) -> None:
        """Refuse names above the records that are those of the schema in another order.

        They are read by place: two rows make them, or row names have none.
        """
        dialect = self.layout.dialect
        with _open_text(self.files.system, file.path, replace(dialect, skip_first=0)) as stream:
            lines = stream.read(HEAD_BYTES).decode(errors="replace").splitlines(keepends=True)
        above = read_cells("".join(lines[: dialect.skip_first]), self._delimiter(file), 2_000)
        rows = [[cell.strip() for cell in row] for _, row in above[-2:]]
        joined = [" ".join(filter(None, pair)) for pair in zip(*rows, strict=False)]
        for found in (joined, *rows[-1:], [_unnamed(1), *(rows[-1] if rows else ())]):
            if sorted(found) == sorted(dialect.names) and tuple(found) != dialect.names:
                raise InputError(
                    f"{self.files.describe(file)} has the columns of the schema in another order.",
                    remedy="Bring them into its order: such names are read by their place.",
                    code="column-order",
                )

    def read(self, file: TableFile, columns: Columns, forms: Forms, rows: int) -> Batches:
        """Read columns; see `FileTable.read`."""
        if not forms and (n_lines := self._n_lines.get(file)) is not None:
            n_heads = 0 if self.layout.dialect.names else 1
            yield pa.RecordBatch.from_arrays([pa.nulls(n_lines - n_heads)], [columns[0].name])
            return
        first = {column.name: column for column in self.columns}
        types = {name: _type(form, first[name]) for name, form in forms.items()}
        # Something must be read to know how many records there are.
        types = types or {columns[0].name: pa.string()}
        text, names = self._text(file, columns), [column.name for column in columns]
        try:
            yield from text.read(names, types)
        except InputError as error:
            # Arrow names the first cell that is no number; all are found by reading them as text.
            if error.code == "text-feature":
                numbers = [name for name, type_ in types.items() if type_ == pa.float64()]
                error.details = tuple(self._find_texts(file, numbers))
            raise

    def check_numbers(self, features: Sequence[str], variables: Sequence[str]) -> None:
        """Refuse numbers that are codes, unless an option or a schema allows.

        Any would lose leading zeros; variables as 1e5 and 10e4 would be one value.
        """
        said, layout = self.layout.dialect.columns, self.layout
        named = {*layout.numeric, *(() if said else layout.features)}
        named |= {name for name, one in said.items() if one.format == ZEROS}
        looked = [
            name
            for name in (*features, *variables)
            if name not in named and not (name in said and needs_text(said[name], layout.dialect))
        ]
        for file in self.files.files:
            # The bytes first: hardly a file has such a cell, and parsing it anew takes four times
            # as long.
            with _open_text(self.files.system, file.path, layout.dialect) as stream:
                has_zeros, has_codes, has_quotes, n_lines = _scan(stream, self._delimiter(file))
            self._n_lines[file] = n_lines
            if has_zeros:
                self._refuse_codes(file, looked, rf"^\s*{LOST_ZERO[1:]}", "leading zeros")
            if has_codes and (labels := [name for name in variables if name not in named]):
                self._refuse_codes(file, labels, CODE, "an e")
            if has_quotes and not layout.dialect.multiline:
                self._refuse_multiline(file)

    def _find_texts(self, file: TableFile, names: Sequence[str]) -> list[Mapping[str, str | int]]:
        """Column and row of the cells that are no numbers."""
        number = NUMBER.replace("[.]", f"[{self.layout.dialect.decimal}]")
        return self._find_cells(file, names, number, fitting=False)

    def _find_cells(
        self, file: TableFile, names: Sequence[str], pattern: str, *, fitting: bool = True
    ) -> list[Mapping[str, str | int]]:
        """Column and row of the cells in which a pattern is found, or is not."""
        columns, found = self._describe(file), list[Mapping[str, str | int]]()
        labels, first = {c.name: c.label for c in columns}, self.count_heads() + 1
        types = dict.fromkeys(names, pa.string())
        for batch in self._text(file, columns).read([column.name for column in columns], types):
            for name in names:
                found_here = compute.match_substring_regex(batch.column(name), pattern)
                found += [
                    {"column": labels[name], "row": int(row) + first}
                    for row in np.flatnonzero(compute.equal(found_here, fitting).fill_null(False))
                ]
            first += batch.num_rows
        return found

    def _refuse_multiline(self, file: TableFile) -> None:
        """A quote that does not end takes the rows up to the next one into its cell."""
        if found := self._find_cells(file, [column.name for column in self._describe(file)], "\n"):
            raise InputError(
                f"{self.files.describe(file)}: row {found[0]['row']} holds a line break in the "
                f"column {str(found[0]['column'])!r} ({len(found):,} such cells). The sample "
                "had none: a quote may lack its end.",
                remedy="Fix the quotes, or, if cells hold them, say multiline = true.",
                code="line-break",
                details=found,
            )

    def _refuse_codes(self, file: TableFile, names: Sequence[str], pattern: str, what: str) -> None:
        if found := self._find_cells(file, names, pattern):
            where, name = self.files.describe(file), str(found[0]["column"])
            raise InputError(
                f"{where}: row {found[0]['row']} holds digits with {what} in the column "
                f"{name!r}, as codes have them ({len(found):,} such cells).",
                remedy='Make a code --categorical, or kind = "text" in its schema. If it is a '
                f"number, name it with --features or --numeric, or say format = {ZEROS!r}.",
                code="lost-zero",
                details=found,
            )

    def count_heads(self) -> int:
        """Lines before the first record; see `FileTable.count_heads`."""
        dialect = self.layout.dialect
        return dialect.skip_first + (0 if dialect.names else 1)

    def locate_text(self, name: str) -> str:
        """The row of a text in a column whose first records hold numbers."""
        with suppress(InputError):  # of rows that are none something else is said
            found = self._find_texts(self.files.files[0], [name])
            return f" (row {found[0]['row']})" if found else ""
        return ""

    def _delimiter(self, file: TableFile) -> str:
        is_usual = self.layout.delimiter == source.SourceLayout.delimiter
        return "\t" if is_usual and ".tsv" in file.path.lower() else self.layout.delimiter

    def _text(self, file: TableFile, columns: Columns = ()) -> DelimitedText:
        return DelimitedText(
            partial(_open_text, self.files.system, file.path, self.layout.dialect),
            pc.ParseOptions(delimiter=self._delimiter(file), newlines_in_values=True),
            self.layout.missing,
            self.files.describe(file),
            first_row=self.layout.dialect.skip_first,
            names=self.layout.dialect.names,
            decimal=self.layout.dialect.decimal,
            labels=tuple(repr(c.name) if c.place is None else str(c.place) for c in columns),
        )


def _open_text(system: Any, path: str, dialect: Dialect) -> pa.NativeFile:
    """A file as UTF-8 from its names on, or its first record where it holds no names."""
    stream = open_input(system, path)
    if dialect.encoding != "utf-8":
        stream = pa.transcoding_input_stream(stream, dialect.encoding, "utf-8")
    if dialect.skip_first or dialect.skip_last:
        stream = pa.TransformInputStream(stream, _cut_lines(dialect.skip_first, dialect.skip_last))
    return stream


def _scan(stream: pa.NativeFile, delimiter: str) -> tuple[bool, bool, bool, int | None]:
    """Whether some cell begins with a zero and a digit, an e is between digits, quotes; rows.

    Rows are its lines, where there are no quotes, empty lines or carriage returns; else None.
    """
    before = np.frombuffer(f'{delimiter}\n\r"+- '.encode(), np.uint8)
    has_zeros = has_codes = has_quotes = False
    held, n_lines, is_plain = b"\n", 0, True
    while piece := stream.read(BUFFER_BYTES):
        # Names are quoted more often than cells.
        names, _, _ = piece.partition(b"\n")
        head = 0 if n_lines or names.count(b'"') % 2 else piece.find(b"\n")
        has_quotes = has_quotes or piece.find(b'"', max(head, 0)) >= 0
        ends = np.frombuffer(held[-1:] + piece, np.uint8) == ord("\n")
        n_lines += int(np.count_nonzero(ends[1:]))
        is_plain &= b"\r" not in piece and not (ends[1:] & ends[:-1]).any()
        text = np.frombuffer(held + piece, np.uint8)
        # Bytes wrap around: a zero, then a digit, after neither a digit nor a point. Of these few
        # alone it is checked that a cell begins.
        zeros = text[1:-1] == ord("0")
        zeros &= (text[2:] - ord("0") <= 9) & (text[:-2] - ord(".") > 11)
        has_zeros = has_zeros or bool(np.isin(text[:-2][zeros], before).any())
        codes = ((text[1:-1] | 32) == ord("e")) & (text[2:] - ord("0") <= 9)
        has_codes = has_codes or bool((text[:-2][codes] - ord("0") <= 9).any())
        if has_zeros and has_codes and has_quotes:
            break
        held = (held + piece)[-2:]
    n_lines += not held.endswith(b"\n")
    return has_zeros, has_codes, has_quotes, n_lines if is_plain and not has_quotes else None


def _cut_lines(first: int, last: int) -> Callable[[pa.Buffer], bytes]:
    """Takes pieces of a text, and gives them without its first and last lines, no records."""
    held, n_heads = b"", first

    def cut(piece: pa.Buffer) -> bytes:
        nonlocal held, n_heads
        held += bytes(piece)
        while n_heads and b"\n" in held:
            held, n_heads = held.partition(b"\n")[2], n_heads - 1
        if n_heads:  # nothing of a line that is left out stays
            held = b""
        if not piece.size:  # the end, where the last line ends or not
            rest, held = held.removesuffix(b"\n").split(b"\n"), b""
            left = b"\n".join(rest[: len(rest) - last])
            return left and left + b"\n"
        # What may belong to the last lines is held back until more is there.
        parts = held.rsplit(b"\n", last + 1)
        ready = parts[0] + b"\n" if len(parts) > last + 1 else b""
        held = held[len(ready) :]
        return ready

    return cut


def _type(form: source.Form, column: TableColumn) -> Any:
    if form == "text":
        return pa.string()
    # Microseconds, the unit of `as_numbers`.
    if column.is_date:
        return pa.timestamp("us", "UTC" if "tz=" in column.type_name else None)
    return pa.bool_() if column.kind == "boolean" else pa.float64()


def _unnamed(place: int) -> str:
    return f"unnamed_{place}"


def _check_header(schema: pa.Schema, layout: source.SourceLayout, where: str) -> bool:
    """Refuse a first row that looks like a record, has no names, or is cut at another mark.

    It looks like a record when every column of numbers is named by a number or a missing value,
    and these do not just count.

    Returns
    -------
    is_header
        Whether the first row is surely no record, so that messages may quote it. It is no record
        where a column of numbers is named by a word, the names count, or the options name something
        in it. A table of nothing but text shows no difference between names and values.
    """
    named = [field.name for field in schema if kind_of(field.type) in ("number", "integer")]
    # pandas names columns 0, 1, 2 where they have none; others begin with 1.
    counts = bool(named) and named in [[str(at + k) for k in range(len(named))] for at in (0, 1)]
    like_cells = all(_is_number(name) or name in layout.missing for name in named)
    if any(map(_is_number, named)) and like_cells and not counts:
        problem = f"{where} has numbers in its first row, where names should be."
        remedy = "Put the names of the columns into a first row of their own."
        raise InputError(problem, remedy=remedy, code="no-header")
    known = {*layout.features, *(layout.labels or ()), *layout.categorical, *layout.numeric}
    known |= set(layout.drop)
    for place, name in enumerate(schema.names, start=1):
        # An index written without a name is an identifier; it must not become a feature unseen.
        made = _unnamed(place)
        if name in ("", made) and made not in known:
            problem = f"Column {place} of {where} has no name."
            remedy = f"Leave it out with --drop {made} if it is an index, or name it."
            raise InputError(problem, remedy=remedy, code="unnamed-column")
    others = [mark for mark in (";", "\t", "|", ",") if mark != layout.delimiter]
    found = next((mark for mark in others if len(schema) == 1 and mark in schema.names[0]), None)
    if found is not None:
        problem = f"{where} has one column whose name holds {found!r}."
        remedy = f"Give the delimiter with --delimiter {found!r}."
        raise InputError(problem, remedy=remedy, code="delimiter")
    is_word = any(re.search(r"[^\W\d_]", n) and n not in layout.missing for n in named)
    names = {name or _unnamed(place) for place, name in enumerate(schema.names, start=1)}
    return is_word or counts or bool(known & names)


def _is_number(text: str) -> bool:
    return re.match(NUMBER, text) is not None
