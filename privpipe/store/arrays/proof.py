"""Receipts of a collection: what every stored chunk must be, in tables sealed block by block.

They are written at ingest, into an array of the collection's own, and every read of a chunk is
compared with its receipt. The digests of the blocks are in the root document, so that a worker
reads and trusts one block at a time, and memory does not grow with the collection.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from pydantic import TypeAdapter, ValidationError
from zarr.codecs import Crc32cCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from privpipe.errors import StoreError
from privpipe.records.schema import CollectionSchema
from privpipe.store.access.location import shown
from privpipe.store.access.objects import TRAILER, list_keys, open_store, read_many, write_bytes

RECEIPTS = "__receipts__"
"""Array of the receipts within a collection; no variable can be named so."""

BLOCK_BYTES = 2**18
"""Of one block of receipts, about: what a worker reads to check its first chunk."""

MOST_HELD = 32
"""Blocks of receipts that a process keeps."""

ONE_FOR_ALL = 0x48674BC7
"""CRC-32C of anything that is followed by its own: what the first collections noted of a chunk."""

Origin = Literal["ingest", "digest", "noted"]
"""Who made the receipts: ingest; a run that read all chunks and found the collection's digest; or
a run that could only note what it found, because the digest covers no more than lengths."""

Table = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Proof:
    """What the chunks of some arrays must be; small, hashable and picklable.

    Parameters
    ----------
    url
        Store that holds the receipts.
    arrays
        Names of the arrays, in the order of the table.
    block_chunks
        Chunks per block of receipts.
    blocks
        SHA-256 of each block.
    origin
        Who made the receipts.
    """

    url: str
    arrays: tuple[str, ...]
    block_chunks: int
    blocks: tuple[str, ...]
    origin: Origin = "ingest"

    async def find(self, array: str, chunk: int) -> tuple[int, int]:
        """Length and checksum of a stored chunk; see `measure_bytes`.

        Raises
        ------
        StoreError
            If there is no receipt, or the receipts are not as they were written.
        """
        number, row = divmod(chunk, self.block_chunks)
        if number < len(self.blocks) and array in self.arrays:
            table = await _load(self, number)
            if row < len(table):
                length, crc = table[row, self.arrays.index(array)]
                return int(length), int(crc)
        raise StoreError(
            f"There is no receipt for chunk {chunk} of {array!r}.",
            remedy="It was never part of the collection: restore it, or ingest it again.",
            code="source-damaged",
        )

    def describe(self) -> dict[str, Any]:
        """For the root document of the store that holds the receipts."""
        found = asdict(self)
        del found["url"]
        return found

    @classmethod
    def restore(cls, url: str, described: Mapping[str, Any] | None) -> Proof | None:
        """A proof from `describe`; None where there is none, or it makes no sense."""
        try:
            # A header may say anything: types are checked before they are used.
            return TypeAdapter(cls).validate_python({**(described or {}), "url": url})
        except ValidationError:
            return None


class ReceiptBook:
    """Writes receipts as chunks come, in order; holds one block at a time.

    Parameters
    ----------
    url
        Store that takes them.
    arrays
        Names of the arrays.
    n_chunks
        Chunks that will come.
    """

    def __init__(self, url: str, arrays: Sequence[str], n_chunks: int) -> None:
        self._store, self._url = open_store(url), url
        self._arrays, self._n_chunks = tuple(arrays), n_chunks
        # Length and checksum are 16 bytes for each array of a chunk.
        self._block_chunks = min(max(1, BLOCK_BYTES // (16 * max(1, len(arrays)))), n_chunks)
        self._rows: list[Sequence[tuple[int, int]]] = []
        self._blocks: list[str] = []
        for key, content in self._documents().items():
            write_bytes(self._store, key, content)

    def add(self, stored: Sequence[tuple[int, int]]) -> None:
        """Take length and checksum of the next chunk of every array."""
        assert len(stored) == len(self._arrays), "one object per array"
        self._rows.append(stored)
        if len(self._rows) == self._block_chunks:
            self._write()

    def close(self, url: str, origin: Origin = "ingest") -> Proof:
        """Write what is left; the proof of a store that will be at `url`."""
        if self._rows:
            self._write()
        return Proof(url, self._arrays, self._block_chunks, tuple(self._blocks), origin)

    def _write(self) -> None:
        # The chunks of a Zarr array are all of one size, the last one too.
        table = np.zeros((self._block_chunks, len(self._arrays), 2), "<u8")
        table[: len(self._rows)] = self._rows
        content = table.tobytes()
        # As Zarr's codec ends a chunk, so that others can read the table.
        content += google_crc32c.value(content).to_bytes(TRAILER, "little")
        write_bytes(self._store, _key(len(self._blocks)), content)
        self._blocks.append(hashlib.sha256(content).hexdigest())
        self._rows.clear()

    def _documents(self) -> dict[str, bytes]:
        """The description of the array, for other readers of Zarr."""
        memory = MemoryStore()
        zarr.create_array(
            memory,
            name=RECEIPTS,
            shape=(self._n_chunks, len(self._arrays), 2),
            chunks=(self._block_chunks, max(1, len(self._arrays)), 2),
            dtype="uint64",
            filters=None,
            compressors=[Crc32cCodec()],
            fill_value=0,
            dimension_names=["chunk", "array", "length and crc32c"],
        )
        return read_many(memory, list_keys(memory, f"{RECEIPTS}/"))


def read_receipts(proof: Proof, number: int) -> Table:
    """One block of receipts, (n_chunks, n_arrays, 2): length and checksum.

    Raises
    ------
    StoreError
        If it is not as it was written.
    """
    return sync(_load(proof, number))


_held: dict[tuple[str, str], Table] = {}
"""Blocks of receipts that this process has read and proved, by place and digest."""


async def _load(proof: Proof, number: int) -> Table:
    place = proof.url, proof.blocks[number]
    table = _held.get(place)
    if table is None:
        table = _held[place] = await _read(proof, number)
        # The oldest first: passes go through the chunks in order.
        while len(_held) > MOST_HELD:
            _held.pop(next(iter(_held)), None)
    return table


async def _read(proof: Proof, number: int) -> Table:
    store = open_store(proof.url, read_only=True)
    found = None
    with suppress(FileNotFoundError):
        found = await store.get(_key(number), default_buffer_prototype())
    content = b"" if found is None else found.to_bytes()
    # SHA-256, as the root has it: a CRC could be made to fit.
    if hashlib.sha256(content).hexdigest() != proof.blocks[number]:
        raise StoreError(
            f"The receipts of {shown(proof.url)} are damaged.",
            remedy="Restore the collection, or ingest it again.",
            code="source-damaged",
        )
    table = np.frombuffer(content[:-TRAILER], "<u8")
    return table.reshape(proof.block_chunks, len(proof.arrays), 2).astype(np.uint64)


def digest_collection(
    schema: CollectionSchema, proof: Proof, n_chunks: int, *, lengths_only: bool = False
) -> str:
    """SHA-256 over schema and receipts: the digest of a collection.

    Parameters
    ----------
    schema
        What it holds.
    proof
        Its receipts.
    n_chunks
        Number of its chunks.
    lengths_only
        As the first collections had it, whose checksums were one and the same.
    """
    sha = hashlib.sha256(json.dumps(asdict(schema), sort_keys=True).encode())
    # Its letters are those of the first collections, whose digests are found again by them.
    for chunk, row in enumerate(_rows(proof, n_chunks)):
        for name, (length, crc) in zip(proof.arrays, row.tolist(), strict=True):
            sha.update(f"{chunk} {name} {length} {ONE_FOR_ALL if lengths_only else crc}\n".encode())
    return sha.hexdigest()


def _rows(proof: Proof, n_chunks: int) -> Iterator[Table]:
    for number in range(len(proof.blocks)):
        start = number * proof.block_chunks
        yield from read_receipts(proof, number)[: n_chunks - start]


def _key(number: int) -> str:
    return f"{RECEIPTS}/c/{number}/0/0"
