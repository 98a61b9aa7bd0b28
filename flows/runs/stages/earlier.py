"""Earlier releases of a run's records: those that are named, and those that the register knows.

Whoever holds two releases of the same records joins them row by row. Every run notes its release
in the register beside the account before it becomes visible, so that the next audit finds it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from privpipe.attacks.adversaries.evidence import LeftOut
from privpipe.errors import PrivpipeError
from privpipe.store.access.location import local_path, shown
from privpipe.store.arrays.headers import exists
from privpipe.store.keyring.account import find_account
from privpipe.store.keyring.release_register import (
    Registered,
    find_releases,
    register_release,
    share_rows,
)
from privpipe.store.releases.earlier_release import (
    EarlierRelease,
    holds_the_same,
    open_earlier_release,
)
from privpipe.store.releases.release import ReleasePlan, read_ledger
from privpipe_flows.runs.run import Run, now

__all__ = ["Earlier", "count_earlier", "find_earlier", "note_release"]


@dataclass(frozen=True)
class Earlier:
    """What is known of earlier releases.

    Parameters
    ----------
    releases
        Those that are joined with this one.
    unread
        Those that are there and cannot be read: what they tell is unknown.
    warnings
        A sentence for each that is not at its place.
    """

    releases: tuple[EarlierRelease, ...] = ()
    unread: tuple[LeftOut, ...] = ()
    warnings: tuple[str, ...] = ()


def find_earlier(run: Run, plan: ReleasePlan | None = None) -> Earlier:
    """The releases named by ``[audit] earlier``, and those the register knows of these records.

    Parameters
    ----------
    run
        Whose records are to be released.
    plan
        Of the release that is judged, where its records are written: an earlier one of the very
        same tells nothing more.

    Raises
    ------
    StoreError, FormatError, IncompleteReleaseError
        If a named release cannot be read, or the register.
    OptionError
        If a named release is of other records.
    """
    found: list[EarlierRelease] = []
    for url in run.options.audit.earlier:
        found.append(
            open_earlier_release(
                url,
                source_digest=run.collection.digest,
                n_records=run.collection.n_records,
                names=[one.name for one in found],
            )
        )
    named = {one.run for one in found}
    unread, warnings = list[LeftOut](), list[str]()
    for entry in _list_registered(run):
        if entry.run in named:
            continue
        try:
            known = _open_registered(run, entry, [one.name for one in found])
            if known is None:
                warnings.append(_say_gone(entry))
            elif plan is None or not holds_the_same(known.url, read_ledger(plan)):
                found.append(known)
        except PrivpipeError as error:
            why = f"it is a release of the same records, and cannot be read ({error.code})."
            unread.append(LeftOut(f"{entry.method} {entry.run}", why))
    return Earlier(tuple(found), tuple(unread), tuple(warnings))


def count_earlier(run: Run) -> int:
    """How many earlier releases an audit will join with this one, at most."""
    return len({*run.options.audit.earlier, *(one.url for one in _list_registered(run))})


def note_release(run: Run, *, incremental: bool = False) -> None:
    """Enter the release of a run into the register, before anybody can see it.

    Raises
    ------
    StoreError
        If that cannot be written; then nothing may be published.
    """
    partitions = run.collection.schema_of_records.partitions
    path = local_path(run.release_url)
    register_release(
        _find_register(run),
        Registered(
            shown(run.release_url) if path is None else os.path.abspath(path),
            run.run_id,
            run.method.name,
            "" if incremental else run.collection.digest,
            now(),
            tuple((part.digest, part.n_records) for part in partitions if part.digest),
        ),
    )


def _find_register(run: Run) -> str:
    return find_account(run.options.privacy.account)


def _list_registered(run: Run) -> tuple[Registered, ...]:
    """Entries of other runs than this one; none of surrogates, whose rows are nobody's."""
    if run.method.releases == "surrogate":
        return ()
    entries = find_releases(_find_register(run), run.collection.schema_of_records.partitions)
    return tuple(one for one in entries if one.run != run.run_id)


def _open_registered(run: Run, entry: Registered, names: list[str]) -> EarlierRelease | None:
    """The release of an entry; None where it is not at its place any more."""
    if not exists(entry.url):
        return None
    whole = entry.source == run.collection.digest
    found = open_earlier_release(
        entry.url,
        source_digest=entry.source,
        n_records=entry.n_records,
        names=names,
        rows=None if whole else share_rows(entry, run.collection.schema_of_records.partitions),
    )
    return found if found.run == entry.run else None


def _say_gone(entry: Registered) -> str:
    return (
        f"A release of these records is in the register ({entry.method} {entry.run}, {entry.time}) "
        "and no longer at its place: removed, or never published. If anybody has a copy, name that "
        "in [audit] earlier: who holds both joins them."
    )
