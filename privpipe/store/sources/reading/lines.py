"""The data lines of an ARFF file as a stream: header skipped, comments blanked."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from privpipe.errors import FormatError

__all__ = ["DataLines", "read_lines"]

BUFFER_BYTES = 2**20


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
        """About a buffer of whole lines."""
        piece = self._source.read(BUFFER_BYTES)
        piece += self._source.readline() if piece and not piece.endswith(b"\n") else b""
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
        If it cannot be read.
    """
    problem = ""
    try:
        with open_stream() as stream:
            source = DataLines(stream, skip) if skip else stream
            yield from io.BufferedReader(source, BUFFER_BYTES)
            return
    except (OSError, EOFError, pa.ArrowException) as error:
        problem = type(error).__name__
    raise FormatError(
        f"{where} cannot be read ({problem}).",
        remedy="The file is damaged or cut short: get it again.",
    )


def is_comment(line: bytes) -> bool:
    """Whether a line is a comment of ARFF."""
    return line.lstrip().startswith(b"%")
