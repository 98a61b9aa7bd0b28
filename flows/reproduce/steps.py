"""Long work in steps: it says how far it is, and an interrupted one continues where it was.

A step is a name and a function without arguments; what it returns is stored as JSON until the whole
is done. Functions call `step` and need not know who listens.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from privpipe.store.access.objects import flush, write_file

T = TypeVar("T")

QUIET_SECONDS = 2.0
"""Least time between two lines."""

PULSE_SECONDS = 60.0
"""Longest time without a line."""


@dataclass(eq=False)
class Steps:
    """The steps of one work.

    Parameters
    ----------
    folder
        Where results of steps are stored; None stores nothing.
    say
        Takes a line of progress.
    """

    folder: Path | None = None
    say: Callable[[str], None] = lambda _: None
    n_expected: int = 0
    n_done: int = 0
    n_found: int = 0
    spent: float = 0.0
    _last: float = field(default=-QUIET_SECONDS)

    def expect(self, n_steps: int, known: Sequence[tuple[str, str]] = ()) -> None:
        """So many more steps will come; see `expect_steps`."""
        self.n_expected += n_steps
        stored = set(self.folder.glob("*.json")) if self.folder else set()
        if known:  # steps of other settings may lie beside them
            stored &= {self._place(name, settings) for name, settings in known}
        if stored and not self.n_done:
            self.say(f"going on: {len(stored)} of {self.n_expected} steps were done before")

    def run(self, name: str, function: Callable[[], T], settings: str = "") -> T:
        """The result of a step: stored before, or worked out now and stored."""
        path = self._place(name, settings)
        if path and path.is_file():
            self.n_done += 1
            self.n_found += 1
            stored: T = json.loads(path.read_text())["result"]
            return stored
        started = time.perf_counter()
        with self._pulsing(name):
            result = function()
        self.spent += time.perf_counter() - started
        if path:
            write_file(str(path), json.dumps({"step": name, "result": result}))
        self.n_done += 1
        self._report(name)
        return result

    def _place(self, name: str, settings: str) -> Path | None:
        """Where the result of a step is stored; None where nothing is."""
        named = f"{name} {settings}" if settings else name
        return self.folder and self.folder / f"{hashlib.sha256(named.encode()).hexdigest()}.json"

    def forget(self) -> None:
        """All is done: keep nothing."""
        if self.folder:
            shutil.rmtree(self.folder)  # with what a kill in the middle of a write left
            flush(str(self.folder.parent))

    @contextmanager
    def _pulsing(self, name: str) -> Iterator[None]:
        """Say every minute that a step is still at work."""
        ended = threading.Event()
        started = time.perf_counter()

        def pulse() -> None:
            while not ended.wait(PULSE_SECONDS):
                spent = _in_words(time.perf_counter() - started)
                at = f"{self.n_done + 1}/{max(self.n_expected, self.n_done + 1)}"
                self.say(f"{at}  {name}: at work for {spent}")

        thread = threading.Thread(target=pulse, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _report(self, name: str) -> None:
        now = time.perf_counter()
        if now - self._last < QUIET_SECONDS and self.n_done < self.n_expected:
            return
        self._last = now
        left = self.spent / (self.n_done - self.n_found) * (self.n_expected - self.n_done)
        rest = f"; about {_in_words(left)} left" if left > 1 else ""
        self.say(f"{self.n_done}/{max(self.n_expected, self.n_done)}  {name}{rest}")


_current: ContextVar[Steps] = ContextVar("steps", default=Steps())  # noqa: B039 - keeps nothing


def step(name: str, function: Callable[[], T], settings: str = "") -> T:
    """Do a step of whatever work is followed.

    Parameters
    ----------
    name
        Which step: the same name, settings and data have the same result.
    function
        Works it out, as JSON has it: numbers, strings, lists and dictionaries with string keys.
    settings
        What its result depends on beside its name, and no one wants to read.
    """
    return _current.get().run(name, function, settings)


def expect_steps(n_steps: int, known: Sequence[tuple[str, str]] = ()) -> None:
    """Say beforehand how many steps will come.

    Parameters
    ----------
    n_steps
    known
        Name and settings of each, where they are known beforehand: only these count as done
        before. Without them all that was stored does.
    """
    _current.get().expect(n_steps, known)


@contextmanager
def follow_steps(steps: Steps) -> Iterator[None]:
    """Within it, steps are these; what they stored is removed when all has gone well."""
    token = _current.set(steps)
    try:
        yield
        steps.forget()
    finally:
        _current.reset(token)


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
