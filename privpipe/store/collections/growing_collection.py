"""Collections that grow: partitions, each a collection of its own, named by generations.

A partition has chunks of its own, so that what comes later moves no record of what is there. All
have the schema of the first: the same features, variables and category tables.
"""

import hashlib
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from privpipe.errors import FormatError, OptionError, PrivpipeError, StoreError
from privpipe.protocols import AnyArray
from privpipe.records.schema import CollectionSchema
from privpipe.store.access import generation_log, objects, workspace
from privpipe.store.access.location import Place, as_url, join, local_path, shown
from privpipe.store.access.workspace import hold_workspace, remove_workspace
from privpipe.store.arrays.destination import check_idle
from privpipe.store.arrays.layout import exists, read_header, read_kind
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.collections.ingest import USUAL, IngestOptions, ingest
from privpipe.store.collections.writing import read_statistics


@dataclass(frozen=True)
class GrownCollection(Collection):
    """The partitions of a generation, in the order in which they came; see `Collection`.

    Parameters
    ----------
    parts
        Each as a collection of its own.
    """

    parts: tuple[Collection, ...] = ()

    def read_stored(self, names: Sequence[str], start: int, stop: int) -> dict[str, AnyArray]:
        """Rows of some arrays, across partitions."""
        # The dtypes, where no row is read.
        found, first = [self.parts[0].read_stored(names, 0, 0)], 0
        for part in self.parts:
            low, high = max(start - first, 0), min(stop - first, part.n_records)
            if low < high:
                found.append(part.read_stored(names, low, high))
            first += part.n_records
        return {name: np.concatenate([one[name] for one in found]) for name in names}


def open_whole_collection(url: Place, **roles: Any) -> Collection:
    """Open a collection made in one piece, or all partitions of one that grows.

    Parameters, errors: as `open_collection`.
    """
    url = as_url(url)
    if not generation_log.is_generational(url):
        return open_collection(url, **roles)
    parts = tuple(open_collection(one.url(url), **roles) for one in read_partitions(url))
    if not parts or any(part.sealed.proof is None for part in parts):
        remedy = "Append its sources to a new place: privpipe append SOURCE COLLECTION."
        raise FormatError(f"{shown(url)} has no partition, or one without receipts.", remedy=remedy)
    firsts = accumulate((part.n_records for part in parts), initial=0)
    schema = replace(
        parts[0].schema_of_records,
        n_records=sum(part.n_records for part in parts),
        partitions=tuple(
            replace(one, name=f"{number}/{one.name}", first_record=first + one.first_record)
            for number, (part, first) in enumerate(zip(parts, firsts, strict=False))
            for one in part.schema_of_records.partitions
        ),
    )
    # In the order in which they came, as records are numbered.
    digest = hashlib.sha256("".join(part.digest for part in parts).encode()).hexdigest()
    about = {"url": url, "schema_of_records": schema, "digest": digest, "parts": parts}
    return GrownCollection(**{**vars(parts[0]), **about})


@dataclass(frozen=True)
class StoredPartition:
    """A partition of a growing collection.

    Parameters
    ----------
    name
        Unique among the partitions that hold now; never published.
    place
        Its collection, below the growing one.
    content
        SHA-256 over the records, whatever their chunks.
    n_records
    time
        Logical time, ISO 8601 in UTC.
    origin
        Place of what it was before records of it were erased; empty where none were.
    """

    name: str
    place: str
    content: str
    n_records: int
    time: str
    origin: str = ""

    @property
    def known_by(self) -> tuple[str, str]:
        """Withdrawn is what has either: its records, or those that it had before an erasure."""
        return self.content, self.origin or self.place

    def url(self, collection: str) -> str:
        """Where its collection is; StoreError or FormatError where that is elsewhere."""
        return objects.join_inside(collection, *self.place.split("/"))


def read_partitions(url: str) -> tuple[StoredPartition, ...]:
    """The partitions that hold now, in the order in which they came.

    Raises
    ------
    OptionError
        If the collection was made in one piece, by `ingest`.
    StoreError
        If there is none.
    """
    newest = generation_log.read_newest(url, "collection")
    if newest is not None:
        return _partitions(newest)
    if exists(url) and read_kind(url) == "collection":
        raise _whole(url)
    problem = f"There is no growing collection at {shown(url)}."
    remedy = "`privpipe append SOURCE COLLECTION` makes one."
    raise StoreError(problem, remedy=remedy, code="not-found")


def count_gaps(url: str) -> tuple[int, int]:
    """Records and cells of the features that are not finite, of a collection that may grow.

    Raises
    ------
    StoreError, FormatError
        If there is no collection.
    """
    grows = exists(url) and read_kind(url) != "collection"
    places = [one.url(url) for one in read_partitions(url)] if grows else [url]
    found = [read_statistics(place) for place in places]
    return sum(one.records_not_finite for one in found), sum(one.cells_not_finite for one in found)


def read_uses(url: str) -> dict[str, str]:
    """By role, the variable that the schema of a collection's table gives it; none without one.

    Of one that grows, what the table of its first partition says: all have its schema.
    """
    with suppress(PrivpipeError):
        grows = generation_log.is_generational(url)
        for place in [one.url(url) for one in read_partitions(url)][:1] if grows else [url]:
            columns = read_header(place, "collection").get("table", {}).get("column", {})
            return {plan["use"]: name for name, plan in columns.items()}
    return {}


def append_partition(
    source: str,
    url: str,
    name: str,
    time: str,
    options: IngestOptions = USUAL,
    *,
    replacing: bool = False,
) -> tuple[StoredPartition, bool]:
    """Add a partition to a growing collection, making the collection when there is none.

    Parameters
    ----------
    source
        As `ingest` takes it.
    url
        The growing collection.
    name
        Of the partition.
    time
        Its logical time, ISO 8601 in UTC.
    options
        See `IngestOptions`; dtype and chunks are those of the first partition.
    replacing
        Take other records under a name that is there.

    Returns
    -------
    partition
        As it is now.
    changed
        False where it was there already, with the same records.

    Raises
    ------
    OptionError
        If the collection was made in one piece, or something else is there.
    InputError
        If the source does not fit the schema.
    StoreError
        If the name holds other records and is not to be replaced, the records are there under
        another name, or another process writes.
    """
    workspace.check_name(url)
    if _is_foreign(url):
        kind = None
        with suppress(PrivpipeError):  # of what is no store of ours
            kind = read_kind(url)
        if kind == "collection":
            raise _whole(url)
        problem = f"{shown(url)} is no growing collection of privpipe."
        remedy = "Nothing there was changed. Append to a new place."
        raise OptionError(problem, remedy=remedy, code="not-growing")
    with hold_workspace(url):
        check_idle(url)
        try:
            return _append_held(source, url, name, time, options, replacing=replacing)
        finally:
            remove_workspace(url)


def _append_held(
    source: str, url: str, name: str, time: str, options: IngestOptions, *, replacing: bool
) -> tuple[StoredPartition, bool]:
    """Append, for who holds the collection."""
    newest = generation_log.read_newest(url, "collection")
    if newest is not None:
        generation_log.write_root(url, newest)  # a writer that died may have left it behind
    there, like = _partitions(newest), None if newest is None else read_schema(newest)
    # The generation before stays: a run that began with it may still read.
    drop_unnamed(url, [*_partitions_before(url, newest), *there])
    place = f"partitions/{secrets.token_hex(8)}"
    # Made whole under a name of its own before any generation names it: a kill leaves a stray.
    ingest(source, join(url, place), options, like=like)
    made = open_collection(join(url, place)).schema_of_records
    added = StoredPartition(name, place, digest_content(made), made.n_records, time)
    same = next((one for one in there if one.content == added.content), None)
    other = next((one for one in there if one.name == name), None)
    problem = ""
    if same is not None and same is not other:
        problem = f"holds these records already, as the partition {same.name!r}"
    elif other is not None and same is None and not replacing:
        problem = f"holds other records under the name {name!r}"
    if same is not None or problem:
        objects.remove_tree(added.url(url))
    if problem:
        raise StoreError(
            f"{shown(url)} {problem}.",
            remedy="Nothing was changed. Give another --partition, or --replace to take the new "
            "records in place of those of this name.",
            code="partition-changed",
        )
    if same is not None:
        # The same again, as after a kill or a lost answer: nothing to do.
        return same, False
    # Of the first partition: its tables of categories hold for all that come.
    schema = like or replace(made, n_records=0, partitions=())
    following = (*(one for one in there if one is not other), added)
    content = {"schema": asdict(schema), "partitions": [asdict(one) for one in following]}
    generation_log.publish_generation(url, "collection", content, newest)
    return added, True


def drop_unnamed(url: str, there: Sequence[StoredPartition]) -> None:
    """Remove the partitions that no generation names: of killed, refused or needless appends.

    Only who holds the collection may. Replaced partitions stay while a run may read them.
    """
    for place in list_places(url) - {partition.place for partition in there}:
        objects.remove_tree(join(url, place))
    objects.drop_unfinished(url)


def list_places(url: str) -> set[str]:
    """Everything of ours among the partitions, their makers' workspaces included."""
    names = objects.list_names(join(url, "partitions"))
    return {f"partitions/{name}" for name in names if workspace.ENTRY.fullmatch(name)}


def purge_collection(url: str) -> bool:
    """Remove the records that the newest generation of a growing collection does not name.

    They are of killed appends and of replaced partitions. A run that began before may still read
    the latter: it ends with an error then, and the next one reads the newest. Of a first append
    that was killed nothing is left.

    Returns
    -------
    removed
        False where there was nothing of the kind, or no growing collection.

    Raises
    ------
    StoreError
        If another process writes.
    """
    left = list_places(url)
    if not (left or generation_log.is_generational(url)) or _is_foreign(url):
        return False
    if generation_log.newest_kind(url) == "release":
        return False
    with hold_workspace(url):
        newest = generation_log.read_newest(url, "collection")
        there = _partitions(newest)
        removed = newest is None or bool(left - {one.place for one in there})
        drop_unnamed(url, there)
        if newest is None:
            objects.remove_tree(url)
        remove_workspace(url)
    return removed


def _is_foreign(url: str) -> bool:
    """Whether a place holds something else; what a killed first append left is its own."""
    if generation_log.is_generational(url):
        return False
    path = local_path(url)
    if path is not None and (os.path.islink(path) or os.path.isfile(path)):
        return True
    below = {f"partitions/{name}" for name in objects.list_names(join(url, "partitions"))}
    whole = {name for name in objects.list_names(url) if not name.endswith(objects.UNFINISHED)}
    return not (below <= list_places(url) and whole <= {"partitions", "generations"})


def digest_content(schema: CollectionSchema) -> str:
    """SHA-256 over the records of all partitions of a source, whatever their chunks."""
    digests = "".join(partition.digest for partition in schema.partitions)
    return hashlib.sha256(digests.encode()).hexdigest()


def _partitions_before(
    url: str, newest: generation_log.Generation | None
) -> tuple[StoredPartition, ...]:
    """Partitions of the generation before the newest one, which readers may have open."""
    if newest is None or newest.number == 1:
        return ()
    before = generation_log.read_generation(url, newest.number - 1)
    return _partitions(before) if before.content else ()  # an erasure has emptied it


def _partitions(generation: generation_log.Generation | None) -> tuple[StoredPartition, ...]:
    """Those that a generation names; none of no generation."""
    if generation is None:
        return ()
    try:
        return tuple(StoredPartition(**item) for item in generation.content["partitions"])
    except (KeyError, TypeError):
        problem = f"Generation {generation.number} names no partitions of a growing collection."
        raise FormatError(problem, remedy="Restore it from a backup.", code="damaged") from None


def read_schema(generation: generation_log.Generation) -> CollectionSchema:
    """The schema of all partitions, as a generation says it."""
    try:
        return TypeAdapter(CollectionSchema).validate_python(generation.content["schema"])
    except ValueError:
        problem = "The schema of a growing collection is damaged."
        raise FormatError(problem, remedy="Restore it from a backup.") from None


def _whole(url: str) -> OptionError:
    problem = f"{shown(url)} was made in one piece, by `privpipe ingest`, and cannot grow."
    remedy = "Append its source to a new place: privpipe append SOURCE COLLECTION."
    return OptionError(problem, remedy=remedy, code="whole-collection")
