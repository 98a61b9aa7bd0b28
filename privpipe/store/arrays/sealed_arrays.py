"""Reading the chunks of a collection, none believed: bytes are what was sealed.

Every chunk that is read is compared with its receipt before it is decoded, in every pass of every
process: what is cleaned, learned from and judged is what was ingested. What it says of its decoded
size is checked first, so that no chunk can fill a worker's memory. Descriptions of the arrays are
checked when a collection is opened; what decodes a chunk is the schema in the sealed root.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import google_crc32c
import numcodecs.blosc
import numpy as np
import numpy.typing as npt
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from privpipe.errors import FormatError, StoreError
from privpipe.records.schema import CollectionSchema
from privpipe.store.access.bounds import MOST_CHUNK_BYTES
from privpipe.store.access.location import shown
from privpipe.store.access.objects import TRAILER, list_keys, open_store
from privpipe.store.access.remote import guard_read
from privpipe.store.arrays.blocks import read_where_new
from privpipe.store.arrays.headers import check_documents
from privpipe.store.arrays.layout import FEATURES, ROOT_DOCUMENT, ArrayPlan, chunk_key
from privpipe.store.arrays.proof import Proof

Bytes = npt.NDArray[np.uint8]

BLOSC_HEADER = 16
"""Bytes; a little-endian word at 4 is the decoded size."""


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
    plans: tuple[ArrayPlan, ...]
    documents_sha256: str
    proof: Proof | None = None

    @property
    def documents(self) -> tuple[str, ...]:
        """Keys of the descriptions."""
        return tuple(f"{plan.name}/{ROOT_DOCUMENT}" for plan in self.plans)


def collection_arrays(schema: CollectionSchema) -> tuple[ArrayPlan, ...]:
    """The arrays of a collection, features first; there is none for no features."""
    n, rows = schema.n_records, schema.chunk_rows
    features = ArrayPlan(FEATURES, (n, schema.n_features), rows, schema.dtype)
    return (
        *((features,) if schema.n_features else ()),
        *(ArrayPlan(v.name, (n,), rows, v.dtype) for v in schema.variables),
    )


def seal_collection(url: str, schema: CollectionSchema, header: Mapping[str, Any]) -> SealedArrays:
    """What the header says that descriptions and chunks must be."""
    arrays = collection_arrays(schema)
    proof = Proof.restore(url, header.get("receipts"))
    expected = tuple(plan.name for plan in arrays)
    # Absent is an earlier version; present and unreadable is damage.
    if "receipts" in header and (proof is None or proof.arrays != expected):
        raise FormatError(
            f"The header of {shown(url)} is damaged.", remedy="Ingest the collection again."
        )
    return SealedArrays(url, arrays, str(header.get("documents_sha256")), proof)


def check_chunks(sealed: SealedArrays) -> None:
    """A missing chunk would read as fill values without an error."""
    store = open_store(sealed.url, read_only=True)
    check_documents(sealed.url, sealed.documents, sealed.documents_sha256)
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


def _is_chunk(key: str, plan: ArrayPlan) -> bool:
    number = key.removeprefix(f"{plan.name}/c/").partition("/")[0]
    if not number.isdecimal() or int(number) >= plan.n_chunks:
        return False
    return key == chunk_key(plan, int(number))


def read_sealed(sealed: SealedArrays, name: str, start: int, stop: int) -> npt.NDArray[Any]:
    """Read rows of an array, in its stored dtype.

    Raises
    ------
    StoreError
        If a chunk is damaged, missing, or not the one that was ingested.
    """
    return read_where_new(
        (sealed, name, start, stop), lambda: read_columns(sealed, (name,), start, stop)[name]
    )


def read_columns(
    sealed: SealedArrays, names: Sequence[str], start: int, stop: int
) -> dict[str, npt.NDArray[Any]]:
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

    async def fetch() -> list[Bytes]:
        objects = ((plan, chunk) for plan in plans for chunk in chunks)
        return await asyncio.gather(*(_fetch(store, sealed, *one) for one in objects))

    def read() -> dict[str, npt.NDArray[Any]]:
        found = iter(sync(fetch()))
        first = chunks.start * rows
        return {
            plan.name: _decode(plan, [next(found) for _ in chunks])[start - first : stop - first]
            for plan in plans
        }

    what = ", ".join(names) if len(names) > 1 else repr(names[0])
    return guard_read(
        read,
        StoreError,
        f"Records {start} to {stop} of {what} in {shown(sealed.url)} cannot be read",
        remedy="A chunk is damaged or unreachable: restore it, or ingest the collection again.",
        code="read",
    )


@lru_cache(maxsize=64)
def _open(url: str) -> Store:
    """The client of a store, made once per process."""
    return open_store(url, read_only=True)


async def _fetch(store: Store, sealed: SealedArrays, plan: ArrayPlan, chunk: int) -> Bytes:
    """A chunk that is proved to be the ingested one, as Blosc packed it."""
    found = await store.get(chunk_key(plan, chunk), default_buffer_prototype())
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


def _decode(plan: ArrayPlan, chunks: Sequence[Bytes]) -> npt.NDArray[Any]:
    """Rows of consecutive chunks; the last one is stored as large as the others."""
    # Decoded into place: no copy of a chunk is made.
    values = np.empty((len(chunks), *plan.chunks), plan.dtype)
    for rows, packed in zip(values, chunks, strict=True):
        numcodecs.blosc.decompress(packed, rows)
    return values.reshape(-1, *plan.shape[1:])


def _damaged(sealed: SealedArrays, plan: ArrayPlan, chunk: int, how: str) -> StoreError:
    return StoreError(
        f"Chunk {chunk} of {plan.name!r} in {shown(sealed.url)} {how}.",
        remedy="Restore the collection from where it came, or ingest it again.",
        code="source-damaged",
    )
