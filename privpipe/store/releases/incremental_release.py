"""Incremental releases: parts, one per partition content, named by generations.

What is published of a part is a name that only the release's ledger can resolve: partitions and
digests of their records would confirm guesses. A part is a release of its own; it never changes.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError
from pydantic.dataclasses import dataclass as checked

from privpipe.errors import FormatError, OptionError
from privpipe.option_values import FORBID
from privpipe.store.access import generation_log as generations
from privpipe.store.access import objects
from privpipe.store.access.location import join, local_path, shown
from privpipe.store.access.workspace import ENTRY, has_workspace, hold_workspace, remove_workspace
from privpipe.store.arrays.layout import ROOT_DOCUMENT, companion_url, explain_tampering
from privpipe.store.keyring.account_chain import append_link, create_entry

PARTS = "parts"


@checked(frozen=True, config=FORBID)
class Part:
    """A part of a generation, as it is published.

    Parameters
    ----------
    id
        Of line and content, by the ledger's secret: the same content in the same line is the same
        part.
    content
        Of the content alone, by the same secret.
    n_records, n_withheld
        Of which the latter is None where it is small.
    root_sha256
        Of the part's root document, and so of all that it seals.
    privacy_loss
        What its draws cost, once a method accounts for it; None where none is counted.
    """

    id: str
    content: str
    n_records: int
    n_withheld: int | None
    root_sha256: str
    privacy_loss: Mapping[str, float] | None = None


@checked(frozen=True, config=FORBID)
class Retired:
    """A part that no generation names any more, and when it may be deleted (ISO 8601, UTC)."""

    id: str
    due: str


@checked(frozen=True, config=FORBID)
class IncrementalState:
    """What a generation of a release says.

    Parameters
    ----------
    line
        Digest of options and training records: parts of two lines are never in one generation.
    header
        What an ordinary release says of method, guarantee and audit.
    arrays
        Per array: name, dtype, columns (0 for a vector) and attributes.
    chunk_rows
    parts
        In the order in which they came, which is that of readers.
    withdrawn
        `Part.content` of what is never to be released again.
    retired
    """

    line: str
    header: Mapping[str, Any] = field(repr=False)
    arrays: tuple[Mapping[str, Any], ...]
    chunk_rows: int
    parts: tuple[Part, ...]
    # Of contents, not of parts: a withdrawn record must not come back in another line.
    withdrawn: tuple[str, ...] = ()
    retired: tuple[Retired, ...] = ()

    def encode(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def read_state_of(generation: generations.Generation) -> IncrementalState:
    """What a generation says; FormatError where it says something else."""
    with suppress(ValidationError):  # whose text quotes the document
        return IncrementalState(**generation.content)
    problem = f"Generation {generation.number} is of another privpipe."
    remedy = "Read it with the privpipe that wrote it."
    raise FormatError(problem, remedy=remedy, code="format-version")


def part_url(url: str, part: str) -> str:
    """Where a part is; StoreError or FormatError where that is elsewhere."""
    return objects.join_inside(url, PARTS, part)


def check_part(url: str, part: Part) -> None:
    """Raise IncompleteReleaseError if the root of a part is not what the generation sealed."""
    if digest_root(part_url(url, part.id)) != part.root_sha256:
        problem = f"A part of {shown(url)} is missing or differs from what its generation says."
        raise explain_tampering(problem)


def digest_root(url: str) -> str:
    """SHA-256 of a part's root document."""
    content = objects.read_bytes(objects.open_store(url, read_only=True), ROOT_DOCUMENT) or b""
    return hashlib.sha256(content).hexdigest()


class PrivateLedger:
    """Which part is which partition's: a private folder beside the release, never published.

    Parameters
    ----------
    url
        The release.
    """

    def __init__(self, url: str) -> None:
        self.url = companion_url(url, "ledger")
        self._secret = self._take_secret()

    def name_part(self, line: str, content: str) -> str:
        """Identifier of the part of a content in a line."""
        # With a secret: digests of partitions would confirm guesses of raw records.
        return self._mark(f"part|{line}|{content}")[:32]

    def mark_content(self, content: str) -> str:
        """Identifier of a content in any line."""
        return self._mark(f"content|{content}")[:32]

    def is_withdrawn(self, known_by: Sequence[str], withdrawn: Sequence[str]) -> bool:
        """Whether a partition is, by any of what it is known by."""
        return not {*map(self.mark_content, known_by)}.isdisjoint(withdrawn)

    def note(self, part: str, about: Mapping[str, Any]) -> None:
        """Write down what a part is made of, before a generation names it."""
        self.keep(f"{PARTS}/{part}", about)

    def read(self, part: str) -> dict[str, Any]:
        """What a part is made of; empty where nothing was noted."""
        return self.recall(f"{PARTS}/{part}") or {}

    def keep(self, key: str, content: Mapping[str, Any]) -> None:
        """Store something private of a line."""
        objects.keep_bytes(self.url, f"{key}.json", json.dumps(content).encode())

    def recall(self, key: str) -> dict[str, Any] | None:
        """What was stored."""
        content = objects.read_bytes(objects.open_store(self.url, read_only=True), f"{key}.json")
        return None if content is None else dict(json.loads(content))

    def forget(self, parts: Collection[str], *, lines: bool) -> None:
        """Remove what is stored of some parts; with `lines` all but the secret that names parts."""
        store = objects.open_store(self.url)
        names = {f"{folder}/{part}.json" for folder in (PARTS, "drift") for part in parts}
        for key in objects.list_keys(store):
            if key in names or (lines and key != "secret"):
                objects.delete_keys(store, [key])
        if path := local_path(self.url):
            for folder in ("", PARTS, "drift"):
                with suppress(FileNotFoundError):  # what is forgotten stays so after a power cut
                    objects.flush(os.path.join(path, folder))
        objects.drop_unfinished(self.url)

    def _mark(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    def _take_secret(self) -> bytes:
        """The secret, made once by whoever is first."""
        store, fresh = objects.open_store(self.url, read_only=True), secrets.token_hex(32).encode()
        if (found := objects.read_bytes(store, "secret")) is None:
            # Another secret would give every part another name, and every partition would be
            # cleaned anew.
            create_entry(self.url, "secret", fresh)
            found = objects.read_bytes(store, "secret") or fresh
        return found


def sweep_parts(url: str, state: IncrementalState, now: datetime) -> tuple[Retired, ...]:
    """Delete retired parts that are due; returns those that are not yet. Only the holder may."""
    left, live = [], {part.id for part in state.parts}
    for item in state.retired:
        if item.id in live:
            continue  # the same records came back, and their part with them
        # Readers who opened the generation before may still be reading it.
        if datetime.fromisoformat(item.due) > now:
            left.append(item)
        else:
            delete_part(url, item.id)
    return tuple(left)


def purge_parts(url: str) -> bool:
    """Remove what no generation of a release names: parts of killed runs, and what is due.

    Of a first run that was killed nothing is left.

    Returns
    -------
    removed
        False where there was nothing of the kind, or no incremental release.

    Raises
    ------
    StoreError
        If a run is writing.
    """
    if not _is_growing(url):
        return False
    begun = has_workspace(url)
    with hold_workspace(url):
        found = read_incremental(url)
        left = set(objects.list_names(join(url, PARTS)))  # their makers' workspaces included
        if found is not None:
            retired = sweep_parts(url, found[1], datetime.now(UTC))
            left -= {one.id for one in found[1].parts} | {one.id for one in retired}
        # What no generation names was never visible, or is due.
        for name in left:
            objects.remove_tree(part_url(url, name))
        objects.drop_unfinished(url)
        if found is None:
            objects.remove_tree(url)
        remove_workspace(url)
    return begun or bool(left)


def _is_growing(url: str) -> bool:
    """Whether a place is an incremental release, or what a killed first run left of one."""
    if kind := generations.newest_kind(url):
        return kind == "release"
    parts = objects.list_names(join(url, PARTS))
    begun = has_workspace(url) if local_path(url) is None else parts
    there = set(objects.list_names(url)) if begun else set()
    return bool(there) and all(map(ENTRY.fullmatch, parts)) and there <= {PARTS, "generations"}


def delete_part(url: str, part: str) -> None:
    """Delete the objects of a part; its root first, so that none opens half of it."""
    place = part_url(url, part)
    store = objects.open_store(place)
    if objects.list_keys(store):
        # Without its root no reader opens the part; a kill in between leaves what a purge removes.
        objects.delete_keys(store, [ROOT_DOCUMENT])
    objects.delete_tree(store)
    objects.remove_tree(place)


def read_incremental(url: str) -> tuple[generations.Generation, IncrementalState] | None:
    """The newest generation of a release; None where there is none."""
    newest = generations.read_newest(url, "release")
    return None if newest is None else (newest, read_state_of(newest))


def withdraw_partition(
    url: str, name: str, grace: timedelta, account: str, named: Sequence[str], others: Sequence[str]
) -> tuple[int, int]:
    """Take a partition out of a release, once that is noted.

    Parameters
    ----------
    url
        The incremental release.
    name
        Of the partition in the growing collection.
    grace
        After which the records of the part are deleted, by this call where it is zero, else by
        the first run that finds them due. Keys of draws and their entries stay: they say that
        these records must not be drawn for again.
    account
        In whose chain it is noted.
    named, others
        What the collection's partition of that name is known by, and all of its others.

    Returns
    -------
    number, n_records
        The generation, and how many records it has no more: none where they were withdrawn before.

    Raises
    ------
    OptionError
        If there is no part of that partition, nor one that could become a part.
    StoreError
        If another process writes, or it cannot be noted.
    """
    found = read_incremental(url)
    # Of one that is withdrawn the marks are noted already, and what is left of it is done.
    if not found or not _find_marks(url, name, found[1], named, others):
        problem = f"{shown(url)} has no part of a partition {name!r}."
        remedy = "Give the name it has in the collection."
        raise OptionError(problem, remedy=remedy, code="partition")
    with hold_workspace(url):
        before, state = read_incremental(url) or found
        generations.write_root(url, before)  # a writer that died may have left it behind
        marks = _find_marks(url, name, state, named, others) - {*state.withdrawn}
        parts = [part for part in state.parts if part.content in marks]
        # With parts that a killed run has finished, and no generation names.
        ledger = PrivateLedger(url)
        gone = {*(part.id for part in parts), *(ledger.name_part(state.line, one) for one in named)}
        due = (datetime.now(UTC) + grace).isoformat()
        following = replace(
            state,
            parts=tuple(part for part in state.parts if part not in parts),
            # Each once, in the order of their withdrawal.
            withdrawn=tuple(dict.fromkeys((*state.withdrawn, *sorted(marks)))),
            retired=(*state.retired, *(Retired(part, due) for part in sorted(gone))),
        )
        if marks:
            # In the chain before it is done: a withdrawal that cannot be noted does not happen.
            note = {"release": shown(url), "partition": name, "generation": before.number + 1}
            append_link(account, "withdrawal", note)
            before = generations.publish_generation(url, "release", following.encode(), before)
        if not grace:
            sweep_parts(url, following, datetime.now(UTC))
        remove_workspace(url)
    return before.number, sum(part.n_records for part in parts)


def _find_marks(
    url: str, name: str, state: IncrementalState, named: Sequence[str], others: Sequence[str]
) -> set[str]:
    """Marks of what has a name, by the collection or by what a part was made of."""
    ledger = PrivateLedger(url)
    elsewhere, mine = ({*map(ledger.mark_content, some)} for some in (others, named))
    retired = (ledger.read(one.id) for one in state.retired)
    # By its digest: what was replaced under this name is retired as well, and not withdrawn.
    gone = {ledger.mark_content(one["content"]) for one in retired if one.get("name") == name}
    # A part keeps its name while its records lie under another one by now.
    named_so = (part for part in state.parts if ledger.read(part.id).get("name") == name)
    live = {part.content for part in named_so} - elsewhere
    return mine | live | gone.intersection(state.withdrawn)
