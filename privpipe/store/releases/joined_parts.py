"""The parts of a generation as one lazy dataset; a part is opened when it is first read."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from privpipe.errors import StoreError
from privpipe.store.access.location import shown
from privpipe.store.arrays.layout import FEATURES
from privpipe.store.releases.incremental_release import (
    IncrementalState,
    Part,
    check_part,
    part_url,
    read_incremental,
)
from privpipe.store.releases.published import check_release

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["check_generation", "open_generation"]


def open_generation(url: str, *, verify: bool = False) -> xr.Dataset:
    """The newest generation of an incremental release, as `open_release` gives it.

    Time does not grow with the parts but by their entries in one document: each is checked against
    its digest there, and its receipts against its header, when one of its records is first read.
    """
    import xarray as xr

    header, state = check_generation(url, verify=verify)
    variables = {
        str(array["name"]): (
            ("record", "feature")[: 1 + bool(array["columns"])],
            _join(url, state, str(array["name"])),
            dict(array["attributes"]),
        )
        for array in state.arrays
    }
    dataset = xr.Dataset(variables)
    names = list(header.get("feature_names") or ())
    if names and FEATURES in dataset:
        dataset = dataset.assign_coords(feature=names)
    dataset.attrs = {"privpipe": header}
    return dataset


def check_generation(url: str, *, verify: bool = False) -> tuple[dict[str, Any], IncrementalState]:
    """Header and state of the newest generation; with `verify` every stored byte is read."""
    found = read_incremental(url)
    if found is None:
        raise StoreError(
            f"There is no generation of a release at {shown(url)}.",
            remedy="Check the path; the first run of the release makes one.",
            code="not-found",
        )
    newest, state = found
    if verify:
        for part in state.parts:
            check_part(url, part)
            check_release(part_url(url, part.id), verify=True)
    header = {
        "format": "release",
        **state.header,
        "generation": newest.number,
        "line": state.line,
        "n_parts": len(state.parts),
        "n_records": sum(part.n_records for part in state.parts),
        "n_withheld": sum(part.n_withheld for part in state.parts),
        "arrays": [array["name"] for array in state.arrays],
    }
    return header, state


def _join(url: str, state: IncrementalState, name: str) -> Any:
    """One array over all parts, in chunks of their own."""
    import dask.array as da

    (about,) = (array for array in state.arrays if array["name"] == name)
    columns = int(about["columns"])
    sizes: list[int] = []
    graph: dict[Any, Any] = {}
    label = f"{name}-{state.line[:8]}-{hash(tuple(part.id for part in state.parts)):x}"
    for part in state.parts:
        for start in range(0, part.n_records, state.chunk_rows):
            stop = min(start + state.chunk_rows, part.n_records)
            key = (label, len(sizes), 0) if columns else (label, len(sizes))
            graph[key] = (_read, url, part, name, start, stop)
            sizes.append(stop - start)
    chunks = ((*sizes,), (columns,)) if columns else ((*sizes,),)
    return da.Array(graph, label, chunks, dtype=np.dtype(about["dtype"]))


def _read(url: str, part: Part, name: str, start: int, stop: int) -> npt.NDArray[Any]:
    arrays = _open_part(url, part.id, part.root_sha256)
    found: npt.NDArray[Any] = np.asarray(arrays[name][start:stop])
    return found


@lru_cache(maxsize=64)
def _open_part(url: str, part: str, root_sha256: str) -> Any:
    import zarr

    from privpipe.store.access.location import open_store

    check_part(url, Part(part, "", 0, 0, root_sha256))
    check_release(part_url(url, part))
    return zarr.open_group(open_store(part_url(url, part), read_only=True), mode="r")
