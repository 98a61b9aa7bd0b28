"""Registers beside the account of losses: releases, attempts to pass the gate, exports, erasures.

Each holds one object per entry, written before what it notes and never changed; places and digests,
no value of a record, and published nowhere. Two releases of the same records are joined row by row
by whoever holds both, and two models learned from nearly the same records reveal whom only one of
them saw: an audit has to know of the earlier ones. Whoever tries seeds, sample sizes or budgets
until an audit says "safe" finds one that says so by chance: attempts on records share the level.
Exports hold released records where no run looks: whoever erases records has to find them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from privpipe.errors import FormatError, OptionError, StoreError
from privpipe.numerics.random.record_grids import N_GRIDS, GridFrame, match_rows
from privpipe.protocols import IntArray
from privpipe.records.schema import Partition
from privpipe.store.access.location import explain_unreachable, join, shown
from privpipe.store.access.objects import keep_bytes, list_keys, open_store, read_bytes, read_many
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

RELEASES = ".releases"
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
            create_object(join(account, RELEASES, f"{name}.json"), json.dumps(content).encode())
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
        names = [name for name in list_keys(store, f"{RELEASES}/") if name.endswith(".json")]
        found = read_many(store, names)
    check_entries(chain, found, f"{RELEASES}/")
    entries = [_decode_release(content, join(account, RELEASES)) for content in found.values()]
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


def _decode_release(content: bytes, url: str) -> Registered:
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


ATTEMPTS = ".attempts"
"""Of the account; its partitions have names of digits."""


@dataclass(frozen=True)
class Attempt:
    """One of the attempts to pass the gate with some records.

    Parameters
    ----------
    number
        From 1: how many there were, with this one, on records it shares a partition with.
    seed
        Of sample, splits and adversaries: a hash of what is released.
    """

    number: int
    seed: int


def note_attempt(account: str, released: str, judged: str, partitions: Collection[str]) -> Attempt:
    """Note an attempt before its audit begins, and count it.

    Parameters
    ----------
    account
        Where the register is.
    released
        Digest of the receipts of the release.
    judged
        Digest of how it is judged, without limits.
    partitions
        Digests of the partitions that are released and of those that judge.

    Returns
    -------
    attempt
        The same whenever the same is given again. Of several that begin at once each may count
        the others.

    Raises
    ------
    StoreError
        If the register cannot be read or written: an attempt that is not counted is none.
    FormatError
        If an entry is missing, damaged or changed.
    """
    name = f"{ATTEMPTS}/{released[:32]}-{judged[:32]}.json"
    with reaching(account):
        create_object(join(account, name), json.dumps({"partitions": sorted(partitions)}).encode())
    chain = append_link(account, "attempt")
    with reaching(account):
        store = open_fresh(account)
        names = [key for key in list_keys(store, f"{ATTEMPTS}/") if key.endswith(".json")]
        found = read_many(store, names)
    check_entries(chain, found, f"{ATTEMPTS}/")
    known = {key: _decode_attempt(content, account) for key, content in found.items()}
    number = known[name][1]
    if number is None:  # its place in the chain says it
        mine, last = set(partitions), chain.places[name]
        before = [held for key, (held, _) in known.items() if chain.places.get(key, last) <= last]
        number = sum(bool(mine & held) for held in before)
    return Attempt(number, int(released[:8], 16) % 2**31)


def share_level(level: float, number: int) -> float:
    """Confidence of the verdicts of one attempt, so that those of all hold together at `level`.

    The errors ``alpha * 6 / (pi * number)**2`` of all numbers add up to alpha.

    >>> round(share_level(0.95, 1), 4), round(share_level(0.95, 10), 5)
    (0.9696, 0.9997)
    """
    return 1 - (1 - level) * 6 / (math.pi * number) ** 2


def _decode_attempt(content: bytes, account: str) -> tuple[set[str], int | None]:
    """Partitions; and the number, which older versions wrote."""
    try:
        entry = json.loads(content)
        number = entry.get("number")
        return {str(one) for one in entry["partitions"]}, None if number is None else int(number)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise FormatError(
        f"An entry of the register of attempts in {shown(account)} is damaged.",
        remedy="Restore it: without it nobody knows how often these records were judged.",
    )


EXPORTS, ERASURES = ".exports", ".erasures"
"""Folders of the account; its partitions have names of digits."""


def note_export(account: str, run: str, out: str) -> None:
    """Note where an export of a run's release goes, before it is written.

    Raises
    ------
    StoreError
        If it cannot be noted.
    """
    name = hashlib.sha256(f"{run} {out}".encode()).hexdigest()[:32]
    _keep_note(join(account, EXPORTS), name, {"run": run, "place": out})


def read_exports(account: str) -> list[tuple[str, str]]:
    """Run and place of every export that was noted.

    Raises
    ------
    FormatError
        If a note is damaged: where released records are is then not known.
    StoreError
        If the account cannot be reached.
    """
    url = join(account, EXPORTS)
    try:
        store = open_store(url, read_only=True)
        names = [name for name in list_keys(store) if name.endswith(".json")]
        return [_decode_export(content, url) for content in read_many(store, names).values()]
    except StoreError:
        raise
    except Exception as error:  # many kinds, depending on the file system
        raise explain_unreachable(url, error) from None


def note_erasure(account: str, name: str, certificate: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keep the certificate of an erasure, and note it in the chain.

    Returns
    -------
    certificate
        The one that is kept: that of the first time, where the erasure was killed behind it.

    Raises
    ------
    StoreError
        If it cannot be written; FormatError if the chain is damaged.
    """
    url, document = join(account, ERASURES), f"{name}.json"
    found = read_bytes(open_store(url, read_only=True), document)
    encoded = found or _keep_note(url, name, certificate)
    digest = hashlib.sha256(encoded).hexdigest()
    append_link(account, "erasure", {"erasure": name, "certificate": digest})
    kept: Mapping[str, Any] = json.loads(encoded)
    return kept


def _keep_note(url: str, name: str, content: Mapping[str, Any]) -> bytes:
    encoded = json.dumps(content, indent=1).encode()
    try:
        keep_bytes(url, f"{name}.json", encoded)
    except StoreError:
        raise
    except Exception as error:  # many kinds, depending on the file system
        raise explain_unreachable(url, error) from None
    return encoded


def _decode_export(content: bytes, url: str) -> tuple[str, str]:
    try:
        found = json.loads(content)
        return str(found["run"]), str(found["place"])
    except (ValueError, TypeError, KeyError):
        pass
    raise FormatError(
        f"A note of an export in {shown(url)} is damaged.",
        remedy="Restore it: without it nobody knows where released records went.",
        code="export-note",
    )
