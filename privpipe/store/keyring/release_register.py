"""The register of releases: which were made of which records, and by which model.

Two releases of the same records are joined row by row by whoever holds both, and two models learned
from nearly the same records tell whom only one of them saw, so an audit has to know of the earlier
ones, whatever file their records were in (`privpipe.store.keyring.sketches`). It stands beside the
account of losses, in the same place, one object per run; an entry is written before its release
becomes visible and never changed. It holds places and digests, no value of a record, and is
published nowhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from privpipe.errors import FormatError, OptionError
from privpipe.numerics.identity.record_grids import N_GRIDS, GridFrame, match_rows
from privpipe.protocols import IntArray
from privpipe.records.partitions import Partition
from privpipe.store.access.location import join, shown
from privpipe.store.access.objects import list_keys, read_many
from privpipe.store.keyring.account_chain import (
    AccountChain,
    append_link,
    check_entries,
    create_object,
    open_fresh,
    reaching,
    read_chain,
)
from privpipe.store.keyring.sketches import Sketches

FOLDER = ".releases"
"""Of the account; its partitions have names of digits."""
MOST_RUNS = 10_000
"""Runs of rows in common that tasks are sent."""
SUBJECTS = GridFrame(("subject",), kind="subject").id
"""Words of subjects, who may have many records."""


@dataclass(frozen=True)
class Registered:
    """A release that was, or was about to be, published.

    Parameters
    ----------
    url
        Its place, without user, password and query.
    run
        The run that made it.
    method
        Of the run.
    source
        Digest of the collection; empty of a part of an incremental release.
    time
        UTC.
    partitions
        Digest and number of records of each partition, in the order of the rows.
    training
        Digests of the partitions that the model was learned from; those of the release where an
        older version noted none.
    model, model_url
        Digest of the model, and its place.
    learned
        Digest of all that decides what is learned, but the records.
    bound
        What of the records the model may tell: "learned" anything; "public" nothing of them.
    rows
        Whether each row is of a record; surrogates' are not.
    """

    url: str
    run: str
    method: str
    source: str
    time: str
    partitions: tuple[tuple[str, int], ...]
    training: tuple[str, ...] = ()
    model: str = ""
    model_url: str = ""
    learned: str = ""
    bound: str = "learned"
    rows: bool = True

    @property
    def name(self) -> str:
        """What reports call it, and what it is disowned by; no path."""
        return f"{self.method} {self.run}"

    @property
    def learned_from(self) -> tuple[str, ...]:
        """Digests of the records that its model saw."""
        return self.training or tuple(digest for digest, _ in self.partitions)

    @property
    def n_records(self) -> int:
        return sum(n for _, n in self.partitions)


@dataclass(frozen=True)
class Shared:
    """Rows of a collection that a release holds as well.

    Parameters
    ----------
    first, last
        The first of them in the collection, and the one behind the last.
    other
        Row of the first one in the release.
    """

    first: int
    last: int
    other: int


def register_release(
    account: str, entry: Registered, note: Mapping[str, Any] | None = None
) -> AccountChain:
    """Note a release before it can be seen; the chain, whose head the release records.

    Nothing is ever written over: a run that goes on finds its entry, and one that says something
    else by now makes another.

    Raises
    ------
    StoreError
        If it cannot be written: a release that nobody knows of may not be published.
    """
    content = asdict(entry)
    said = json.dumps(content | {"time": ""}, sort_keys=True).encode()
    known = [asdict(one) for one in read_releases(account) if one.run == entry.run]
    if not any(one | {"time": ""} == content | {"time": ""} for one in known):
        name = entry.run if not known else f"{entry.run}-{hashlib.sha256(said).hexdigest()[:16]}"
        with reaching(account):
            create_object(join(account, FOLDER, f"{name}.json"), json.dumps(content).encode())
    return append_link(account, "release", note)


def read_releases(account: str) -> tuple[Registered, ...]:
    """All releases that were ever noted, the oldest first.

    Raises
    ------
    StoreError
        If the register cannot be reached.
    FormatError
        If an entry is missing, damaged or changed: what was released is not known then.
    """
    chain = read_chain(account)
    with reaching(account):
        store = open_fresh(account)
        names = [name for name in list_keys(store, f"{FOLDER}/") if name.endswith(".json")]
        found = read_many(store, names)
    check_entries(chain, found, f"{FOLDER}/")
    entries = [_decode(content, join(account, FOLDER)) for content in found.values()]
    return tuple(sorted(entries, key=lambda one: (one.time, one.run)))


def align_rows(
    entry: Registered, partitions: Sequence[Partition], sketches: Sketches
) -> tuple[Shared, ...]:
    """Which rows of a collection stand in a release, and where, whatever their order there.

    Raises
    ------
    OptionError
        If the order has so little in common that it cannot be followed.
    FormatError
        If a sketch is missing or damaged.

    Examples
    --------
    >>> mine = [Partition("a", 0, 2, "a"), Partition("b", 2, 3, "b")]
    >>> entry = Registered("", "", "", "", "", (("c", 5), ("b", 3)))
    >>> align_rows(entry, mine, Sketches("memory://none"))
    (Shared(first=2, last=5, other=5),)
    """
    found: list[Shared] = []
    for part in partitions:
        found += _list_runs(_match(part, entry, sketches), part.first_record)
    if len(found) > MOST_RUNS:
        raise OptionError(
            f"The release {entry.name} holds these records in another order, in {len(found)} "
            "pieces.",
            remedy="Release a collection whose records keep the order of the earlier one.",
            code="row-order",
        )
    return tuple(found)


def _match(part: Partition, entry: Registered, sketches: Sketches) -> IntArray:
    """Row of a release that each record of a partition is found again in, or -1."""
    places = np.cumsum([0, *(n_records for _, n_records in entry.partitions)])
    for (digest, n_records), place in zip(entry.partitions, places, strict=False):
        if digest == part.digest:
            return np.arange(place, place + n_records)
    known = sketches.known()
    best: IntArray = np.full(part.n_records, -1, np.int64)
    for frame in known.get(part.digest, ()):
        if frame == SUBJECTS:
            continue
        words = np.zeros((places[-1], N_GRIDS), np.uint64)
        for (digest, n_records), place in zip(entry.partitions, places, strict=False):
            if frame in known.get(digest, ()):
                words[place : place + n_records] = sketches.read(digest, frame)
        rows = match_rows(sketches.read(part.digest, frame), words)
        if (rows >= 0).sum() > (best >= 0).sum():
            best = rows
    return best


def _list_runs(rows: IntArray, first: int) -> list[Shared]:
    """Consecutive records that are consecutive in the release as well."""
    if not len(rows):
        return []
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    starts, ends = np.r_[0, cuts], np.r_[cuts, len(rows)]
    return [
        Shared(first + int(a), first + int(b), int(rows[a]))
        for a, b in zip(starts, ends, strict=True)
        if rows[a] >= 0
    ]


def _decode(content: bytes, url: str) -> Registered:
    try:
        found = json.loads(content)
        cut = tuple((str(digest), int(n)) for digest, n in found.pop("partitions"))
        training = tuple(map(str, found.pop("training", ())))
        rows = found.pop("rows", True) is not False
        words = {name: str(value) for name, value in found.items()}
        return Registered(**words, partitions=cut, training=training, rows=rows)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise FormatError(
        f"An entry of the register of releases in {shown(url)} is damaged.",
        remedy="Restore it: without it an audit does not know what was released of these records.",
    )
