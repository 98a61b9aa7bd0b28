"""Chunks that decode to more than their array declares are refused before they are decoded.

A few kilobytes can decode to gigabytes. Blosc and LZ4 say the decoded size first, Zstandard mostly.
Where nothing does, the stream is decoded piece by piece and given up at the limit. Codecs that
cannot be bounded, and `pickle`, which runs code, are not read at all.
"""

import math
from functools import cache
from typing import Any, ClassVar

import numpy as np
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.abc.store import ByteRequest, Store
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.registry import register_codec
from zarr.storage import WrapperStore

from privpipe.errors import InputError, StoreError
from privpipe.extras import explain_missing

MOST_CHUNK_BYTES = 2**31
"""Decoded bytes of a chunk: Blosc takes no more, and workers hold several."""

MOST_TEXT_BYTES = 2**28
"""Decoded bytes of a chunk of text, whose array does not declare its size."""

MOST_FILLED = 1000
"""Chunks that need not be stored, as they hold fill values alone, for each that is."""

PIECE = 2**20

READ_CODECS = frozenset(
    "bytes transpose vlen-utf8 vlen-bytes sharding_indexed crc32c blosc zstd gzip".split()
)
"""Of Zarr 3."""

READ_COMPRESSORS = frozenset(("blosc", "zstd", "gzip", "zlib", "lz4", "bz2"))
READ_FILTERS = frozenset(("delta", "fixedscaleoffset", "shuffle", "vlen-utf8", "vlen-bytes"))
"""Of Zarr 2."""


def check_decoded_size(codec: str, content: bytes, most: int) -> None:
    """Raise StoreError if an encoded chunk decodes to more than `most` bytes.

    Parameters
    ----------
    codec
        Its compressor, as Zarr names it.
    content
        The encoded bytes.
    most
        Decoded bytes allowed.
    """
    if codec == "blosc":
        # Blosc 1: version, flags and item size come before; nbytes is a little-endian word.
        size = int.from_bytes(content[4:8], "little")
    elif codec == "lz4":
        size = int.from_bytes(content[:4], "little")
    elif codec == "zstd" and (declared := _zstd_size(content)) is not None:
        size = declared
    else:
        size = _count_streamed(codec, content, most)
    if size > most:
        problem = f"A chunk of {len(content)} bytes decodes to more than the {most} bytes allowed."
        remedy = "It is damaged, or made to fill the memory: get the source again."
        raise StoreError(problem, remedy=remedy, code="decoded-size")


def _zstd_size(content: bytes) -> int | None:
    """Decoded size in the header of a Zstandard frame (RFC 8878, 3.1.1.1); None without one."""
    if len(content) < 5 or content[:4] != b"\x28\xb5\x2f\xfd":
        return None
    descriptor = content[4]
    # RFC 8878, 3.1.1.1.1: flag of the size, single segment, dictionary id.
    single, flag = bool(descriptor & 0x20), descriptor >> 6
    width = (1 if single else 0, 2, 4, 8)[flag]
    at = 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3]
    if not width:
        return None
    return int.from_bytes(content[at : at + width], "little") + (256 if width == 2 else 0)


def _count_streamed(codec: str, content: bytes, most: int) -> int:
    # Only streams that do not say their size come here: no library of ours needs it otherwise.
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        problem = f"A chunk packed by {codec} does not say its size, and pyarrow is not installed."
        raise StoreError(problem, remedy=str(explain_missing(error)), code="no-pyarrow") from None
    size = 0
    # By the header "gzip" is either; members of gzip may be several, one after the other.
    packed_by = "gzip" if codec == "zlib" else codec
    with pa.CompressedInputStream(pa.BufferReader(content), packed_by) as stream:
        while size <= most and (piece := stream.read(PIECE)):
            size += len(piece)
    return size


def _allowed(spec: ArraySpec) -> int:
    """Decoded bytes that a chunk of an array may have between two codecs, generously."""
    itemsize = getattr(spec.dtype, "item_size", None)
    # Text of variable length.
    if itemsize is None:
        return MOST_TEXT_BYTES
    # What goes into a compressor may be wider than the array, at most as 8 bytes to one.
    return int(8 * math.prod(spec.shape) * itemsize + 2**16)


class _Bounded(BytesBytesCodec):
    """A codec that looks at the decoded size before it decodes."""

    compressor: ClassVar[str]

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        check_decoded_size(self.compressor, chunk_bytes.to_bytes(), _allowed(chunk_spec))
        decoded: Buffer = super()._decode_sync(chunk_bytes, chunk_spec)  # type: ignore[misc]
        return decoded


class BoundedBlosc(_Bounded, BloscCodec):
    """Blosc, which says the decoded size in its header."""

    compressor = "blosc"


class BoundedZstd(_Bounded, ZstdCodec):
    """Zstandard, whose frames mostly say their decoded size."""

    compressor = "zstd"


class BoundedGzip(_Bounded, GzipCodec):
    """Gzip, decoded once to know how much it is."""

    compressor = "gzip"


@cache
def use_bounded_codecs() -> None:
    """Let Zarr read every array of this process with bounded codecs, inside shards too."""
    # By name in the configuration of the process, so that codecs inside of shards are these, too.
    for codec in (BoundedBlosc, BoundedZstd, BoundedGzip):
        register_codec(codec.compressor, codec)
        zarr.config.set({f"codecs.{codec.compressor}": f"{__name__}.{codec.__qualname__}"})


class BoundedStore(WrapperStore[Store]):
    """Chunks of an array of Zarr 2, whose codecs do not know how much they may decode to."""

    def __init__(self, store: Store, codec: str, most: int) -> None:
        super().__init__(store)
        self._codec, self._most = codec, most

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """The object of a key; StoreError if it is a chunk that decodes to too much."""
        found = await self._store.get(key, prototype, byte_range)
        # Documents of Zarr 2 begin with .z: what is left are chunks.
        if found is not None and not key.rpartition("/")[2].startswith(".z"):
            check_decoded_size(self._codec, found.to_bytes(), self._most)
        return found


def check_bounded(array: zarr.Array[Any], n_stored: int, where: str) -> zarr.Array[Any]:
    """A foreign array, once its metadata says that it can be read within bounds.

    Parameters
    ----------
    array
        As Zarr opened it.
    n_stored
        Objects that are stored of it.
    where
        The store, for messages.

    Returns
    -------
    array
        The same, or one that is read through a `BoundedStore`.

    Raises
    ------
    InputError
        If a codec is not one that can be bounded, or a chunk is too large. If hardly any chunk of
        what the shape declares is stored.
    """
    problem = _find_unbounded(array)
    stored_shape = array.shards or array.chunks
    # Filling a terabyte from a few kilobytes is the cheapest bomb: nothing need be decoded.
    n_chunks = math.prod(-(-n // c) for n, c in zip(array.shape, stored_shape, strict=True) if c)
    if n_chunks > MOST_FILLED * (n_stored + 1):
        problem = f"declares {n_chunks} chunks and stores {n_stored}"
    if problem:
        problem = f"The array {array.name!r} of {where} {problem}."
        remedy = "Write it anew with whole chunks of a few MiB and Zstandard, or --drop it."
        raise InputError(problem, remedy=remedy, code="unbounded")
    if array.metadata.zarr_format == 3 or array.metadata.compressor is None:
        return array
    # Zarr 2 knows no size where it decodes, so that its chunks are measured as they are read.
    itemsize = np.dtype(array.dtype).itemsize if array.dtype.kind != "O" else 0
    most = 8 * math.prod(array.chunks) * itemsize + 2**16 if itemsize else MOST_TEXT_BYTES
    store = BoundedStore(array.store_path.store, str(array.metadata.compressor.codec_id), most)
    path = type(array.store_path)(store, array.store_path.path)
    return zarr.Array.from_dict(path, array.metadata.to_dict())


def _find_unbounded(array: zarr.Array[Any]) -> str:
    """What of an array's metadata is refused; empty if nothing is."""
    metadata = array.metadata
    if metadata.zarr_format == 3:
        unknown = _names(metadata.codecs) - READ_CODECS
    else:
        compressor = metadata.compressor
        unknown = {str(item.codec_id) for item in metadata.filters or ()} - READ_FILTERS
        unknown |= {str(compressor.codec_id)} - READ_COMPRESSORS if compressor else set()
    if unknown:
        return f"is encoded with {', '.join(sorted(unknown))}, which is not read"
    itemsize = np.dtype(array.dtype).itemsize if array.dtype.kind != "O" else 1
    size = math.prod(array.chunks) * itemsize
    return f"has chunks of {size} bytes, decoded" if size > MOST_CHUNK_BYTES else ""


def _names(codecs: Any) -> set[str]:
    """Names of codecs, those inside shards too."""
    inner = [one for codec in codecs for one in getattr(codec, "codecs", ())]
    inner += [one for codec in codecs for one in getattr(codec, "index_codecs", ())]
    return {str(codec.to_dict()["name"]) for codec in codecs} | (_names(inner) if inner else set())
