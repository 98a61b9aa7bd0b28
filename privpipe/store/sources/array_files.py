"""Named arrays as a source: members of an .npz file, streamed, or a Zarr group, chunk by chunk.

Nothing is unpickled.
"""

import math
import os
import tempfile
import zipfile
from collections.abc import Iterator
from functools import partial
from typing import IO, Any

import fsspec
import numpy as np
import zarr

from privpipe.errors import InputError, StoreError
from privpipe.protocols import AnyArray
from privpipe.store.access.bounds import check_bounded
from privpipe.store.access.location import explain_unreachable, guard_read, shown
from privpipe.store.access.objects import list_keys, open_store, read_bytes
from privpipe.store.sources.reading.named_arrays import NamedArray, open_arrays
from privpipe.store.sources.reading.source import RecordSource, SourceLayout

COPY_BYTES = 2**20


def open_npz(url: str, layout: SourceLayout) -> RecordSource:
    """The arrays of an .npz file as a source.

    Raises
    ------
    StoreError
        If it cannot be read.
    InputError
        If it holds objects.
    """

    def read() -> dict[str, NamedArray]:
        try:
            opened = fsspec.open(url)
        except (ImportError, ValueError) as error:  # a package is missing, or the scheme unknown
            raise explain_unreachable(url, error) from None
        with opened as file, zipfile.ZipFile(file) as archive:
            return {
                member.removesuffix(".npy"): _describe_member(archive, url, member)
                for member in archive.namelist()
            }

    arrays = guard_read(
        read,
        StoreError,
        f"{shown(url)} cannot be read as .npz",
        remedy="Check the path; the file is damaged or cut short, or its web server does not "
        "serve parts of files: download it first.",
    )
    return open_arrays(arrays, layout, url)


def _describe_member(archive: zipfile.ZipFile, url: str, member: str) -> NamedArray:
    with archive.open(member) as stream:
        shape, _, dtype = _read_header(stream)
        header_bytes = stream.seek(0, os.SEEK_CUR)
    if dtype.hasobject:  # objects are pickles, and loading a pickle runs code
        problem = f"The array {member.removesuffix('.npy')!r} of {shown(url)} holds Python objects."
        remedy = "Save numbers or text, as with array.astype(str)."
        raise InputError(problem, remedy=remedy, code="objects")
    if math.prod(shape) * dtype.itemsize + header_bytes > archive.getinfo(member).file_size:
        raise EOFError  # a shape is believed only where there are bytes for it
    return NamedArray(shape, dtype, partial(_read_blocks, url, member))


def _read_blocks(url: str, member: str, rows: int) -> Iterator[AnyArray]:
    """Consecutive blocks of at most `rows` rows."""
    with fsspec.open(url) as file, zipfile.ZipFile(file) as archive, archive.open(member) as stream:
        shape, fortran, dtype = _read_header(stream)
        if fortran and len(shape) > 1:
            yield from _read_columns(stream, shape, dtype, rows)
            return
        width = math.prod(shape[1:]) * dtype.itemsize
        for start in range(0, shape[0], rows):
            n = min(rows, shape[0] - start)
            if len(content := stream.read(n * width)) < n * width:
                raise EOFError
            yield np.frombuffer(content, dtype).reshape(n, *shape[1:])


def _read_columns(
    stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any], rows: int
) -> Iterator[AnyArray]:
    """Blocks of an array that is stored column by column, through a temporary file."""
    with tempfile.TemporaryFile(prefix="privpipe-") as file:
        while piece := stream.read(COPY_BYTES):
            file.write(piece)
        # Read piece by piece: pages of a mapped file would count as memory.
        n_columns = math.prod(shape[1:])
        for start in range(0, shape[0], rows):
            n = min(rows, shape[0] - start)
            table = np.empty((n, n_columns), dtype)
            for j in range(n_columns):
                file.seek((j * shape[0] + start) * dtype.itemsize)
                table[:, j] = np.frombuffer(file.read(n * dtype.itemsize), dtype, n)
            yield table.reshape(n, *shape[1:], order="F")


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    # Versions 2 and 3 have the same header, in another encoding.
    old = np.lib.format.read_magic(stream) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return tuple(shape), bool(fortran), dtype


def is_zarr_group(url: str) -> bool:
    """Whether a folder is a Zarr group, by the document that every group has."""
    if "." in url.rstrip("/").rsplit("/", 1)[-1]:
        return False
    store = open_store(url, read_only=True)
    try:
        return any(read_bytes(store, name) is not None for name in ("zarr.json", ".zgroup"))
    except OSError:  # a file
        return False


def open_zarr(url: str, layout: SourceLayout) -> RecordSource:
    """A Zarr group as a source.

    Raises
    ------
    StoreError
        If it cannot be read.
    """
    store = open_store(url, read_only=True)

    def read() -> dict[str, NamedArray]:
        group = zarr.open_group(store, mode="r")
        about: Any = group.attrs.get("privpipe")
        if isinstance(about, dict):
            problem = f"{shown(url)} is a privpipe {about.get('format', 'store')} already."
            remedy = "Use it as it is, or `privpipe export` the release and ingest its Parquet."
            raise InputError(problem, remedy=remedy, code="not-foreign")
        return {
            name: _describe(check_bounded(array, len(list_keys(store, f"{name}/")), shown(url)))
            for name, array in group.arrays()
        }

    problem = f"{shown(url)} cannot be read as a Zarr group"
    remedy = "Check the path: a group with an array of features is read, not an array alone."
    return open_arrays(guard_read(read, StoreError, problem, remedy=remedy), layout, url)


def _describe(array: zarr.Array[Any]) -> NamedArray:
    # As xarray writes dimensions: in the metadata, in Zarr 2 among the attributes.
    dims: Any = getattr(array.metadata, "dimension_names", None)
    dims = dims or array.attrs.get("_ARRAY_DIMENSIONS") or ()
    return NamedArray(
        array.shape,
        np.dtype(array.dtype),
        lambda rows: (np.asarray(array[i : i + rows]) for i in range(0, array.shape[0], rows)),
        tuple(map(str, dims)),
    )
