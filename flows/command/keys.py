"""``privpipe forget-key``: destroy the key of a release's random draws, or list what there is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from privpipe.store.keyformat import KeyEntry
from privpipe.store.keys import forget_key, list_keys

__all__ = ["forget_key_command"]


def forget_key_command(name: str, *, as_json: bool) -> dict[str, Any]:
    """Destroy the named key; without a name list all keys, never their secrets."""
    console = Console(highlight=False, soft_wrap=True)
    if name:
        forget_key(name)
        if not as_json:
            console.print(
                f"The key {name} is destroyed: its draws can neither be repeated nor be subtracted."
            )
        return {"forgotten": name}
    entries = list_keys()
    if not as_json:
        console.print(_tabulate(entries) if entries else "There are no keys.")
    return {
        "keys": [
            {
                "key": entry.key_id,
                "made": entry.created,
                "source": entry.binding.source,
                "model": entry.binding.model,
                "forgotten": entry.forgotten,
            }
            for entry in entries
        ]
    }


def _tabulate(entries: Iterable[KeyEntry]) -> Table:
    table = Table("key", "made", "source", "model", "forgotten")
    for entry in entries:
        table.add_row(
            entry.key_id,
            entry.created,
            entry.binding.source[:12],
            entry.binding.model[:12],
            entry.forgotten or "",
        )
    return table
