"""Members of an .npz file, streamed; nothing is unpickled."""

from __future__ import annotations

import math
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import fsspec
import numpy as np
import numpy.typing as npt

from privpipe.errors import InputError, PrivpipeError, StoreError
from privpipe.store.access.location import explain_unreachable, shown
from privpipe.store.sources.reading.named_arrays import ArraySource
from privpipe.store.sources.reading.source import SourceLayout

COPY_BYTES = 2**20


def open_npz(url: str, layout: SourceLayout) -> ArraySource:
    """The arrays of an .npz file as a source."""
    return ArraySource(npz_columns(url), layout, url)


@dataclass(frozen=True)
class NpyColumn:
    """An array of an .npz file, read as a stream.

    Parameters
    ----------
    url, member
        The file and the name inside.
    shape, dtype
        Of the array.
    fortran
        Stored column by column: such an array goes through a temporary file.
    """

    url: str
    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    @property
    def dims(self) -> tuple[str, ...]:
        """None: arrays of such a file do not name what they lie along."""
        return ()

    def blocks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        """Read consecutive blocks of at most `rows` rows.

        Raises
        ------
        StoreError
            If the file is damaged or cut short.
        """
        problem = ""
        try:
            with fsspec.open(self.url) as file, zipfile.ZipFile(file) as archive:
                with archive.open(self.member) as stream:
                    _read_header(stream)
                    if self.fortran and len(self.shape) > 1:
                        yield from self._through_file(stream, rows)
                        return
                    for start in range(0, self.shape[0], rows):
                        n = min(rows, self.shape[0] - start)
                        yield self._take(stream, n)
                    return
        except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
            problem = type(error).__name__
        raise StoreError(
            f"The array {self.member.removesuffix('.npy')!r} of {shown(self.url)} cannot be read "
            f"({problem}).",
            remedy="The file is damaged or cut short: get it again.",
            code="read",
        )

    def _take(self, stream: Any, n: int) -> npt.NDArray[Any]:
        width = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize
        content = stream.read(n * width)
        if len(content) < n * width:
            raise EOFError
        return np.frombuffer(content, self.dtype).reshape(n, *self.shape[1:])

    def _through_file(self, stream: Any, rows: int) -> Iterator[npt.NDArray[Any]]:
        with tempfile.TemporaryFile(prefix="privpipe-") as file:
            while piece := stream.read(COPY_BYTES):
                file.write(piece)
            # Read piece by piece: pages of a mapped file would count as memory.
            n_rows, n_columns = self.shape[0], int(np.prod(self.shape[1:]))
            for start in range(0, n_rows, rows):
                n = min(rows, n_rows - start)
                table = np.empty((n, n_columns), self.dtype)
                for j in range(n_columns):
                    file.seek((j * n_rows + start) * self.dtype.itemsize)
                    piece = file.read(n * self.dtype.itemsize)
                    table[:, j] = np.frombuffer(piece, self.dtype, n)
                yield table.reshape(n, *self.shape[1:], order="F")


def npz_columns(url: str) -> dict[str, NpyColumn]:
    """The arrays of an .npz file, by name.

    Raises
    ------
    StoreError
        If it cannot be read.
    InputError
        If it holds objects."""
    try:
        with fsspec.open(url) as file, zipfile.ZipFile(file) as archive:
            found: dict[str, NpyColumn] = {}
            for member in archive.namelist():
                with archive.open(member) as stream:
                    shape, fortran, dtype = _read_header(stream)
                    header_bytes = stream.tell()
                if dtype.hasobject:
                    raise _holds_objects(url, member)
                size = math.prod(shape) * dtype.itemsize + header_bytes
                if size > archive.getinfo(member).file_size:
                    raise EOFError  # before a shape that nothing stands behind is believed
                found[member.removesuffix(".npy")] = NpyColumn(url, member, shape, dtype, fortran)
            return found
    except PrivpipeError:
        raise
    except ImportError as error:
        unreachable = explain_unreachable(url, error)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        unreachable, problem = None, type(error).__name__
    if unreachable is not None:
        raise unreachable
    raise StoreError(
        f"{shown(url)} cannot be read as .npz ({problem}).",
        remedy="Check the path; the file is damaged or cut short, or its web server does not serve "
        "parts of files: download it first.",
    )


def _holds_objects(url: str, member: str) -> InputError:
    """Objects are pickles, and loading a pickle runs code."""
    return InputError(
        f"The array {member.removesuffix('.npy')!r} of {shown(url)} holds Python objects, which "
        "are never loaded.",
        remedy="Save numbers or text, as with array.astype(str).",
        code="objects",
    )


def _read_header(stream: BinaryIO | Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read(stream)
    return tuple(shape), bool(fortran), dtype
