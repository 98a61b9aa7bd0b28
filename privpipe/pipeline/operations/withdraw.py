"""Withdrawing a partition: the next generation does not have it, and no later one will."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from privpipe.errors import OptionError
from privpipe.store.access.generation_log import publish_generation, write_root
from privpipe.store.access.location import shown
from privpipe.store.access.workspace import hold_workspace, remove_workspace
from privpipe.store.keyring.account_chain import append_link
from privpipe.store.releases.incremental_release import (
    PrivateLedger,
    Retired,
    delete_part,
    read_incremental,
)


def withdraw_partition(url: str, name: str, grace: timedelta, account: str) -> tuple[int, int]:
    """Take a partition out of a release, once that is noted.

    Parameters
    ----------
    url
        The incremental release.
    name
        Of the partition in the growing collection.
    grace
        After which the records of the part are deleted, by this call where it is zero, else by
        the first run that finds them due. Keys of draws and their entries are kept: they say that
        these records must not be drawn for again.
    account
        In whose chain it is noted.

    Returns
    -------
    number, n_records
        The new generation, and how many records it has no more.

    Raises
    ------
    OptionError
        If the release has no part of that partition.
    StoreError
        If another process writes, or it cannot be noted.
    """
    with hold_workspace(url):
        found = read_incremental(url)
        if found is not None:
            write_root(url, found[0])  # a writer that died may have left it behind
        ledger = PrivateLedger(url)
        parts = [] if found is None else ledger.find_parts(name, found[1].parts)
        if found is None or not parts:
            raise OptionError(
                f"{shown(url)} has no part of a partition {name!r}.",
                remedy="Give the name it has in the collection; it may be withdrawn already.",
                code="partition",
            )
        before, state = found
        gone = {part.id for part in parts}
        due = (datetime.now(UTC) + grace).isoformat()
        now_due = () if not grace else tuple(Retired(part, due) for part in sorted(gone))
        following = replace(
            state,
            parts=tuple(part for part in state.parts if part.id not in gone),
            withdrawn=tuple(dict.fromkeys((*state.withdrawn, *(part.content for part in parts)))),
            retired=(*state.retired, *now_due),
        )
        # In the chain before it is done: a withdrawal that cannot be noted does not happen.
        note = {"release": shown(url), "partition": name, "generation": before.number + 1}
        append_link(account, "withdrawal", note)
        generation = publish_generation(url, "release", following.encode(), before)
        if not grace:
            for part in sorted(gone):
                delete_part(url, part)
        remove_workspace(url)
    return generation.number, sum(part.n_records for part in parts)
