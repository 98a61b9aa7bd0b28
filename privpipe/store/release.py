"""Writing a release: prepare, write chunks, record receipts, finalise, publish in one step.

Everything is prepared in a private workspace beside the release; see DESIGN.md for the
protocol, its invariants and what was rejected.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.storage import MemoryStore

from privpipe.errors import IncompleteReleaseError, StoreError
from privpipe.records.chunks import ChunkPlan
from privpipe.store.blocks import Receipt, Stored, check_receipts
from privpipe.store.layout import (
    ROOT_DOCUMENT,
    ArrayPlan,
    array_documents,
    chunk_key,
    root_document,
)
from privpipe.store.location import (
    delete_tree,
    join,
    list_keys,
    local_path,
    open_store,
    read_bytes,
    shown,
    sizes,
    write_bytes,
)

__all__ = [
    "RECEIPTS",
    "ReleasePlan",
    "check_output_free",
    "companion_url",
    "digest_receipts",
    "finalise_release",
    "make_workspace",
    "prepare_release",
    "publish_release",
    "read_ledger",
    "record_receipts",
    "remove_workspace",
    "workspace_url",
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


def workspace_url(url: str) -> str:
    """The private workspace of a release: a hidden neighbour.

    >>> workspace_url("s3://bucket/release.zarr")
    's3://bucket/.release.zarr.privpipe'
    """
    path = local_path(url)
    parent, _, name = (path if path is not None else url.rstrip("/")).rpartition("/")
    return f"{parent}/.{name}.privpipe"


def companion_url(url: str, kind: str) -> str:
    """Where what belongs to a release stands: beside it.

    >>> companion_url("/data/release.zarr", "model.zarr")
    '/data/release.model.zarr'
    """
    return f"{url.rstrip('/').removesuffix('.zarr')}.{kind}"


def check_output_free(url: str) -> None:
    """Raise StoreError if something stands where a release or model shall go."""
    path = local_path(url)
    taken = (
        os.path.lexists(path)
        if path is not None
        else read_bytes(open_store(url), ROOT_DOCUMENT) is not None
    )
    if taken:
        raise StoreError(
            f"{shown(url)} exists; a release is never overwritten.",
            remedy="Choose another place, or remove it.",
            code="exists",
        )


def make_workspace(url: str) -> None:
    """Make the private workspace of a release, which then belongs to one run alone.

    Raises
    ------
    StoreError
        If the release or its workspace exists, or cannot be made.
    """
    check_output_free(url)
    path = local_path(workspace_url(url))
    if path is None:
        return
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path, mode=0o700)
        return
    except FileExistsError:
        problem, remedy = "exists", "Another run is writing this release, or one was interrupted: "
        remedy += "wait for it, or remove the folder."
    except OSError as error:
        problem, remedy = f"cannot be made ({error.strerror})", "Check your rights."
    raise StoreError(f"{path} {problem}.", remedy=remedy, code="workspace")


def prepare_release(plan: ReleasePlan) -> None:
    """Write the empty arrays; the root document comes last, when the release is published."""
    store = open_store(plan.data_url)
    for key, content in array_documents(plan.arrays).items():
        write_bytes(store, key, content)


def remove_workspace(url: str) -> None:
    """Remove the workspace of a release with all that is in it."""
    path = local_path(workspace_url(url))
    if path is None:
        delete_tree(open_store(workspace_url(url)))
    else:
        shutil.rmtree(path, ignore_errors=True)


def record_receipts(plan: ReleasePlan, receipts: Sequence[Receipt]) -> None:
    """Add a task's receipts to the ledger, in one object named after its first chunk."""
    content = json.dumps([asdict(receipt) for receipt in receipts]).encode()
    key = f"ledger/{plan.run}-{receipts[0].chunk:08d}.json"
    write_bytes(open_store(plan.work_url), key, content)


def read_ledger(plan: ReleasePlan) -> list[Receipt]:
    """All receipts recorded so far."""
    store = open_store(plan.work_url)
    found: list[Receipt] = []
    for key in list_keys(store, "ledger/"):
        for item in json.loads(read_bytes(store, key) or b"[]"):
            objects = tuple(Stored(**stored) for stored in item.pop("objects"))
            found.append(Receipt(objects=objects, **item))
    return found


def finalise_release(plan: ReleasePlan) -> dict[int, Receipt]:
    """Prove that every chunk has its receipt and that every object is there at its length.

    Returns
    -------
    by_chunk
        The receipts by chunk number.

    Raises
    ------
    IncompleteReleaseError
        With what is missing.
    """
    by_chunk = check_receipts(read_ledger(plan), plan.arrays, plan.run)
    store = open_store(plan.data_url, read_only=True)
    for number, array in enumerate(plan.arrays):
        expected = {
            chunk_key(array, chunk): receipt.objects[number].length
            for chunk, receipt in by_chunk.items()
        }
        found = dict(sizes(store, list_keys(store, f"{array.name}/c/")))
        wrong = sum(found.get(key) != length for key, length in expected.items())
        if wrong or len(found) != len(expected):
            raise IncompleteReleaseError(
                f"{wrong} chunks of {array.name!r} are missing or differ from their receipts, "
                f"{max(0, len(found) - len(expected))} are foreign.",
                remedy="Something else wrote into the workspace: remove it and run again.",
            )
    return by_chunk


def publish_release(
    plan: ReleasePlan, receipts: Mapping[int, Receipt], header: Mapping[str, Any]
) -> None:
    """Write receipts and header, then make the release visible in one step.

    On a file system that step is a rename of the finished tree; elsewhere it is the root
    document, written last and only if none is there. The workspace goes when it has happened.

    Parameters
    ----------
    plan
        The release.
    receipts
        What `finalise_release` returned.
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
        os.rename(data, path)
    remove_workspace(plan.url)


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
