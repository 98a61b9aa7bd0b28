"""Export: a published release as one Parquet file, chunk by chunk."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

from privpipe.errors import OptionError, StoreError
from privpipe.records.chunks import ChunkPlan
from privpipe.records.schema import MISSING
from privpipe.store.blocks import read_block
from privpipe.store.layout import FEATURES
from privpipe.store.location import local_path, open_store, shown
from privpipe.store.published import check_release

__all__ = ["export_release"]


def export_release(url: str, out_url: str, *, verify: bool = False) -> int:
    """Write a release as Parquet: a column per feature and variable, a row group per chunk.

    Parameters
    ----------
    url
        The release.
    out_url
        Path or URL of the Parquet file; nothing may be there yet.
    verify
        First read every stored byte and compare it with its receipt.

    Returns
    -------
    n_records
        Records written, in the order of the release.

    Raises
    ------
    OptionError
        If `out_url` does not end in .parquet.
    FormatError
        If `url` is not a release: records that were not released are not exported.
    IncompleteReleaseError
        If the release differs from its manifest.
    StoreError
        If the file exists or cannot be written.

    Notes
    -----
    Features are named as the header of the release names them, else feature_0 and so on. A
    categorical variable becomes a dictionary of text; a missing value becomes null. The file is
    visible only once it is whole. The header goes into the file's metadata as ``privpipe``.
    """
    if not out_url.endswith((".parquet", ".pq")):
        raise OptionError(
            f"{shown(out_url)} does not end in .parquet.", remedy="Parquet is what can be written."
        )
    header = check_release(url, verify=verify)
    system, path = _open_target(out_url)
    work = path if local_path(out_url) is None else f"{path}.export-{os.getpid()}"
    problem, whole = "", False
    try:
        n_records = _write(url, header, system, work)
        if work != path:
            os.rename(work, path)
        whole = True
        return n_records
    except OSError as error:
        problem = error.strerror or type(error).__name__
    finally:
        if not whole and system.exists(work):
            system.rm(work)
    raise StoreError(
        f"{shown(out_url)} could not be written ({problem}).",
        remedy="Check free space and your rights.",
        code="write",
    )


def _open_target(url: str) -> tuple[Any, str]:
    problem = ""
    try:
        system, path = fsspec.core.url_to_fs(url)
        taken = bool(system.exists(path))
    except Exception as error:  # many kinds, depending on the file system
        problem = type(error).__name__
    else:
        if taken:
            raise StoreError(
                f"{shown(url)} exists.", remedy="Choose another place, or remove it.", code="exists"
            )
        return system, path
    raise StoreError(
        f"{shown(url)} cannot be reached ({problem}).",
        remedy="Check the URL's scheme and your rights, and install its fsspec package.",
    )


def _write(url: str, header: Mapping[str, Any], system: Any, path: str) -> int:
    batches = _read_batches(url, header)
    first = next(batches)  # a release has a record
    n_records = 0
    with system.open(path, "wb") as file, pq.ParquetWriter(file, first.schema) as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)
            n_records += batch.num_rows
    return n_records


def _read_batches(url: str, header: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """A batch per chunk, with the header of the release as its metadata."""
    plan = ChunkPlan(int(header["n_records"]), int(header["chunk_rows"]))
    categories = {str(name): _read_categories(url, str(name)) for name in header["arrays"]}
    features = [str(name) for name in header.get("feature_names") or ()]
    about = {b"privpipe": json.dumps(dict(header)).encode()}
    for chunk in range(plan.n_chunks):
        start, stop = plan.rows(chunk)
        columns: dict[str, pa.Array] = {}
        for name, kinds in categories.items():
            values = read_block(url, name, start, stop, str(header["run"]))
            if name == FEATURES:
                columns |= _feature_columns(values, features)
            else:
                columns[name] = _variable_column(values, kinds)
        yield pa.RecordBatch.from_pydict(columns).replace_schema_metadata(about)


def _read_categories(url: str, name: str) -> tuple[str, ...] | None:
    array = zarr.open_array(open_store(url, read_only=True), path=name, mode="r")
    found: Any = array.attrs.get("categories")
    return None if found is None else tuple(str(kind) for kind in found)


def _feature_columns(values: npt.NDArray[Any], names: Sequence[str]) -> dict[str, pa.Array]:
    count = values.shape[1]
    known = names if len(names) == count else [f"feature_{j}" for j in range(count)]
    by_column = np.ascontiguousarray(values.T)
    return {name: pa.array(by_column[j]) for j, name in enumerate(known)}


def _variable_column(values: npt.NDArray[Any], categories: tuple[str, ...] | None) -> pa.Array:
    if categories is None:
        return pa.array(values, from_pandas=True)
    codes = pa.array(values, mask=values == MISSING)
    return pa.DictionaryArray.from_arrays(codes, pa.array(categories, pa.string()))
