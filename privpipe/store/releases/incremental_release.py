"""Incremental releases: parts, one per partition content, named by generations.

What is published of a part is a name that only the release's ledger can tell: partitions and
digests of their records would confirm guesses. A part is a release of its own; it never changes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, overload

from zarr.core.sync import sync

from privpipe.errors import FormatError, IncompleteReleaseError
from privpipe.store.access.durability import flush_folder
from privpipe.store.access.generation_log import Generation, newest_kind, read_newest
from privpipe.store.access.location import join, local_path, shown
from privpipe.store.access.objects import (
    delete_tree,
    drop_unfinished,
    join_inside,
    keep_bytes,
    list_keys,
    open_store,
    read_bytes,
    remove_tree,
)
from privpipe.store.access.remote import create_bytes
from privpipe.store.access.workspace import has_workspace, hold_workspace, remove_workspace
from privpipe.store.arrays.headers import companion_url
from privpipe.store.arrays.layout import ROOT_DOCUMENT

PARTS = "parts"


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Retired:
    """A part that no generation names any more, and when it may be deleted (ISO 8601, UTC)."""

    id: str
    due: str


@dataclass(frozen=True)
class IncrementalState:
    """What a generation of a release says.

    Parameters
    ----------
    line
        Digest of options and training records: parts of two lines never stand together.
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
    parts: Sequence[Part]
    withdrawn: tuple[str, ...] = ()
    retired: tuple[Retired, ...] = ()

    def encode(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(replace(self, parts=tuple(self.parts)))


class StoredParts(Sequence[Part]):
    """Parts as a generation's document lists them, each made when it is asked for.

    A release of thousands of parts is opened by readers who want a few.

    Parameters
    ----------
    items
        What the document says of each.

    Raises
    ------
    TypeError
        If one of them has other fields.
    """

    def __init__(self, items: Sequence[Mapping[str, Any]]) -> None:
        needed = {one.name for one in fields(Part) if one.default is MISSING}
        known = {one.name for one in fields(Part)}
        if not all(needed <= item.keys() <= known for item in items):
            raise TypeError("another part")
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, at: int) -> Part: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Part, ...]: ...

    def __getitem__(self, at: int | slice) -> Part | tuple[Part, ...]:
        if isinstance(at, slice):
            return tuple(Part(**item) for item in self._items[at])
        return Part(**self._items[at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def column(self, name: str) -> list[Any]:
        """One field of all parts."""
        return [item[name] for item in self._items]


def read_state_of(generation: Generation) -> IncrementalState:
    """What a generation says; FormatError where it says something else."""
    given = dict(generation.content)
    try:
        given["parts"] = StoredParts(given["parts"])
        given["retired"] = tuple(Retired(**item) for item in given["retired"])
        given["arrays"], given["withdrawn"] = tuple(given["arrays"]), tuple(given["withdrawn"])
        return IncrementalState(**given)
    except (KeyError, TypeError):
        raise FormatError(
            f"Generation {generation.number} is of another privpipe.",
            remedy="Read it with the privpipe that wrote it.",
            code="format-version",
        ) from None


def part_url(url: str, part: str) -> str:
    """Where a part is; StoreError or FormatError where that is elsewhere."""
    return join_inside(url, PARTS, part)


def check_part(url: str, part: Part) -> None:
    """Raise IncompleteReleaseError if the root of a part is not what the generation sealed."""
    content = read_bytes(open_store(part_url(url, part.id), read_only=True), ROOT_DOCUMENT)
    if content is None or hashlib.sha256(content).hexdigest() != part.root_sha256:
        raise IncompleteReleaseError(
            f"A part of {shown(url)} is missing or differs from what its generation says.",
            remedy="The release was changed after it was published: get it again.",
            code="manifest",
        )


def digest_root(url: str) -> str:
    """SHA-256 of a part's root document."""
    content = read_bytes(open_store(url, read_only=True), ROOT_DOCUMENT) or b""
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
        path = local_path(self.url)
        if path is not None:
            os.makedirs(path, mode=0o700, exist_ok=True)
        self._secret = self._take_secret()

    def name_part(self, line: str, content: str) -> str:
        """Identifier of the part of a content in a line."""
        return self._mark(f"part|{line}|{content}")[:32]

    def mark_content(self, content: str) -> str:
        """Identifier of a content in any line."""
        return self._mark(f"content|{content}")[:32]

    def note(self, part: str, about: Mapping[str, Any]) -> None:
        """Write down what a part is made of, before a generation names it."""
        keep_bytes(self.url, f"{PARTS}/{part}.json", json.dumps(about).encode())

    def read(self, part: str) -> dict[str, Any]:
        """What a part is made of; empty where nothing was noted."""
        content = read_bytes(open_store(self.url, read_only=True), f"{PARTS}/{part}.json")
        return {} if content is None else dict(json.loads(content))

    def find_parts(self, name: str, parts: Sequence[Part]) -> list[Part]:
        """Of some parts those that were made of a partition of this name."""
        return [part for part in parts if self.read(part.id).get("name") == name]

    def keep(self, key: str, content: Mapping[str, Any]) -> None:
        """Keep something private of a line."""
        keep_bytes(self.url, f"{key}.json", json.dumps(content).encode())

    def recall(self, key: str) -> dict[str, Any] | None:
        """What was kept."""
        content = read_bytes(open_store(self.url, read_only=True), f"{key}.json")
        return None if content is None else dict(json.loads(content))

    def forget(self, parts: Collection[str], *, lines: bool) -> None:
        """Remove what is kept of some parts; with `lines` all but the secret that names parts."""
        store = open_store(self.url)
        names = {f"{folder}/{part}.json" for folder in (PARTS, "drift") for part in parts}
        for key in list_keys(store):
            if key in names or (lines and key != "secret"):
                sync(store.delete(key))
        if path := local_path(self.url):
            for folder in ("", PARTS, "drift"):
                with suppress(FileNotFoundError):  # what is forgotten stays so after a power cut
                    flush_folder(os.path.join(path, folder))
        drop_unfinished(self.url)

    def _mark(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    def _take_secret(self) -> bytes:
        """The secret, made once by whoever is first."""
        store = open_store(self.url, read_only=True)
        if (found := read_bytes(store, "secret")) is None:
            fresh = secrets.token_hex(32).encode()
            if local_path(self.url) is None:
                create_bytes(join(self.url, "secret"), fresh)
            else:
                keep_bytes(self.url, "secret", fresh)  # the workspace is held
            found = read_bytes(store, "secret") or fresh
        return found


def sweep_parts(url: str, state: IncrementalState, now: datetime) -> tuple[Retired, ...]:
    """Delete retired parts that are due; returns those that are not yet. Only the holder may."""
    left = []
    for item in state.retired:
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
        left = _list_parts(url)
        if found is not None:
            retired = sweep_parts(url, found[1], datetime.now(UTC))
            left -= {one.id for one in found[1].parts} | {one.id for one in retired}
        for name in left:
            remove_tree(part_url(url, name))
        drop_unfinished(url)
        if found is None:
            remove_tree(url)
        remove_workspace(url)
    return begun or bool(left)


def _is_growing(url: str) -> bool:
    """Whether a place is an incremental release, or what a killed first run left of one."""
    if kind := newest_kind(url):
        return kind == "release"
    path = local_path(url)
    if path is None:
        keys = list_keys(open_store(url, read_only=True))
        there = {key.partition("/")[0] for key in keys} if has_workspace(url) else set()
    else:
        there = set(os.listdir(path)) if _list_parts(url) else set()
    return bool(there) and there <= {PARTS, "generations"}


def _list_parts(url: str) -> set[str]:
    """Names of all that stands among the parts, their makers' workspaces included."""
    path = local_path(url)
    if path is None:
        keys = list_keys(open_store(url, read_only=True), f"{PARTS}/")
        return {key.split("/")[1] for key in keys}
    with suppress(FileNotFoundError, NotADirectoryError):
        return set(os.listdir(os.path.join(path, PARTS)))
    return set()


def delete_part(url: str, part: str) -> None:
    """Delete the objects of a part; its root first, so that none opens half of it."""
    place = part_url(url, part)
    store = open_store(place)
    if list_keys(store):
        sync(store.delete(ROOT_DOCUMENT))
    delete_tree(store)
    remove_tree(place)


def read_incremental(url: str) -> tuple[Generation, IncrementalState] | None:
    """The newest generation of a release; None where there is none."""
    newest = read_newest(url, "release")
    return None if newest is None else (newest, read_state_of(newest))
