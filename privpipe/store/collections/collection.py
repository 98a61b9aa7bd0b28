"""Collections: records to read, chunk by chunk, as shards.

A collection is a Zarr group with ``features (record, feature)`` and named variables ``(record,)``.
All are cut along `record` into the same chunks. `ingest` makes one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from privpipe.described import described
from privpipe.errors import InputError
from privpipe.fitted_schema import FittedSchema, Matching, match_columns
from privpipe.numerics.finite import fill_gaps, find_finite_rows, keep_rows
from privpipe.protocols import AnyArray, BoolArray, FloatArray, IntArray, Shard, ShardSchema
from privpipe.records import schema as schemas
from privpipe.records.memory import ShardsInTurn, facts_of_shards
from privpipe.records.sampling import Part, PartCount, Split
from privpipe.store.access.location import Place, as_url, shown
from privpipe.store.arrays import sealed_arrays
from privpipe.store.arrays.blocks import Basis, read_block
from privpipe.store.arrays.layout import FEATURES, read_header, using_header

_ROLES = ("desired", "confidential", "attributes", "groups")


def _facts(collection: "Collection") -> dict[str, str]:
    """Where it is and what it holds; names of categories are withheld."""
    whole = collection.schema_of_records
    variables = ", ".join(
        f"{v.name} ({len(v.categories)} categories)" if v.categories else f"{v.name} (numeric)"
        for v in whole.variables
    )
    return {
        "place": shown(collection.url),
        **facts_of_shards(collection),
        "variables": variables or "none",
        "chunks": f"{collection.plan.n_chunks:,} of {whole.chunk_rows:,} records, {whole.dtype}",
        "digest": collection.digest[:16],
    }


@described(_facts)
@dataclass(frozen=True)
class Collection(ShardsInTurn):
    """A collection opened for training, cleaning or audit; small and picklable.

    It is `Shards` itself, one chunk at a time in this process; `privpipe.cluster` reads its chunks
    on workers.

    Parameters
    ----------
    url
        Where it is.
    schema_of_records
        All that it holds.
    digest
        SHA-256 over schema and checksums of the stored chunks, from its header.
    sealed
        Its arrays, with what their descriptions and chunks must be: every read is checked.
    desired, confidential, attributes
        Variables to read in each role.
    groups
        Variable that says whose records belong together, if one is named.
    weights
        Numeric variable that says how often a record counts in a fit; all count once without.
    public
        Whether its records are said to be public.
    reads_features
        Whether shards hold the features.
    split, part
        Which records to keep; all when `split` is None.
    indicators
        Shards hold, instead of the features, one indicator per category of the attributes;
        so a release of attributes is judged like one of features.
    only_finite
        Leave out records with features that are not finite, or fill them in.
    fill
        With `only_finite`, of each feature what replaces values that are not finite; None leaves
        their records out.
    released_url, released_run
        Release being written whose features become the shards' `released`, for audits.
    released_basis
        Its basis, when it is factored.
    matching
        How its columns and codes are read as those of another table, by name; see `matched`.
    only
        First record that shards keep, and the one behind the last; None for all.
    """

    url: str
    schema_of_records: schemas.CollectionSchema
    digest: str
    sealed: sealed_arrays.SealedArrays
    desired: tuple[str, ...] = ()
    confidential: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    weights: str | None = None
    public: bool = False
    reads_features: bool = True
    split: Split | None = None
    part: Part = "all"
    indicators: bool = False
    only_finite: bool = False
    fill: tuple[float, ...] | None = None
    released_url: str | None = None
    released_run: str = ""
    released_basis: Basis | None = None
    matching: Matching | None = None
    only: tuple[int, int] | None = None

    @property
    def n_records(self) -> int:
        """All records of the collection, whatever the split keeps."""
        return self.schema_of_records.n_records

    @property
    def schema(self) -> ShardSchema:
        whole = self.schema_of_records
        roles: dict[str, Any] = {
            role: tuple(whole.variable(name).column for name in getattr(self, role))
            for role in _ROLES
        }
        n_features, names = whole.n_features, whole.feature_names
        if self.indicators:
            names = schemas.name_indicators(roles["attributes"])
            n_features = len(names)
        return ShardSchema(
            n_features,
            feature_names=names,
            weighted=self.weights is not None,
            public=self.public,
            n_records=self.n_records,
            **roles,
        )

    @property
    def plan(self) -> schemas.ChunkPlan:
        return schemas.ChunkPlan(self.n_records, self.schema_of_records.chunk_rows)

    def tasks(self) -> list[range]:
        """Chunks of each task, of those that hold `only` records."""
        first, behind = self.only or (0, self.n_records)
        least, most = first // self.plan.chunk_rows, -(-behind // self.plan.chunk_rows)
        cut = (range(max(t.start, least), min(t.stop, most)) for t in self.plan.tasks())
        return [task for task in cut if task]

    def keeping(self, split: Split | None, part: Part) -> "Collection":
        """The same collection with only the records of one part of a split."""
        return replace(self, split=split, part=part)

    def labelled(self, names: tuple[str, ...]) -> "Collection":
        """Some variables as confidential ones, and nothing else: no record is left out for them."""
        roles: dict[str, Any] = {**dict.fromkeys(_ROLES, ()), "confidential": names}
        bare = replace(self, weights=None, only_finite=False, reads_features=False)
        return replace(bare, **roles, indicators=False, released_url=None, released_basis=None)

    def matched(self, fitted: FittedSchema) -> "Collection":
        """The same collection in the order and numbering of what a map was fitted on.

        Features, attributes, labels and included variables are found by name. Of its schema the
        tables of these variables become the fitted ones, so that what is released is named as the
        map numbers it.

        Raises
        ------
        InputError
            See `match_columns`.
        """
        here = self.schema_of_records
        columns = [one.column for one in here.variables]
        matching = match_columns(fitted, here.n_features, here.feature_names, columns)
        schema = here.renumbered(fitted, matching)
        known = None if matching.is_identity else matching
        assert known is None or self.matching is None, "a collection is matched once"
        return replace(self, schema_of_records=schema, matching=known or self.matching)

    @property
    def unknown_categories(self) -> Mapping[str, int]:
        """By attribute, how many of its categories what it is matched to does not name."""
        return {} if self.matching is None else self.matching.unknown

    def shard(self, chunk: int) -> Shard:
        """Read one chunk, without the records that the split leaves out.

        Where groups are named, its edges are moved on to where the next group begins.
        """
        start, stop = self._rows(chunk)
        # From split and numbers alone, so that every pass keeps the same records.
        keep = self._keep(start, stop)
        features = self._features(partial(self.read, start=start, stop=stop), stop - start)
        features, finite = self.complete(features)
        keep &= finite
        released: FloatArray = np.empty((stop - start, 0))
        if self.released_url is not None:
            release = partial(read_block, self.released_url, version=self.released_run)
            released = self._features(partial(release, start=start, stop=stop), stop - start)
        if self.released_basis is not None:
            released = self.released_basis.reconstruct(released)
        return Shard(
            keep_rows(features, keep),
            keep_rows(self._values(self.desired, start, stop), keep),
            keep_rows(self._values(self.confidential, start, stop), keep),
            keep_rows(self.codes(start, stop), keep),
            keep_rows(released, keep),
            # Draws go by record numbers, which a shard with gaps does not have: below 0.
            first_record=start if keep.all() else ~start,
            weights=self._weights(start, stop)[keep] if self.weights else np.empty(0),
            groups=self._groups(start, stop)[keep] if self.groups else np.empty(0, np.int64),
        )

    def complete(self, features: AnyArray) -> tuple[AnyArray, BoolArray]:
        """Features as they are read, (n, n_features), and which of these records are retained."""
        if not self.only_finite:
            return features, np.ones(len(features), bool)
        if self.fill is None:
            return features, find_finite_rows(features)
        return fill_gaps(features, self.fill), np.ones(len(features), bool)

    def rows(self, chunk: int) -> IntArray:
        """Numbers of the records that the split keeps of a chunk, in the order of its shard.

        Not for `only_finite`, which needs the features to know.
        """
        assert not self.only_finite, "numbers of finite records are not known without features"
        start, stop = self._rows(chunk)
        return np.arange(start, stop)[self._keep(start, stop)]

    def _rows(self, chunk: int) -> tuple[int, int]:
        start, stop = self.plan.rows(chunk)
        # A group that crosses an edge belongs to the chunk in which it begins.
        return (self._find_group(start), self._find_group(stop)) if self.groups else (start, stop)

    def _find_group(self, row: int) -> int:
        """First row from this one on at which a group begins; as many rows are read as it takes."""
        if row in (0, self.n_records):
            return row
        last = self._groups(row - 1, row)
        while row < self.n_records:
            end = min(row + self.schema_of_records.chunk_rows, self.n_records)
            others = np.flatnonzero(self._groups(row, end) != last)
            if len(others):
                return row + int(others[0])
            row = end
        return row

    def shards(self) -> Iterator[Shard]:
        """Read the chunks in order."""
        return map(self.shard, range(self.plan.n_chunks))

    def count_parts(self, split: Split, parts: Sequence[Part]) -> list[PartCount]:
        """Records and groups of some parts of a split, in one pass over what decides them."""
        counts = [0] * len(parts)
        groups = [np.empty(0, np.int64) for _ in parts]
        splitting = self.keeping(split, "all")
        for start, stop in map(self.plan.rows, range(self.plan.n_chunks)):
            identities = splitting._identities(start, stop)
            for i, part in enumerate(parts):
                mine = identities[split.keep(part, identities)]
                counts[i] += len(mine)
                if split.group is not None:
                    groups[i] = np.union1d(groups[i], mine)
        sizes = [None if split.group is None else len(found) for found in groups]
        return list(map(PartCount, counts, sizes))

    def read(self, name: str, start: int, stop: int) -> AnyArray:
        """Rows of one array, in its stored dtype; features of none are not stored.

        Of a matched collection, features in the fitted order and codes in the fitted numbering.
        """
        if name == FEATURES and self.schema_of_records.n_features == 0:
            return np.empty((stop - start, 0), self.schema_of_records.dtype)
        values = self.read_stored((name,), start, stop)[name]
        if self.matching is None:
            return values
        if name == FEATURES:
            return self.matching.arrange(values)
        # Codes of other tables may need another dtype.
        dtype = self.schema_of_records.variable(name).dtype
        return self.matching.translate(name, values).astype(dtype, copy=False)

    def read_stored(self, names: Sequence[str], start: int, stop: int) -> dict[str, AnyArray]:
        """Rows of some arrays as they are stored, whatever the collection is matched to."""
        if len(names) == 1:
            return {names[0]: sealed_arrays.read_sealed(self.sealed, names[0], start, stop)}
        return sealed_arrays.read_columns(self.sealed, names, start, stop)

    def _keep(self, start: int, stop: int) -> BoolArray:
        first, behind = self.only or (start, stop)
        within = (np.arange(start, stop) >= first) & (np.arange(start, stop) < behind)
        if self.split is None or self.part == "all":
            return within
        return within & self.split.keep(self.part, self._identities(start, stop))

    def _identities(self, start: int, stop: int) -> IntArray:
        """What decides the side of each record: its number, or the value of its group."""
        if self.split is None or self.split.group is None:
            return np.arange(start, stop)
        return self._whole_numbers(self.split.group, start, stop)

    def _groups(self, start: int, stop: int) -> IntArray:
        return self._whole_numbers(self.groups[0], start, stop)

    def _whole_numbers(self, name: str, start: int, stop: int) -> IntArray:
        """Values of a variable as integers, equal where they are."""
        values = self.read(name, start, stop)
        if np.issubdtype(values.dtype, np.floating):
            # Bits, not values: 0.25 and 0.75 are different groups.
            values = values.astype(np.float64).view(np.int64)
        return values.astype(np.int64)

    def _values(self, names: Sequence[str], start: int, stop: int) -> FloatArray:
        table = np.empty((stop - start, len(names)))
        for j, name in enumerate(names):
            table[:, j] = self.read(name, start, stop)
            if self.schema_of_records.variable(name).categories is not None:
                # A missing code becomes what a missing number is.
                table[table[:, j] <= schemas.MISSING, j] = np.nan
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
        return self._tabulate(partial(self.read, start=start, stop=stop), stop - start)

    def _tabulate(self, read: Callable[[str], AnyArray], n_records: int) -> IntArray:
        return np.column_stack([np.empty((n_records, 0), np.int64), *map(read, self.attributes)])

    def _features(self, read: Callable[[str], AnyArray], n: int) -> FloatArray:
        """Features, or indicators of the attributes, of what an array is read from by name."""
        if self.indicators:
            return schemas.expand_indicators(self._tabulate(read, n), self.schema.attributes)
        if not self.reads_features or not self.schema_of_records.n_features:
            return np.empty((n, 0))
        return read(FEATURES)


def open_collection(
    url: Place,
    *,
    desired: str | Sequence[str] = (),
    confidential: str | Sequence[str] = (),
    attributes: str | Sequence[str] = (),
    groups: str | Sequence[str] = (),
    weights: str | None = None,
    public: bool = False,
) -> Collection:
    """Open a collection and check that it is whole.

    Parameters
    ----------
    url
        Local path or URL of the Zarr group.
    desired, confidential, attributes
        Variables of each role.
    groups
        Variable that says whose records belong together, for adversaries who know that.
    weights
        Numeric variable that says how often each record counts in a fit.
    public
        Whether the records are public: what is learned from them is outside every promise.

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
    with using_header(url, "collection"):
        collection = _describe(url, header)
        sealed_arrays.check_chunks(collection.sealed)
    named = zip(_ROLES, (desired, confidential, attributes, groups), strict=True)
    return in_roles(collection, weights, public=public, **dict(named))


def in_roles(
    collection: Collection, weights: str | None = None, *, public: bool = False, **roles: Any
) -> Collection:
    """The same collection with variables in roles; see `open_collection`."""
    named: dict[str, Any] = {role: schemas.as_names(names) for role, names in roles.items()}
    collection = replace(collection, weights=weights, public=public, **named)
    _ = collection.schema  # names are checked here
    about = None if weights is None else collection.schema_of_records.variable(weights)
    if about is not None and about.categories is not None:
        problem = f"The weights {weights!r} are a categorical variable."
        remedy = "Name a numeric variable: how often each record counts."
        raise InputError(problem, remedy=remedy, code="weights")
    return collection


def _describe(url: str, header: Mapping[str, Any]) -> Collection:
    """A collection in no role, from its header."""
    schema = TypeAdapter(schemas.CollectionSchema).validate_python(header["schema"])
    digest = str(header["digest"])
    if not schema.partitions:  # of an older collection: all of it is one
        schema = replace(schema, partitions=(schemas.Partition("", 0, schema.n_records, digest),))
    return Collection(url, schema, digest, sealed_arrays.seal_collection(url, schema, header))
