"""``privpipe forget-key``: destroy the key of a release's random draws, or list what there is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table

from privpipe.errors import StoreError
from privpipe.report.console import say, tabulate
from privpipe.store.access.location import shown
from privpipe.store.arrays.headers import exists, read_header
from privpipe.store.keyring.keyformat import KeyEntry
from privpipe.store.keyring.keys import forget_key, list_keys, list_unreadable
from privpipe.store.keyring.partition_keys import forget_keys


def forget_key_command(name: str, *, as_json: bool) -> dict[str, Any]:
    """Destroy a key, or all keys of a release; without a name list all, never their secrets."""
    if name:
        forgotten = _forget(name)
        if not as_json:
            say(
                f"{len(forgotten)} keys of {name} are destroyed: their draws can neither be "
                "repeated nor be subtracted."
            )
        return {"forgotten": [entry.key_id for entry in forgotten]}
    entries, unreadable = list_keys(), list_unreadable()
    if not as_json:
        say(_tabulate(entries) if entries else "There are no keys.")
        for key_id in unreadable:
            say(f"{key_id}: damaged, not private, or not a key")
    return {
        "keys": [
            {
                "key": entry.key_id,
                "made": entry.created,
                "source": entry.binding.source,
                "model": entry.binding.model,
                "forgotten": entry.forgotten,
                "runs": list(entry.runs),
            }
            for entry in entries
        ],
        "unreadable": list(unreadable),
    }


def _forget(name: str) -> tuple[KeyEntry, ...]:
    """Of a release's place all its keys, else the key of this name."""
    if not exists(name):
        return (forget_key(name),)
    run = str(read_header(name, "release")["run"])
    forgotten = forget_keys(run)
    if not forgotten:
        raise StoreError(
            f"The release {shown(name)} drew from no key of this key folder.",
            remedy="Only mappings and noise draw at random; see PRIVPIPE_KEYS for the folder.",
            code="key_unknown",
        )
    return forgotten


def _tabulate(entries: Iterable[KeyEntry]) -> Table:
    table = tabulate("key", "made", "source", "model", "forgotten")
    for entry in entries:
        table.add_row(
            entry.key_id,
            entry.created,
            entry.binding.source[:12],
            entry.binding.model[:12],
            entry.forgotten or "",
        )
    return table
