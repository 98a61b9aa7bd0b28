"""Registers beside the account of losses: releases, attempts to pass the gate, exports, erasures.

Each holds one object per entry, written before what it notes and never changed; places and digests,
no value of a record, and published nowhere. Two releases of the same records are joined row by row
by whoever holds both. Two models learned from nearly the same records reveal whom only one of them
saw. So an audit has to know of the earlier ones. Whoever tries seeds, sample sizes or budgets until
an audit says "safe" finds one that says so by chance: attempts on records share the level. Exports
hold released records where no run looks: whoever erases records has to find them.
"""

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, starmap
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from privpipe.errors import FormatError, OptionError
from privpipe.numerics.random.record_overlap import MOST_AT_ONCE, make_words, match_rows
from privpipe.protocols import IntArray
from privpipe.records.schema import Partition
from privpipe.store.access.location import shown
from privpipe.store.access.objects import keep_bytes, open_store, read_bytes
from privpipe.store.keyring import account_chain as chain
from privpipe.store.keyring.sketches import SUBJECTS, Sketches

T = TypeVar("T")

RELEASES, ATTEMPTS, EXPORTS, ERASURES = ".releases", ".attempts", ".exports", ".erasures"
"""Folders of the account; those of its partitions have names of digits."""
# They travel in the arguments of tasks, so there is an end to them.
MOST_RUNS = 10_000
"""Runs of rows in common that tasks are sent."""


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
        What of the records the model may reveal: "learned" anything; "public" nothing of them.
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


@dataclass(frozen=True)
class _Judged:
    """What an attempt judged; older versions wrote its number, too."""

    partitions: frozenset[str]
    number: int | None = None


@dataclass(frozen=True)
class _Exported:
    """Where an export of a run's release went."""

    run: str
    place: str


_RELEASE = TypeAdapter(Registered)
_ATTEMPT = TypeAdapter(_Judged)
_EXPORT = TypeAdapter(_Exported)


def register_release(
    account: str, entry: Registered, note: Mapping[str, Any] | None = None
) -> chain.AccountChain:
    """Note a release before it can be seen; the chain, whose head the release records.

    Nothing is ever written over: a run that resumes finds its entry, and one that says something
    else by now makes another.

    Raises
    ------
    StoreError
        If it cannot be written: a release that no one knows of may not be published.
    """
    # The time aside: a run that resumes is the same release.
    known = [one for one in read_releases(account) if one.run == entry.run]
    if all(replace(one, time=entry.time) != entry for one in known):
        said = json.dumps(asdict(replace(entry, time="")), sort_keys=True).encode()
        name = entry.run if not known else f"{entry.run}-{hashlib.sha256(said).hexdigest()[:16]}"
        chain.create_entry(account, f"{RELEASES}/{name}.json", json.dumps(asdict(entry)).encode())
    return chain.append_link(account, "release", note)


def read_releases(account: str) -> tuple[Registered, ...]:
    """All releases that were ever noted, the oldest first.

    Raises
    ------
    StoreError
        If the register cannot be reached.
    FormatError
        If an entry is missing, damaged or changed: what was released is not known then.
    """
    _, found = chain.read_register(account, RELEASES)
    unknown = "an audit does not know what was released of these records"
    entries = (_decode(_RELEASE, one, account, "releases", unknown) for one in found.values())
    return tuple(sorted(entries, key=lambda one: (one.time, one.run)))


def _decode(
    kind: TypeAdapter[T], content: bytes, account: str, register: str, unknown: str, code: str = ""
) -> T:
    with suppress(ValidationError):  # its text quotes the entry
        return kind.validate_json(content)
    problem = f"An entry of the register of {register} in {shown(account)} is damaged."
    raise FormatError(problem, remedy=f"Restore it: without it {unknown}.", code=code)


def align_rows(
    entry: Registered, partitions: Sequence[Partition], sketches: Sketches
) -> tuple[Shared, ...]:
    """Which rows of a collection are in a release, and where, whatever their order there.

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
        found += _find_runs(part, entry, sketches)
    if len(found) > MOST_RUNS:
        raise OptionError(
            f"The release {entry.name} has these records in another order: {MOST_RUNS:,} pieces.",
            remedy="Release the collection that it was made of: --shuffle draws another order.",
            code="row-order",
        )
    return tuple(found)


def _find_runs(part: Partition, entry: Registered, sketches: Sketches) -> list[Shared]:
    """Rows of a release that records of a partition are found again in."""
    ends = np.cumsum([0, *(n_records for _, n_records in entry.partitions)]).tolist()
    digests = [digest for digest, _ in entry.partitions]
    held = list(zip(digests, starmap(slice, pairwise(ends)), strict=True))
    for digest, rows in held:
        # The same content is in the same order: nothing has to be looked for.
        if digest == part.digest:
            return [Shared(part.first_record, part.first_record + part.n_records, rows.start)]
    known = sketches.known()
    best: tuple[int, list[Shared]] = (0, [])
    for frame in known.get(part.digest, ()):
        # A word of a subject meets all records of the person: it does not say which row is which.
        if frame == SUBJECTS:
            continue
        words = make_words(ends[-1])
        for digest, rows in held:
            if frame in known.get(digest, ()):
                words[rows] = sketches.read(digest, frame)
        found = _list_runs(match_rows(sketches.read(part.digest, frame), words), part.first_record)
        # Frames differ in their units: the one that finds most records again counts.
        best = max(best, found, key=itemgetter(0))
    return best[1]


def _list_runs(rows: IntArray, first: int) -> tuple[int, list[Shared]]:
    """How many are found, and consecutive ones that are so there; `MOST_RUNS` and a few more."""
    n_found, runs = 0, list[Shared]()
    for at in range(0, len(rows), MOST_AT_ONCE):
        some = np.asarray(rows[at : at + MOST_AT_ONCE])
        n_found += int(np.count_nonzero(some >= 0))
        # -2 continues nothing, and row 0 does not continue it, as it would a -1.
        some = np.where(some < 0, -2, some)
        cuts = np.flatnonzero(np.diff(some, prepend=some[:1] - 2, append=-2) != 1)
        begun = some[cuts[:-1]] >= 0
        room = MOST_RUNS + 1 - len(runs)
        begins, ends = (end[begun][:room].tolist() for end in (cuts[:-1], cuts[1:]))
        for a, b in zip(begins, ends, strict=True):
            runs.append(Shared(first + at + a, first + at + b, int(some[a])))
    return n_found, runs


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
    # Before the audit: whoever sees its verdict has been counted.
    chain.create_entry(account, name, json.dumps({"partitions": sorted(partitions)}).encode())
    chain.append_link(account, "attempt")
    links, found = chain.read_register(account, ATTEMPTS)
    unknown = "no one knows how often these records were judged"
    made = {key: _decode(_ATTEMPT, one, account, "attempts", unknown) for key, one in found.items()}
    # Entries of before the chain say their numbers themselves.
    number = made[name].number
    if number is None:  # its place in the chain says it
        # The same release of the same records, ingested in another way, is noted by their digests.
        mine, last = {*partitions, *made[name].partitions}, links.places[name]
        # One that no link holds yet counts as before it: rather one too many than one too few.
        before = [made[key].partitions for key in made if links.places.get(key, last) <= last]
        number = sum(bool(mine & held) for held in before)
    # A hash of what is released: a seed that can be chosen is tried until the verdict is "safe".
    return Attempt(number, int(released[:8], 16) % 2**31)


def share_level(level: float, number: int) -> float:
    """Confidence of the verdicts of one attempt, so that those of all hold jointly at `level`.

    The errors ``alpha * 6 / (pi * number)**2`` of all numbers add up to alpha.

    >>> round(share_level(0.95, 1), 4), round(share_level(0.95, 10), 5)
    (0.9696, 0.9997)
    """
    # The sum of 1 / n**2 is pi**2 / 6: however many attempts there are, their errors stay alpha.
    return 1 - (1 - level) * 6 / (math.pi * number) ** 2


def note_export(account: str, run: str, out: str) -> None:
    """Note where an export of a run's release goes, before it is written.

    Raises
    ------
    StoreError
        If it cannot be noted.
    """
    name = hashlib.sha256(f"{run} {out}".encode()).hexdigest()[:32]
    _keep_note(account, f"{EXPORTS}/{name}.json", {"run": run, "place": out})


def read_exports(account: str) -> list[tuple[str, str]]:
    """Run and place of every export that was noted.

    Raises
    ------
    FormatError
        If a note is damaged: where released records are is then not known.
    StoreError
        If the account cannot be reached.
    """
    found = chain.read_objects(account, EXPORTS).values()
    unknown = "no one knows where released records went"
    code = "export-note"
    entries = [_decode(_EXPORT, one, account, "exports", unknown, code) for one in found]
    return [(one.run, one.place) for one in entries]


def note_erasure(account: str, name: str, certificate: Mapping[str, Any]) -> Mapping[str, Any]:
    """Store the certificate of an erasure, and note it in the chain.

    Returns
    -------
    certificate
        The one that is stored: that of the first time, where the erasure was killed after it.

    Raises
    ------
    StoreError
        If it cannot be written; FormatError if the chain is damaged.
    """
    document = f"{ERASURES}/{name}.json"
    # An erasure that was killed after its certificate was stored must not make a second one.
    found = read_bytes(open_store(account, read_only=True), document)
    encoded = found or _keep_note(account, document, certificate)
    digest = hashlib.sha256(encoded).hexdigest()
    chain.append_link(account, "erasure", {"erasure": name, "certificate": digest})
    return dict(json.loads(encoded))


def _keep_note(account: str, name: str, content: Mapping[str, Any]) -> bytes:
    encoded = json.dumps(content, indent=1).encode()
    with chain.reaching(account):
        keep_bytes(account, name, encoded)
    return encoded
