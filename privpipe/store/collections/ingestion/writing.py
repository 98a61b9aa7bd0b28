"""Writing a collection: whole chunks, digests on the way, visible only once it is complete."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import numpy.typing as npt

from privpipe.records.schema import CollectionSchema
from privpipe.store.access.location import open_store, write_bytes
from privpipe.store.arrays.blocks import write_block
from privpipe.store.arrays.destination import hold_destination, show_made
from privpipe.store.arrays.headers import newest_version
from privpipe.store.arrays.layout import array_documents, digest_documents, root_document
from privpipe.store.arrays.proof import ReceiptBook, digest_collection
from privpipe.store.arrays.sealed_arrays import collection_arrays
from privpipe.store.collections.ingestion.write_statistics import Tally
from privpipe.store.sources.reading.quantile_bins import BinningLoss

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
    binning: Mapping[str, BinningLoss] | None = None,
) -> str:
    """`write_collection` for who holds the destination and writes to `work`."""
    arrays = collection_arrays(schema)
    store = open_store(work)
    documents = array_documents(arrays)
    for key, content in documents.items():
        write_bytes(store, key, content)
    tally = Tally(schema)
    version = secrets.token_hex(8)  # no process may take these arrays for others once held here
    n_chunks = arrays[0].n_chunks
    book = ReceiptBook(work, [plan.name for plan in arrays], n_chunks)
    for chunk, block in enumerate(_read_ahead(_tallied(blocks, tally))):
        stored = write_block(work, arrays, chunk, block, version).objects
        book.add([(item.length, item.crc32c) for item in stored])
    proof = book.close(work)
    schema = replace(schema, partitions=tally.partitions())
    digest = digest_collection(schema, proof, n_chunks)
    header = {
        "format": "collection",
        "format_version": newest_version("collection"),
        "schema": asdict(schema),
        "statistics": asdict(tally.statistics(n_pooled or {}, binning or {})),
        "digest": digest,
        "documents_sha256": digest_documents(documents),
        "receipts": proof.describe(),
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
