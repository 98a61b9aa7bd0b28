"""A history is a number: which command, which fault, where it strikes, what its owner does then.

Equal numbers are equal histories. States that nobody can tell apart are judged once: the same tree
after the same command, followed by the same.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import random
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from http import HTTPStatus
from itertools import product
from typing import Literal

import pytest

from privpipe.errors import PrivpipeError
from privpipe.store.access.lease import LEASE_SECONDS
from tests.simulation.bucket import AnsweredError, Bucket, Objects, Put
from tests.simulation.commands import COMMANDS, World, forget_process
from tests.simulation.disk import Change, Tree, cut_power, tear
from tests.simulation.oracles import (
    RawValues,
    View,
    canonical,
    find_left,
    find_raw,
    look,
    purge_all,
    status_all,
)

__all__ = ["FAULTS", "History", "Judged", "Simulator", "draw_history"]

Fault = Literal[
    "lost", "torn", "power", "full", "refused", "rival", "clock", "lied", "late", "careless"
]
Continuation = Literal["again", "purge", "status"]

FAULTS: dict[Fault, int] = {
    "lost": 50,
    "torn": 20,
    "power": 25,
    "full": 1,
    "refused": 2,
    "rival": 1,
    "clock": 1,
}
"""How often each is drawn; the last four need the command itself, run once more."""
BUCKET_FAULTS: dict[Fault, int] = {
    "lost": 70,
    "lied": 8,
    "late": 8,
    "careless": 1,
    "refused": 8,
    "rival": 5,
}
"""Of a bucket: an answer is lost and the next says that it was another's, comes late, or nothing
hinders a second one."""

CONTINUATIONS: tuple[Continuation, ...] = ("again", "purge", "status")
MOST_PROBLEMS = 20
"""Of a command: who finds so many need not look further."""
CHANCES = 16
"""Ways in which the power is cut at one place."""
WORST = 0
"""The way in which all is lost that may be."""
RIVALS = ("again", "purge", "status")
CLOCKS = (
    "privpipe.pipeline.runs.run",
    "privpipe.flows.increment_flow",
    "privpipe.store.releases.incremental_release",
    "privpipe.store.keyring.account",
    "privpipe.store.keyring.account_chain",
    "privpipe.store.keyring.keys",
)
"""Modules that ask what time it is."""


@dataclass(frozen=True)
class History:
    """One history.

    Parameters
    ----------
    number
    command
        Of `COMMANDS`.
    fault
    where
        In [0, 1): which of the changes.
    chance
        Seed of what else is drawn.
    then
        What the owner does.
    """

    number: int
    command: str
    fault: Fault
    where: float
    chance: int
    then: Continuation


def draw_history(number: int, names: Sequence[str] = tuple(COMMANDS)) -> History:
    """The history of a number, among some commands."""
    chance = random.Random(f"history {number}")
    weights = [COMMANDS[name].weight for name in names]
    [name] = chance.choices(names, weights)
    faults = BUCKET_FAULTS if COMMANDS[name].in_bucket else FAULTS
    [fault] = chance.choices(list(faults), list(faults.values()))
    return History(
        number,
        name,
        fault,
        chance.random(),
        chance.randrange(CHANCES),
        chance.choice(CONTINUATIONS),
    )


@dataclass
class Judged:
    """What many histories came to.

    Parameters
    ----------
    n_histories
    states
        Distinct states and what followed them.
    faults
        Histories by command and fault.
    problems
        What did not hold, by number.
    """

    n_histories: int = 0
    states: set[tuple[str, str, str]] = field(default_factory=set)
    faults: Counter[str] = field(default_factory=Counter)
    problems: dict[int, str] = field(default_factory=dict)

    def describe(self) -> str:
        """In a line."""
        return (
            f"{self.n_histories:,} histories, {len(self.states):,} distinct states with what "
            f"follows, {len(self.problems)} problems"
        )


class _Known:
    """A command that was run once without a fault, and what is compared with it."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.command = name, COMMANDS[name]
        world.raw.clear()
        self.command.prepare(world)
        world.keep_keys(f"before-{name}")
        with world.record() as recorder:
            self.views = [look(world, self.command)]
            forget_process()
            self.command.call(world)
        world.keep_keys(f"after-{name}")
        self.before, self.changes = recorder.before, recorder.changes
        self.calls, self.keyless = recorder.calls, getattr(recorder, "keyless", 0)
        self.after = self.before.after(self.changes)
        self.raw = RawValues(world.raw)
        stored = world.read()
        assert self.after.read() == stored, "a change was not recorded"
        self.whole = canonical(stored, self.command)
        self.views.append(look(world, self.command))
        self.raw_whole = find_raw(stored, self.raw)
        purge_all(world, self.command)
        self.purged_view = look(world, self.command)
        self.raw_after = find_raw(world.read(), self.raw)
        self.purged = canonical(world.read(), self.command)
        self.raw_before = find_raw(self.before.read(), self.raw)
        self.left_after = find_left(world.read(), self.command)
        self.restore(world, self.before)
        purge_all(world, self.command)
        self.left_before = find_left(world.read(), self.command)
        self._trees: list[Tree | Objects] = []

    def restore(self, world: World, tree: Tree | Objects, place: int = 0) -> None:
        """Store what is there at a change; and the keys that are then on this machine."""
        tree.store(world.root)
        world.put_keys(f"{'after' if place > self.keyless else 'before'}-{self.name}")

    def at(self, place: int) -> Tree | Objects:
        """What is stored before a change."""
        step = 16
        if not self._trees:
            self._trees.append(self.before)
        while len(self._trees) <= place // step:
            first = (len(self._trees) - 1) * step
            self._trees.append(self._trees[-1].after(self.changes[first : first + step]))
        return self._trees[place // step].after(self.changes[place // step * step : place])


class Simulator:
    """Judges histories in a world of its own.

    Parameters
    ----------
    world
        An open one; see `open_world`.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._known: dict[str, _Known] = {}
        self._judged: dict[tuple[str, str, str], str] = {}

    def judge_all(self, histories: Iterable[History]) -> Judged:
        """What they come to."""
        found = Judged()
        for history in histories:
            found.n_histories += 1
            found.faults[history.fault] += 1
            problem, state = self.judge(history)
            found.states.add(state)
            if problem:
                found.problems[history.number] = problem
            if len(found.problems) == MOST_PROBLEMS:
                break
        return found

    def judge(self, history: History) -> tuple[str, tuple[str, str, str]]:
        """What does not hold, or nothing; and the state that was judged."""
        known = self.know(history.command)
        chance = random.Random(history.chance)
        live = _LIVE.get(history.fault)
        if live is not None:
            call = int(history.where * known.calls)
            key = (history.command, f"{history.fault} {call} {chance.choice(RIVALS)}", history.then)
            if key not in self._judged:
                known.restore(self.world, known.before)
                problem = live(self, known, call, random.Random(history.chance))
                self._judged[key] = problem or self._go_on(known, history)
            return self._judged[key], key
        tree = self._crash(known, history, chance)
        place = int(history.where * (len(known.changes) + 1))
        is_end = place == len(known.changes)
        is_cut = history.fault == "power"
        key = history.command, f"{tree.digest}{' end' * (is_end and is_cut)}", history.then
        if key not in self._judged:
            known.restore(self.world, tree, place)
            self._judged[key] = self._go_on(known, history)
            if is_end and is_cut and not self._judged[key]:
                known.restore(self.world, tree, place)
                self._judged[key] = self._outlives(known)
        return self._judged[key], key

    def _outlives(self, known: _Known) -> str:
        """What a command did is there after the power went, and what it removed is not."""
        if look(self.world, known.command) != known.views[1]:
            return "what was done is lost with the power"
        stored = self.world.read()
        if extra := find_raw(stored, known.raw) - known.raw_whole:
            return f"raw records that were removed are there again: {sorted(extra)}"
        back = canonical(stored, known.command) - known.whole
        return f"what was removed is there again: {sorted(p for p, _ in back)}" if back else ""

    def sweep(self, name: str) -> Iterator[History]:
        """Every place of a command, or each of its stride, and what is worst after a power cut."""
        known, command = self.know(name), COMMANDS[name]
        n_places = len(known.changes) + 1
        places = sorted({*range(0, n_places, command.stride), *range(n_places)[-2:]})
        faults: tuple[Fault, ...] = ("lost",) if command.in_bucket else ("lost", "power")
        for number, (place, fault, then) in enumerate(product(places, faults, CONTINUATIONS)):
            where = (place + 0.5) / n_places
            yield History(-1 - number, name, fault, where, WORST, then)

    def know(self, name: str) -> _Known:
        """The command without a fault."""
        if name not in self._known:
            self.world.clear()
            self._known[name] = _Known(name, self.world)
        known = self._known[name]
        return known

    def tell(self, history: History) -> list[str]:
        """The story: what was done before the fault, and what came of it."""
        known = self.know(history.command)
        place = int(history.where * (len(known.changes) + 1))
        done = [_say(change) for change in known.changes[:place]]
        problem, _ = self.judge(history)
        return [*done, f"-- {history}", problem or "all holds"]

    def _crash(self, known: _Known, history: History, chance: random.Random) -> Tree | Objects:
        """What the crash leaves."""
        place = int(history.where * (len(known.changes) + 1))
        if history.fault == "power":
            drawn = None if history.chance == WORST else chance
            return cut_power(known.before, known.changes[:place], drawn)
        tree = known.at(place)
        if history.fault == "torn":
            torn = [n for n, one in enumerate(known.changes) if tear(one) is not None]
            if torn:
                place = torn[int(history.where * len(torn))]
                half = tear(known.changes[place])
                assert half is not None
                tree = known.at(place).after([half])
        return tree

    def _go_on(self, known: _Known, history: History) -> str:
        """What the owner does next, and what does not hold then."""
        Bucket.ahead += 10 * LEASE_SECONDS  # what the dead one held has run out
        try:
            if history.then == "again":
                return self._again(known, history.fault)
            return {"purge": self._purge, "status": self._status}[history.then](known)
        except PrivpipeError as error:
            return f"{history.then} is refused: {error.code}: {error.message}"
        except Exception as error:
            return f"{history.then} fails: {type(error).__name__}: {error}"

    def _again(self, known: _Known, fault: Fault) -> str:
        """The same command ends as if nothing had been."""
        wanted, raw = known.whole, known.raw_whole
        try:
            self._repeat(known, may_purge=fault == "power")
        except PrivpipeError as error:
            if error.code not in known.command.done and fault != "rival":
                raise  # a rival may have taken away what it was about
            purge_all(self.world, known.command)  # it was done, but for what it tidies up
            wanted, raw = known.purged, known.raw_after
        stored = self.world.read()
        if look(self.world, known.command) != known.views[1]:
            return "done again, readers see something else than without the crash"
        if extra := find_raw(stored, known.raw) - raw:
            return f"done again, raw records are left in {sorted(extra)}"
        problem = _differ(canonical(stored, known.command), wanted)
        if problem and fault == "clock" and known.command.is_dated:
            return _differ(canonical(stored, known.command) - wanted, Counter())
        if problem and fault == "rival":  # which may have tidied up what is no longer named
            purge_all(self.world, known.command)
            problem = _differ(canonical(self.world.read(), known.command), known.purged)
        return problem

    def _repeat(self, known: _Known, *, may_purge: bool) -> None:
        """Call it; where it asks for `purge` first, which a kill alone never needs, purge."""
        for is_last in (not may_purge, True):
            forget_process()
            try:
                known.command.call(self.world)
                return
            except PrivpipeError as error:
                if is_last or "privpipe purge" not in error.remedy:
                    raise
            purge_all(self.world, known.command)

    def _purge(self, known: _Known) -> str:
        """Nothing of the records is left that was not there before, or is where it belongs."""
        purge_all(self.world, known.command)
        view = look(self.world, known.command)
        if problem := _between(view, [*known.views, known.purged_view]):
            return f"after purge {problem}"
        raw = find_raw(self.world.read(), known.raw)
        allowed = known.raw_before if view == known.views[0] else known.raw_after
        if len(set(map(str, known.views))) == 1:
            allowed = known.raw_before | known.raw_after
        if extra := raw - allowed:
            return f"purge leaves raw records in {sorted(extra)}"
        left = find_left(self.world.read(), known.command)
        if extra := left - (known.left_before | known.left_after):
            return f"purge leaves {sorted(extra)}"
        return ""

    def _status(self, known: _Known) -> str:
        """It says what is so, and readers see the old or the new."""
        if lies := status_all(self.world, known.command):
            return f"status says {lies}"
        gap = dict.fromkeys(known.command.exchanged, "refused: not-found")
        gaps = [known.views[0] | gap] if gap else []
        return _between(look(self.world, known.command), [*known.views, known.purged_view, *gaps])


def _between(view: View, known: Sequence[View]) -> str:
    """Each place is as it was before or as it is afterwards."""
    for place, found in view.items():
        allowed = {one[place] for one in known}
        if found not in allowed and not (place == "account" and "refused" not in found):
            return f"a reader of {place} sees neither the old nor the new: {found}"
    return ""


def _differ(found: Counter[tuple[str, bytes]], wanted: Counter[tuple[str, bytes]]) -> str:
    more = sorted(path for path, _ in found - wanted)
    less = sorted(path for path, _ in wanted - found)
    return f"more or other: {more[:6]}; less: {less[:6]}" if more or less else ""


def _say(change: Change | Put) -> str:
    if isinstance(change, Put):
        return f"{'delete' if change.content is None else 'put'} {change.path}"
    return f"{change.kind} {change.node} {change.folder}/{change.name} {len(change.content)}"


def _call(simulator: Simulator, known: _Known, inject: Callable[[int], None]) -> str:
    """Run the command with something happening at its calls."""
    forget_process()
    world = simulator.world
    with world.record(inject):
        try:
            known.command.call(world)
        except (PrivpipeError, OSError):
            return ""
        except Exception as error:
            return f"the fault comes out as {type(error).__name__}: {error}"
    return ""


def _fill_disk(simulator: Simulator, known: _Known, at: int, chance: random.Random) -> str:
    """From a call on nothing can be made or grow; what is there may be renamed and removed."""
    del chance

    def fill(number: int) -> None:
        if number >= at:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        return _call(simulator, known, fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _refuse(simulator: Simulator, known: _Known, at: int, chance: random.Random) -> str:
    """One call fails, and the process lives on."""
    code = chance.choice([errno.ENOSPC, errno.EIO, errno.EACCES])

    def refuse(number: int) -> None:
        if number == at:
            raise OSError(code, "refused by the simulator")

    return _call(simulator, known, refuse)


def _rival(simulator: Simulator, known: _Known, at: int, chance: random.Random) -> str:
    """Another process does its work between two calls."""
    what = chance.choice(RIVALS)
    is_due = True

    def step_in(number: int) -> None:
        nonlocal is_due
        if is_due and number >= at and asyncio._get_running_loop() is None:
            is_due = False
            with suppress(PrivpipeError, _WaitsError), _never_waiting():
                if what == "again":
                    known.command.call(simulator.world)
                elif what == "purge":
                    purge_all(simulator.world, known.command)
                else:
                    status_all(simulator.world, known.command)

    try:
        return _call(simulator, known, step_in)
    finally:
        forget_process()


class _WaitsError(Exception):
    """It would wait for the other one to end."""


@contextmanager
def _never_waiting() -> Iterator[None]:
    """A process that waits for a lock does nothing as long as the other has it."""
    flock = fcntl.flock

    def take(descriptor: int, how: int) -> None:
        try:
            flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if how & fcntl.LOCK_NB:
                raise
            raise _WaitsError from None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", take)
        yield


def _jump(simulator: Simulator, known: _Known, at: int, chance: random.Random) -> str:
    """From a call on it is another day."""
    offset = timedelta(days=chance.choice([-400, -1, 1, 400]))
    moved = timedelta()

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = UTC) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + moved

    def jump(number: int) -> None:
        nonlocal moved
        if number == at:
            moved = offset

    with pytest.MonkeyPatch.context() as patch:
        for module in CLOCKS:
            patch.setattr(f"{module}.datetime", Clock)
        return _call(simulator, known, jump)


def _answer(status: int) -> Callable[..., str]:
    """A store that answers so to who makes an object that must not be there yet.

    "Already there" is said of our own object, "in conflict" of one that is made or will be.
    """

    def live(simulator: Simulator, known: _Known, at: int, chance: random.Random) -> str:
        is_done = status == HTTPStatus.PRECONDITION_FAILED or chance.random() < 0.5
        asked = [n for n, one in enumerate(known.changes) if one.absent]
        if not asked:
            return ""
        first, answered = asked[at % len(asked)], False

        def answer(number: int) -> None:
            """The first such object from there on: names are new each time, as orders may be."""
            nonlocal answered
            change = recorder.current
            if number >= first and not answered and change is not None and change.absent:
                answered = True
                raise AnsweredError(status, is_done=is_done)

        forget_process()
        with simulator.world.record(answer) as recorder:
            try:
                known.command.call(simulator.world)
            except (PrivpipeError, OSError) as error:
                return f"what the store answered ends it: {error}"
        return ""

    return live


def _ignore_conditions(simulator: Simulator, known: _Known, at: int, chance: random.Random) -> str:
    """A store that lets two make one object: nothing that must be one's own is begun there."""
    del at, chance
    if not any(isinstance(one, Put) and one.absent for one in known.changes):
        return ""
    Bucket.is_careless = True
    try:
        known.command.call(simulator.world)
    except PrivpipeError as error:
        return "" if error.code == "conditions-ignored" else f"refused as {error.code}"
    finally:
        Bucket.is_careless = False
    return "a store without conditions was written to"


_LIVE: dict[str, Callable[[Simulator, _Known, int, random.Random], str]] = {
    "full": _fill_disk,
    "refused": _refuse,
    "rival": _rival,
    "clock": _jump,
    "lied": _answer(HTTPStatus.PRECONDITION_FAILED),
    "late": _answer(HTTPStatus.CONFLICT),
    "careless": _ignore_conditions,
}
