"""Collections: records to read, chunk by chunk, as shards.

A collection is a Zarr group with ``features (record, feature)`` and named variables
``(record,)``, all cut along `record` into the same chunks; `privpipe.store.ingest` makes one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce as fold
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from privpipe.errors import FormatError, StoreError
from privpipe.protocols import FloatArray, IntArray, Oracle, Shard, ShardSchema, Statistics, Sums
from privpipe.records.chunks import ChunkPlan
from privpipe.records.memory import add_sums
from privpipe.records.schema import MISSING, CollectionSchema
from privpipe.records.splits import Part, Split
from privpipe.store.blocks import read_block
from privpipe.store.layout import FEATURES, ROOT_DOCUMENT
from privpipe.store.location import list_keys, open_store, read_bytes, shown

__all__ = ["FORMAT_VERSION", "Collection", "open_collection", "read_header"]

FORMAT_VERSION = 1

S = TypeVar("S", bound=Statistics)


@dataclass(frozen=True)
class Collection:
    """A collection opened for training, cleaning or audit; small and picklable.

    It answers the questions of `Shards` itself, one chunk at a time in this process;
    `privpipe.dist` asks them on workers.

    Parameters
    ----------
    url
        Where it is.
    schema_of_records
        All that it holds.
    digest
        SHA-256 over schema and checksums of the stored chunks, from its header.
    desired, confidential, attributes
        Variables to read in each role.
    reads_features
        Whether shards hold the features.
    split, part
        Which records to keep; all when `split` is None.
    """

    url: str
    schema_of_records: CollectionSchema
    digest: str
    desired: tuple[str, ...] = ()
    confidential: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    reads_features: bool = True
    split: Split | None = None
    part: Part = "all"

    @property
    def n_records(self) -> int:
        """All records of the collection, whatever the split keeps."""
        return self.schema_of_records.n_records

    @property
    def schema(self) -> ShardSchema:
        return self.schema_of_records.for_roles(self.desired, self.confidential, self.attributes)

    @property
    def plan(self) -> ChunkPlan:
        return ChunkPlan(self.n_records, self.schema_of_records.chunk_rows)

    def keeping(self, split: Split | None, part: Part) -> Collection:
        """The same collection with only the records of one part of a split."""
        return replace(self, split=split, part=part)

    def shard(self, chunk: int) -> Shard:
        """Read one chunk, without the records that the split leaves out."""
        start, stop = self.plan.rows(chunk)
        keep = self._keep(start, stop)
        whole = keep.all()
        features = (
            self.read(FEATURES, start, stop) if self.reads_features else np.empty((stop - start, 0))
        )
        return Shard(
            features if whole else features[keep],
            self._values(self.desired, start, stop)[keep],
            self._values(self.confidential, start, stop)[keep],
            self._codes(self.attributes, start, stop)[keep],
            first_record=start if whole else -1,
        )

    def shards(self) -> Iterator[Shard]:
        """Read the chunks in order."""
        return map(self.shard, range(self.plan.n_chunks))

    def reduce(self, summarise: Callable[[Shard], S]) -> S:
        """Summarise every shard and merge the summaries; see `Shards.reduce`."""
        return fold(lambda left, right: left.merge(right), map(summarise, self.shards()))

    def oracle(self, function: Callable[..., Sums], **resident: Any) -> Oracle[Any, Sums]:
        """Sum ``function(shard, parameters, **resident)`` over the chunks at each call."""

        def ask(parameters: Any, /) -> Sums:
            return add_sums([function(shard, parameters, **resident) for shard in self.shards()])

        return ask

    def read(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows of one array, in its stored dtype."""
        return read_block(self.url, name, start, stop, self.digest)

    def _keep(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        if self.split is None or self.part == "all":
            return np.ones(stop - start, bool)
        if self.split.group is None:
            return self.split.keep(self.part, np.arange(start, stop))
        values = self.read(self.split.group, start, stop)
        if np.issubdtype(values.dtype, np.floating):
            values = values.astype(np.float64).view(np.int64)
        return self.split.keep(self.part, values.astype(np.int64))

    def _values(self, names: Sequence[str], start: int, stop: int) -> FloatArray:
        table = np.empty((stop - start, len(names)))
        for j, name in enumerate(names):
            table[:, j] = self.read(name, start, stop)
            if self.schema_of_records.variable(name).categories is not None:
                table[table[:, j] == MISSING, j] = np.nan
        return table

    def _codes(self, names: Sequence[str], start: int, stop: int) -> IntArray:
        table = np.empty((stop - start, len(names)), np.int64)
        for j, name in enumerate(names):
            table[:, j] = self.read(name, start, stop)
        return table


def open_collection(
    url: str,
    *,
    desired: Sequence[str] = (),
    confidential: Sequence[str] = (),
    attributes: Sequence[str] = (),
) -> Collection:
    """Open a collection and check that it is whole.

    Parameters
    ----------
    url
        Local path or URL of the Zarr group.
    desired, confidential, attributes
        Variables wanted in each role.

    Returns
    -------
    Collection

    Raises
    ------
    FormatError
        If it is not a collection, or of a format this version does not read.
    StoreError
        If it cannot be reached, or chunks are missing.
    InputError
        If a variable does not exist (the message names the closest one).
    """
    header = read_header(url, "collection")
    try:
        schema = TypeAdapter(CollectionSchema).validate_python(header["schema"])
        digest = str(header["digest"])
    except (KeyError, ValidationError):
        raise FormatError(
            f"The header of {shown(url)} is damaged.", remedy="Ingest the collection again."
        ) from None
    collection = Collection(
        url, schema, digest, tuple(desired), tuple(confidential), tuple(attributes)
    )
    _ = collection.schema  # names are checked here
    _check_chunks(collection)
    return collection


def read_header(url: str, expected: str) -> Mapping[str, Any]:
    """The ``privpipe`` attributes of a store of ours.

    Raises
    ------
    StoreError
        If there is nothing to read.
    FormatError
        If it is not of the expected kind or format version.
    """
    try:
        content = read_bytes(open_store(url, read_only=True), ROOT_DOCUMENT)
    except OSError as error:
        raise StoreError(
            f"{shown(url)} cannot be read ({error.strerror or type(error).__name__}).",
            remedy="Check the path and your rights to it.",
        ) from None
    if content is None:
        raise StoreError(
            f"There is no {expected} at {shown(url)}.",
            remedy="Check the path"
            + (
                "; `privpipe ingest SOURCE DEST` makes a collection."
                if expected == "collection"
                else "."
            ),
            code="not-found",
        )
    try:
        header = json.loads(content)["attributes"]["privpipe"]
        kind, version = str(header["format"]), int(header["format_version"])
    except (ValueError, KeyError, TypeError):
        kind, version = "something else", FORMAT_VERSION
    if kind != expected:
        raise FormatError(
            f"{shown(url)} is not a privpipe {expected} but {kind}.",
            remedy="Ingest foreign Zarr with `privpipe ingest`."
            if expected == "collection"
            else "Check the path.",
        )
    if version != FORMAT_VERSION:
        raise FormatError(
            f"{shown(url)} has format version {version}; this privpipe reads {FORMAT_VERSION}.",
            remedy="Use the privpipe that wrote it, or ingest again.",
        )
    found: Mapping[str, Any] = header
    return found


def _check_chunks(collection: Collection) -> None:
    """A missing chunk would read as fill values without an error."""
    store = open_store(collection.url, read_only=True)
    names = [FEATURES, *(variable.name for variable in collection.schema_of_records.variables)]
    for name in names:
        found = len(list_keys(store, f"{name}/c/"))
        if found != collection.plan.n_chunks:
            raise StoreError(
                f"{shown(collection.url)} has {found} of {collection.plan.n_chunks} chunks of "
                f"{name!r}.",
                remedy="Restore the missing chunks, or ingest the collection again.",
                code="missing-chunks",
            )
