"""Proving a collection whole: every stored byte against its receipt, or against its digest.

Has it changed since a run began? Names, sizes and times of its objects say so early, and only warn.

Collections of an earlier privpipe have no receipts. Their digest covers length and checksum of
every chunk. One pass over the stored bytes proves them, and makes the receipts that later passes
are checked with.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256

import fsspec

from privpipe.errors import StoreError
from privpipe.store.access.location import local_path, shown
from privpipe.store.access.objects import Listener, open_store, read_bytes, unheard, write_bytes
from privpipe.store.arrays import blocks, layout, sealed_arrays
from privpipe.store.arrays.sealed_arrays import Origin
from privpipe.store.collections.collection import Collection

Measured = list[tuple[int, int]]
"""Length and checksum of the stored bytes of a chunk, for each array."""

NOTE = "proof.json"


def measure_chunks(sealed: sealed_arrays.SealedArrays, chunks: Iterable[int]) -> list[Measured]:
    """Worker side: what is stored of some chunks; a missing object is of no bytes."""
    store = open_store(sealed.url, read_only=True)

    def measure(plan: layout.ArrayPlan, chunk: int) -> tuple[int, int]:
        stored = blocks.measure_object(store, plan, chunk)
        # No object has no bytes, so that the digest differs.
        return (0, 0) if stored is None else (stored.length, stored.crc32c)

    return [[measure(plan, chunk) for plan in sealed.plans] for chunk in chunks]


def prove_by_digest(collection: Collection, measured: Iterable[Measured], url: str) -> Collection:
    """Prove a collection without receipts, and note those that it should have had.

    Parameters
    ----------
    collection
        As it was opened.
    measured
        What `measure_chunks` found, for every chunk in order.
    url
        Place for the receipts, private to whoever reads the collection with them.

    Returns
    -------
    collection
        With its proof, of the origin "digest". Of the first collections, whose digest covers
        no more than the lengths of chunks, "noted": what is read later is what is read now.

    Raises
    ------
    StoreError
        If the chunks are not those of the digest.
    """
    names = [plan.name for plan in collection.sealed.plans]
    n_chunks = collection.plan.n_chunks
    book = sealed_arrays.ReceiptBook(url, names, n_chunks)
    for row in measured:
        book.add(row)
    proof = book.close(url)
    digest = partial(sealed_arrays.digest_collection, collection.schema_of_records, proof, n_chunks)
    # The first collections noted one and the same checksum of every chunk.
    origins: dict[str, Origin] = {digest(lengths_only=True): "noted", digest(): "digest"}
    if (origin := origins.get(collection.digest)) is None:
        raise _differs(collection, "its chunks")
    proof = replace(proof, origin=origin)
    described = proof.describe()
    note = {"proof": described, "sha256": _seal(described)}
    write_bytes(open_store(url), NOTE, json.dumps(note).encode())
    return _with_proof(collection, proof)


def find_proof(collection: Collection, url: str) -> Collection | None:
    """The collection with the proof that an interrupted run left at a place; None without one."""
    try:
        content = json.loads(read_bytes(open_store(url, read_only=True), NOTE) or b"{}")
        described = content["proof"]
        # A kill may have torn the note; then the collection is read again.
        if content["sha256"] != _seal(described):
            return None
    except (ValueError, KeyError, TypeError):
        return None
    proof = sealed_arrays.Proof.restore(url, described)
    return None if proof is None else _with_proof(collection, proof)


def verify_collection(collection: Collection, listen: Listener = unheard) -> Origin:
    """Read every stored byte of a collection, and compare it with receipts or digest.

    Parameters
    ----------
    collection
        As it was opened.
    listen
        Called with how many records were just read, and how many there are.

    Returns
    -------
    origin
        What was compared with; "noted" if there is nothing but lengths.

    Raises
    ------
    StoreError
        If anything differs, with the number of chunks.
    """
    sealed, n_chunks = collection.sealed, collection.plan.n_chunks
    measured = _measure_all(collection, listen)
    if sealed.proof is None:
        with tempfile.TemporaryDirectory(prefix="privpipe-") as folder:
            proved = prove_by_digest(collection, measured, folder).sealed.proof
        assert proved is not None, "it was just made"
        return proved.origin
    pairs = zip(measured, sealed_arrays.read_rows(sealed.proof, n_chunks), strict=True)
    damaged = sum(row != list(map(tuple, receipt.tolist())) for row, receipt in pairs)
    digest = sealed_arrays.digest_collection(collection.schema_of_records, sealed.proof, n_chunks)
    if damaged or digest != collection.digest:
        raise _differs(collection, f"{damaged} of its chunks" if damaged else "its receipts")
    return sealed.proof.origin


def _differs(collection: Collection, what: str) -> StoreError:
    problem = f"{shown(collection.url)} is not what was ingested: {what} differ from its digest."
    remedy = "Restore the collection from where it came, or ingest it again."
    return StoreError(problem, remedy=remedy, code="source-damaged")


def _measure_all(collection: Collection, listen: Listener) -> Iterator[Measured]:
    for chunk in range(collection.plan.n_chunks):
        yield from measure_chunks(collection.sealed, [chunk])
        start, stop = collection.plan.rows(chunk)
        listen(stop - start, collection.n_records)


def _with_proof(collection: Collection, proof: sealed_arrays.Proof) -> Collection:
    return replace(collection, sealed=replace(collection.sealed, proof=proof))


def _seal(described: object) -> str:
    return sha256(json.dumps(described).encode()).hexdigest()


def read_source_version(url: str) -> str:
    """SHA-256 over what the storage says of every object; no content is read.

    On a file system name, size and modification time in nanoseconds; elsewhere name, size, and
    the object's entity tag or time.
    """
    return sha256("".join(f"{line}\n" for line in sorted(_describe(url))).encode()).hexdigest()


def _describe(url: str) -> list[str]:
    path = local_path(url)
    if path is None:
        file_system, root = fsspec.core.url_to_fs(url)
        # A listing of earlier would say that nothing has changed.
        file_system.invalidate_cache()
        return [
            f"{name} {info.get('size')} {info.get('ETag', info.get('LastModified', ''))}"
            for name, info in file_system.find(root, detail=True).items()
        ]
    lines = []
    # Links are followed: a collection may keep its chunks on another disk.
    for folder, _, names in os.walk(path, followlinks=True):
        for name in names:
            status = os.stat(os.path.join(folder, name))
            inside = os.path.relpath(os.path.join(folder, name), path)
            lines.append(f"{inside} {status.st_size} {status.st_mtime_ns}")
    return lines
