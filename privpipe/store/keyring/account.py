"""The account of privacy losses: what every partition has given away, by its content.

A copied, moved or re-chunked collection has the same partitions, and one account of them. Records
that are in other partitions as well have lost there, too (`join_losses`). Entries of a partition
are numbered objects, each made only if it is absent. So of two writers one finds the other's entry
before it counts its own. Nothing is ever changed or deleted. A loss is counted from its reservation
on, before the first chunk is written, until it is given back by a run that wrote nothing.
"""

import hashlib
import json
import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import cached_property
from typing import Literal, NoReturn, Self

import google_crc32c
from platformdirs import user_data_path

from privpipe.errors import FormatError, GuaranteeError
from privpipe.numerics.noise.composition import convert_rho, find_rho
from privpipe.numerics.noise.gaussian import MARGIN, bound_epsilon
from privpipe.store.access.location import join, shown
from privpipe.store.keyring import account_chain as chain
from privpipe.store.keyring.sketches import Sketches, Ties

Action = Literal["reserve", "confirm", "void"]

# Deltas were once summed and never limited: a sum of many tiny chances is no tiny chance.
MOST_DELTA = 2.0**-60
"""Largest sum of deltas that any partition may lose."""

# Each rule may fail, and which one stops may be chosen by what was seen: what they may fail with
# adds up. The least of several at the whole delta failed ten times as often.
GAUSSIAN_SHARE = 0.63
"""Of delta: for all draws as Gaussian noise."""
ORDERS = ((0.22, 1.2), (0.05, 5.0))
"""Shares of delta for a Renyi order, and how far it is ahead; see `convert_rho`."""
CLASSES = tuple(2.0**k for k in range(-6, 4))
"""Ends of classes of epsilons that count with their mean square."""
SUM_SHARE = 0.05
"""Largest share of delta by sums alone, and once more by draws other than Gaussian ones."""


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
    rho
        Of discrete Gaussian noise its loss in zero-concentrated differential privacy, which holds
        without a delta. None of all else: it is then that of its epsilon, but for its delta.
    """

    partition: str
    charge: str
    epsilon: float
    delta: float
    protects: str
    rho: float | None = None


@dataclass(frozen=True)
class Entry:
    """One object of the account; no value of a record.

    Parameters
    ----------
    number
        Place among the entries of its partition, from 0.
    action
        "reserve", "confirm" (published) or "void" (nothing was written).
    charge, epsilon, delta, protects, rho
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
    rho: float | None = None


def _measure(one: Charge | Entry) -> tuple[float, ...]:
    """What `TotalLoss` sums up."""
    gaussian = one.rho is not None
    size = 0 if gaussian else 1 + bisect_left(CLASSES, one.epsilon)
    there = [size == k for k in range(1, len(CLASSES) + 2)]
    halves = [k and find_rho(one.epsilon) for k in there]
    both = one.rho or 0.0, gaussian, 0.0 if gaussian else one.delta
    return tuple(map(float, (one.epsilon, one.delta, *both, *there, *halves)))


@dataclass(frozen=True)
class TotalLoss:
    """What several draws have cost together, rounded up.

    Parameters
    ----------
    sums
        Of epsilon and delta: basic composition. Of zero-concentrated losses of Gaussian noise, of
        its draws, and of the deltas of all others. Of these their number by `CLASSES`, and half
        the squares of their epsilons.
    """

    sums: tuple[float, ...] = (0.0,) * (7 + 2 * len(CLASSES))

    @classmethod
    def of(cls, charges: Sequence[Charge | Entry]) -> Self:
        """Of different draws."""
        return cls(tuple(map(add_up_losses, zip(cls().sums, *map(_measure, charges), strict=True))))

    @property
    def epsilon(self) -> float:
        """Sum of all epsilons."""
        return self.sums[0]

    @property
    def delta(self) -> float:
        """Sum of all deltas."""
        return self.sums[1]

    def add(self, other: "TotalLoss", times: int = 1) -> "TotalLoss":
        """Both, the other so many times."""
        pairs = zip(self.sums, other.sums, strict=True)
        return TotalLoss(tuple(add_up_losses([a, add_up_losses([b * times])]) for a, b in pairs))

    def compose(self, delta: float) -> float:
        """Epsilon at a delta, by composition of many small losses; infinite at deltas like none.

        The least of several rules, each at its share of delta. So it holds also where sizes are
        chosen by what was seen; see PROOF.md of `numerics.noise`.
        """
        gaussian, n_gaussian, chance, *rest = self.sums[2:]
        if not (delta > MOST_DELTA and chance <= SUM_SHARE * delta):
            return math.inf
        halves = rest[len(CLASSES) + 1 :]
        # What the discrete law may add to the Gaussian one, once for each draw.
        slack = MARGIN * n_gaussian
        # What has epsilon is dominated by Gaussian noise of this rho.
        rho = gaussian + math.pi / 2 * add_up_losses(halves)
        exact = bound_epsilon(rho, GAUSSIAN_SHARE * delta * math.exp(-slack))
        pure = [*zip(rest, halves, strict=False)]
        by_order = [convert_rho(gaussian, share * delta, pure, ahead) for share, ahead in ORDERS]
        return min(add_up_losses([exact, slack]), *by_order)

    def find_epsilon(self, delta: float) -> float:
        """The smallest epsilon that holds with a delta; infinite where none does."""
        # A first draw is chosen by nothing that was seen, and where it needs all of delta is last.
        alone = delta <= MOST_DELTA or sum(self.sums[3:4] + self.sums[5 : 6 + len(CLASSES)]) <= 1
        most = delta if alone else SUM_SHARE * delta
        return min(self.epsilon if self.delta <= most else math.inf, self.compose(delta))


@dataclass(frozen=True)
class Loss:
    """What one partition has given away.

    Parameters
    ----------
    partition
        Digest of its content.
    entries
        All that was written of it.
    """

    partition: str
    entries: tuple[Entry, ...]

    @cached_property
    def actions(self) -> dict[tuple[str, str], Action]:
        """What was noted last of each charge by each run."""
        return {(entry.charge, entry.run): entry.action for entry in self.entries}

    @cached_property
    def charged(self) -> dict[str, Entry]:
        """The first entry of each charge that was not given back: equal draws cost once."""
        held = [e for e in self.entries if self.actions[e.charge, e.run] != "void"]
        return {entry.charge: entry for entry in reversed(held)}

    @property
    def epsilon(self) -> float:
        """Sum over different draws, rounded up."""
        return add_up_losses(entry.epsilon for entry in self.charged.values())

    @property
    def delta(self) -> float:
        """Likewise."""
        return add_up_losses(entry.delta for entry in self.charged.values())

    @property
    def n_charges(self) -> int:
        """Different draws."""
        return len(self.charged)

    @property
    def n_open(self) -> int:
        """Those of them that no publication has confirmed."""
        confirmed = {charge for (charge, _), last in self.actions.items() if last == "confirm"}
        return len(self.charged.keys() - confirmed)


def find_account(url: str | None = None) -> str:
    """Place of the account: given, else ``PRIVPIPE_ACCOUNT``, else in the user's data folder."""
    return url or os.environ.get("PRIVPIPE_ACCOUNT") or str(user_data_path("privpipe") / "account")


def add_up_losses(losses: Iterable[float]) -> float:
    """Sum of floats, never below the exact one.

    >>> add_up_losses([0.1] * 10)
    1.0000000000000002
    >>> add_up_losses([0.5, 0.25])
    0.75
    """
    found = list(losses)
    # fsum rounds the exact sum once, so the next float up is above it if the sum itself is not.
    loss = math.fsum(found)
    return loss if Fraction(loss) >= sum(map(Fraction, found)) else math.nextafter(loss, math.inf)


def find_line(url: str, steps: Sequence[str]) -> str:
    """Name of a growth of noisy sums, whose releases lose their epsilon once for all of them.

    One that leaves the line, by continuing what another model has continued, has a name of its own.

    Parameters
    ----------
    url
        Of the account, which remembers who came first.
    steps
        Digests of the new sums of each release, from the first.
    """
    line = steps[0]
    for number, step in enumerate(steps):
        name, mine = f".growth/{line}-{number}.json", json.dumps(step).encode()
        chain.create_entry(url, name, mine)
        if chain.read_named(url, [name])[name] != mine:
            line = hashlib.sha256(f"{line} {step}".encode()).hexdigest()
    return line


def join_losses(losses: Sequence[Loss], meet: Callable[[str, str], bool]) -> TotalLoss:
    """Most that a person in several partitions has lost, rounded up.

    Parameters
    ----------
    losses
        Of a partition and of all that have records in common with it.
    meet
        Whether two of them have, by digest. In one run no one is in two partitions that do not
        meet, so that the run counts once, by the largest. Those that do are added.

    Examples
    --------
    >>> entries = [Entry(0, "reserve", c, 10.0, 0.0, "record", r, "") for c, r in ("ax", "by")]
    >>> one, other = (Loss(entry.charge, (entry,)) for entry in entries)
    >>> join_losses([one, other], lambda a, b: True).epsilon
    20.0
    """
    # A person in two partitions that meet pays in both; one who is in one of several that do not
    # meet pays in one of them, and which is not known: the dearest.
    by_run: dict[str, dict[str, list[Entry]]] = {}
    for loss in losses:
        for entry in loss.charged.values():
            by_run.setdefault(entry.run, {}).setdefault(loss.partition, []).append(entry)
    # By each measure the dearest: a group of the largest epsilon may have a smaller delta.
    dearest: list[list[float]] = [[] for _ in TotalLoss().sums]
    for of_run in by_run.values():
        groups = _group(list(of_run), meet)
        charged = [[_measure(entry) for one in group for entry in of_run[one]] for group in groups]
        for k, measured in enumerate(dearest):
            measured += max([[one[k] for one in group] for group in charged], key=add_up_losses)
    # Added up at once: each sum is rounded up.
    return TotalLoss(tuple(map(add_up_losses, dearest)))


def _group(partitions: list[str], meet: Callable[[str, str], bool]) -> list[list[str]]:
    """Partitions of one run that meet, directly or by others."""
    groups: list[list[str]] = []
    for one in partitions:
        near = [group for group in groups if any(meet(one, other) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append([one, *(other for group in near for other in group)])
    return groups


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
    ties: Ties = field(default_factory=Ties)

    def renew(self) -> Self:
        """This account, with what partitions have in common by now."""
        return replace(self, ties=Sketches(self.url).ties())

    def read_joined(self, partition: str) -> TotalLoss:
        """What a record of a partition has lost at most, there and elsewhere."""
        others = self.ties.relatives(partition)
        # Files are not people: an account by content alone was evaded by one changed digit.
        return join_losses([self.read(one) for one in (partition, *others)], self.ties.meet)

    def reserve(
        self, charges: Sequence[Charge], run: str, limit: float | None, at_delta: float = MOST_DELTA
    ) -> None:
        """Count losses before anything is written.

        Raises
        ------
        GuaranteeError
            If a partition would lose more than the limit, or a delta above `at_delta`; nothing is
            then counted.
        StoreError
            If the account cannot be reached; FormatError if it is damaged.
        """
        losses = [self.read(charge.partition) for charge in charges]
        # All of them before the first entry: most refusals then write nothing.
        for loss, charge in zip(losses, charges, strict=True):
            self.check_limit(loss, charge, limit, at_delta)
        made: list[Charge] = []
        try:
            for charge in charges:
                made += [charge] * self._reserve(charge, run, limit, at_delta)
            # Once more, after our entries are there: two rivals that charge different partitions
            # with records in common do not find one another's entries while they reserve. Nor that
            # they have any: both sketched theirs before they reserved, one maybe since we looked.
            fresh = self.renew()
            for loss, charge in zip(losses, charges, strict=True):
                if charge.charge in loss.charged:
                    continue
                lost = fresh.read_joined(charge.partition)
                if limit is None and lost.delta > at_delta:
                    fresh._refuse(charge, f"a delta of {at_delta:.2g}")
                if limit is not None and lost.find_epsilon(at_delta) > limit:
                    fresh._refuse(charge, f"the limit of {limit:g}")
        except BaseException:
            # Whatever stopped us, a kill by the keyboard too: what was not written is not owed.
            self.record("void", made, run)
            raise

    def _reserve(self, charge: Charge, run: str, limit: float | None, most_delta: float) -> bool:
        """Make an entry; whether it was the first of this run.

        A run that resumes makes another one, which costs nothing. The number that a lost "void" of
        its own may still be on its way to is taken then.
        """
        mine = ("reserve", charge.charge, run)
        loss = self.read(charge.partition)
        # What this run had reserved before is not given back where the rest is refused.
        held = loss.actions.get(mine[1:], "void") != "void"
        for _ in range(chain.MOST_TRIES):
            self.check_limit(loss, charge, limit, most_delta)
            tried = len(loss.entries)
            if self._write("reserve", charge, run, tried):
                return not held
            loss = self.read(charge.partition)
            there = loss.entries[tried:][:1]
            # Ours may be there although the store's answer was lost.
            if [(one.action, one.charge, one.run) for one in there] == [mine]:
                return not held
        raise chain.contended(self.url)

    def check_limit(self, loss: Loss, charge: Charge, limit: float | None, most: float) -> None:
        """Raise GuaranteeError if a loss and a charge are above the limit, or the largest delta."""
        if charge.charge in loss.charged:
            return
        joined, more = self.read_joined(charge.partition), TotalLoss.of([charge])
        there, said = [TotalLoss.of([*loss.charged.values()]), joined], ""

        def compose(delta: float) -> float:
            # Many small losses are less together than their sum; see `numerics.noise.composition`.
            return max(one.add(more).find_epsilon(delta) for one in there)

        if limit is not None and most > MOST_DELTA:
            if (composed := compose(most)) <= limit:
                return
            said = f" Composed, all are epsilon {composed:.3g} at that delta."
        # Of a charge without delta, too: a relative may have lost one.
        lost = max(loss.delta, joined.delta)
        if (reached := add_up_losses([lost, charge.delta])) > most:
            # The least by which some rule holds; the sum needs its share to hold all of them.
            deltas = (float(f"{1.1 * reached / share:.1e}") for share in (1.0, SUM_SHARE))
            enough = min(deltas, key=lambda delta: (math.isinf(compose(delta)), delta))
            raise GuaranteeError(
                f"Partition {charge.partition[:12]} would have lost delta {reached:.2g} in "
                f"{loss.n_charges + 1} releases, a chance that nothing holds; allowed is at most "
                f"{most:.2g}.{said}",
                remedy="Repeat an earlier release, which costs nothing. Or "
                + 'use noise = "discrete", whose delta is 0. Or ' * (lost <= most)
                + "decide on both, as [privacy] limit = "
                f"[{math.ceil(100 * compose(enough)) / 100:g}, {enough:g}].",
                code="account-exhausted",
            )
        if limit is None:
            return
        # Composed, the sum was among the rules: its delta may be too large for it.
        if said or add_up_losses([max(loss.epsilon, joined.epsilon), charge.epsilon]) > limit:
            self._refuse(charge, f"the limit of {limit:g}", said)

    def _refuse(self, charge: Charge, allowed: str, said: str = "") -> NoReturn:
        loss, joined = self.read(charge.partition), self.read_joined(charge.partition).epsilon
        others = list(self.ties.relatives(charge.partition))
        elsewhere = f" (of it {loss.epsilon:g} itself, the rest in {len(others)} partitions with "
        elsewhere += "records of it)"
        raise GuaranteeError(
            f"Partition {charge.partition[:12]} has spent epsilon {max(joined, loss.epsilon):g}"
            f"{elsewhere if others else f' in {loss.n_charges} releases'}; another "
            f"{charge.epsilon:g} would be above {allowed}.{said}",
            remedy="Repeat an earlier release, which costs nothing; or decide on another "
            "[privacy] limit. `privpipe account` lists what was lost.",
            code="account-exhausted",
        )

    def record(self, action: Action, charges: Iterable[Charge], run: str) -> None:
        """Note of reserved losses that they were published, or that nothing was written."""
        for charge in charges:
            for _ in range(chain.MOST_TRIES):
                loss = self.read(charge.partition)
                last = loss.actions.get((charge.charge, run), "void")
                # A void cannot be confirmed: the run that noted it has written nothing.
                if last in (action, "void") or self._write(action, charge, run, len(loss.entries)):
                    break
            else:
                raise chain.contended(self.url)

    def confirm_run(self, partitions: Iterable[str], run: str) -> None:
        """Confirm what a run reserved that died after its release was visible."""
        for partition in partitions:
            for e in self.read(partition).entries:
                if e.run == run and e.action == "reserve":
                    charge = Charge(partition, e.charge, e.epsilon, e.delta, e.protects, e.rho)
                    self.record("confirm", [charge], run)

    def read(self, partition: str) -> Loss:
        """What a partition has lost.

        Raises
        ------
        StoreError
            If the account cannot be reached.
        FormatError
            If an entry is missing or damaged: what was lost is not known then.
        """
        entries = []
        found = chain.read_numbered(self.url, partition)
        for number, (name, content) in enumerate(found.items()):
            try:
                outer = json.loads(content)
                if google_crc32c.value(outer["entry"].encode()) != outer["crc32c"]:
                    raise ValueError
                entry = Entry(**json.loads(outer["entry"]))
                same = name == f"{partition}/{chain.number_name(number)}" and entry.number == number
                # "not >=" and not "<": a NaN is damage, too.
                if not (same and entry.epsilon >= 0 and (entry.rho or 0.0) >= 0):
                    raise ValueError
            except (ValueError, KeyError, TypeError, AttributeError):
                raise _damaged(shown(join(self.url, partition)), number) from None
            entries.append(entry)
        return Loss(partition, tuple(entries))

    def read_all(self) -> Iterator[Loss]:
        """Every partition that ever lost anything, by digest."""
        keys = chain.list_account(self.url)
        # The registers and the chain are in folders whose names begin with a dot.
        for partition in sorted({key.partition("/")[0] for key in keys if key[0] != "."}):
            yield self.read(partition)

    def _write(self, action: Action, charge: Charge, run: str, number: int) -> bool:
        """Make an entry unless its number is taken."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        # The partition is the folder; within the entry it would be said twice.
        said = asdict(charge) | {"number": number, "action": action, "run": run, "time": time}
        partition = said.pop("partition")
        # What is not known is not said: such an entry is as it always was.
        said = {name: one for name, one in said.items() if one is not None}
        content = json.dumps(said, sort_keys=True)
        sealed = {"crc32c": google_crc32c.value(content.encode()), "entry": content}
        key = f"{partition}/{chain.number_name(number)}"
        return chain.create_entry(self.url, key, json.dumps(sealed).encode())


def _damaged(where: str, number: int) -> FormatError:
    problem = f"The account at {where} is damaged at entry {number}: what was lost is not known."
    remedy = "Restore the folder from a backup; nothing is released on an account with gaps."
    return FormatError(problem, remedy=remedy, code="account-damaged")
