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

from privpipe.errors import FormatError, InputError, StoreError
from privpipe.numerics.finite import find_finite_rows, keep_rows
from privpipe.protocols import FloatArray, IntArray, Oracle, Shard, ShardSchema, Statistics, Sums
from privpipe.records.chunks import ChunkPlan
from privpipe.records.indicators import expand_indicators, name_indicators
from privpipe.records.memory import add_sums
from privpipe.records.schema import MISSING, CollectionSchema, as_names
from privpipe.records.splits import Part, Split
from privpipe.store.basis import Basis
from privpipe.store.blocks import read_block
from privpipe.store.layout import FEATURES, ROOT_DOCUMENT, digest_documents, is_sealed
from privpipe.store.location import Place, as_url, list_keys, open_store, read_bytes, shown

__all__ = [
    "FORMAT_VERSION",
    "Collection",
    "PartCount",
    "check_documents",
    "open_collection",
    "read_header",
    "read_kind",
]

FORMAT_VERSION = 1

S = TypeVar("S", bound=Statistics)


@dataclass(frozen=True)
class PartCount:
    """How many records a part of a split has, and of how many groups (None if not grouped)."""

    n_records: int
    n_groups: int | None


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
    weights
        Numeric variable that says how often a record counts in a fit; all count once without.
    reads_features
        Whether shards hold the features.
    split, part
        Which records to keep; all when `split` is None.
    indicators
        Shards hold, instead of the features, one indicator per category of the attributes;
        so a release of attributes is judged like one of features.
    only_finite
        Leave out records with features that are not finite.
    released_url, released_run
        Release being written whose features become the shards' `released`, for audits.
    released_basis
        Its basis, when it is factored.
    """

    url: str
    schema_of_records: CollectionSchema
    digest: str
    desired: tuple[str, ...] = ()
    confidential: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    weights: str | None = None
    reads_features: bool = True
    split: Split | None = None
    part: Part = "all"
    indicators: bool = False
    only_finite: bool = False
    released_url: str | None = None
    released_run: str = ""
    released_basis: Basis | None = None

    @property
    def n_records(self) -> int:
        """All records of the collection, whatever the split keeps."""
        return self.schema_of_records.n_records

    @property
    def schema(self) -> ShardSchema:
        found = self.schema_of_records.for_roles(self.desired, self.confidential, self.attributes)
        found = replace(found, weighted=self.weights is not None)
        if not self.indicators:
            return found
        names = name_indicators(found.attributes)
        return replace(found, n_features=len(names), feature_names=names)

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
        features = self._features(self.url, self.digest, start, stop)
        if self.only_finite:
            keep &= find_finite_rows(features)
        whole = keep.all()
        released = (
            np.empty((stop - start, 0))
            if self.released_url is None
            else self._features(self.released_url, self.released_run, start, stop)
        )
        if self.released_basis is not None:
            released = self.released_basis.reconstruct(released)
        return Shard(
            keep_rows(features, keep),
            keep_rows(self._values(self.desired, start, stop), keep),
            keep_rows(self._values(self.confidential, start, stop), keep),
            keep_rows(self.codes(start, stop), keep),
            keep_rows(released, keep),
            first_record=start if whole else -1,
            weights=self._weights(start, stop)[keep] if self.weights else np.empty(0),
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

    def count_parts(self, split: Split, parts: Sequence[Part]) -> list[PartCount]:
        """Records and groups of some parts of a split, in one pass over what decides them."""
        kept = [0] * len(parts)
        groups = [np.empty(0, np.int64) for _ in parts]
        splitting = self.keeping(split, "all")
        for chunk in range(self.plan.n_chunks):
            start, stop = self.plan.rows(chunk)
            identities = splitting._identities(start, stop)
            for i, part in enumerate(parts):
                mine = identities[split.keep(part, identities)]
                kept[i] += len(mine)
                if split.group is not None:
                    groups[i] = np.union1d(groups[i], mine)
        grouped = split.group is not None
        return [
            PartCount(n, len(found) if grouped else None)
            for n, found in zip(kept, groups, strict=True)
        ]

    def read(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows of one array, in its stored dtype; features of none are not stored."""
        if name == FEATURES and self.schema_of_records.n_features == 0:
            return np.empty((stop - start, 0), self.schema_of_records.dtype)
        return read_block(self.url, name, start, stop, self.digest)

    def _keep(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        if self.split is None or self.part == "all":
            return np.ones(stop - start, bool)
        return self.split.keep(self.part, self._identities(start, stop))

    def _identities(self, start: int, stop: int) -> IntArray:
        """What decides the side of each record: its number, or the value of its group."""
        if self.split is None or self.split.group is None:
            return np.arange(start, stop)
        values = self.read(self.split.group, start, stop)
        if np.issubdtype(values.dtype, np.floating):
            values = values.astype(np.float64).view(np.int64)
        return values.astype(np.int64)

    def _values(self, names: Sequence[str], start: int, stop: int) -> FloatArray:
        table = np.empty((stop - start, len(names)))
        for j, name in enumerate(names):
            table[:, j] = self.read(name, start, stop)
            if self.schema_of_records.variable(name).categories is not None:
                table[table[:, j] == MISSING, j] = np.nan
        return table

    def _weights(self, start: int, stop: int) -> FloatArray:
        assert self.weights is not None, "only called where there are some"
        weights = self.read(self.weights, start, stop).astype(np.float64)
        bad = int(np.count_nonzero(~(np.isfinite(weights) & (weights >= 0))))
        if bad:
            raise InputError(
                f"{bad} of {stop - start} records from record {start} on have a weight in "
                f"{self.weights!r} that is negative, missing or not finite.",
                remedy="Give every training record a finite weight of at least 0; 0 leaves it out.",
                code="weights",
            )
        return weights

    def codes(self, start: int, stop: int) -> IntArray:
        """Codes of the attributes, (n_records, n_attributes)."""
        return self._codes(self.url, self.digest, start, stop)

    def _codes(self, url: str, version: str, start: int, stop: int) -> IntArray:
        table = np.empty((stop - start, len(self.attributes)), np.int64)
        for j, name in enumerate(self.attributes):
            table[:, j] = read_block(url, name, start, stop, version)
        return table

    def _features(self, url: str, version: str, start: int, stop: int) -> FloatArray:
        """Features of this collection or of its release, or indicators of the attributes."""
        if self.indicators:
            codes = self._codes(url, version, start, stop)
            return expand_indicators(codes, self.schema.attributes)
        if not self.reads_features or not self.schema_of_records.n_features:
            return np.empty((stop - start, 0))
        return read_block(url, FEATURES, start, stop, version)


def open_collection(
    url: Place,
    *,
    desired: str | Sequence[str] = (),
    confidential: str | Sequence[str] = (),
    attributes: str | Sequence[str] = (),
    weights: str | None = None,
) -> Collection:
    """Open a collection and check that it is whole.

    Parameters
    ----------
    url
        Local path or URL of the Zarr group.
    desired, confidential, attributes
        Variables wanted in each role.
    weights
        Numeric variable that says how often each record counts in a fit.

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
        If a variable does not exist (the message names the closest one), or `weights` is
        categorical.
    """
    url = as_url(url)
    header = read_header(url, "collection")
    try:
        schema = TypeAdapter(CollectionSchema).validate_python(header["schema"])
        digest = str(header["digest"])
    except (KeyError, ValidationError):
        raise FormatError(
            f"The header of {shown(url)} is damaged.", remedy="Ingest the collection again."
        ) from None
    collection = Collection(
        url,
        schema,
        digest,
        as_names(desired),
        as_names(confidential),
        as_names(attributes),
        weights,
    )
    _ = collection.schema  # names are checked here
    if weights is not None and schema.variable(weights).categories is not None:
        raise InputError(
            f"The weights {weights!r} are a categorical variable.",
            remedy="Name a numeric variable: how often each record counts.",
            code="weights",
        )
    _check_chunks(collection, str(header.get("documents_sha256")))
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
    header, sealed = _read_attributes(url, expected)
    kind, version = str(header.get("format", "something else")), header.get("format_version")
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
    if not sealed:
        raise FormatError(
            f"The header of {shown(url)} is damaged: it differs from its own digest.",
            remedy=f"Restore the {expected}'s zarr.json, or make the {expected} again.",
            code="header-damaged",
        )
    return header


def check_documents(url: str, names: Sequence[str], digest: str) -> None:
    """Raise FormatError if documents of a store of ours are not as they were written."""
    store = open_store(url, read_only=True)
    documents = {name: read_bytes(store, name) or b"" for name in names}
    if digest_documents(documents) != digest:
        raise FormatError(
            f"The descriptions of the arrays in {shown(url)} are damaged.",
            remedy="Restore it from where it came, or make it again.",
            code="documents-damaged",
        )


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
        content, problem = None, error.strerror or type(error).__name__
    if content is None:
        ingest = "; `privpipe ingest SOURCE DEST` makes a collection"
        raise StoreError(
            f"No {expected} can be read at {shown(url)} ({problem}).",
            remedy=f"Check the path{ingest if 'collection' in expected else ''}.",
            code="not-found",
        )
    try:
        attributes: Mapping[str, Any] = json.loads(content)["attributes"]["privpipe"]
    except (ValueError, KeyError, TypeError):
        return {}, False
    return attributes, is_sealed(content)


def _check_chunks(collection: Collection, documents_sha256: str) -> None:
    """A missing chunk would read as fill values without an error."""
    store = open_store(collection.url, read_only=True)
    schema = collection.schema_of_records
    names = [variable.name for variable in schema.variables]
    names += [FEATURES] if schema.n_features else []
    check_documents(collection.url, [f"{name}/{ROOT_DOCUMENT}" for name in names], documents_sha256)
    for name in names:
        found = len(list_keys(store, f"{name}/c/"))
        if found != collection.plan.n_chunks:
            raise StoreError(
                f"{shown(collection.url)} has {found} of {collection.plan.n_chunks} chunks of "
                f"{name!r}.",
                remedy="Restore the missing chunks, or ingest the collection again.",
                code="missing-chunks",
            )
