"""The chain of an account: all that was ever noted there, in one order that cannot be changed.

Charges, releases and attempts stay objects of their own, made once and never changed. A link of the
chain holds the digests of those that are new, a note where there is one, and the digest of the link
before it. So a changed character, an exchanged order and a
missing entry are found by whoever reads the account, and a lost tail by whoever reads a release,
whose header holds the head of the chain at its time.

Links are numbered objects, each made only if it is absent: of two writers one finds the other's
and goes on behind it. An entry without a link (its writer was killed, is just at work, or is of a
version before the chain) counts as any other, and the next link holds it.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

from zarr.abc.store import Store
from zarr.storage import FsspecStore

from privpipe.errors import FormatError, PrivpipeError, StoreError
from privpipe.store.access.durability import keep_file
from privpipe.store.access.location import explain_unreachable, join, local_path, shown
from privpipe.store.access.objects import list_keys, open_store, read_many
from privpipe.store.access.remote import create_bytes

Kind = Literal["charge", "release", "attempt", "refusal", "approval", "withdrawal", "erasure"]

FOLDER = ".chain"
ENTRY = re.compile(r"(\.releases|\.attempts)/[^./][^/]*\.json|[^./][^/]*/\d{8}\.json")
"""Names of the objects that links hold."""
MOST_TRIES = 1_000
"""Links of rivals that a writer waits for."""


@dataclass(frozen=True)
class Link:
    """One link.

    Parameters
    ----------
    digest
        SHA-256 of its bytes.
    kind
        What was noted.
    entries
        SHA-256 of each new object, by name in the account.
    note
        What has no object; digests, names and codes, no value of a record.
    """

    digest: str
    kind: Kind
    entries: Mapping[str, str]
    note: Mapping[str, Any]


@dataclass(frozen=True)
class AccountChain:
    """The links of an account, the first one first.

    Parameters
    ----------
    url
        Of the account.
    links
        All of them.
    """

    url: str
    links: tuple[Link, ...] = ()

    @property
    def id(self) -> str:
        """Digest of the first link, by which accounts are told apart; empty before there is one."""
        return self.links[0].digest if self.links else ""

    @property
    def head(self) -> str:
        return self.links[-1].digest if self.links else ""

    @cached_property
    def entries(self) -> dict[str, str]:
        """SHA-256 of each object, by name."""
        return {name: one for link in self.links for name, one in link.entries.items()}

    @property
    def notes(self) -> list[tuple[Kind, dict[str, Any]]]:
        """What was noted, in order."""
        return [(link.kind, dict(link.note)) for link in self.links]

    @cached_property
    def places(self) -> dict[str, int]:
        """Number of the link that holds each object, by name."""
        return {name: n for n, link in enumerate(self.links) for name in link.entries}

    def knows(self, head: str) -> bool:
        """Whether this was its head once."""
        return any(head == one.digest for one in self.links)

    def describe(self) -> dict[str, str]:
        """What a release records of it."""
        return {"chain": self.id, "head": self.head}


def read_chain(account: str) -> AccountChain:
    """The chain of an account; without links where nothing was noted since there are chains.

    Raises
    ------
    StoreError
        If the account cannot be reached.
    FormatError
        If a link is missing, damaged or not behind the one before it.
    """
    url = join(account, FOLDER)
    with reaching(account):
        store = open_fresh(url)
        found = read_many(store, [name for name in list_keys(store) if re.match(r"\d", name)])
    links: list[Link] = []
    for number, (name, content) in enumerate(found.items()):
        before = links[-1].digest if links else ""
        links.append(_decode(content, before, f"{FOLDER}/{_name(number)}", account))
        if name != _name(number):
            raise _damaged(account, f"{FOLDER}/{_name(number)}")
    return AccountChain(account, tuple(links))


def check_chain(account: str) -> AccountChain:
    """The chain, once every object that it holds is there and unchanged.

    Raises
    ------
    StoreError, FormatError
        As `read_chain`, and if an object is missing or changed; with its name.
    """
    chain = read_chain(account)
    with reaching(account):
        found = read_many(open_fresh(account), list(chain.entries))
    check_entries(chain, found)
    return chain


def check_entries(chain: AccountChain, found: Mapping[str, bytes], folder: str = "") -> None:
    """Raise FormatError unless the objects of a folder of the account are those of the chain."""
    for name, digest in chain.entries.items():
        if name.startswith(folder) and _digest(found.get(name, b"")) != digest:
            raise _damaged(chain.url, name)


def append_link(account: str, kind: Kind, note: Mapping[str, Any] | None = None) -> AccountChain:
    """Note what is new in an account, and what has no object; the chain with it.

    Nothing is written where nothing is new and the note was taken before: the same again is
    harmless.

    Raises
    ------
    StoreError, FormatError
        As `read_chain`.
    """
    for _ in range(MOST_TRIES):
        chain = read_chain(account)
        entries, said = _find_new(chain), dict(note or {})
        if not entries and (note is None or (kind, said) in chain.notes):
            return chain
        content = {
            "previous": chain.head,
            "kind": kind,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "nonce": secrets.token_hex(8),
            "entries": entries,
            "note": said,
        }
        url = join(account, FOLDER, _name(len(chain.links)))
        encoded = json.dumps(content, sort_keys=True).encode()
        with reaching(account):
            made = create_object(url, encoded)
        if made:
            link = Link(_digest(encoded), kind, entries, said)
            return AccountChain(account, (*chain.links, link))
    raise StoreError(
        f"The account at {shown(account)} is being written by too many others.",
        remedy="Try again.",
        code="busy",
    )


@contextmanager
def reaching(account: str) -> Iterator[None]:
    """Errors of a store's client as ours.

    Raises
    ------
    StoreError
        For each.
    """
    try:
        yield
    except PrivpipeError:
        raise
    except Exception as error:  # many kinds, depending on the file system
        raise explain_unreachable(account, error) from None


def open_fresh(url: str) -> Store:
    """A store to read what others write: its client's own memory of what is there is dropped."""
    store = open_store(url, read_only=True)
    if isinstance(store, FsspecStore):
        store.fs.invalidate_cache()
    return store


def create_object(url: str, content: bytes) -> bool:
    """An object whole in one step unless there is one; whether it is there now, and is this one.

    A kill leaves no half.
    """
    path = local_path(url)
    if path is None:
        return create_bytes(url, content)
    return keep_file(path, content, replacing=False)


def _find_new(chain: AccountChain) -> dict[str, str]:
    """Digests of the objects that no link holds yet."""
    with reaching(chain.url):
        store = open_fresh(chain.url)
        names = [name for name in list_keys(store) if ENTRY.fullmatch(name)]
        found = read_many(store, [name for name in names if name not in chain.entries])
    return {name: _digest(content) for name, content in found.items() if _is_whole(content)}


def _is_whole(content: bytes) -> bool:
    """What is damaged before a link holds it is for its reader to say: it may be restored."""
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def _decode(content: bytes, before: str, name: str, account: str) -> Link:
    try:
        found = json.loads(content)
        if found["previous"] != before:
            raise ValueError
        return Link(_digest(content), found["kind"], dict(found["entries"]), dict(found["note"]))
    except (ValueError, KeyError, TypeError):
        raise _damaged(account, name) from None


def _damaged(account: str, name: str) -> FormatError:
    return FormatError(
        f"The account at {shown(account)} is not as its chain says: {name} is missing or was "
        "changed, or what comes before it.",
        remedy="Restore the account from the newest backup; nothing is released on one with gaps.",
        code="account-damaged",
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _name(number: int) -> str:
    return f"{number:08d}.json"
