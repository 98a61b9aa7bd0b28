"""Zarr groups of named arrays as a source, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from privpipe.errors import InputError, PrivpipeError, StoreError
from privpipe.store.access.bounds import check_bounded
from privpipe.store.access.location import shown
from privpipe.store.access.objects import list_keys, open_store, read_bytes
from privpipe.store.sources.reading.named_arrays import ArraySource
from privpipe.store.sources.reading.source import SourceLayout


def is_zarr_group(url: str) -> bool:
    """Whether a folder is a Zarr group, by the document that every group has."""
    if "." in url.rstrip("/").rsplit("/", 1)[-1]:
        return False
    store = open_store(url, read_only=True)
    try:
        return any(read_bytes(store, name) is not None for name in ("zarr.json", ".zgroup"))
    except OSError:  # a file
        return False


def open_zarr(url: str, layout: SourceLayout) -> ArraySource:
    """A Zarr group as a source."""
    return ArraySource(zarr_columns(url), layout, url)


@dataclass(frozen=True, eq=False)
class ZarrColumn:
    """An array of a Zarr group."""

    array: zarr.Array[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.array.dtype)

    @property
    def dims(self) -> tuple[str, ...]:
        """As xarray writes them: in the metadata, in format 2 among the attributes."""
        found: Any = getattr(self.array.metadata, "dimension_names", None)
        found = found or self.array.attrs.get("_ARRAY_DIMENSIONS") or ()
        return tuple(str(name) for name in found)

    def blocks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        """Read consecutive blocks; a damaged chunk raises StoreError."""
        for start in range(0, self.shape[0], rows):
            yield self._read(start, start + rows)

    def _read(self, start: int, stop: int) -> npt.NDArray[Any]:
        try:
            return np.asarray(self.array[start:stop])
        except PrivpipeError:
            raise
        except Exception as error:  # many kinds, depending on codec and store
            problem = type(error).__name__
        raise StoreError(
            f"Records {start} to {stop} of the array {self.array.name!r} cannot be read "
            f"({problem}).",
            remedy="A chunk is damaged or unreachable: restore it.",
            code="read",
        )


def zarr_columns(url: str) -> dict[str, ZarrColumn]:
    """The arrays of a Zarr group, by name.

    Raises
    ------
    StoreError
        If it cannot be read.
    """
    try:
        group = zarr.open_group(open_store(url, read_only=True), mode="r")
        kind = _kind_of_ours(group)
        if not kind:
            return {name: _bounded(name, array, url) for name, array in group.arrays()}
    except PrivpipeError:
        raise
    except Exception as error:  # many kinds, depending on the store
        problem = type(error).__name__
    else:
        raise InputError(
            f"{shown(url)} is a privpipe {kind} already.",
            remedy="Use it as it is, or `privpipe export` the release and ingest its Parquet.",
            code="not-foreign",
        )
    raise StoreError(
        f"{shown(url)} cannot be read as a Zarr group ({problem}).",
        remedy="Check the path: a group with an array of features is read, not an array alone.",
    )


def _bounded(name: str, array: zarr.Array[Any], url: str) -> ZarrColumn:
    n_stored = len(list_keys(open_store(url, read_only=True), f"{name}/"))
    return ZarrColumn(check_bounded(array, n_stored, shown(url)))


def _kind_of_ours(group: zarr.Group) -> str:
    """What a group of privpipe is; empty for a foreign one."""
    about: Any = group.attrs.get("privpipe")
    return str(about.get("format", "store")) if isinstance(about, dict) else ""
