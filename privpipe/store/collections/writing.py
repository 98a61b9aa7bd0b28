"""Writing a collection: whole chunks, digests on the way, visible only once it is complete."""

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from privpipe.errors import StoreError
from privpipe.protocols import AnyArray
from privpipe.records.schema import MISSING, CollectionSchema, Partition, cut_by_partition
from privpipe.store.access import location, objects
from privpipe.store.arrays import destination, layout, sealed_arrays
from privpipe.store.arrays.blocks import measure_object, write_block
from privpipe.store.sources.reading.source import BinningLoss

Chunk = Mapping[str, AnyArray]
"""Rows of one chunk by array: "features" and each variable."""


@dataclass(frozen=True)
class WriteStatistics:
    """Counts that may be shown; no value of a record, no name of a category.

    Parameters
    ----------
    n_missing
        Records without a value, by variable.
    n_pooled
        Records in the pooled category, by categorical variable.
    cells_not_finite, records_not_finite
        Cells of the features that are NaN or infinite, and records with one.
    binning
        What bins lost, by variable that was a number.
    shuffled
        Whether the records of each partition are in a secret random order.
    """

    n_missing: Mapping[str, int] = field(default_factory=dict)
    n_pooled: Mapping[str, int] = field(default_factory=dict)
    cells_not_finite: int = 0
    records_not_finite: int = 0
    binning: Mapping[str, BinningLoss] = field(default_factory=dict)
    shuffled: bool = False


def read_statistics(url: str) -> WriteStatistics:
    """Counts of a collection, from its header.

    Raises
    ------
    StoreError, FormatError
        If there is no collection.
    """
    found = layout.read_header(url, "collection").get("statistics", {})
    return TypeAdapter(WriteStatistics).validate_python(found)


def is_shuffled(url: str) -> bool:
    """Whether it is one collection whose records are in a secret order, within each partition."""
    return layout.read_kind(url) == "collection" and read_statistics(url).shuffled


class Tally:
    """Counts and digests blocks of records as they are written, in order.

    The digest of a partition covers names, dtypes and categories of its arrays and the bytes of
    their rows. It changes with neither chunks nor codec. Nor does it change with what other
    partitions hold, as long as the tables of categories are the same.

    Parameters
    ----------
    schema
        What is written; its partitions without digests.
    """

    def __init__(self, schema: CollectionSchema) -> None:
        self._schema = schema
        self._partitions = schema.partitions or (Partition("", 0, schema.n_records),)
        self.n_missing = {variable.name: 0 for variable in schema.variables}
        self.cells = self.records = self._start = 0
        self._hashes = self._begin()
        self._digests: dict[Partition, str] = {}

    def add(self, block: Chunk) -> Chunk:
        """Take the next records, in the dtypes of the schema; the same block."""
        n_records = len(block[layout.FEATURES])
        self._count(block)
        at = 0
        for run in cut_by_partition(self._partitions, self._start, self._start + n_records):
            # A partition may span blocks, and a block partitions.
            for name, hasher in self._hashes.items():
                rows = np.ascontiguousarray(block[name][at : at + run.n_records])
                # Of values in one byte order, so that machines agree.
                hasher.update(rows.astype(rows.dtype.newbyteorder("<"), copy=False).data)
            at += run.n_records
            if run.first_record + run.n_records == run.partition.n_records:
                self._digests[run.partition] = self._finish()
        self._start += n_records
        return block

    def partitions(self) -> tuple[Partition, ...]:
        """The partitions with their digests, once all records are taken.

        Equal contents get different digests by their order: draws depend on the digest, and
        equal records with equal noise would show that they are equal.
        """
        # A folder of a table may hold no record.
        empty = self._finish()
        seen: Counter[str] = Counter()
        found: list[Partition] = []
        for partition in self._partitions:
            digest = self._digests.get(partition, empty)
            again = seen[digest]
            seen[digest] += 1
            if again:
                # Draws depend on the digest: equal noise would show that the records are equal.
                digest = hashlib.sha256(f"{digest} {again}".encode()).hexdigest()
            found.append(replace(partition, digest=digest))
        return tuple(found)

    def _count(self, block: Chunk) -> None:
        for variable in self._schema.variables:
            values = block[variable.name]
            gone = np.isnan(values) if values.dtype.kind == "f" else values == MISSING
            counted = values.dtype.kind == "f" or variable.categories is not None
            self.n_missing[variable.name] += int(np.count_nonzero(gone)) if counted else 0
        features = block[layout.FEATURES]
        # One sum says in a single pass that there is nothing to count.
        with np.errstate(over="ignore", invalid="ignore"):
            clean = bool(np.isfinite(features.sum(dtype=np.float64)))
        if not clean:
            bad = ~np.isfinite(features)
            self.cells += int(bad.sum())
            self.records += int(bad.any(axis=1).sum())

    def _begin(self) -> dict[str, Any]:
        names = [layout.FEATURES, *(variable.name for variable in self._schema.variables)]
        return {name: hashlib.sha256() for name in names}

    def _finish(self) -> str:
        """Digest of what has come since the last call."""
        hashes, self._hashes = self._hashes, self._begin()
        schema = self._schema
        about = {
            "dtype": schema.dtype,
            "feature_names": schema.feature_names,
            "n_features": schema.n_features,
            "variables": [asdict(variable) for variable in schema.variables],
            "content": {name: hasher.hexdigest() for name, hasher in hashes.items()},
        }
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def write_collection(url: str, schema: CollectionSchema, blocks: Iterable[Chunk]) -> str:
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
    with destination.hold_destination(url) as work:
        return write_held(url, work, schema, blocks)


def write_held(
    url: str,
    work: str,
    schema: CollectionSchema,
    blocks: Iterable[Chunk],
    *,
    n_pooled: Mapping[str, int] | None = None,
    binning: Mapping[str, BinningLoss] | None = None,
    table: Mapping[str, Any] | None = None,
    is_shuffled: bool = False,
) -> str:
    """`write_collection` for who holds the destination and writes to `work`."""
    arrays = sealed_arrays.collection_arrays(schema)
    store, documents = objects.open_store(work), layout.array_documents(arrays)
    objects.write_all(store, documents)
    tally = Tally(schema)
    version = secrets.token_hex(8)  # no process may take these arrays for others once held here
    n_chunks = arrays[0].n_chunks
    book = sealed_arrays.ReceiptBook(work, [plan.name for plan in arrays], n_chunks)
    for chunk, block in enumerate(_read_ahead(map(tally.add, blocks))):
        stored = write_block(work, arrays, chunk, block, version).objects
        # Each later reading is compared with these; here is the last place to make the chunk again.
        if tuple(measure_object(store, plan, chunk) for plan in arrays) != stored:
            problem = f"Chunk {chunk} of {location.shown(url)} is not stored as it was written."
            remedy = "Nothing was made. Check the disk, then ingest again."
            raise StoreError(problem, remedy=remedy, code="damaged")
        book.add([(item.length, item.crc32c) for item in stored])
    proof = book.close(work)
    schema = replace(schema, partitions=tally.partitions())
    digest = sealed_arrays.digest_collection(schema, proof, n_chunks)
    statistics = WriteStatistics(
        tally.n_missing, n_pooled or {}, tally.cells, tally.records, binning or {}, is_shuffled
    )
    header = {
        "format": "collection",
        "format_version": layout.FORMAT_VERSIONS["collection"][-1],
        "schema": asdict(schema),
        "statistics": TypeAdapter(WriteStatistics).dump_python(statistics, by_alias=True),
        "digest": digest,
        "documents_sha256": layout.digest_documents(documents),
        "receipts": proof.describe(),
        # By which later files are read as this one was.
        **({} if table is None else {"table": table}),
    }
    # The root last: until it is there nothing can be opened.
    destination.show_made(url, work, layout.root_document(header))
    return digest


def _read_ahead(blocks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Make the next block in a thread of its own while the last one is written."""
    # One: blocks come in order, and memory holds two chunks at most.
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        waiting = pool.submit(next, blocks, None)
        while (block := waiting.result()) is not None:
            waiting = pool.submit(next, blocks, None)
            yield block
