"""The data lines of an ARFF file as a stream: header skipped, comments blanked."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from privpipe.errors import FormatError

BUFFER_BYTES = 2**20

LINE_FEED = b"\n"

MOST_LINE_BYTES = 2**24
"""Longest line that is held in memory: a few kilobytes of gzip can unfold to one of gigabytes."""


class DataLines(io.RawIOBase):
    """What follows the header, as a file to read; a comment becomes an empty line.

    Parameters
    ----------
    stream
        The file at its beginning; closed with this one.
    skip
        Bytes of the header.
    """

    def __init__(self, stream: pa.NativeFile, skip: int) -> None:
        self._source = io.BufferedReader(stream, BUFFER_BYTES)
        self._rest = b""
        while skip > 0 and (passed := self._source.read(min(skip, BUFFER_BYTES))):
            skip -= len(passed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; 0 at the end."""
        if not self._rest:
            self._rest = self._next_lines()
        target = memoryview(buffer).cast("B")
        found, self._rest = self._rest[: len(target)], self._rest[len(target) :]
        target[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._source.close()
        super().close()

    def _next_lines(self) -> bytes:
        """About a buffer of whole lines; of a line beyond all measure, a part."""
        piece = self._source.read(BUFFER_BYTES)
        if piece and not piece.endswith(b"\n"):
            piece += self._source.readline(MOST_LINE_BYTES)
        if b"%" not in piece:
            return piece
        lines = piece.splitlines(keepends=True)
        return b"".join(b"\n" if is_comment(line) else line for line in lines)


def read_lines(open_stream: Callable[[], pa.NativeFile], skip: int, where: str) -> Iterator[bytes]:
    """Lines of a file with their ends.

    Parameters
    ----------
    open_stream
        Opens the file.
    skip
        Bytes of the header to leave out; then comments are blanked. 0 reads everything.
    where
        The file, for messages.

    Raises
    ------
    FormatError
        If it cannot be read, or a line is longer than `MOST_LINE_BYTES`.
    """
    problem = ""
    try:
        with open_stream() as stream:
            source = DataLines(stream, skip) if skip else stream
            lines = io.BufferedReader(source, BUFFER_BYTES)
            while line := lines.readline(MOST_LINE_BYTES + 1):
                if len(line) > MOST_LINE_BYTES:
                    raise explain_long_line(where)
                yield line
            return
    except (OSError, EOFError, pa.ArrowException) as error:
        problem = type(error).__name__
    raise FormatError(
        f"{where} cannot be read ({problem}).",
        remedy="The file is damaged or cut short: get it again.",
    )


def explain_long_line(where: str) -> FormatError:
    """A line that is no row of a table, in words."""
    return FormatError(
        f"{where} has a line of more than {MOST_LINE_BYTES // 2**20} MiB.",
        remedy="Check that it is a table of text; store such wide records as Parquet or .npz.",
        code="long-line",
    )


def not_utf8(where: str) -> FormatError:
    """The error for text in another encoding."""
    return FormatError(
        f"{where} is not text in UTF-8.",
        remedy="Convert it, as with `iconv -f LATIN1 -t UTF-8`.",
        code="encoding",
    )


def find_undecodable(open_stream: Callable[[], pa.NativeFile], first: int = 1) -> str:
    """ ": line N", the line of the first byte that is no UTF-8, the first line counted as `first`.

    Nothing where every byte is, or the text cannot be read to its end. Lines end with a line feed,
    as editors count them, also within quotes.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    number = first
    try:
        with open_stream() as stream:
            while piece := stream.read(BUFFER_BYTES):
                decoder.decode(piece)
                number += piece.count(LINE_FEED)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        return f": line {number + error.object.count(LINE_FEED, 0, error.start)}"
    except (OSError, EOFError, pa.ArrowException):
        pass
    return ""


def is_comment(line: bytes) -> bool:
    """Whether a line is a comment of ARFF."""
    return line.lstrip().startswith(b"%")
