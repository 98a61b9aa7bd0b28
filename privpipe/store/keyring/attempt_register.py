"""The register of attempts: how often the records of a collection were judged, by each release.

Whoever tries seeds, sample sizes or budgets until an audit says "safe" finds one that says so by
chance. So each audit is noted before it judges, beside the account of losses, under what was
released and how it was judged; attempts on records share the level. The same release judged in the
same way is the same attempt, whatever its limits: it draws the same sample. An entry holds digests
alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import dataclass

from privpipe.errors import FormatError
from privpipe.store.access.location import join, shown
from privpipe.store.access.objects import list_keys, read_many
from privpipe.store.keyring.account_chain import (
    append_link,
    check_entries,
    create_object,
    open_fresh,
    reaching,
)

FOLDER = ".attempts"
"""Of the account; its partitions have names of digits."""


@dataclass(frozen=True)
class Attempt:
    """One of the attempts to pass the gate with some records.

    Parameters
    ----------
    number
        From 1: how many there were, with this one, on records it shares a partition with.
    seed
        Of sample, splits and adversaries: a hash of what is released.
    """

    number: int
    seed: int


def note_attempt(account: str, released: str, judged: str, partitions: Collection[str]) -> Attempt:
    """Note an attempt before its audit begins, and count it.

    Parameters
    ----------
    account
        Where the register is.
    released
        Digest of the receipts of the release.
    judged
        Digest of how it is judged, without limits.
    partitions
        Digests of the partitions that are released and of those that judge.

    Returns
    -------
    attempt
        The same whenever the same is given again. Of several that begin at once each may count
        the others.

    Raises
    ------
    StoreError
        If the register cannot be read or written: an attempt that is not counted is none.
    FormatError
        If an entry is missing, damaged or changed.
    """
    name = f"{FOLDER}/{released[:32]}-{judged[:32]}.json"
    with reaching(account):
        create_object(join(account, name), json.dumps({"partitions": sorted(partitions)}).encode())
    chain = append_link(account, "attempt")
    with reaching(account):
        store = open_fresh(account)
        names = [key for key in list_keys(store, f"{FOLDER}/") if key.endswith(".json")]
        found = read_many(store, names)
    check_entries(chain, found, f"{FOLDER}/")
    known = {key: _decode(content, account) for key, content in found.items()}
    number = known[name][1]
    if number is None:  # its place in the chain says it
        mine, last = set(partitions), chain.places[name]
        before = [held for key, (held, _) in known.items() if chain.places.get(key, last) <= last]
        number = sum(bool(mine & held) for held in before)
    return Attempt(number, int(released[:8], 16) % 2**31)


def share_level(level: float, number: int) -> float:
    """Confidence of the verdicts of one attempt, so that those of all hold together at `level`.

    The errors ``alpha * 6 / (pi * number)**2`` of all numbers add up to alpha.

    >>> round(share_level(0.95, 1), 4), round(share_level(0.95, 10), 5)
    (0.9696, 0.9997)
    """
    return 1 - (1 - level) * 6 / (math.pi * number) ** 2


def _decode(content: bytes, account: str) -> tuple[set[str], int | None]:
    """Partitions; and the number, which older versions wrote."""
    try:
        entry = json.loads(content)
        number = entry.get("number")
        return {str(one) for one in entry["partitions"]}, None if number is None else int(number)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise FormatError(
        f"An entry of the register of attempts in {shown(account)} is damaged.",
        remedy="Restore it: without it nobody knows how often these records were judged.",
    )
