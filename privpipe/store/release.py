"""Writing a release: prepare, write chunks, record receipts, finalise, publish in one step.

Everything is prepared in a private workspace beside the release; see DESIGN.md for the
protocol, its invariants and what was rejected.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import Store
from zarr.storage import MemoryStore

from privpipe.errors import IncompleteReleaseError, StoreError
from privpipe.records.chunks import ChunkPlan
from privpipe.store.blocks import Receipt, Stored, measure_object
from privpipe.store.durability import flush_folder, flush_tree
from privpipe.store.layout import (
    ROOT_DOCUMENT,
    ArrayPlan,
    array_documents,
    root_document,
)
from privpipe.store.location import (
    join,
    list_keys,
    local_path,
    open_store,
    read_bytes,
    shown,
    write_bytes,
)
from privpipe.store.workspace import workspace_url

__all__ = [
    "RECEIPTS",
    "ReleasePlan",
    "check_foreign",
    "check_output_free",
    "companion_url",
    "digest_receipts",
    "drop_receipts",
    "exists",
    "find_damaged",
    "prepare_release",
    "publish_release",
    "read_ledger",
    "record_receipts",
]

RECEIPTS = "receipts"


@dataclass(frozen=True)
class ReleasePlan:
    """Where a release goes and what it consists of; a value, made before any work.

    Parameters
    ----------
    run
        Identifier of the run, 8 hexadecimal digits; every receipt carries it.
    url
        Where the release will be.
    arrays
        Its arrays: the released features first, then variables included by name.
    """

    run: str
    url: str
    arrays: tuple[ArrayPlan, ...]

    @property
    def chunks(self) -> ChunkPlan:
        """Chunks and tasks; the same for every array."""
        return ChunkPlan(self.arrays[0].shape[0], self.arrays[0].chunk_rows)

    @property
    def work_url(self) -> str:
        """The private workspace."""
        return workspace_url(self.url)

    @property
    def data_url(self) -> str:
        """Where chunks are written: in the workspace, or in place where nothing can be renamed."""
        return self.url if local_path(self.url) is None else join(self.work_url, "release")


def companion_url(url: str, kind: str) -> str:
    """Where what belongs to a release stands: beside it.

    >>> companion_url("/data/release.zarr", "model.zarr")
    '/data/release.model.zarr'
    """
    return f"{url.rstrip('/').removesuffix('.zarr')}.{kind}"


def exists(url: str) -> bool:
    """Whether a release, model or anything else stands at a place."""
    path = local_path(url)
    if path is not None:
        return os.path.lexists(path)
    return read_bytes(open_store(url, read_only=True), ROOT_DOCUMENT) is not None


def check_output_free(url: str) -> None:
    """Raise StoreError if something stands where a release or model shall go."""
    if exists(url):
        raise StoreError(
            f"{shown(url)} exists; nothing is ever overwritten.",
            remedy="Choose another place, or remove it.",
            code="exists",
        )


def prepare_release(plan: ReleasePlan) -> None:
    """Write the empty arrays; the root document comes last, when the release is published."""
    store = open_store(plan.data_url)
    for key, content in array_documents(plan.arrays).items():
        write_bytes(store, key, content)


def record_receipts(plan: ReleasePlan, receipts: Sequence[Receipt]) -> None:
    """Add a task's receipts to the ledger, in one object named after its first chunk."""
    content = json.dumps([asdict(receipt) for receipt in receipts]).encode()
    key = f"ledger/{plan.run}-{receipts[0].chunk:08d}.json"
    write_bytes(open_store(plan.work_url), key, content)


def read_ledger(plan: ReleasePlan) -> list[Receipt]:
    """All receipts recorded so far."""
    store = open_store(plan.work_url, read_only=True)
    found: list[Receipt] = []
    for key in list_keys(store, "ledger/"):
        for item in json.loads(read_bytes(store, key) or b"[]"):
            objects = tuple(Stored(**stored) for stored in item.pop("objects"))
            found.append(Receipt(objects=objects, **item))
    return found


def drop_receipts(plan: ReleasePlan, chunks: Collection[int]) -> None:
    """Forget the receipts of chunks that have to be written again."""
    store = open_store(plan.work_url)
    for key in list_keys(store, "ledger/"):
        items = json.loads(read_bytes(store, key) or b"[]")
        kept = [item for item in items if item["chunk"] not in chunks]
        if len(kept) < len(items):
            write_bytes(store, key, json.dumps(kept).encode())


def find_damaged(plan: ReleasePlan, receipts: Iterable[Receipt]) -> list[int]:
    """Chunks whose stored objects are missing or differ from their receipt; reads every byte."""
    store = open_store(plan.data_url, read_only=True)
    return [
        receipt.chunk
        for receipt in receipts
        if any(
            _measure_or_none(store, array, receipt.chunk) != stored
            for array, stored in zip(plan.arrays, receipt.objects, strict=True)
        )
    ]


def check_foreign(plan: ReleasePlan) -> None:
    """Raise IncompleteReleaseError if the workspace holds chunks that the plan does not know."""
    store = open_store(plan.data_url, read_only=True)
    for array in plan.arrays:
        found = len(list_keys(store, f"{array.name}/c/"))
        if found != array.n_chunks:
            raise IncompleteReleaseError(
                f"The workspace holds {found} chunks of {array.name!r}; the plan has "
                f"{array.n_chunks}.",
                remedy="Something else wrote there: `privpipe purge`, then run again.",
            )


def _measure_or_none(store: Store, array: ArrayPlan, chunk: int) -> Stored | None:
    try:
        return measure_object(store, array, chunk)
    except (IncompleteReleaseError, OSError):
        return None


def publish_release(
    plan: ReleasePlan, receipts: Mapping[int, Receipt], header: Mapping[str, Any]
) -> None:
    """Write receipts and header, then make the release visible in one step.

    On a file system that step is a rename of the finished tree; elsewhere it is the root
    document, written last and only if none is there.

    Parameters
    ----------
    plan
        The release.
    receipts
        Proven receipts by chunk number; see `check_receipts`.
    header
        Attributes of the release, without those that this function adds: format, version,
        run, arrays, chunks and the digest of the receipts.
    """
    store = open_store(plan.data_url)
    for key, content in _receipt_documents(plan, receipts.values()).items():
        write_bytes(store, key, content)
    document = root_document(
        {
            "format": "release",
            "format_version": 1,
            "run": plan.run,
            **header,
            "arrays": [array.name for array in plan.arrays],
            "n_records": plan.chunks.n_records,
            "n_chunks": plan.chunks.n_chunks,
            "chunk_rows": plan.chunks.chunk_rows,
            "receipts_sha256": digest_receipts(receipts.values()),
        }
    )
    check_output_free(plan.url)
    write_bytes(store, ROOT_DOCUMENT, document)
    path, data = local_path(plan.url), local_path(plan.data_url)
    if path is not None and data is not None:
        flush_tree(data)
        os.rename(data, path)
        flush_folder(os.path.dirname(path))


def digest_receipts(receipts: Iterable[Receipt]) -> str:
    """SHA-256 over chunk, rows, array, length and checksum of every stored object."""
    sha = hashlib.sha256()
    for receipt in sorted(receipts, key=lambda r: r.chunk):
        for stored in receipt.objects:
            line = f"{receipt.chunk} {receipt.rows} {stored.array} {stored.length} {stored.crc32c}"
            sha.update(f"{line}\n".encode())
    return sha.hexdigest()


def _receipt_documents(plan: ReleasePlan, receipts: Iterable[Receipt]) -> dict[str, bytes]:
    """The receipts as a small Zarr group inside the release: (chunk, array) tables."""
    memory = MemoryStore()
    group = zarr.create_group(memory, path=RECEIPTS)
    ordered = sorted(receipts, key=lambda r: r.chunk)
    tables: dict[str, npt.NDArray[Any]] = {
        "rows": np.array([[r.rows] * len(plan.arrays) for r in ordered], np.int64),
        "length": np.array([[s.length for s in r.objects] for r in ordered], np.int64),
        "crc32c": np.array([[s.crc32c for s in r.objects] for r in ordered], np.uint32),
    }
    for name, table in tables.items():
        group.create_array(name, data=table, dimension_names=["chunk", "array"])
    found = {key: read_bytes(memory, key) for key in list_keys(memory) if key != ROOT_DOCUMENT}
    return {key: value for key, value in found.items() if value is not None}
