"""Zarr documents of a record store: arrays cut along `record`, checksummed, root last.

A store of ours is a Zarr v3 group. The document of its root, ``zarr.json``, is written last of
all: without it no reader opens the group, on a file system or in a bucket. So the documents
are made in memory here and written by those who know when.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.storage import MemoryStore

from privpipe.store.access.objects import list_keys, read_many

RECEIPTS = "receipts"
"""Group of the receipts within a release."""

FEATURES = "features"
RELEASED = "released"
"""Variable of a release that may withhold records: 1 where the record was released, else 0."""
ROOT_DOCUMENT = "zarr.json"
SEAL = "sha256"


@dataclass(frozen=True)
class ArrayPlan:
    """One array to be written.

    Parameters
    ----------
    name
        Name within the group.
    shape
        ``(n_records,)`` or ``(n_records, n_columns)``.
    chunk_rows
        Records per chunk; all columns are in one chunk.
    dtype
        NumPy name of the dtype.
    attributes
        Attributes of the array.
    """

    name: str
    shape: tuple[int, ...]
    chunk_rows: int
    dtype: str
    attributes: tuple[tuple[str, Any], ...] = ()

    @property
    def fill(self) -> float | int:
        """What a reader sees where nothing was written: NaN, or the missing code."""
        # No zero, which would be a value.
        return float("nan") if np.issubdtype(np.dtype(self.dtype), np.floating) else -1

    @property
    def n_chunks(self) -> int:
        return -(-self.shape[0] // self.chunk_rows)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Shape of a chunk; the last one is as large as the others."""
        return (max(1, min(self.chunk_rows, self.shape[0])), *self.shape[1:])

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk."""
        return math.prod(self.chunks) * np.dtype(self.dtype).itemsize


def chunk_key(array: ArrayPlan, chunk: int) -> str:
    """Key of a chunk's object within the store."""
    # All columns are in one chunk, so that further coordinates are 0.
    return f"{array.name}/c/{chunk}" + "/0" * (len(array.shape) - 1)


def array_documents(arrays: Sequence[ArrayPlan]) -> dict[str, bytes]:
    """Key and content of each array's ``zarr.json``, without the root's."""
    memory = MemoryStore()
    for plan in arrays:
        zarr.create_array(
            memory,
            name=plan.name,
            shape=plan.shape,
            chunks=plan.chunks,
            dtype=plan.dtype,
            # The checksum last: damage is found before anything is decoded.
            compressors=[BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle"), Crc32cCodec()],
            fill_value=plan.fill,
            dimension_names=["record", "feature"][: len(plan.shape)],
            attributes=dict(plan.attributes),
        )
    return read_many(memory, [key for key in list_keys(memory) if key != ROOT_DOCUMENT])


def root_document(attributes: Mapping[str, Any]) -> bytes:
    """Content of the root's ``zarr.json`` with the given ``privpipe`` attributes, sealed.

    The seal is a SHA-256 over the attributes: it notices damage, not forgery.
    """
    # NaN is no JSON: other readers of Zarr would refuse the document.
    plain = json.dumps(attributes, allow_nan=False)
    document = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {
            "privpipe": {**attributes, SEAL: hashlib.sha256(plain.encode()).hexdigest()}
        },
    }
    return json.dumps(document, indent=1, allow_nan=False).encode()


def is_sealed(content: bytes) -> bool:
    """Whether every byte of a root document is as `root_document` wrote it."""
    try:
        attributes = dict(json.loads(content)["attributes"]["privpipe"])
        attributes.pop(SEAL)
        # Made anew and compared whole: every byte is covered, not the attributes alone.
        return root_document(attributes) == content
    except (ValueError, KeyError, TypeError):
        return False


def digest_documents(documents: Mapping[str, bytes]) -> str:
    """SHA-256 over keys and contents, whatever their order."""
    sha = hashlib.sha256()
    for key in sorted(documents):
        # The length, too: no shift of bytes between two documents gives the same digest.
        sha.update(f"{key} {len(documents[key])}\n".encode())
        sha.update(documents[key])
    return sha.hexdigest()
