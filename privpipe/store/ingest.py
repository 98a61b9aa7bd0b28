"""Ingest: turn a foreign source into a collection, streaming.

Two passes: the first over the variables alone finds kinds and category tables, the second
writes chunk by chunk. Memory does not grow with the source.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.errors import InputError, OptionError, StoreError
from privpipe.records.chunks import TARGET_CHUNK_BYTES, plan_chunk_rows
from privpipe.records.schema import MISSING, CollectionSchema, Variable, suggest
from privpipe.store.blocks import Receipt, write_block
from privpipe.store.collection import FORMAT_VERSION
from privpipe.store.layout import FEATURES, ROOT_DOCUMENT, ArrayPlan, array_documents, root_document
from privpipe.store.location import list_keys, local_path, open_store, shown, write_bytes
from privpipe.store.sources import Block, RecordSource, SourceLayout, open_source

__all__ = ["IngestOptions", "collection_arrays", "ingest", "write_collection"]

MAX_CATEGORIES = 2**15
"""A categorical variable with more distinct values is an identifier, not a category."""


@dataclass(frozen=True)
class IngestOptions:
    """How a source becomes a collection.

    Parameters
    ----------
    layout
        Which array of the source is what.
    categorical, numeric
        Variables whose kind is forced. Otherwise booleans, text and integers with at most two
        distinct values are categorical, other numbers numeric.
    drop
        Variables to leave out.
    dtype
        Floating dtype of the features, "float32" or "float64"; by default that of a floating
        source, float32 for small integers and booleans.
    chunk_bytes
        Bytes of features per chunk.
    """

    layout: SourceLayout = field(default_factory=SourceLayout)
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    dtype: str | None = None
    chunk_bytes: int = TARGET_CHUNK_BYTES


def ingest(
    source_url: str, dest_url: str, options: IngestOptions | None = None
) -> CollectionSchema:
    """Make a collection from a foreign source.

    Parameters
    ----------
    source_url
        An .npz file or a Zarr group, local or by fsspec URL.
    dest_url
        Where the collection will be; nothing may be there yet.
    options
        See `IngestOptions`.

    Returns
    -------
    CollectionSchema
        What the collection holds.

    Raises
    ------
    InputError
        If the source does not fit; StoreError if the destination exists or cannot be written.
    """
    options = options or IngestOptions()
    source = open_source(source_url, options.layout)
    if source.n_records == 0:
        raise InputError(
            f"{shown(source_url)} has no records.", remedy="Give at least one.", code="empty"
        )
    dtype = _features_dtype(source.features_dtype, options.dtype)
    rows = plan_chunk_rows(source.n_features, dtype.itemsize, target_bytes=options.chunk_bytes)
    coders = _find_coders(source, options, rows)
    schema = CollectionSchema(
        n_records=source.n_records,
        n_features=source.n_features,
        dtype=dtype.name,
        chunk_rows=min(rows, source.n_records),
        variables=tuple(coder.variable for coder in coders),
        feature_names=source.feature_names,
    )
    encoded = (_encode(block, coders, dtype) for block in source.blocks(schema.chunk_rows))
    write_collection(dest_url, schema, encoded)
    return schema


def write_collection(
    url: str, schema: CollectionSchema, blocks: Iterable[Mapping[str, npt.NDArray[Any]]]
) -> str:
    """Write blocks of whole chunks as a collection, visible only once it is complete.

    Parameters
    ----------
    url
        Where; nothing may be there yet.
    schema
        What the blocks hold.
    blocks
        Per chunk: "features" and each variable, in the dtypes of the schema.

    Returns
    -------
    digest
        SHA-256 over schema and checksums of all stored chunks, hexadecimal.
    """
    _check_free(url)
    path = local_path(url)
    work = url if path is None else f"{path}.ingest-{os.getpid()}"
    arrays = collection_arrays(schema)
    store = open_store(work)
    try:
        for key, content in array_documents(arrays).items():
            write_bytes(store, key, content)
        receipts = [
            write_block(work, arrays, chunk, block, work) for chunk, block in enumerate(blocks)
        ]
        digest = _digest(schema, receipts)
        header = {
            "format": "collection",
            "format_version": FORMAT_VERSION,
            "schema": asdict(schema),
            "digest": digest,
        }
        write_bytes(store, ROOT_DOCUMENT, root_document(header))
        if path is not None:
            os.rename(work, path)
    finally:
        if path is not None:
            shutil.rmtree(work, ignore_errors=True)
    return digest


def collection_arrays(schema: CollectionSchema) -> tuple[ArrayPlan, ...]:
    """The arrays of a collection, features first."""
    n, rows = schema.n_records, schema.chunk_rows
    return (
        ArrayPlan(FEATURES, (n, schema.n_features), rows, schema.dtype),
        *(ArrayPlan(v.name, (n,), rows, v.dtype) for v in schema.variables),
    )


@dataclass(frozen=True, eq=False)
class _Coder:
    """Turns the values of one variable into what is stored."""

    variable: Variable

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        dtype = np.dtype(self.variable.dtype)
        if self.variable.categories is None:
            return values.astype(dtype)
        table = np.array(sorted(self.variable.categories))
        place = {name: code for code, name in enumerate(self.variable.categories)}
        codes = np.array([place[name] for name in table], dtype)
        text = _as_text(values)
        at = np.searchsorted(table, text).clip(max=len(table) - 1)
        coded: npt.NDArray[Any] = np.where(table[at] == text, codes[at], dtype.type(MISSING))
        return coded


def _find_coders(source: RecordSource, options: IngestOptions, rows: int) -> list[_Coder]:
    for name in (*options.categorical, *options.numeric, *options.drop):
        if name not in source.variable_names:
            raise OptionError(
                f"The source has no variable {name!r}{suggest(name, source.variable_names)}.",
                remedy=f"It has: {', '.join(source.variable_names) or 'none'}.",
            )
    names = [name for name in source.variable_names if name not in options.drop]
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    dtypes: dict[str, np.dtype[Any]] = {}
    for block in source.blocks(rows, with_features=False):
        for name in names:
            values = block.variables[name]
            dtypes[name] = values.dtype
            if name in options.numeric or len(counts[name]) > MAX_CATEGORIES:
                continue
            if np.issubdtype(values.dtype, np.floating) and name not in options.categorical:
                continue
            kinds, sizes = np.unique(_as_text(values), return_counts=True)
            counts[name].update(dict(zip(kinds.tolist(), sizes.tolist(), strict=True)))
    return [_Coder(_decide(name, dtypes[name], counts[name], options)) for name in names]


def _decide(
    name: str, dtype: np.dtype[Any], counts: Counter[str], options: IngestOptions
) -> Variable:
    is_text = dtype.kind in "USOT"
    categorical = name in options.categorical or (
        name not in options.numeric
        and (is_text or dtype.kind == "b" or (dtype.kind in "iu" and len(counts) <= 2))
    )
    if not categorical:
        if is_text:
            raise InputError(
                f"The variable {name!r} holds text and cannot be numeric.",
                remedy="Leave it out of --numeric, or drop it with --drop.",
            )
        return Variable(name, "float64" if dtype.kind in "biu" else dtype.name)
    if len(counts) > MAX_CATEGORIES:
        raise InputError(
            f"The categorical variable {name!r} has more than {MAX_CATEGORIES} different values.",
            remedy="Drop it with --drop if it is an identifier.",
            code="too-many-categories",
        )
    categories = sorted((kind for kind in counts if kind not in _MISSING_TEXT), key=_natural)
    return Variable(name, "int8" if len(categories) < 127 else "int16", tuple(categories))


_MISSING_TEXT = {"", "nan", "None", "<NA>"}


def _natural(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)


def _as_text(values: npt.NDArray[Any]) -> npt.NDArray[np.str_]:
    if values.dtype.kind == "f" and (values[np.isfinite(values)] % 1 == 0).all():
        text = np.where(np.isfinite(values), values, 0).astype(np.int64).astype(np.str_)
        return np.where(np.isfinite(values), text, "nan")
    return values.astype(np.str_)


def _features_dtype(source: np.dtype[Any], wanted: str | None) -> np.dtype[Any]:
    if wanted is not None:
        if wanted not in ("float32", "float64"):
            raise OptionError(
                f"The dtype {wanted!r} is not known.", remedy="Use float32 or float64."
            )
        return np.dtype(wanted)
    small = source.kind == "b" or (source.kind in "iu" and source.itemsize <= 2)
    if small or source == np.float32 or source == np.float16:
        return np.dtype(np.float32)
    return np.dtype(np.float64)


def _encode(
    block: Block, coders: Sequence[_Coder], dtype: np.dtype[Any]
) -> dict[str, npt.NDArray[Any]]:
    found: dict[str, npt.NDArray[Any]] = {FEATURES: block.features.astype(dtype)}
    if not np.isfinite(block.features).all() == np.isfinite(found[FEATURES]).all():
        raise InputError(
            f"Features overflow {dtype}.", remedy="Ingest with --dtype float64.", code="overflow"
        )
    for coder in coders:
        found[coder.variable.name] = coder.encode(block.variables[coder.variable.name])
    return found


def _digest(schema: CollectionSchema, receipts: Iterable[Receipt]) -> str:
    sha = hashlib.sha256(json.dumps(asdict(schema), sort_keys=True).encode())
    for receipt in receipts:
        for stored in receipt.objects:
            sha.update(f"{receipt.chunk} {stored.array} {stored.length} {stored.crc32c}\n".encode())
    return sha.hexdigest()


def _check_free(url: str) -> None:
    path = local_path(url)
    taken = os.path.exists(path) if path is not None else bool(list_keys(open_store(url)))
    if taken:
        raise StoreError(
            f"{shown(url)} exists.", remedy="Choose another place, or remove it.", code="exists"
        )
