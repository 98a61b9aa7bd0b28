"""The chain of an account: all that was ever noted there, in one order that cannot be changed.

Charges, releases and attempts stay objects of their own, made once and never changed. A link of the
chain holds the digests of new ones, a note where there is one, and the digest of the link before
it. So a changed character, an exchanged order and a missing entry are found by whoever reads the
account. A lost tail is found by whoever reads a release, whose header holds the head of the chain
at its time.

Links are numbered objects, each made only if it is absent: of two writers one finds the other's and
continues behind it. An entry without a link counts as any other, and the next link holds it. Its
writer was killed, is just at work, or is of a version before the chain.
"""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

import fsspec

from privpipe.errors import FormatError, PrivpipeError, StoreError
from privpipe.store.access.location import explain_unreachable, join, local_path, shown
from privpipe.store.access.objects import create_object, list_keys, open_store, read_many

Kind = Literal[
    "charge", "release", "attempt", "refusal", "approval", "withdrawal", "erasure", "promise"
]

FOLDER = ".chain"
OBJECT = re.compile(r"(?P<folder>[^/]+)/(?P<name>[^./][^/]*)\.json")
"""Names of the objects of an account; a file that a killed writer left begins with a dot."""
ENTRY = re.compile(r"(\.releases|\.attempts|\.growth)/[^./][^/]*\.json|[^./][^/]*/\d{8}\.json")
"""Names of the objects that links hold."""
# Each try that fails is one rival who succeeded, so none waits for ever on a store that works.
MOST_TRIES = 1_000
"""Entries of rivals that a writer waits for."""
# A misspelt bucket was once an account of no losses.
BUCKETS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
"""Schemes whose paths begin with a bucket, which only its owner makes."""


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
        """Digest of the first link, which distinguishes accounts; empty before there is one."""
        return self.links[0].digest if self.links else ""

    @property
    def head(self) -> str:
        return self.links[-1].digest if self.links else ""

    @cached_property
    def entries(self) -> dict[str, str]:
        """SHA-256 of each object, by name."""
        return {name: one for link in self.links for name, one in link.entries.items()}

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
    links: list[Link] = []
    # One wrong character in the register of releases once hid an earlier release in silence.
    for number, (name, content) in enumerate(read_numbered(account, FOLDER).items()):
        expected, before = f"{FOLDER}/{number_name(number)}", links[-1].digest if links else ""
        try:
            found = json.loads(content)
            if (name, found["previous"]) != (expected, before):
                raise ValueError
            # A link of another shape is damage as well; what it holds decides what is believed.
            entries, note = dict(found["entries"]), dict(found["note"])
            links.append(Link(_digest(content), found["kind"], entries, note))
        except (ValueError, KeyError, TypeError):
            raise _damaged(account, expected) from None
    return AccountChain(account, tuple(links))


def check_chain(account: str) -> AccountChain:
    """The chain, once every object that it holds is there and unchanged.

    Raises
    ------
    StoreError, FormatError
        As `read_chain`, and if an object is missing or changed; with its name.
    """
    chain = read_chain(account)
    _check_entries(chain, read_named(account, list(chain.entries)))
    return chain


def read_register(account: str, folder: str) -> tuple[AccountChain, dict[str, bytes]]:
    """The chain, and the objects of a folder of the account by name, held against it.

    Raises
    ------
    StoreError, FormatError
        As `check_chain`, of this folder.
    """
    # In this order: an entry that is made in between has no link yet, and is read as one without.
    chain, found = read_chain(account), read_objects(account, folder)
    _check_entries(chain, found, f"{folder}/")
    return chain, found


def _check_entries(chain: AccountChain, found: Mapping[str, bytes], folder: str = "") -> None:
    # What no link holds yet is read as any other: its writer is at work, or died before its link.
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
    said = dict(note or {})
    for _ in range(MOST_TRIES):
        chain = read_chain(account)
        entries = _find_new(chain)
        known = note is None or any((one.kind, one.note) == (kind, said) for one in chain.links)
        # A run that resumes gives the same note again.
        if not entries and known:
            return chain
        content = {
            "previous": chain.head,
            "kind": kind,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            # Two writers' links differ, so that whose link is there is seen from its bytes even
            # where the store's answer was lost; see `create_bytes`.
            "nonce": secrets.token_hex(8),
            "entries": entries,
            "note": said,
        }
        encoded = json.dumps(content, sort_keys=True).encode()
        if create_entry(account, f"{FOLDER}/{number_name(len(chain.links))}", encoded):
            link = Link(_digest(encoded), kind, entries, said)
            return AccountChain(account, (*chain.links, link))
    raise contended(account)


def contended(account: str) -> StoreError:
    """For a writer whom others were before, every time."""
    problem = f"The account at {shown(account)} is being written by too many others."
    return StoreError(problem, remedy="Try again.", code="busy")


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


def read_objects(account: str, folder: str) -> dict[str, bytes]:
    """The objects of a folder of an account, by name, in order.

    What is not there is empty; a bucket that is not there is a mistake, and a StoreError.
    """
    return read_named(account, [*filter(OBJECT.fullmatch, list_account(account, f"{folder}/"))])


def read_numbered(account: str, folder: str) -> dict[str, bytes]:
    """`read_objects` of a folder of numbered ones; also those that its listing has missed."""
    found = read_objects(account, folder)
    names = [f"{folder}/{number_name(k)}" for k in range(len(found) + MOST_TRIES)]
    # Of two that are made while a folder is listed it may show the second alone.
    if [*found] != names[: len(found)]:
        found |= {name: one for name, one in read_named(account, names).items() if one}
    return dict(sorted(found.items()))


def list_account(account: str, prefix: str = "") -> list[str]:
    """Names of all objects of an account; errors: see `read_objects`."""
    with reaching(account):
        # A walk passes over a file, and over a folder that it may not read: as of an account to
        # which nothing was ever charged.
        try:
            if (path := local_path(account)) is not None:
                os.scandir(os.path.join(path, prefix)).close()
        except FileNotFoundError:
            pass
        except OSError as error:
            why = os.strerror(error.errno or 0).lower()
            problem = f"The account {shown(account)} is no folder that can be read ({why})."
            remedy = "Name a folder, there or not yet, in PRIVPIPE_ACCOUNT or [privacy] account."
            raise StoreError(problem, remedy=remedy, code="refused") from None
        # Listed each time: a client of buckets believes for ever what it once listed.
        keys = list_keys(open_store(account, read_only=True), prefix)
        if not keys:
            _check_bucket(account)
    return keys


def _check_bucket(account: str) -> None:
    """Raise ConnectionError if the bucket of an account is not there."""
    file_system, path = fsspec.core.url_to_fs(account)
    protocol = file_system.protocol
    # A client has one name of its protocol, or several.
    known = BUCKETS.intersection([protocol] if isinstance(protocol, str) else protocol)
    if known and not file_system.exists(bucket := path.lstrip("/").partition("/")[0]):
        raise ConnectionError(bucket)


def read_named(account: str, names: list[str]) -> dict[str, bytes]:
    """Objects of an account by their names; one that is not there is empty."""
    with reaching(account):
        return read_many(open_store(account, read_only=True), names)


def create_entry(account: str, name: str, content: bytes) -> bool:
    """Make an object of an account unless there is one; see `create_object`."""
    with reaching(account):
        return create_object(join(account, name), content)


def _find_new(chain: AccountChain) -> dict[str, str]:
    """Digests of the objects that no link holds yet."""
    names = list_account(chain.url)
    new = [name for name in names if ENTRY.fullmatch(name) and name not in chain.entries]
    whole = {}
    for name, content in read_named(chain.url, new).items():
        # What is damaged before a link holds it is for its reader to report: it may be restored.
        with suppress(ValueError):
            json.loads(content)
            whole[name] = _digest(content)
    return whole


def _damaged(account: str, name: str) -> FormatError:
    return FormatError(
        f"The account at {shown(account)} is not as its chain says: {name} is missing or was "
        "changed, or what comes before it.",
        remedy="Restore the account from the newest backup; nothing is released on one with gaps.",
        code="account-damaged",
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def number_name(number: int) -> str:
    """Of a numbered object; eight digits, so that names are in the order of the numbers."""
    return f"{number:08d}.json"
