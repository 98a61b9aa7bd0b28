"""``privpipe account``: what every partition has lost, from the account of privacy losses."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from privpipe.report.console import say, tabulate
from privpipe.store.access.location import as_url, shown
from privpipe.store.keyring.account import Account, Loss, find_account

__all__ = ["account_command"]


def account_command(url: str, *, as_json: bool) -> dict[str, Any]:
    """List the losses of every partition, by the digest of its content."""
    place = as_url(find_account(url or None))
    losses = list(Account(place).read_all())
    if not as_json:
        _show(place, losses)
    return {
        "account": shown(place),
        "partitions": [
            {**asdict(loss), "entries": [asdict(entry) for entry in loss.entries]}
            for loss in losses
        ],
    }


def _show(place: str, losses: list[Loss]) -> None:
    if not losses:
        say(f"{shown(place)}: nothing was ever charged.")
        return
    table = tabulate("partition", "epsilon", "delta", "releases", "unconfirmed", "protects")
    for loss in losses:
        table.add_row(
            loss.partition[:12],
            f"{loss.epsilon:g}",
            f"{loss.delta:.3g}",
            str(loss.n_charges),
            str(loss.n_open),
            ", ".join(sorted({entry.protects for entry in loss.entries})),
        )
    say(f"account {shown(place)}")
    say(table)
