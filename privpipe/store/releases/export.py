"""Export: a published release as Parquet, one file or one per partition, chunk by chunk."""

import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import zarr
from fsspec.implementations.memory import MemoryFile

from privpipe.errors import FormatError, OptionError, StoreError
from privpipe.protocols import AnyArray
from privpipe.records.schema import MISSING
from privpipe.store.access.location import Place, as_url, exists_file, join, local_path, shown
from privpipe.store.access.objects import Listener, list_names, open_store, unheard
from privpipe.store.access.workspace import SUCCESS, hold_workspace, purge_workspace
from privpipe.store.arrays import blocks, layout
from privpipe.store.arrays.destination import hold_destination, move_made, show_made
from privpipe.store.releases.published import check_release

Parts = Mapping[str, tuple[int, int]]
"""Files of an export by place: their first record, and the one after their last."""


def export_release(
    url: Place, out_url: Place, *, verify: bool = False, listen: Listener = unheard
) -> int:
    """Write a release as Parquet or CSV: a column per feature and variable, chunk by chunk.

    Parameters
    ----------
    url
        The release.
    out_url
        Path or URL of a file that ends in .parquet or .csv, or of a folder. A folder ends in a
        slash or has no dot in its name. It gets one file per partition that the release keeps,
        ``part-00000.parquet`` and so on, and ``_SUCCESS``. Nothing may be there yet, but for what
        would be written, byte for byte, as of an export that was killed at its end.
    verify
        First read every stored byte and compare it with its receipt.
    listen
        Called after each batch with how many records it had, and how many there are in all.

    Returns
    -------
    n_records
        Records written, in the order of the release.

    Raises
    ------
    OptionError
        If `out_url` is neither such a file nor a folder.
    FormatError
        If `url` is not a release: records that were not released are not exported. If a code has
        no name in the release's own table.
    IncompleteReleaseError
        If the release differs from its manifest.
    StoreError
        If something else is there already, or it cannot be written.

    Notes
    -----
    Features are named as the header of the release names them, else feature_0 and so on. A
    categorical variable becomes a dictionary of text; a missing value becomes null. Records of a
    factored release are made of their coordinates. What is written is visible only once it is
    whole; in a bucket a folder is whole once it holds ``_SUCCESS``. The header goes into the
    metadata of each file as ``privpipe``.
    """
    url, out_url = as_url(url), as_url(out_url)
    whole, place = not is_folder(out_url), local_path(out_url) or out_url.rstrip("/")
    header = check_release(url, verify=verify)
    released = _Released(url, header, listen, is_text=whole and out_url.endswith(".csv"))
    ends = np.cumsum(header.get("partitions") or [released.n_records]).tolist()
    edges = enumerate(pairwise([0, *ends]))
    parts = {join(place, f"part-{number:05d}.parquet"): rows for number, rows in edges}
    try:
        # In a bucket a file is an object; all else is there once readers take it for an export.
        in_bucket = whole and local_path(place) is None
        if exists_file(place) if in_bucket else layout.exists(place, SUCCESS):
            if not _is_written(released, place, {place: (0, ends[-1])} if whole else parts):
                raise layout.already_exists(place)
            purge_workspace(place)
        elif whole:
            _write_file(released, place)
        else:
            _write_folder(released, place, parts)
        return released.n_records
    except FileExistsError:  # put there by another, while this one wrote
        raise layout.already_exists(place) from None
    except OSError as error:
        problem = error.strerror or type(error).__name__
    problem = f"{shown(out_url)} could not be written ({problem})."
    raise StoreError(problem, remedy="Check free space and your rights.", code="write")


def is_folder(out_url: str) -> bool:
    """Whether an export is a folder; OptionError for a file that is neither Parquet nor CSV."""
    name = out_url.rstrip("/").rpartition("/")[2]
    if out_url.endswith("/") or "." not in name:
        return True
    if name.endswith((".parquet", ".pq", ".csv")):
        return False
    remedy = "Name such a file, or a folder with a slash at its end, which gets .parquet files."
    raise OptionError(f"{shown(out_url)} does not end in .parquet or .csv.", remedy=remedy)


def _is_written(released: "_Released", out_url: str, parts: Parts) -> bool:
    """Whether what is at a place is what would be written there, byte for byte, and no more."""
    written = {SUCCESS, *(name.rpartition("/")[2] for name in parts)}
    if out_url not in parts and set(list_names(out_url)) != written:
        return False
    with suppress(_DiffersError, FileNotFoundError, IsADirectoryError):
        for place, (start, stop) in parts.items():
            with fsspec.open(place, "rb") as there:
                _write_part(released, _Compared(there), start, stop)
                if there.read(1):
                    return False
        return True
    return False


class _DiffersError(Exception):
    """What is stored is not what is written."""


class _Compared(io.RawIOBase):
    """Compares what is written with a file that is there, up to the first difference."""

    def __init__(self, there: Any) -> None:
        self._there = there

    def writable(self) -> bool:
        """As PyArrow requires."""
        return True

    def write(self, content: Any) -> int:
        """Raise `_DiffersError` unless the same follows there."""
        if self._there.read(len(content)) != bytes(content):
            raise _DiffersError
        return len(content)


def _write_folder(released: "_Released", out_url: str, parts: Parts) -> None:
    """A file for each partition that the release keeps."""
    with hold_destination(out_url, last=SUCCESS) as work:
        for place, (start, stop) in parts.items():
            system, path = fsspec.core.url_to_fs(work + place.removeprefix(out_url))
            system.makedirs(os.path.dirname(path), exist_ok=True)
            with system.open(path, "wb") as file:
                _write_part(released, file, start, stop)
        show_made(out_url, work, b"", name=SUCCESS)


def _write_file(released: "_Released", out_url: str) -> None:
    path = local_path(out_url)
    if path is not None:
        with hold_destination(path) as work:
            with open(work, "wb") as file:
                _write_part(released, file, 0, released.n_records)
            move_made(work, path)
        return
    with hold_workspace(out_url):  # of two exports to one place the second is refused
        if exists_file(out_url):
            raise layout.already_exists(out_url)
        system, target = fsspec.core.url_to_fs(out_url)
        # Closed it would be visible, however little of it is written. S3 itself refuses what
        # another put there meanwhile (s3fs 2026.1); other clients have no such mode for files.
        file = system.open(target, "xb" if "s3" in system.protocol else "wb", autocommit=False)
        try:
            with file:
                _write_part(released, file, 0, released.n_records)
            file.commit()
        except BaseException:
            file.discard()
            if isinstance(file, MemoryFile):  # which is there at once; elsewhere it is not ours
                system.rm_file(target)
            raise


def _write_part(released: "_Released", file: Any, start: int, stop: int) -> None:
    schema = released.batch(0, 1).schema  # a release has a record, a partition need not
    make: Any = pc.CSVWriter if released.is_text else pq.ParquetWriter
    with make(file, schema) as writer:
        at = start
        while at < stop:
            # At the borders of chunks: each chunk is read and decoded once.
            end = min(stop, (at // released.chunk_rows + 1) * released.chunk_rows)
            writer.write_batch(released.batch(at, end))
            released.listen(end - at, released.n_records)
            at = end


class _Released:
    """The records of a release as batches of columns.

    Parameters
    ----------
    url
        The release.
    header
        Its header, checked.
    listen
        See `export_release`.
    is_text
        Whether categories are written as text, not as codes with a table.
    """

    def __init__(
        self, url: str, header: layout.Header, listen: Listener, *, is_text: bool = False
    ) -> None:
        self.listen, self.is_text = listen, is_text
        self.n_records, self.chunk_rows = int(header["n_records"]), int(header["chunk_rows"])
        self._url, self._run = url, str(header["run"])
        self._basis = blocks.read_basis(url) if header.get("layout") == "factored" else None
        store = open_store(url, read_only=True)
        # Categories of each array; None of numbers.
        self._arrays: dict[str, Any] = {
            str(name): zarr.open_array(store, path=str(name), mode="r").attrs.get("categories")
            for name in header["arrays"]
        }
        self._feature_names = [str(name) for name in header.get("feature_names") or ()]
        self._about = {b"privpipe": json.dumps(dict(header)).encode()}

    def batch(self, start: int, stop: int) -> pa.RecordBatch:
        """Records `start` to `stop`, with the header of the release as metadata."""
        columns: dict[str, pa.Array] = {}
        for name, categories in self._arrays.items():
            values = blocks.read_block(self._url, name, start, stop, self._run)
            if name == layout.FEATURES:
                columns |= self._feature_columns(values)
            else:
                made = _variable_column(name, values, categories)
                is_coded = pa.types.is_dictionary(made.type)
                columns[name] = made.dictionary_decode() if self.is_text and is_coded else made
        return pa.RecordBatch.from_pydict(columns).replace_schema_metadata(self._about)

    def _feature_columns(self, values: AnyArray) -> dict[str, pa.Array]:
        records = values if self._basis is None else self._basis.reconstruct(values)
        count = records.shape[1]
        choices = (
            self._feature_names,
            [f"feature_{j}" for j in range(count)],
            [f"{layout.FEATURES}[{j}]" for j in range(count)],
        )
        # A name that is there twice, as sources of arrays allow it, would hide a column.
        free = (names for names in choices if len(set(names) - set(self._arrays)) == count)
        by_column = np.ascontiguousarray(records.T)
        return {name: pa.array(by_column[j]) for j, name in enumerate(next(free))}


def _variable_column(name: str, values: AnyArray, categories: Sequence[Any] | None) -> pa.Array:
    if categories is None:
        return pa.array(values, from_pandas=True)
    # Without this a record would silently become one of another category.
    nameless = int(np.count_nonzero((values < MISSING) | (values >= len(categories))))
    if nameless:
        raise FormatError(
            f"{nameless} of {len(values)} records of the release have a code of {name!r} that its "
            f"table of {len(categories)} categories does not name.",
            remedy="An older version numbered a model's categories by another table than the "
            "release's: do not use this release, make it again.",
            code="schema-drift",
        )
    # -1 is a code of ours; readers of Parquet know null.
    codes = pa.array(values, mask=values == MISSING)
    return pa.DictionaryArray.from_arrays(codes, pa.array(list(map(str, categories)), pa.string()))
