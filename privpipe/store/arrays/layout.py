"""Zarr documents of a record store: its header, arrays cut along `record`, checksummed, root last.

A store of ours is a Zarr v3 group. The document of its root, ``zarr.json``, is written last of all.
Without it no reader opens the group, on a file system or in a bucket. So the documents are made in
memory here and written by those who know when.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec
from zarr.storage import MemoryStore

from privpipe import errors
from privpipe.errors import FormatError, GuaranteeError, IncompleteReleaseError, StoreError
from privpipe.protocols import Guarantee
from privpipe.store.access import generation_log
from privpipe.store.access.location import explain_refusal, join, local_path, shown
from privpipe.store.access.objects import list_keys, open_store, read_all, read_bytes, read_many

Header = Mapping[str, Any]
RECEIPTS = "receipts"
"""Group of the receipts within a release."""

FEATURES = "features"
RELEASED = "released"
"""Variable of a release that may withhold records: 1 where the record was released, else 0."""
ROOT_DOCUMENT = "zarr.json"
SEAL = "sha256"
ANOTHER_COPY = "Get another copy from whoever released it, who may have to run it again."
"""The remedy for readers of a damaged release, who cannot run anything."""
DAMAGED = f"The release was damaged after it was published. {ANOTHER_COPY}"
NAMES = "feature"
"""Array of a release that names its features, as the dimension is called."""


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


def name_documents(names: Sequence[str]) -> dict[str, bytes]:
    """Key and content of the coordinate that names features, as xarray reads it; none of none."""
    memory = MemoryStore()
    if names:
        made = zarr.create_array(
            memory, name=NAMES, shape=(len(names),), dtype=str, dimension_names=["feature"]
        )
        made[:] = np.array(names, object)
    return read_all(memory, f"{NAMES}/")


def consolidate(documents: Mapping[str, bytes]) -> dict[str, Any]:
    """Descriptions of all arrays, so that readers of Zarr open them by the root document alone."""
    last = f"/{ROOT_DOCUMENT}"
    found = {key: one for key, one in sorted(documents.items()) if key.endswith(last)}
    return {key.removesuffix(last): json.loads(one) for key, one in found.items()}


def root_document(attributes: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> bytes:
    """Content of the root's ``zarr.json`` with the given ``privpipe`` attributes, sealed.

    The seal is a SHA-256 over all that is given: it notices damage, not forgery.
    """
    # NaN is no JSON: other readers of Zarr would refuse the document.
    plain = json.dumps(attributes, allow_nan=False)
    sealed = plain if arrays is None else plain + json.dumps(arrays)
    about = {**attributes, SEAL: hashlib.sha256(sealed.encode()).hexdigest()}
    document: dict[str, Any] = {"zarr_format": 3, "node_type": "group"}
    document["attributes"] = {"privpipe": about}
    if arrays is not None:
        inline = {"kind": "inline", "must_understand": False, "metadata": arrays}
        document["consolidated_metadata"] = inline
    return json.dumps(document, indent=1, allow_nan=False).encode()


def is_sealed(content: bytes) -> bool:
    """Whether every byte of a root document is as `root_document` wrote it."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        document = json.loads(content)
        attributes = dict(document["attributes"]["privpipe"])
        attributes.pop(SEAL)
        # Made anew and compared whole: every byte is covered, not the attributes alone.
        consolidated = document.get("consolidated_metadata", {}).get("metadata")
        return root_document(attributes, consolidated) == content
    return False


def digest_documents(documents: Mapping[str, bytes]) -> str:
    """SHA-256 over keys and contents, whatever their order."""
    sha = hashlib.sha256()
    for key in sorted(documents):
        # The length, too: no shift of bytes between two documents gives the same digest.
        sha.update(f"{key} {len(documents[key])}\n".encode())
        sha.update(documents[key])
    return sha.hexdigest()


FORMAT_VERSIONS = {"collection": (1,), "model": (1, 2, 3), "release": (1, 2, 3)}
"""Versions that are read, the one that is written last.

2: guarantees have delta, whom they protect, and parameters; maps may hold maps. 3, of models: they
know what they were fitted on by name, and their digest covers it. 3, of releases: they have the
names of their features as a coordinate, and all descriptions in their root document.
"""

PROMISED_BY = {
    "utility_bound": ("null_space", "null_space_targeted"),
    "exact_up_to_rounding": ("null_space", "null_space_targeted"),
    "linear_erasure": ("leace",),
    "information_bound": ("privacy_mapping",),
    "local_dp": ("noisy",),
    "central_dp": ("masking_private",),
}
"""Methods whose releases promise something of a kind; every method may promise "none".

By name, as a header has them: a release is opened without the methods and what they import.
"""


def read_header(url: str, expected: str) -> Header:
    """The ``privpipe`` attributes of a store of ours.

    Raises
    ------
    StoreError
        If there is nothing to read.
    FormatError
        If it is not of the expected kind or format version.
    """
    header, sealed = _read_attributes(url, expected)
    kind, version = str(header.get("format", "something else")), header.get("format_version")
    if kind != expected:
        remedy = "Check the path."
        if expected == "collection" and kind not in FORMAT_VERSIONS:
            remedy = "Ingest foreign Zarr with `privpipe ingest`."
        if kind == generation_log.FORMAT:
            kind = f"a growing {grows}" if (grows := generation_log.newest_kind(url)) else "growing"
            remedy = f"Name one of its partitions, a folder in {join(shown(url), 'partitions')}."
            if grows == "release":
                remedy = "Open it with privpipe.open_release, or export it to an .icechunk."
        raise FormatError(f"{shown(url)} is not a privpipe {expected} but {kind}.", remedy=remedy)
    # Before the seal: a newer privpipe may seal in another way, and is no damage.
    if version not in FORMAT_VERSIONS[expected]:
        read = " and ".join(map(str, FORMAT_VERSIONS[expected]))
        problem = f"{shown(url)} has format version {version!r}; this privpipe reads {read}."
        remedy = f"Use the privpipe that wrote it, or make the {expected} again."
        raise FormatError(problem, remedy=remedy, code="format-version")
    if not sealed:
        raise FormatError(
            f"The header of {shown(url)} is damaged: it differs from its own digest.",
            remedy=ANOTHER_COPY
            if expected == "release"
            else f"Restore the {expected}'s zarr.json, or make the {expected} again.",
            code="header-damaged",
        )
    return header


def read_kind(url: str) -> str | None:
    """What a store of ours is ("collection", "model", "release"), or None for another's."""
    kind = _read_attributes(url, "collection, model or release")[0].get("format")
    return None if kind is None else str(kind)


def _read_attributes(url: str, expected: str) -> tuple[Mapping[str, Any], bool]:
    """The attributes, and whether the document that holds them is as it was written."""
    try:
        content = read_bytes(open_store(url, read_only=True), ROOT_DOCUMENT)
        problem = "" if content else "there is none"
    except OSError as error:
        # A store that refuses is no place without a header.
        if (refused := explain_refusal(error)) is not None and refused.code != "not-found":
            raise refused from None
        content, problem = None, error.strerror or type(error).__name__
    if content is None:
        ingest = "; `privpipe ingest SOURCE DEST` makes a collection"
        problem = f"No {expected} can be read at {shown(url)} ({problem})."
        remedy = f"Check the path{ingest if 'collection' in expected else ''}."
        raise StoreError(problem, remedy=remedy, code="not-found")
    try:
        attributes: Mapping[str, Any] = json.loads(content)["attributes"]["privpipe"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}, False
    return attributes, is_sealed(content)


@contextmanager
def using_header(url: str, expected: str) -> Iterator[None]:
    """FormatError for a field of a header that is none such as ours: a text for a number, a zero.

    The header is sealed, by whoever wrote it: it says what it says, and may say anything.
    """
    try:
        yield
        return
    except errors.PrivpipeError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
        pass
    raise FormatError(
        f"The header of {shown(url)} is damaged: it is none that privpipe writes of a {expected}.",
        remedy=ANOTHER_COPY
        if expected == "release"
        else f"Get the {expected} again from where it came, or make it again.",
        code="header-damaged",
    )


def read_promise(header: Mapping[str, Any]) -> Guarantee:
    """What the header of a release promises; GuaranteeError where its method cannot promise it."""
    given = dict(header["guarantee"])
    said = Guarantee(**{**given, "parameters": tuple(map(tuple, given.get("parameters", ())))})
    # A seal can be forged; whoever reads a promise believes the method that gives it.
    if said.kind != "none" and header["method"] not in PROMISED_BY.get(said.kind, ()):
        raise GuaranteeError(
            f"A release of method {errors.printable(str(header['method']))!r} cannot promise "
            f"{errors.printable(said.kind)!r}.",
            remedy="Somebody changed it: get it again from where it came.",
            code="promise",
        )
    return said


def check_documents(
    url: str, names: tuple[str, ...], digest: str, *, released: bool = False
) -> Mapping[str, bytes]:
    """Documents of a store of ours; FormatError if they are not as they were written."""
    # By the names that the plan has: what else was put there is not looked at.
    documents = read_many(open_store(url, read_only=True), names)
    if digest_documents(documents) != digest:
        problem = f"The descriptions of the arrays in {shown(url)} are damaged."
        remedy = "Restore it from where it came, or make it again."
        raise FormatError(
            problem, remedy=ANOTHER_COPY if released else remedy, code="documents-damaged"
        )
    return documents


def companion_url(url: str, kind: str) -> str:
    """Where what belongs to a release goes: beside it.

    >>> companion_url("/data/release.zarr", "model.zarr")
    '/data/release.model.zarr'
    """
    return f"{url.rstrip('/').removesuffix('.zarr')}.{kind}"


def exists(url: str, last: str = ROOT_DOCUMENT) -> bool:
    """Whether there is a release, model or anything else at a place.

    In a bucket, where chunks may be there before the object that is written last, `last` decides.
    """
    path = local_path(url)
    return has_root(url, last) if path is None else os.path.lexists(path)


def has_root(url: str, last: str = ROOT_DOCUMENT) -> bool:
    """Whether there is a root document at a place: what is begun has none yet."""
    return read_bytes(open_store(url, read_only=True), last) is not None


def check_output_free(url: str, last: str = ROOT_DOCUMENT) -> None:
    """Raise StoreError if there is something where a release or model shall go; see `exists`.

    Or if the place is inside a local collection, model or release, to which it would belong.
    """
    if exists(url, last):
        raise already_exists(url)
    path = local_path(url)
    for above in map(str, () if path is None else PurePath(path).parents):
        # In one that grows each partition has a place; no other is within its arrays.
        if os.path.isfile(join(above, ROOT_DOCUMENT)) and read_kind(above) in FORMAT_VERSIONS:
            problem = f"{shown(url)} is inside {shown(above)}."
            raise StoreError(problem, remedy="Choose another place.", code="exists")


def already_exists(url: str) -> StoreError:
    """For a place where something is, and would have to be overwritten."""
    problem = f"{shown(url)} exists; nothing is ever overwritten."
    return StoreError(problem, remedy="Choose another place, or remove it.", code="exists")


def explain_tampering(problem: str) -> IncompleteReleaseError:
    """The error for a release that is not as it was published."""
    remedy = f"The release was changed after it was published. {ANOTHER_COPY}"
    return IncompleteReleaseError(problem, remedy=remedy, code="manifest")
