"""Writing a collection: whole chunks, digests on the way, visible only once it is complete."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import numpy.typing as npt

from privpipe.records.schema import CollectionSchema
from privpipe.store.blocks import Receipt, write_block
from privpipe.store.collection import FORMAT_VERSION
from privpipe.store.destination import hold_destination, show_made
from privpipe.store.layout import (
    FEATURES,
    ArrayPlan,
    array_documents,
    digest_documents,
    root_document,
)
from privpipe.store.location import open_store, write_bytes
from privpipe.store.tally import Tally

__all__ = ["Chunk", "collection_arrays", "write_collection", "write_held"]

Chunk = Mapping[str, npt.NDArray[Any]]
"""Rows of one chunk by array: "features" and each variable."""


def write_collection(
    url: str,
    schema: CollectionSchema,
    blocks: Iterable[Chunk],
    *,
    n_pooled: Mapping[str, int] | None = None,
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
    n_pooled
        Records in the pooled category of each variable, for the statistics.

    Returns
    -------
    digest
        SHA-256 over schema and checksums of all stored chunks, hexadecimal.
    """
    with hold_destination(url) as work:
        return write_held(url, work, schema, blocks, n_pooled=n_pooled)


def write_held(
    url: str,
    work: str,
    schema: CollectionSchema,
    blocks: Iterable[Chunk],
    *,
    n_pooled: Mapping[str, int] | None = None,
) -> str:
    """`write_collection` for who holds the destination and was told to write to `work`."""
    arrays = collection_arrays(schema)
    store = open_store(work)
    documents = array_documents(arrays)
    for key, content in documents.items():
        write_bytes(store, key, content)
    tally = Tally(schema)
    version = secrets.token_hex(8)  # no process may take these arrays for others once held here
    receipts = [
        write_block(work, arrays, chunk, block, version)
        for chunk, block in enumerate(_read_ahead(_tallied(blocks, tally)))
    ]
    schema = replace(schema, partitions=tally.partitions())
    digest = _digest(schema, receipts)
    header = {
        "format": "collection",
        "format_version": FORMAT_VERSION,
        "schema": asdict(schema),
        "statistics": asdict(tally.statistics(n_pooled or {})),
        "digest": digest,
        "documents_sha256": digest_documents(documents),
    }
    show_made(url, work, root_document(header))
    return digest


def _tallied(blocks: Iterable[Chunk], tally: Tally) -> Iterator[Chunk]:
    """Count and digest each block on its way."""
    for block in blocks:
        tally.add(block)
        yield block


def _read_ahead(blocks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Make the next block in a thread of its own while the last one is written."""
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        waiting = pool.submit(next, blocks, None)
        while (block := waiting.result()) is not None:
            waiting = pool.submit(next, blocks, None)
            yield block


def collection_arrays(schema: CollectionSchema) -> tuple[ArrayPlan, ...]:
    """The arrays of a collection, features first; there is none for no features."""
    n, rows = schema.n_records, schema.chunk_rows
    features = ArrayPlan(FEATURES, (n, schema.n_features), rows, schema.dtype)
    return (
        *((features,) if schema.n_features else ()),
        *(ArrayPlan(v.name, (n,), rows, v.dtype) for v in schema.variables),
    )


def _digest(schema: CollectionSchema, receipts: Iterable[Receipt]) -> str:
    sha = hashlib.sha256(json.dumps(asdict(schema), sort_keys=True).encode())
    for receipt in receipts:
        for stored in receipt.objects:
            sha.update(f"{receipt.chunk} {stored.array} {stored.length} {stored.crc32c}\n".encode())
    return sha.hexdigest()
