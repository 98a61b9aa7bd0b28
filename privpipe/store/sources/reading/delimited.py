"""Delimited text, streamed through pyarrow; what goes wrong is reported without quoting cells."""

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc

from privpipe.errors import InputError, SourceError
from privpipe.protocols import Names
from privpipe.store.sources.reading.files import DAMAGED, Batches
from privpipe.store.sources.reading.roles import MOST_COLUMNS, too_wide

BUFFER_BYTES = 2**20

UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""With what a text in UTF-16 begins."""

MOST_LINE_BYTES = 2**24
"""Longest line that is held in memory: a few kilobytes of gzip can unfold to one of gigabytes."""


def read_lines(open_stream: Callable[[], pa.NativeFile], where: str) -> Iterator[bytes]:
    """Lines of a file with their ends.

    Parameters
    ----------
    open_stream
        Opens the file.
    where
        The file, for messages.

    Raises
    ------
    SourceError
        If it cannot be read, or a line is longer than `MOST_LINE_BYTES`.
    """
    try:
        with open_stream() as stream, io.BufferedReader(stream, BUFFER_BYTES) as lines:
            while line := lines.readline(MOST_LINE_BYTES + 1):
                if len(line) > MOST_LINE_BYTES:
                    raise explain_long_line(where)
                yield line
            return
    except DAMAGED as error:
        problem = type(error).__name__
    problem = f"{where} cannot be read ({problem})."
    raise SourceError(problem, remedy="The file is damaged or cut short: get it again.")


def explain_long_line(where: str) -> SourceError:
    """A line that is no row of a table, in words."""
    problem = f"{where} has a line of more than {MOST_LINE_BYTES // 2**20} MiB."
    remedy = "Check that it is a table of text; store such wide records as Parquet or .npz."
    return SourceError(problem, remedy=remedy, code="long-line")


def not_utf8(where: str, head: bytes = b"") -> SourceError:
    """The error for text in another encoding, which a mark at its `head` may say."""
    is_marked = head.startswith(UTF16)
    problem = f"{where} is not text in UTF-8{', but in UTF-16' * is_marked}."
    remedy = f"Convert it, as with `iconv -f {'UTF-16' if is_marked else 'LATIN1'} -t UTF-8`."
    return SourceError(problem, remedy=remedy, code="encoding")


def find_undecodable(open_stream: Callable[[], pa.NativeFile], first: int = 1) -> str:
    """ ": line N", the line of the first byte that is no UTF-8, the first line counted as `first`.

    Nothing where every byte is, or the text cannot be read to its end. Lines end with a line feed,
    as editors count them, also within quotes.
    """
    # Piece by piece: a character may lie across two of them.
    decoder = codecs.getincrementaldecoder("utf-8")()
    number = first
    try:
        with open_stream() as stream:
            while piece := stream.read(BUFFER_BYTES):
                decoder.decode(piece)
                number += piece.count(b"\n")
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        number += error.object.count(b"\n", 0, error.start)
        return f": line {number}"
    except DAMAGED:
        pass
    return ""


BLOCK_BYTES = 2**20
"""Text parsed at once, or some wide rows. Arrow reads up to 32 blocks ahead, and no row may be
longer than a block."""

_RAGGED = re.compile(r"CSV parse error: (?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
_CONVERSION = re.compile(r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+)")


@dataclass(frozen=True)
class DelimitedText:
    """One text of delimited cells.

    Parameters
    ----------
    open_stream
        Opens it at its first row.
    written
        How it is written: delimiter, quote and escape.
    missing
        Cells that mean a missing value.
    where
        The text, for messages.
    first_row
        Rows of the file before that first row, for messages.
    labels
        How messages call the columns, where their names may be values of a record.
    names
        Of the columns, where the text has no row of names.
    decimal
        Sign of its numbers.
    """

    open_stream: Callable[[], pa.NativeFile]
    written: pc.ParseOptions
    missing: tuple[str, ...]
    where: str
    first_row: int = 0
    labels: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    decimal: str = "."

    def infer(self) -> pa.Schema:
        """Names from the first row, types from the first block.

        Raises
        ------
        InputError, SourceError
            As `read`.
        """
        try:
            with self._open(self.names) as reader:
                schema = reader.schema
                _ = schema.names  # decoded here
        except UnicodeDecodeError:
            message = "UTF8"
        except DAMAGED as error:
            message = str(error)
        else:
            # Text that is no UTF-8 becomes bytes where types are inferred, without an error.
            if pa.binary() in schema.types:
                raise self._not_utf8()
            return schema
        raise self._explain(message, ())

    def read(self, names: Names, types: Mapping[str, Any], *, skip: int | None = None) -> Batches:
        """Read some columns in batches of one block.

        Parameters
        ----------
        names
            Names of all columns.
        types
            Arrow types of those to read, in the order of the batches.
        skip
            First rows to leave out; by default that of the names.

        Raises
        ------
        InputError
            If a row has another number of cells than there are names, a cell does not fit its
            column, or there is nothing.
        SourceError
            If it is not text in UTF-8, damaged, its first row is longer than `MOST_LINE_BYTES`, or
            another is longer than a block.
        """
        try:
            skipped = (0 if self.names else 1) if skip is None else skip
            with self._open(names, types, skipped) as reader:
                yield from reader
                return
        except DAMAGED as error:
            message = str(error)
        raise self._explain(message, names)

    def _list_ragged(self, width: int) -> list[Mapping[str, int]]:
        """Rows that have another number of cells; Arrow would show the cells of some on stderr."""
        found, marks = list[Mapping[str, int]](), self.written
        with (
            suppress(*DAMAGED, csv.Error),  # as far as can be read
            self.open_stream() as stream,
            io.TextIOWrapper(io.BufferedReader(stream), "utf-8", "replace", newline="") as text,
        ):
            # False of Arrow is None there.
            escape = marks.escape_char or None
            rows = csv.reader(
                text, delimiter=marks.delimiter, quotechar=marks.quote_char, escapechar=escape
            )
            for number, row in enumerate(filter(None, rows), start=1 + self.first_row):
                if len(row) != width:
                    found.append({"row": number})
        return found

    @contextmanager
    def _open(
        self, names: Names = (), types: Mapping[str, Any] | None = None, skip: int = 0
    ) -> Iterator[pc.CSVStreamingReader]:
        # Before the stream is opened: of a file in memory both share one place.
        size = self._block_bytes()
        with (
            self.open_stream() as stream,
            pc.open_csv(
                stream,
                # One thread: only then rows are numbered in what goes wrong.
                read_options=pc.ReadOptions(
                    use_threads=False,
                    block_size=size,
                    column_names=list(names),
                    # Of rows, not of lines: a name within quotes may hold a line break.
                    skip_rows_after_names=skip,
                ),
                parse_options=self.written,
                convert_options=pc.ConvertOptions(
                    column_types=dict(types or {}),
                    include_columns=list(types or ()),
                    null_values=list(self.missing),
                    strings_can_be_null=True,
                    decimal_point=self.decimal,
                ),
            ) as reader,
        ):
            yield reader

    def _block_bytes(self) -> int:
        """Rows of many columns need larger blocks, by the length of the first row."""
        with self.open_stream() as stream, io.BufferedReader(stream) as lines:
            first = lines.readline(MOST_LINE_BYTES + 1)
            quote = self.written.quote_char.encode()
            # A line break within quotes.
            more = first
            while more and first.count(quote) % 2 and len(first) <= MOST_LINE_BYTES:
                more = lines.readline(MOST_LINE_BYTES + 1)
                # Bounded by the longest line: a quote without end would take the whole file.
                first += more
        if len(first) > MOST_LINE_BYTES:
            raise explain_long_line(self.where)
        if first.count(self.written.delimiter.encode()) >= MOST_COLUMNS:
            raise too_wide(self.where)
        if first.startswith(UTF16):
            raise not_utf8(self.where, first)
        # Rows of text differ in length; Arrow refuses one that is longer than a block. In blocks of
        # a few wide rows what is done for each column would be most of the time.
        return max(BLOCK_BYTES, 4 * len(first), min(64 * len(first), 2**24))

    def _explain(self, message: str, names: Names) -> InputError | SourceError:
        """What went wrong, from those parts of a message that hold no cell."""
        if ragged := _RAGGED.match(message):
            row, expected, found_cells = ragged.groups()
            return InputError(
                f"{self._place(row)} has {found_cells} cells instead of {expected}.",
                remedy="Fix the row; a cell that holds the delimiter must be quoted."
                + " If another sign separates all cells, give it with --delimiter."
                * (expected == "1"),
                code="ragged",
                details=self._list_ragged(int(expected)),
            )
        if "UTF8" in message:
            return self._not_utf8()
        if found := _CONVERSION.search(message):
            name = (self.labels or [repr(name) for name in names])[int(found[1])]
            return InputError(
                f"{self._place(found[2])} holds something in the column {name} that is "
                f"not a {'truth value' if found[3] == 'boolean' else 'number'}.",
                remedy="Make the column --categorical, leave it out with --drop, or name what "
                "means a missing value with --missing.",
                code="text-feature",
            )
        if "Empty CSV" in message:
            remedy = "Give at least one record."
            return InputError(f"{self.where} is empty.", remedy=remedy, code="empty")
        if "straddling" in message:
            return SourceError(
                f"{self.where} has a row of more than {BLOCK_BYTES // 2**10} KiB, far longer "
                "than its first one, or a quote without end.",
                remedy="Fix the quotes, or store such wide records as Parquet.",
            )
        problem = f"{self.where} cannot be read as delimited text."
        remedy = "The file is damaged, cut short or something else: write it again."
        return SourceError(problem, remedy=remedy)

    def _not_utf8(self) -> SourceError:
        return not_utf8(f"{self.where}{find_undecodable(self.open_stream, self.first_row + 1)}")

    def _place(self, row: str | None) -> str:
        return f"{self.where}: {'a row' if row is None else f'row {int(row) + self.first_row}'}"
