"""Reading the chunks of a collection, none believed: bytes are what was sealed.

Every chunk that is read is compared with its receipt before it is decoded, in every pass of every
process. So what is cleaned, learned from and judged is what was ingested. What a chunk says of its
decoded size is checked first, so that no chunk can fill a worker's memory. Descriptions of the
arrays are checked when a collection is opened; what decodes a chunk is the schema in the sealed
root.

Receipts are written at ingest, into an array of the collection's own. The digests of its blocks are
in the root document. So a worker reads and trusts one block at a time, and memory does not grow
with the collection.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

import google_crc32c
import numcodecs.blosc
import numpy as np
import zarr
from pydantic import TypeAdapter, ValidationError
from zarr.abc.store import Store
from zarr.codecs import Crc32cCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.common import concurrent_map
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from privpipe.errors import FormatError, StoreError
from privpipe.protocols import AnyArray, Names, OctetArray, WordArray
from privpipe.records.schema import CollectionSchema
from privpipe.store.access.bounds import MOST_CHUNK_BYTES
from privpipe.store.access.location import guard_read, shown
from privpipe.store.access.objects import TRAILER, get, list_keys, open_store, read_all, write_bytes
from privpipe.store.arrays import layout
from privpipe.store.arrays.blocks import read_where_new

RECEIPTS = "__receipts__"
"""Array of the receipts within a collection; no variable can be named so."""

BLOCK_BYTES = 2**18
"""Of one block of receipts, about: what a worker reads to check its first chunk."""

MOST_HELD = 32
"""Blocks of receipts that a process keeps."""

ONE_FOR_ALL = 0x48674BC7
"""CRC-32C of anything that is followed by its own: what the first collections noted of a chunk."""

Origin = Literal["ingest", "digest", "noted"]
"""Who made the receipts. ingest: the ingest. digest: a run that read all chunks and found the
collection's digest. noted: a run that could only note what it found, because the digest covers no
more than lengths."""

Table = WordArray


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
        raise _differs(f"There is no receipt for chunk {chunk} of {array!r}.")

    def describe(self) -> dict[str, Any]:
        """For the root document of the store that holds the receipts."""
        found = asdict(self)
        del found["url"]
        return found

    @classmethod
    def restore(cls, url: str, described: Mapping[str, Any] | None) -> "Proof | None":
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

    def __init__(self, url: str, arrays: Names, n_chunks: int) -> None:
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
        return read_all(memory, f"{RECEIPTS}/")


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
    content = await get(open_store(proof.url, read_only=True), _key(number)) or b""
    # SHA-256, as the root has it: a CRC could be made to fit.
    if hashlib.sha256(content).hexdigest() != proof.blocks[number]:
        raise _differs(f"The receipts of {shown(proof.url)} are damaged.")
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
    for chunk, row in enumerate(read_rows(proof, n_chunks)):
        for name, (length, crc) in zip(proof.arrays, row.tolist(), strict=True):
            sha.update(f"{chunk} {name} {length} {ONE_FOR_ALL if lengths_only else crc}\n".encode())
    return sha.hexdigest()


def read_rows(proof: Proof, n_chunks: int) -> Iterator[Table]:
    """Receipts of one chunk after the other, (n_arrays, 2)."""
    for number in range(len(proof.blocks)):
        yield from read_receipts(proof, number)[: n_chunks - number * proof.block_chunks]


def _key(number: int) -> str:
    return f"{RECEIPTS}/c/{number}/0/0"


BLOSC_HEADER = 16
"""OctetArray; a little-endian word at 4 is the decoded size."""


@dataclass(frozen=True)
class SealedArrays:
    """Arrays of a store of ours, with what their descriptions and chunks must be.

    Parameters
    ----------
    url
        The store.
    plans
        The arrays.
    documents_sha256
        Digest of their descriptions; see `digest_documents`.
    proof
        Receipts of their chunks; None for a collection of an earlier privpipe that no run has
        proved yet.
    """

    url: str
    plans: tuple[layout.ArrayPlan, ...]
    documents_sha256: str
    proof: Proof | None = None

    @property
    def documents(self) -> tuple[str, ...]:
        """Keys of the descriptions."""
        return tuple(f"{plan.name}/{layout.ROOT_DOCUMENT}" for plan in self.plans)


def collection_arrays(schema: CollectionSchema) -> tuple[layout.ArrayPlan, ...]:
    """The arrays of a collection, features first; there is none for no features."""
    n, rows = schema.n_records, schema.chunk_rows
    features = layout.ArrayPlan(layout.FEATURES, (n, schema.n_features), rows, schema.dtype)
    return (
        *((features,) if schema.n_features else ()),
        *(layout.ArrayPlan(v.name, (n,), rows, v.dtype) for v in schema.variables),
    )


def seal_collection(url: str, schema: CollectionSchema, header: Mapping[str, Any]) -> SealedArrays:
    """What the header says that descriptions and chunks must be."""
    arrays = collection_arrays(schema)
    proof = Proof.restore(url, header.get("receipts"))
    expected = tuple(plan.name for plan in arrays)
    # Absent is an earlier version; present and unreadable is damage.
    if "receipts" in header and (proof is None or proof.arrays != expected):
        problem = f"The header of {shown(url)} is damaged."
        raise FormatError(problem, remedy="Ingest the collection again.")
    return SealedArrays(url, arrays, str(header.get("documents_sha256")), proof)


def check_chunks(sealed: SealedArrays) -> None:
    """A missing chunk would read as fill values without an error."""
    store = open_store(sealed.url, read_only=True)
    layout.check_documents(sealed.url, sealed.documents, sealed.documents_sha256)
    for plan in sealed.plans:
        if plan.chunk_bytes > MOST_CHUNK_BYTES:
            raise FormatError(
                f"The array {plan.name!r} of {shown(sealed.url)} declares chunks of "
                f"{plan.chunk_bytes} bytes; at most {MOST_CHUNK_BYTES} are read.",
                remedy="Ingest the collection again.",
                code="unbounded",
            )
        # A listing, not one look per chunk: requests do not grow with the collection.
        found = list_keys(store, f"{plan.name}/c/")
        # Whatever is declared, the work is that of what is there.
        n_sound = sum(_is_chunk(key, plan) for key in found)
        if (n_sound, len(found)) != (plan.n_chunks, plan.n_chunks):
            raise StoreError(
                f"{shown(sealed.url)} has {n_sound} of {plan.n_chunks} chunks of "
                f"{plan.name!r}, and {len(found) - n_sound} objects that are none.",
                remedy="Restore the missing chunks, or ingest the collection again.",
                code="missing-chunks",
            )


def _is_chunk(key: str, plan: layout.ArrayPlan) -> bool:
    number = key.removeprefix(f"{plan.name}/c/").partition("/")[0]
    if not number.isdecimal() or int(number) >= plan.n_chunks:
        return False
    return key == layout.chunk_key(plan, int(number))


def read_sealed(sealed: SealedArrays, name: str, start: int, stop: int) -> AnyArray:
    """Read rows of an array, in its stored dtype.

    Raises
    ------
    StoreError
        If a chunk is damaged, missing, or not the one that was ingested.
    """
    place = (sealed, name, start, stop)
    return read_where_new(place, lambda: read_columns(sealed, (name,), start, stop)[name])


def read_columns(sealed: SealedArrays, names: Names, start: int, stop: int) -> dict[str, AnyArray]:
    """Rows of some arrays, all their objects requested at once.

    Zarr's way to them took five times as long where objects are small.

    Raises
    ------
    StoreError
        As `read_sealed`.
    """
    if not names:
        return {}
    plans = [next(plan for plan in sealed.plans if plan.name == name) for name in names]
    rows = plans[0].chunk_rows
    chunks, store = range(start // rows, -(-stop // rows)), _open(sealed.url)
    objects = [(store, sealed, plan, chunk) for plan in plans for chunk in chunks]

    def read() -> dict[str, AnyArray]:
        found = iter(sync(concurrent_map(objects, _fetch)))
        first = chunks.start * rows
        return {
            plan.name: _decode(plan, [next(found) for _ in chunks])[start - first : stop - first]
            for plan in plans
        }

    what = ", ".join(names) if len(names) > 1 else repr(names[0])
    problem = f"Records {start} to {stop} of {what} in {shown(sealed.url)} cannot be read"
    remedy = "A chunk is damaged or unreachable: restore it, or ingest the collection again."
    return guard_read(read, StoreError, problem, remedy=remedy, code="read")


@lru_cache(maxsize=64)
def _open(url: str) -> Store:
    """The client of a store, made once per process."""
    return open_store(url, read_only=True)


async def _fetch(
    store: Store, sealed: SealedArrays, plan: layout.ArrayPlan, chunk: int
) -> OctetArray:
    """A chunk that is proved to be the ingested one, as Blosc packed it."""
    found = await store.get(layout.chunk_key(plan, chunk), default_buffer_prototype())
    if found is None:
        raise _damaged(sealed, plan, chunk, "is missing")
    content = np.ascontiguousarray(found.as_numpy_array()).view(np.uint8)
    content.flags.writeable = False  # google_crc32c takes nothing else
    packed, trailer = content[:-TRAILER], content[-TRAILER:]
    if sealed.proof is None:  # before receipts: what a chunk says of itself is all there is
        if google_crc32c.value(packed) != int.from_bytes(trailer.tobytes(), "little"):
            raise ValueError  # what Zarr's codec raises; `guard_read` says where
    else:
        measured = len(content), google_crc32c.extend(google_crc32c.value(trailer), packed)
        if await sealed.proof.find(plan.name, chunk) != measured:
            raise _damaged(sealed, plan, chunk, "is not the one that was ingested")
    # Before anything is decoded: kilobytes may unfold to gigabytes.
    size = int.from_bytes(content[4:8].tobytes(), "little") if len(packed) >= BLOSC_HEADER else -1
    if size != plan.chunk_bytes:
        raise _damaged(sealed, plan, chunk, "decodes to another size than its array has chunks of")
    return packed


def _decode(plan: layout.ArrayPlan, chunks: Sequence[OctetArray]) -> AnyArray:
    """Rows of consecutive chunks; the last one is stored as large as the others."""
    # Decoded into place: no copy of a chunk is made.
    values = np.empty((len(chunks), *plan.chunks), plan.dtype)
    for rows, packed in zip(values, chunks, strict=True):
        numcodecs.blosc.decompress(packed, rows)
    return values.reshape(-1, *plan.shape[1:])


def _damaged(sealed: SealedArrays, plan: layout.ArrayPlan, chunk: int, how: str) -> StoreError:
    return _differs(f"Chunk {chunk} of {plan.name!r} in {shown(sealed.url)} {how}.")


def _differs(problem: str) -> StoreError:
    remedy = "Restore the collection from where it came, or ingest it again."
    return StoreError(problem, remedy=remedy, code="source-damaged")
