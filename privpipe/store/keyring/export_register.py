"""What left a release or was erased: notes beside the account, one object each, never changed.

Exports hold released records where no run looks; whoever erases somebody's records has to find
them. A certificate of an erasure is kept here as well as beside its collection.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from privpipe.errors import FormatError, StoreError
from privpipe.store.access.location import explain_unreachable, join, shown
from privpipe.store.access.objects import keep_bytes, list_keys, open_store, read_bytes, read_many
from privpipe.store.keyring.account_chain import append_link

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
    _write(join(account, EXPORTS), name, {"run": run, "place": out})


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
        return [_decode(content, url) for content in read_many(store, names).values()]
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
    encoded = found or _write(url, name, certificate)
    digest = hashlib.sha256(encoded).hexdigest()
    append_link(account, "erasure", {"erasure": name, "certificate": digest})
    kept: Mapping[str, Any] = json.loads(encoded)
    return kept


def _write(url: str, name: str, content: Mapping[str, Any]) -> bytes:
    encoded = json.dumps(content, indent=1).encode()
    try:
        keep_bytes(url, f"{name}.json", encoded)
    except StoreError:
        raise
    except Exception as error:  # many kinds, depending on the file system
        raise explain_unreachable(url, error) from None
    return encoded


def _decode(content: bytes, url: str) -> tuple[str, str]:
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
