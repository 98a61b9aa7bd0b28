"""The account of privacy losses: what every partition has given away, by its content.

A copied, moved or re-chunked collection has the same partitions, and one account of them; records
that stand in other partitions as well have lost there, too (`join_losses`). Entries
of a partition are numbered objects, each made only if it is absent, so that of two writers one
finds the other's entry before it counts its own; nothing is ever changed or deleted. A loss is
counted from its reservation on, before the first chunk is written, until it is given back by a run
that wrote nothing.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Literal, NoReturn, Protocol

import fsspec
import google_crc32c
from platformdirs import user_data_path

from privpipe.errors import FormatError, GuaranteeError, StoreError
from privpipe.store.access.location import explain_unreachable, join, shown
from privpipe.store.keyring.account_chain import create_object, reaching

Action = Literal["reserve", "confirm", "void"]

BUCKETS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
"""Schemes whose paths begin with a bucket, which nobody but its owner makes."""

MOST_DELTA = 2.0**-60
"""Largest sum of deltas that any partition may lose."""

MOST_ATTEMPTS = 1_000
"""Entries of rivals that a writer waits for."""


@dataclass(frozen=True)
class Charge:
    """What a run takes from one partition.

    Parameters
    ----------
    partition
        Digest of its content.
    charge
        Names the key and what it is bound to; the same draws are one charge, however often made.
    epsilon, delta
        Loss of what is protected.
    protects
        "record", or the variable of the subjects.
    """

    partition: str
    charge: str
    epsilon: float
    delta: float
    protects: str


@dataclass(frozen=True)
class Entry:
    """One object of the account; no value of a record.

    Parameters
    ----------
    number
        Place among the entries of its partition, from 0.
    action
        "reserve", "confirm" (published) or "void" (nothing was written).
    charge, epsilon, delta, protects
        As of `Charge`.
    run
        Which run.
    time
        UTC.
    """

    number: int
    action: Action
    charge: str
    epsilon: float
    delta: float
    protects: str
    run: str
    time: str


@dataclass(frozen=True)
class Loss:
    """What one partition has given away.

    Parameters
    ----------
    partition
        Digest of its content.
    epsilon, delta
        Sums over different draws, rounded up.
    n_charges
        Different draws.
    n_open
        Those of them that no publication has confirmed.
    entries
        All that was written of it.
    """

    partition: str
    epsilon: float
    delta: float
    n_charges: int
    n_open: int
    entries: tuple[Entry, ...]


def find_account(url: str | None = None) -> str:
    """Place of the account: given, else ``PRIVPIPE_ACCOUNT``, else in the user's data folder."""
    chosen = url or os.environ.get("PRIVPIPE_ACCOUNT")
    return chosen or str(user_data_path("privpipe") / "account")


def add_up_losses(losses: Iterable[float]) -> float:
    """Sum of floats, never below the exact one.

    >>> add_up_losses([0.1] * 10)
    1.0000000000000002
    >>> add_up_losses([0.5, 0.25])
    0.75
    """
    found = list(losses)
    total = math.fsum(found)
    return (
        total if Fraction(total) >= sum(map(Fraction, found)) else math.nextafter(total, math.inf)
    )


def join_losses(losses: Sequence[Loss], meet: Callable[[str, str], bool]) -> tuple[float, float]:
    """Most that a person in several partitions has lost: epsilon and delta, rounded up.

    Parameters
    ----------
    losses
        Of a partition and of all that have records in common with it.
    meet
        Whether two of them have, by digest. In one run nobody is in two partitions that do not
        meet, so that the run counts once, by the largest; those that do are added.

    Examples
    --------
    >>> entries = [Entry(0, "reserve", c, 10.0, 0.0, "record", r, "") for c, r in ("ax", "by")]
    >>> one, other = (Loss(e.charge, 10.0, 0.0, 1, 1, (e,)) for e in entries)
    >>> join_losses([one, other], lambda a, b: True)
    (20.0, 0.0)
    """
    by_run: dict[str, dict[str, list[Entry]]] = {}
    for loss in losses:
        said = _find_actions(loss.entries)
        first: dict[str, Entry] = {}
        for entry in loss.entries:
            if said[entry.charge, entry.run] != "void":
                first.setdefault(entry.charge, entry)
        for entry in first.values():
            by_run.setdefault(entry.run, {}).setdefault(loss.partition, []).append(entry)
    most = [
        max(
            (
                [entry for one in group for entry in of_run[one]]
                for group in _group(list(of_run), meet)
            ),
            key=lambda group: add_up_losses(entry.epsilon for entry in group),
        )
        for of_run in by_run.values()
    ]
    held = [entry for group in most for entry in group]
    return add_up_losses(e.epsilon for e in held), add_up_losses(e.delta for e in held)


def _group(partitions: list[str], meet: Callable[[str, str], bool]) -> list[list[str]]:
    """Partitions of one run that meet, directly or by others."""
    groups: list[list[str]] = []
    for one in partitions:
        near = [group for group in groups if any(meet(one, other) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append([one, *(other for group in near for other in group)])
    return groups


class Relatives(Protocol):
    """Which partitions have records in common; see `privpipe.store.keyring.sketches.Ties`."""

    def relatives(self, partition: str, /) -> Iterable[str]:
        """Those of one partition."""
        ...

    def meet(self, one: str, other: str, /) -> bool:
        """Whether two have."""
        ...


class NoRelatives:
    """Every partition is by itself."""

    def relatives(self, partition: str, /) -> Iterable[str]:
        """None."""
        del partition
        return ()

    def meet(self, one: str, other: str, /) -> bool:
        """Only with itself."""
        return one == other


@dataclass(frozen=True)
class Account:
    """The account at a place, a folder or a bucket.

    Parameters
    ----------
    url
        Local path or URL.
    ties
        Which partitions have records in common.
    """

    url: str
    ties: Relatives = field(default_factory=NoRelatives)

    def read_joined(self, partition: str) -> tuple[float, float]:
        """Epsilon and delta that a record of a partition has lost at most, there and elsewhere."""
        others = self.ties.relatives(partition)
        return join_losses([self.read(one) for one in (partition, *others)], self.ties.meet)

    def reserve(self, charges: Sequence[Charge], run: str, limit: float | None) -> None:
        """Count losses before anything is written.

        Raises
        ------
        GuaranteeError
            If a partition would lose more than the limit, or a delta above `MOST_DELTA`; nothing is
            then counted.
        StoreError
            If the account cannot be reached; FormatError if it is damaged.
        """
        fresh: list[Charge] = []
        for charge in charges:  # all of them before the first entry: most refusals write nothing
            loss = self.read(charge.partition)
            fresh += [] if _is_charged(loss, charge) else [charge]
            self._check_limit(loss, charge, limit)
        made: list[Charge] = []
        try:
            for charge in charges:
                made += [charge] if self._reserve(charge, run, limit) else []
            for charge in fresh:  # rivals charge partitions that hold the same records
                if limit is not None and self.read_joined(charge.partition)[0] > limit:
                    self._refuse(charge, limit)
        except BaseException:
            self.record("void", made, run)
            raise

    def _reserve(self, charge: Charge, run: str, limit: float | None) -> bool:
        """Make an entry; whether it was the first of this run.

        A run that goes on makes another one, which costs nothing: the number that a lost "void"
        of its own may still be on its way to is taken then.
        """
        mine, tried, held = (charge.charge, run), -1, False
        for attempt in range(MOST_ATTEMPTS):
            loss = self.read(charge.partition)
            if attempt == 0:
                held = _find_actions(loss.entries).get(mine, "void") != "void"
            if _is_made(loss.entries, tried, mine):  # though the store's answer was lost
                return not held
            self._check_limit(loss, charge, limit)
            tried = len(loss.entries)
            if self._write("reserve", charge, run, tried):
                return not held
        raise _contended(self.url)

    def _check_limit(self, loss: Loss, charge: Charge, limit: float | None) -> None:
        if _is_charged(loss, charge):
            return
        if (delta := add_up_losses([loss.delta, charge.delta])) > MOST_DELTA:
            raise GuaranteeError(
                f"Partition {charge.partition[:12]} would have lost delta {delta:.2g} in "
                f"{loss.n_charges + 1} releases, a chance that nothing holds; allowed is at most "
                f"{MOST_DELTA:.2g}.",
                remedy='Repeat an earlier release, which costs nothing; or use noise = "discrete", '
                "whose delta is 0.",
                code="account-exhausted",
            )
        if limit is None:
            return
        lost = max(loss.epsilon, self.read_joined(charge.partition)[0])
        if add_up_losses([lost, charge.epsilon]) > limit:
            self._refuse(charge, limit)

    def _refuse(self, charge: Charge, limit: float) -> NoReturn:
        loss, joined = self.read(charge.partition), self.read_joined(charge.partition)[0]
        others = list(self.ties.relatives(charge.partition))
        elsewhere = f" (of it {loss.epsilon:g} itself, the rest in {len(others)} partitions with "
        elsewhere += "records of it)"
        raise GuaranteeError(
            f"Partition {charge.partition[:12]} has lost epsilon {max(joined, loss.epsilon):g}"
            f"{elsewhere if others else f' in {loss.n_charges} releases'}; another "
            f"{charge.epsilon:g} would be above the limit of {limit:g}.",
            remedy="Repeat an earlier release, which costs nothing; or decide on another "
            "[privacy] limit. `privpipe account` lists what was lost.",
            code="account-exhausted",
        )

    def record(self, action: Action, charges: Iterable[Charge], run: str) -> None:
        """Say of reserved losses that they were published, or that nothing was written."""
        for charge in charges:
            for _ in range(MOST_ATTEMPTS):
                entries = self.read(charge.partition).entries
                if _find_actions(entries).get((charge.charge, run)) in (action, None, "void"):
                    break
                if self._write(action, charge, run, len(entries)):
                    break
            else:
                raise _contended(self.url)

    def confirm_run(self, partitions: Iterable[str], run: str) -> None:
        """Confirm what a run reserved that died after its release was visible."""
        for partition in partitions:
            entries = self.read(partition).entries
            held = {e.charge: e for e in entries if e.run == run and e.action == "reserve"}
            self.record(
                "confirm",
                [
                    Charge(partition, e.charge, e.epsilon, e.delta, e.protects)
                    for e in held.values()
                ],
                run,
            )

    def read(self, partition: str) -> Loss:
        """What a partition has lost.

        Raises
        ------
        StoreError
            If the account cannot be reached.
        FormatError
            If an entry is missing or damaged: what was lost is not known then.
        """
        folder = join(self.url, partition)
        try:
            names = self._list(folder)
            entries = tuple(
                _decode(self._read(join(folder, name)), number, shown(folder))
                for number, name in enumerate(names)
            )
        except (StoreError, FileNotFoundError) as error:
            if isinstance(error, StoreError):
                raise
            raise _damaged(shown(folder), len(names)) from None
        except Exception as error:  # many kinds, depending on the file system
            raise explain_unreachable(self.url, error) from None
        return _sum(partition, entries)

    def read_all(self) -> Iterator[Loss]:
        """Every partition that ever lost anything, by digest."""
        try:
            file_system, path = fsspec.core.url_to_fs(self.url)
            file_system.invalidate_cache()
            found = file_system.ls(path, detail=False) if file_system.exists(path) else []
            if not found:
                _check_bucket(file_system, path)
        except Exception as error:  # many kinds, depending on the file system
            raise explain_unreachable(self.url, error) from None
        for name in sorted(place.rstrip("/").rpartition("/")[2] for place in found):
            if not name.startswith("."):
                yield self.read(name)

    def _list(self, folder: str) -> list[str]:
        """Names of the entries, which must be 0, 1, 2 and so on."""
        file_system, path = fsspec.core.url_to_fs(folder)
        file_system.invalidate_cache()
        try:
            found = file_system.ls(path, detail=False)
        except FileNotFoundError:
            _check_bucket(file_system, path)
            return []
        names = sorted(place.rpartition("/")[2] for place in found)
        names = [name for name in names if name.endswith(".json") and not name.startswith(".")]
        if names != [_name(number) for number in range(len(names))]:
            raise _damaged(shown(folder), len(names))
        return names

    def _read(self, url: str) -> bytes:
        file_system, path = fsspec.core.url_to_fs(url)
        found: bytes = file_system.cat_file(path)
        return found

    def _write(self, action: Action, charge: Charge, run: str, number: int) -> bool:
        """Make an entry unless its number is taken."""
        entry = Entry(
            number,
            action,
            charge.charge,
            charge.epsilon,
            charge.delta,
            charge.protects,
            run,
            datetime.now(UTC).isoformat(timespec="seconds"),
        )
        url = join(self.url, charge.partition, _name(number))
        with reaching(self.url):
            return create_object(url, _encode(entry))


def _check_bucket(file_system: Any, path: str) -> None:
    """What is not there is an account of no losses; a bucket that is not there is a mistake."""
    protocols = {file_system.protocol} if isinstance(file_system.protocol, str) else {
        *file_system.protocol
    }  # fmt: skip
    bucket = path.lstrip("/").partition("/")[0]
    if protocols & BUCKETS and not file_system.exists(bucket):
        raise ConnectionError(bucket)


def _name(number: int) -> str:
    return f"{number:08d}.json"


def _encode(entry: Entry) -> bytes:
    content = json.dumps(asdict(entry), sort_keys=True)
    return json.dumps({"crc32c": google_crc32c.value(content.encode()), "entry": content}).encode()


def _decode(content: bytes, number: int, where: str) -> Entry:
    try:
        outer = json.loads(content)
        inner = outer["entry"]
        if google_crc32c.value(inner.encode()) != outer["crc32c"]:
            raise ValueError
        entry = Entry(**json.loads(inner))
        if entry.number != number or not entry.epsilon >= 0:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(where, number) from None
    return entry


def _is_made(entries: Sequence[Entry], number: int, mine: tuple[str, str]) -> bool:
    """Whether the entry of this number is the reservation that this run tried to make there."""
    if not 0 <= number < len(entries):
        return False
    found = entries[number]
    return (found.charge, found.run) == mine and found.action == "reserve"


def _is_charged(loss: Loss, charge: Charge) -> bool:
    """Whether these very draws were charged before."""
    said = _find_actions(loss.entries)
    return any(c == charge.charge and action != "void" for (c, _), action in said.items())


def _find_actions(entries: Iterable[Entry]) -> dict[tuple[str, str], Action]:
    """What was said last of each charge by each run."""
    return {(entry.charge, entry.run): entry.action for entry in entries}


def _sum(partition: str, entries: tuple[Entry, ...]) -> Loss:
    said = _find_actions(entries)
    held = [e for e in entries if said[e.charge, e.run] != "void"]
    charged = {e.charge: e for e in held}
    confirmed = {charge for (charge, _), action in said.items() if action == "confirm"}
    return Loss(
        partition,
        add_up_losses(e.epsilon for e in charged.values()),
        add_up_losses(e.delta for e in charged.values()),
        len(charged),
        len(charged.keys() - confirmed),
        entries,
    )


def _damaged(where: str, number: int) -> FormatError:
    return FormatError(
        f"The account at {where} is damaged at entry {number}: what was lost is not known.",
        remedy="Restore the folder from a backup; nothing is released on an account with gaps.",
        code="account-damaged",
    )


def _contended(url: str) -> StoreError:
    return StoreError(
        f"The account at {shown(url)} is being written by too many others.",
        remedy="Try again.",
        code="busy",
    )
