"""Reading the chunks of a collection, none believed: descriptions and bytes are what was sealed.

Every chunk that is read is compared with its receipt before it is decoded, in every pass of every
process: what is cleaned, learned from and judged is what was ingested. What metadata tells of
decoded sizes is checked first, so that no chunk can fill a worker's memory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import google_crc32c
import numcodecs.blosc
import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import StorePath, WrapperStore

from privpipe.errors import FormatError, PrivpipeError, StoreError
from privpipe.records.schema import CollectionSchema
from privpipe.store.access.bounds import MOST_CHUNK_BYTES
from privpipe.store.access.location import shown
from privpipe.store.access.objects import TRAILER, list_keys, open_store
from privpipe.store.access.remote import explain_refusal
from privpipe.store.arrays.blocks import read_where_new
from privpipe.store.arrays.headers import check_documents
from privpipe.store.arrays.layout import FEATURES, ROOT_DOCUMENT, ArrayPlan, chunk_key
from privpipe.store.arrays.proof import Proof


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


T = TypeVar("T")

BLOSC_HEADER = 16
"""Bytes; a little-endian word at 4 tells the decoded size."""


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


def read_sealed(sealed: SealedArrays, name: str, start: int, stop: int) -> npt.NDArray[Any]:
    """Read rows of an array, in its stored dtype.

    Raises
    ------
    StoreError
        If a chunk is damaged, missing, or not the one that was ingested.
    FormatError
        If a description is not as it was written, or tells more than a chunk may hold.
    """
    return read_where_new(
        (sealed, name, start, stop), lambda: _read_rows(sealed, name, start, stop)
    )


def read_columns(
    sealed: SealedArrays, names: Sequence[str], start: int, stop: int
) -> dict[str, npt.NDArray[Any]]:
    """Rows of some variables, from the first of a chunk on, all their objects asked for at once.

    What `read_sealed` gives, for objects so small that Zarr's way to them costs five times as much.

    Raises
    ------
    StoreError, FormatError
        As `read_sealed`.
    """
    arrays = {name: open_sealed(sealed, name) for name in names}
    plans = {plan.name: plan for plan in sealed.plans}

    async def collect() -> list[Buffer | None]:
        prototype = default_buffer_prototype()
        return list(
            await asyncio.gather(
                *(
                    array.store_path.store.get(chunk_key(plans[name], chunk), prototype)
                    for name, array in arrays.items()
                    for chunk in range(start // rows, -(-stop // rows))
                )
            )
        )

    def read() -> dict[str, npt.NDArray[Any]]:
        found = [_decode(content) for content in sync(collect())]
        n = len(found) // len(names)
        columns = (b"".join(found[i * n : (i + 1) * n]) for i in range(len(names)))
        return {
            name: np.frombuffer(column, array.dtype)[: stop - start]
            for (name, array), column in zip(arrays.items(), columns, strict=True)
        }

    if not names:
        return {}
    rows = plans[names[0]].chunk_rows
    assert start % rows == 0, "a stretch begins with a chunk"
    return _explain(read, sealed, ", ".join(names), start, stop)


def _decode(content: Buffer | None) -> bytes:
    """The values of a chunk that is proved to be one of ours."""
    assert content is not None, "a missing chunk was refused"
    stored = content.to_bytes()
    if google_crc32c.value(stored[:-TRAILER]) != int.from_bytes(stored[-TRAILER:], "little"):
        raise ValueError
    return bytes(numcodecs.blosc.decompress(stored[:-TRAILER]))


def _read_rows(sealed: SealedArrays, name: str, start: int, stop: int) -> npt.NDArray[Any]:
    def read() -> npt.NDArray[Any]:
        return np.asarray(open_sealed(sealed, name)[start:stop])

    return _explain(read, sealed, repr(name), start, stop)


def _explain(read: Callable[[], T], sealed: SealedArrays, what: str, start: int, stop: int) -> T:
    """What is read, or an error of ours without a byte of it."""
    problem: PrivpipeError
    try:
        return read()
    except PrivpipeError as error:
        problem = type(error)(error.message, remedy=error.remedy, code=error.code)
    except Exception as error:  # many kinds, depending on codec and store
        problem = explain_refusal(error) or StoreError(
            f"Records {start} to {stop} of {what} in {shown(sealed.url)} cannot be read "
            f"({type(error).__name__}).",
            remedy="A chunk is damaged or unreachable: restore it, or ingest the collection again.",
            code="read",
        )
    raise problem


@lru_cache(maxsize=8)
def _documents(sealed: SealedArrays) -> Mapping[str, bytes]:
    """The descriptions, read and proved once per process."""
    return check_documents(sealed.url, sealed.documents, sealed.documents_sha256)


@lru_cache(maxsize=256)
def open_sealed(sealed: SealedArrays, name: str) -> zarr.Array[Any]:
    """The array of a proved description: nothing that came to stand there since is looked at."""
    plan = next(plan for plan in sealed.plans if plan.name == name)
    description = json.loads(_documents(sealed)[f"{name}/{ROOT_DOCUMENT}"])
    store = ProvedStore(open_store(sealed.url, read_only=True), plan, sealed)
    array: zarr.Array[Any] = zarr.Array.from_dict(StorePath(store, name), description)
    _check_description(array, plan, sealed.url)
    return array


def _check_description(array: zarr.Array[Any], plan: ArrayPlan, url: str) -> None:
    """A description, sealed or not, must be one that `array_documents` writes."""
    codecs = [codec.to_dict()["name"] for codec in getattr(array.metadata, "codecs", ())]
    sound = (
        array.shape == plan.shape
        and array.chunks == plan.chunks
        and array.dtype == np.dtype(plan.dtype)
        and codecs == ["bytes", "blosc", "crc32c"]
    )
    if not sound or plan.chunk_bytes > MOST_CHUNK_BYTES:
        raise FormatError(
            f"The array {plan.name!r} of {shown(url)} is not one of a collection: shape "
            f"{array.shape}, chunks {array.chunks}, dtype {array.dtype}.",
            remedy="Ingest the records again.",
            code="documents-damaged",
        )


class ProvedStore(WrapperStore[Store]):
    """The chunks of one array, handed on only if they are those of their receipts.

    Parameters
    ----------
    store
        Where they are.
    plan
        The array.
    sealed
        It and the others, with their proof.
    """

    def __init__(self, store: Store, plan: ArrayPlan, sealed: SealedArrays) -> None:
        super().__init__(store)
        self._plan, self._sealed = plan, sealed

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """A whole chunk; StoreError if it is another one, or there is none."""
        assert byte_range is None, "chunks of ours are read whole"
        found = await self._store.get(key, prototype)
        chunk = int(key.removeprefix(f"{self._plan.name}/c/").partition("/")[0])
        assert key == chunk_key(self._plan, chunk), "only chunks are asked for"
        if found is None:
            raise self._damaged(chunk, "is missing")
        content = np.ascontiguousarray(found.as_numpy_array()).view(np.uint8)
        content.flags.writeable = False  # as the checksum wants it
        proof = self._sealed.proof
        if proof is not None:
            if await proof.find(self._plan.name, chunk) != _measure(content):
                raise self._damaged(chunk, "is not the one that was ingested")
        if _decoded_size(content) != self._plan.chunk_bytes:
            raise self._damaged(chunk, "decodes to another size than its array has chunks of")
        return found

    def _damaged(self, chunk: int, how: str) -> StoreError:
        return StoreError(
            f"Chunk {chunk} of {self._plan.name!r} in {shown(self._sealed.url)} {how}.",
            remedy="Restore the collection from where it came, or ingest it again.",
            code="source-damaged",
        )


def _measure(content: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """Length and checksum, the last four bytes first; see `measure_bytes`."""
    crc = google_crc32c.value(content[-TRAILER:])
    return len(content), google_crc32c.extend(crc, content[:-TRAILER])


def _decoded_size(content: npt.NDArray[np.uint8]) -> int:
    """What Blosc says that it will write, bytes; -1 if it does not begin like Blosc's."""
    if len(content) < BLOSC_HEADER:
        return -1
    return int.from_bytes(content[4:8].tobytes(), "little")
