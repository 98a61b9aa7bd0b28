"""The register of releases: which were made of which records, by the content of partitions.

Two releases of the same records are joined row by row by whoever holds both, so an audit has to
know of the earlier ones. It stands beside the account of losses, in the same place, one object per
run; an entry is written before its release becomes visible and never changed. It holds places and
digests, no value of a record, and is published nowhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from privpipe.errors import FormatError, StoreError
from privpipe.records.partitions import Partition
from privpipe.store.access.location import (
    explain_unreachable,
    join,
    list_keys,
    local_path,
    open_store,
    read_many,
    shown,
    write_bytes,
)

__all__ = ["Registered", "Shared", "find_releases", "register_release", "share_rows"]

FOLDER = ".releases"
"""Of the account; its partitions have names of digits."""


@dataclass(frozen=True)
class Registered:
    """A release that was, or was about to be, published.

    Parameters
    ----------
    url
        Its place, without user, password and query.
    run
        The run that made it.
    method
        Of the run.
    source
        Digest of the collection; empty of a part of an incremental release.
    time
        UTC.
    partitions
        Digest and number of records of each partition, in the order of the rows.
    """

    url: str
    run: str
    method: str
    source: str
    time: str
    partitions: tuple[tuple[str, int], ...]

    @property
    def n_records(self) -> int:
        return sum(n for _, n in self.partitions)


@dataclass(frozen=True)
class Shared:
    """Rows of a collection that a release holds as well.

    Parameters
    ----------
    first, last
        The first of them in the collection, and the one behind the last.
    other
        Row of the first one in the release.
    """

    first: int
    last: int
    other: int


def register_release(account: str, entry: Registered) -> None:
    """Note a release before it can be seen.

    Raises
    ------
    StoreError
        If it cannot be written: a release that nobody knows of may not be published.
    """
    url = join(account, FOLDER)
    content = json.dumps(asdict(entry)).encode()
    try:
        if (path := local_path(url)) is not None:
            os.makedirs(path, mode=0o700, exist_ok=True)
        write_bytes(open_store(url), f"{entry.run}.json", content)
    except StoreError:
        raise
    except Exception as error:  # many kinds, depending on the file system
        raise explain_unreachable(url, error) from None


def find_releases(account: str, partitions: Sequence[Partition]) -> tuple[Registered, ...]:
    """Releases that hold some of these partitions, the oldest first.

    Raises
    ------
    StoreError
        If the register cannot be reached.
    FormatError
        If an entry is damaged: what was released is not known then.
    """
    url, mine = join(account, FOLDER), {part.digest for part in partitions}
    try:
        store = open_store(url, read_only=True)
        names = [name for name in list_keys(store) if name.endswith(".json")]
        found = [_decode(content, url) for content in read_many(store, names).values()]
    except StoreError:
        raise
    except Exception as error:  # many kinds, depending on the file system
        raise explain_unreachable(url, error) from None
    some = [one for one in found if mine & {digest for digest, _ in one.partitions}]
    return tuple(sorted(some, key=lambda one: (one.time, one.run)))


def share_rows(entry: Registered, partitions: Sequence[Partition]) -> tuple[Shared, ...]:
    """Which rows of a collection stand in a release, and where.

    >>> mine = [Partition("a", 0, 2, "a"), Partition("b", 2, 3, "b")]
    >>> share_rows(Registered("", "", "", "", "", (("c", 5), ("b", 3))), mine)
    (Shared(first=2, last=5, other=5),)
    """
    places: dict[str, int] = {}
    row = 0
    for digest, n_records in entry.partitions:
        places.setdefault(digest, row)
        row += n_records
    return tuple(
        Shared(part.first_record, part.first_record + part.n_records, places[part.digest])
        for part in partitions
        if part.digest in places
    )


def _decode(content: bytes, url: str) -> Registered:
    try:
        found = json.loads(content)
        cut = tuple((str(digest), int(n)) for digest, n in found.pop("partitions"))
        return Registered(**{name: str(value) for name, value in found.items()}, partitions=cut)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise FormatError(
        f"An entry of the register of releases in {shown(url)} is damaged.",
        remedy="Restore it: without it an audit does not know what was released of these records.",
    )
