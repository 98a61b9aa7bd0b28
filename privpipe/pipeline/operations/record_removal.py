"""Records taken out of a collection: it is written anew without them, then the old copy removed.

A survey finds them and changes nothing; its answer is all that the rest needs, so that whoever was
killed resumes with it. Of a growing collection the next generation names the new partitions, and
what stood before it is removed last. One made in one piece is exchanged whole.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from privpipe.errors import OptionError, PrivpipeError
from privpipe.protocols import AnyArray, BoolArray, IntArray
from privpipe.records.schema import CollectionSchema, Partition, Variable, suggest
from privpipe.store.access import generation_log as generations
from privpipe.store.access import location, objects
from privpipe.store.access.location import join, local_path
from privpipe.store.access.workspace import ERASED, REMOVED, hold_workspace, workspace_url
from privpipe.store.arrays.destination import hold_destination
from privpipe.store.arrays.layout import FEATURES, ROOT_DOCUMENT, exists, read_header
from privpipe.store.collections import growing_collection as growing
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.collections.ingest import fill_chunks
from privpipe.store.collections.proving import read_source_version
from privpipe.store.collections.survey import POOLED
from privpipe.store.collections.writing import read_statistics, write_held

Codes = Mapping[str, Sequence[int]]
"""Of a variable's categories."""


@dataclass(frozen=True)
class ChosenRecords:
    """Which records are to be erased.

    Parameters
    ----------
    name
        Variable or feature that says so.
    values
        Those of its values, as text; never shown.
    """

    name: str
    values: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True)
class HeldRecords:
    """Records that one stored collection holds.

    Parameters
    ----------
    place
        Below the growing collection; empty of one made in one piece.
    named
        Whether it holds now; others are only there still, and go whole.
    n_records
    rows
        Which of its records, by number.
    digests
        What it and its records are called elsewhere.
    partitions
        Of each partition of its source that holds some, by digest: which, by number within.
    """

    place: str
    named: bool
    n_records: int
    rows: tuple[int, ...]
    digests: tuple[str, ...]
    partitions: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class ErasureSurvey:
    """Where the records are, and what no other record has.

    Parameters
    ----------
    held
        Empty where there is none.
    codes
        Of categorical variables: categories that no other record has, whose names go as well.
    """

    held: tuple[HeldRecords, ...]
    codes: Codes

    @property
    def n_records(self) -> int:
        """Records that go from what the collection holds now."""
        return sum(len(one.rows) for one in self.held if one.named)


def survey_records(url: str, chosen: ChosenRecords) -> ErasureSurvey:
    """Find the records in all that a collection stores, replaced partitions included.

    Raises
    ------
    OptionError, InputError
        If the variable is not there, or a value cannot be one of its.
    StoreError, FormatError
        If the collection cannot be read.
    """
    opened = _open_all(url)
    found = {place: _find_rows(one, chosen) for place, (one, _) in opened.items()}
    # The name of a category that one person has is a value of a record.
    codes = _find_lonely(opened, found)
    whole = bool(codes)  # a name that the tables of all hold is taken out of all
    held = tuple(
        _describe(place, one, named, found[place], whole=whole)
        for place, (one, named) in opened.items()
        if len(found[place]) or whole
    )
    return ErasureSurvey(held, codes)


def _find_rows(collection: Collection, chosen: ChosenRecords) -> IntArray:
    """Numbers of the records with one of the values."""
    read, values = _find_column(collection, chosen)
    chunks = map(collection.plan.rows, range(collection.plan.n_chunks))
    found = [start + np.flatnonzero(np.isin(read(start, stop), values)) for start, stop in chunks]
    return np.concatenate([np.empty(0, np.int64), *found])


def take_out(url: str, survey: ErasureSurvey) -> None:
    """Make the collection one without the records, once; whoever opens it sees it whole.

    What stood before is still there; see `drop_erased`. Only who holds the workspace may.
    """
    if generations.is_generational(url):
        _take_out_partitions(url, survey)
    elif survey.held:
        _take_out_whole(url, survey.held[0], survey.codes)


def end_exchange(url: str) -> None:
    """Put in its place what a killed erasure had ready, where nothing is any more.

    For who is about to remove the workspace: it is all that is left of the collection.

    Raises
    ------
    StoreError
        If another process writes.
    """
    new = join(workspace_url(url), ERASED)
    if not exists(url) and exists(new):
        with hold_workspace(url):
            _exchange(url, new)


def drop_erased(url: str) -> None:
    """Remove what the collection does not hold any more: partitions, former generations."""
    last = generations.read_newest(url, "collection") if generations.is_generational(url) else None
    if last is not None:
        growing.drop_unnamed(url, growing.read_partitions(url))
        generations.blank_older(url, last)


def digest_of(url: str) -> str:
    """What a collection holds now, as one digest; empty where there is nothing left of it."""
    if generations.is_generational(url):
        return growing.open_whole_collection(url).digest if growing.read_partitions(url) else ""
    return str(read_header(url, "collection")["digest"]) if exists(url) else ""


def _open_all(url: str) -> dict[str, tuple[Collection, bool]]:
    """All that is stored, by place, those that hold now first and in order."""
    if not generations.is_generational(url):
        return {"": (open_collection(url), True)}
    places = [one.place for one in growing.read_partitions(url)]
    found = {place: (open_collection(join(url, place)), True) for place in places}
    # Replaced partitions are copies, too: readers of older generations reach them.
    for place in sorted(growing.list_places(url) - set(places)):
        with suppress(PrivpipeError):  # what a killed append left
            found[place] = open_collection(join(url, place)), False
    return found


def _find_column(
    collection: Collection, chosen: ChosenRecords
) -> tuple[Callable[[int, int], AnyArray], AnyArray]:
    """How the variable or feature is read, and the values in its stored form."""
    schema, name = collection.schema_of_records, chosen.name
    names = {one.name: one for one in schema.variables}
    if name in schema.feature_names:
        j = schema.feature_names.index(name)
        stored = _as_stored(chosen, np.dtype(schema.dtype))
        return (lambda start, stop: collection.read(FEATURES, start, stop)[:, j]), stored
    if name not in names:
        known = [*names, *schema.feature_names]
        problem = f"The collection has no variable or feature {name!r}{suggest(name, known)}"
        remedy = "`privpipe inspect` lists its variables."
        raise OptionError(problem, remedy=remedy, code="missing-variable")
    categories = names[name].categories
    if categories is None:
        stored = _as_stored(chosen, np.dtype(names[name].dtype))
    else:
        stored = np.array([categories.index(v) for v in chosen.values if v in categories], int)
    return (lambda start, stop: collection.read(name, start, stop)), stored


def _as_stored(chosen: ChosenRecords, dtype: np.dtype[Any]) -> AnyArray:
    # Compared in the stored form: 0.1 as text is not the float32 that is stored.
    kind = int if dtype.kind in "iu" else float
    with suppress(ValueError, OverflowError):
        return np.array([kind(value) for value in chosen.values]).astype(dtype)
    problem = f"{chosen.name!r} holds numbers, and what it is compared with is none."
    raise OptionError(problem, remedy="Give a number as the source writes it.", code="where")


def _find_lonely(
    opened: Mapping[str, tuple[Collection, bool]], found: Mapping[str, IntArray]
) -> dict[str, list[int]]:
    """Categories of the records that no other record of the collection has, by variable."""
    lonely: dict[str, list[int]] = {}
    if not any(map(len, found.values())):
        return lonely
    for variable in next(iter(opened.values()))[0].schema_of_records.variables:
        if variable.categories is None:
            continue
        gone, stays = set[int](), set[int]()
        for place, (one, named) in opened.items():
            for start, keep in _walk(one, found[place]):
                codes = one.read(variable.name, start, start + len(keep))
                gone.update(codes[~keep].tolist())
                stays.update(codes[keep].tolist() if named else ())
        # The pooled category is of many records; what is no code of the table is missing.
        names = dict(enumerate(variable.categories))
        if alone := sorted(c for c in gone - stays if names.get(c, POOLED) != POOLED):
            lonely[variable.name] = alone
    return lonely


def _walk(collection: Collection, rows: IntArray) -> Iterator[tuple[int, BoolArray]]:
    """First record of each chunk, and which of its records stay."""
    for chunk in range(collection.plan.n_chunks):
        start, stop = collection.plan.rows(chunk)
        keep = np.ones(stop - start, bool)
        keep[rows[(rows >= start) & (rows < stop)] - start] = False
        yield start, keep


def _describe(
    place: str, collection: Collection, named: bool, rows: IntArray, *, whole: bool
) -> HeldRecords:
    schema = collection.schema_of_records
    inside = {}
    for part in schema.partitions:
        numbers = rows - part.first_record
        numbers = numbers[(numbers >= 0) & (numbers < part.n_records)]
        if len(numbers) or whole:
            inside[part.digest] = numbers.tolist()
    version = read_source_version(collection.url)
    digests = (collection.digest, growing.digest_content(schema), version, *inside)
    return HeldRecords(place, named, collection.n_records, tuple(rows.tolist()), digests, inside)


def _take_out_partitions(url: str, survey: ErasureSurvey) -> None:
    newest = generations.read_newest(url, "collection")
    assert newest is not None, "its generations were there"
    there, held = growing.read_partitions(url), {one.place: one for one in survey.held}
    if not any(one.place in held for one in there):
        return  # a killed erasure got as far as this
    # In their order: records keep their numbers but for those that go.
    following = list[growing.StoredPartition]()
    for one in there:
        mine = held.get(one.place)
        following += [one] if mine is None else _make_partition(url, one, mine, survey)
    schema = rename_categories(growing.read_schema(newest), survey.codes)
    content = {"schema": asdict(schema), "partitions": [asdict(one) for one in following]}
    generations.publish_generation(url, "collection", content, newest)


def _make_partition(
    url: str, old: growing.StoredPartition, held: HeldRecords, survey: ErasureSurvey
) -> list[growing.StoredPartition]:
    """The partition without the records; none where nothing is left of it."""
    if len(held.rows) == held.n_records:
        return []
    # A place of its own: a partition that is there is never written over.
    place = f"partitions/{secrets.token_hex(8)}"
    collection = open_collection(old.url(url))
    _write_without(collection, np.array(held.rows, np.int64), survey.codes, join(url, place))
    new = open_collection(join(url, place)).schema_of_records
    content, origin = growing.digest_content(new), old.origin or old.place
    return [replace(old, place=place, content=content, n_records=new.n_records, origin=origin)]


def _take_out_whole(url: str, held: HeldRecords, codes: Codes) -> None:
    """Exchange a collection made in one piece; whoever was killed on the way does the rest."""
    new = join(workspace_url(url), ERASED)
    if len(held.rows) == held.n_records:
        if digest_of(url) in ("", *held.digests):
            _exchange(url, None)
        return
    # Whole or not there: whoever was killed while it was written begins it again.
    if not exists(new):
        if digest_of(url) not in held.digests:
            return
        _write_without(open_collection(url), np.array(held.rows, np.int64), codes, new)
    _exchange(url, new)


def _exchange(url: str, new: str | None) -> None:
    """Put a whole collection in the place of another; in a bucket none can be read meanwhile."""
    path = local_path(url)
    if path is None:
        objects.delete_place(url)
        if new is not None:
            keys = location.measure_objects(new).keys() - {ROOT_DOCUMENT}
            location.copy_objects(new, url, sorted(keys))
            # The root last: until it is there no reader opens half of the collection.
            location.copy_objects(new, url, [ROOT_DOCUMENT])
            objects.delete_place(new)
        return
    if os.path.lexists(path):
        # Renamed first, removed later with the workspace: a removal that is killed leaves no half
        # of it
        # under its name.
        os.rename(path, f"{local_path(workspace_url(url))}{REMOVED}{secrets.token_hex(8)}")
    if new is not None:
        os.rename(str(local_path(new)), path)
    objects.flush(os.path.dirname(path))


def _write_without(collection: Collection, rows: IntArray, codes: Codes, url: str) -> None:
    old, known = collection.schema_of_records, read_statistics(collection.url)
    n_records = old.n_records - len(rows)
    schema = replace(
        rename_categories(old, codes),
        n_records=n_records,
        # A collection of fewer records than a chunk has is one chunk.
        chunk_rows=min(old.chunk_rows, n_records),
        partitions=_cut_again(old.partitions, rows),
    )
    n_pooled = {key: n - _count_pooled(collection, key, rows) for key, n in known.n_pooled.items()}
    with hold_destination(url) as work:
        # Chunks are whole again, so that the new collection is as one that was ingested like this.
        chunks = fill_chunks(_read_remaining(collection, rows), schema)
        write_held(url, work, schema, chunks, n_pooled=n_pooled, binning=known.binning)


def rename_categories(schema: CollectionSchema, codes: Codes) -> CollectionSchema:
    """The schema with other names for categories that no record has any more; codes stay.

    Examples
    --------
    >>> towns = Variable("town", "int8", ("Oslo", "Rome"))
    >>> schema = CollectionSchema(3, 0, "float32", 3, (towns,))
    >>> rename_categories(schema, {"town": [1]}).variable("town").categories
    ('Oslo', '(erased 1)')
    """

    def rename(one: Variable) -> Variable:
        gone, names = codes.get(one.name, ()), enumerate(one.categories or ())
        others = tuple(f"(erased {code})" if code in gone else name for code, name in names)
        return replace(one, categories=others) if gone else one

    return replace(schema, variables=tuple(map(rename, schema.variables)))


def _cut_again(partitions: Sequence[Partition], rows: IntArray) -> tuple[Partition, ...]:
    """Partitions of what is left, the empty ones with their names gone."""
    found, first = [], 0
    for part in partitions:
        end = part.first_record + part.n_records
        n_left = part.n_records - int(((rows >= part.first_record) & (rows < end)).sum())
        if n_left:
            found.append(Partition(part.name, first, n_left))
        first += n_left
    return tuple(found)


def _count_pooled(collection: Collection, name: str, rows: IntArray) -> int:
    categories = collection.schema_of_records.variable(name).categories or ()
    if POOLED not in categories:
        return 0
    # How many were pooled is part of what the collection says of itself.
    pooled = categories.index(POOLED)
    return sum(int(collection.read(name, int(row), int(row) + 1)[0] == pooled) for row in rows)


def _read_remaining(collection: Collection, rows: IntArray) -> Iterator[dict[str, AnyArray]]:
    """What is left of each chunk."""
    names = [FEATURES, *(one.name for one in collection.schema_of_records.variables)]
    for start, keep in _walk(collection, rows):
        yield {name: collection.read(name, start, start + len(keep))[keep] for name in names}
