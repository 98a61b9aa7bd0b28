"""Foreign sources of records, read in blocks: what `ingest` understands.

A source yields consecutive blocks of features and variables; it never holds more than a block.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import fsspec
import numpy as np
import numpy.typing as npt
import zarr

from privpipe.errors import InputError, StoreError
from privpipe.records.schema import suggest
from privpipe.store.location import open_store, shown

__all__ = ["Block", "RecordSource", "SourceLayout", "open_source"]

FEATURE_NAMES = ("features", "X", "x", "data")
"""Names under which features are looked for, in this order."""


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive records as a source has them.

    Parameters
    ----------
    features : (n_rows, n_features)
        Numbers.
    variables
        Values of each variable, (n_rows,), numbers, booleans or text.
    """

    features: npt.NDArray[Any]
    variables: Mapping[str, npt.NDArray[Any]]


class RecordSource(Protocol):
    """A source that can be read more than once."""

    @property
    def n_records(self) -> int: ...

    @property
    def n_features(self) -> int: ...

    @property
    def feature_names(self) -> tuple[str, ...]: ...

    @property
    def variable_names(self) -> tuple[str, ...]: ...

    @property
    def features_dtype(self) -> np.dtype[Any]: ...

    def blocks(self, rows: int, *, with_features: bool = True) -> Iterator[Block]:
        """Read consecutive blocks of at most `rows` records."""
        ...


@dataclass(frozen=True)
class SourceLayout:
    """Which array of a source is what.

    Parameters
    ----------
    features
        Array of the features; by default the first of features, X, x, data.
    labels
        Arrays that become variables, a matrix one variable per column; by default all arrays
        with one row per record.
    label_names
        Names for the columns of a label matrix; by default ``target_names`` of the source, or
        the array's name with a number.
    """

    features: str | None = None
    labels: tuple[str, ...] | None = None
    label_names: tuple[str, ...] | None = None


def open_source(url: str, layout: SourceLayout) -> RecordSource:
    """Open an .npz file or a Zarr group as a source.

    Raises
    ------
    InputError
        If the format is not known, or arrays do not fit.
    StoreError
        If it cannot be read.
    """
    if url.endswith(".npz"):
        return _ArraySource(_npz_columns(url), layout, url)
    if url.rstrip("/").endswith((".zarr", ".zarr.zip")) or "." not in url.rsplit("/", 1)[-1]:
        return _ArraySource(_zarr_columns(url), layout, url)
    raise InputError(
        f"The format of {shown(url)} is not known by its name.",
        remedy="Give an .npz file or a .zarr group.",
        code="source-format",
    )


class _Column(Protocol):
    """An array whose rows can be read in order."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def blocks(self, rows: int) -> Iterator[npt.NDArray[Any]]: ...


@dataclass(frozen=True)
class _NpyColumn:
    """A member of an .npz file, read as a stream; a Fortran-ordered one is loaded whole."""

    url: str
    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    def blocks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        with fsspec.open(self.url) as file, zipfile.ZipFile(file) as archive:
            with archive.open(self.member) as stream:
                _read_npy_header(stream)
                if self.fortran:
                    whole = np.frombuffer(stream.read(), self.dtype)
                    table = whole.reshape(self.shape, order="F")
                    yield from (table[i : i + rows] for i in range(0, self.shape[0], rows))
                    return
                width = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize
                for start in range(0, self.shape[0], rows):
                    n = min(rows, self.shape[0] - start)
                    flat = np.frombuffer(stream.read(n * width), self.dtype)
                    yield flat.reshape(n, *self.shape[1:])


@dataclass(frozen=True, eq=False)
class _ZarrColumn:
    array: zarr.Array[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.array.dtype)

    def blocks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        for start in range(0, self.shape[0], rows):
            yield np.asarray(self.array[start : start + rows])


class _ArraySource:
    """Named arrays with one row per record."""

    def __init__(self, columns: Mapping[str, _Column], layout: SourceLayout, url: str) -> None:
        name = layout.features or next((n for n in FEATURE_NAMES if n in columns), None)
        if name is None or name not in columns:
            wanted = f"{name!r}" if name else f"any of {', '.join(FEATURE_NAMES)}"
            raise InputError(
                f"{shown(url)} has no array {wanted}.",
                remedy=f"Name one with --features; it has: {', '.join(columns)}.",
                code="missing-variable",
            )
        self._features = columns[name]
        if len(self._features.shape) != 2 or not np.issubdtype(self._features.dtype, np.number):
            raise InputError(
                f"The features {name!r} have shape {self._features.shape} and dtype "
                f"{self._features.dtype}.",
                remedy="Features are a matrix of numbers, one row per record.",
            )
        rest = {key: value for key, value in columns.items() if key != name}
        self._variables = _name_variables(rest, self.n_records, layout, url)
        self.feature_names = _read_names(columns, "feature_names", self.n_features)

    @property
    def n_records(self) -> int:
        return self._features.shape[0]

    @property
    def n_features(self) -> int:
        return self._features.shape[1]

    @property
    def variable_names(self) -> tuple[str, ...]:
        return tuple(name for names, _ in self._variables for name in names)

    @property
    def features_dtype(self) -> np.dtype[Any]:
        return self._features.dtype

    def blocks(self, rows: int, *, with_features: bool = True) -> Iterator[Block]:
        columns = [column.blocks(rows) for _, column in self._variables]
        starts = range(0, self.n_records, rows)
        features = (
            self._features.blocks(rows)
            if with_features
            else (np.empty((min(rows, self.n_records - start), 0)) for start in starts)
        )
        for block, *values in zip(features, *columns, strict=True):
            variables: dict[str, npt.NDArray[Any]] = {}
            for (names, _), table in zip(self._variables, values, strict=True):
                table = table[:, None] if table.ndim == 1 else table
                variables.update({name: table[:, j] for j, name in enumerate(names)})
            yield Block(block, variables)


def _name_variables(
    columns: Mapping[str, _Column], n_records: int, layout: SourceLayout, url: str
) -> list[tuple[tuple[str, ...], _Column]]:
    fitting = {
        name: column
        for name, column in columns.items()
        if column.shape[:1] == (n_records,) and len(column.shape) <= 2
    }
    for name in layout.labels or ():
        if name not in fitting:
            raise InputError(
                f"{shown(url)} has no array {name!r} of {n_records} rows{suggest(name, fitting)}.",
                remedy=f"It has: {', '.join(fitting) or 'none'}.",
                code="missing-variable",
            )
    chosen = fitting if layout.labels is None else {n: fitting[n] for n in layout.labels}
    named = [
        (_column_names(name, column, columns, layout), column) for name, column in chosen.items()
    ]
    names = [name for group, _ in named for name in group]
    twice = {name for name in names if names.count(name) > 1} | ({"features"} & set(names))
    if twice:
        raise InputError(
            f"The variable names {', '.join(sorted(twice))} stand twice.",
            remedy="Give other names with --label-names.",
            code="duplicate-names",
        )
    return named


def _column_names(
    name: str, column: _Column, columns: Mapping[str, _Column], layout: SourceLayout
) -> tuple[str, ...]:
    if len(column.shape) == 1:
        return (name,)
    width = column.shape[1]
    if layout.label_names is not None and len(layout.label_names) == width:
        return layout.label_names
    return _read_names(columns, "target_names", width) or tuple(f"{name}_{j}" for j in range(width))


def _read_names(columns: Mapping[str, _Column], name: str, count: int) -> tuple[str, ...]:
    column = columns.get(name)
    if column is None or column.shape != (count,):
        return ()
    return tuple(str(value) for block in column.blocks(count) for value in block)


def _npz_columns(url: str) -> dict[str, _Column]:
    try:
        with fsspec.open(url) as file, zipfile.ZipFile(file) as archive:
            found: dict[str, _Column] = {}
            for member in archive.namelist():
                with archive.open(member) as stream:
                    shape, fortran, dtype = _read_npy_header(stream)
                found[member.removesuffix(".npy")] = _NpyColumn(url, member, shape, dtype, fortran)
            return found
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        problem = type(error).__name__
    raise StoreError(
        f"{shown(url)} cannot be read as .npz ({problem}).",
        remedy="Check the path; objects (pickles) inside are never loaded.",
    )


def _read_npy_header(
    stream: BinaryIO | Any,
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else (np.lib.format.read_array_header_2_0)
    )
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("objects are never loaded")
    return tuple(shape), bool(fortran), dtype


def _zarr_columns(url: str) -> dict[str, _Column]:
    try:
        group = zarr.open_group(open_store(url, read_only=True), mode="r")
        return {name: _ZarrColumn(array) for name, array in group.arrays()}
    except Exception as error:  # many kinds, depending on the store
        problem = type(error).__name__
    raise StoreError(
        f"{shown(url)} cannot be read as a Zarr group ({problem}).", remedy="Check the path."
    )
