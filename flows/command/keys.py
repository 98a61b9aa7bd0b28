"""``privpipe forget-key``: destroy the key of a release's random draws, or list what there is."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from privpipe.store.keys import forget_key, list_keys

__all__ = ["forget_key_command"]


def forget_key_command(name: str) -> None:
    """Destroy the named key; without a name list all keys, never their secrets."""
    console = Console(highlight=False, soft_wrap=True)
    if name:
        forget_key(name)
        console.print(
            f"The key {name} is destroyed: its draws can neither be repeated nor be subtracted."
        )
        return
    entries = list_keys()
    table = Table("key", "made", "source", "model", "forgotten")
    for entry in entries:
        table.add_row(
            entry.key_id,
            entry.created,
            entry.binding.source[:12],
            entry.binding.model[:12],
            entry.forgotten or "",
        )
    console.print(table if entries else "There are no keys.")
