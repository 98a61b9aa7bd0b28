"""Zarr groups of named arrays as a source, chunk by chunk."""

from typing import Any

import numpy as np
import zarr

from privpipe.errors import InputError, StoreError
from privpipe.store.access.bounds import check_bounded
from privpipe.store.access.location import guard_read, shown
from privpipe.store.access.objects import list_keys, open_store, read_bytes
from privpipe.store.sources.reading.named_arrays import NamedArray, open_arrays
from privpipe.store.sources.reading.source import RecordSource, SourceLayout


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
            raise InputError(
                f"{shown(url)} is a privpipe {about.get('format', 'store')} already.",
                remedy="Use it as it is, or `privpipe export` the release and ingest its Parquet.",
                code="not-foreign",
            )
        return {
            name: _describe(check_bounded(array, len(list_keys(store, f"{name}/")), shown(url)))
            for name, array in group.arrays()
        }

    arrays = guard_read(
        read,
        StoreError,
        f"{shown(url)} cannot be read as a Zarr group",
        remedy="Check the path: a group with an array of features is read, not an array alone.",
    )
    return open_arrays(arrays, layout, url)


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
