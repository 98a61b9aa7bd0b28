"""``privpipe account``: what every partition has lost, and its records wherever else they were."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from privpipe.cluster.executors.executor import LocalExecutor
from privpipe.cluster.passes.sketch_pass import sketch_collection
from privpipe.numerics.identity.record_grids import Overlap
from privpipe.report.console import say, tabulate
from privpipe.store.access.location import as_url, shown
from privpipe.store.collections.collection import open_collection
from privpipe.store.keyring.account import Account, Loss, find_account
from privpipe.store.keyring.sketches import Sketches, Ties


def account_command(url: str, *, as_json: bool, sketch: str | None = None) -> dict[str, Any]:
    """List the losses of every partition, by the digest of its content.

    Parameters
    ----------
    url
        Of the account.
    as_json
        Say nothing.
    sketch
        A collection whose records the account is to know again; read in this process.
    """
    place = as_url(find_account(url or None))
    sketches = Sketches(place)
    if sketch is not None:
        sketch_collection(LocalExecutor(), open_collection(as_url(sketch)), sketches)
    ties = sketches.ties()
    account = Account(place, ties)
    losses = list(account.read_all())
    if not as_json:
        _show(account, ties, losses)
    return {
        "account": shown(place),
        "partitions": [
            {
                **asdict(loss),
                "entries": [asdict(entry) for entry in loss.entries],
                "joined_epsilon": account.read_joined(loss.partition)[0],
                "overlaps": {
                    other: overlap.mine for other, overlap in _list_charged(loss, ties, losses)
                },
            }
            for loss in losses
        ],
        "without_sketch": sketches.find_missing(_list_open(losses)),
    }


def _list_open(losses: list[Loss]) -> list[str]:
    return [loss.partition for loss in losses if loss.n_charges]


def _list_charged(loss: Loss, ties: Ties, losses: list[Loss]) -> list[tuple[str, Overlap]]:
    """Other partitions that were charged and hold records of this one."""
    charged = _list_open(losses)
    return [(one, how) for one, how in ties.relatives(loss.partition).items() if one in charged]


def _show(account: Account, ties: Ties, losses: list[Loss]) -> None:
    if not losses:
        say(f"{shown(account.url)}: nothing was ever charged.")
        return
    table = tabulate(
        "partition", "epsilon", "with others", "delta", "releases", "unconfirmed", "protects"
    )
    for loss in losses:
        table.add_row(
            loss.partition[:12],
            f"{loss.epsilon:g}",
            f"{account.read_joined(loss.partition)[0]:g}",
            f"{loss.delta:.3g}",
            str(loss.n_charges),
            str(loss.n_open),
            ", ".join(sorted({entry.protects for entry in loss.entries})),
        )
    say(f"account {shown(account.url)}")
    say(table)
    for loss in losses:
        for other, overlap in _list_charged(loss, ties, losses):
            why = " (equal profiles)" if overlap.by_profile else ""
            say(
                f"{overlap.mine:.3g} of the records of {loss.partition[:12]} are in "
                f"{other[:12]}{why}"
            )
    if missing := Sketches(account.url).find_missing(_list_open(losses)):
        say(f"{len(missing)} partitions without a sketch: privpipe account --sketch COLLECTION")
