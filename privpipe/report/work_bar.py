"""How far long work is: a bar beside rate and time left on a terminal, some lines in a log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from privpipe.report.console import PlainConsole

FIRST_LINE, NEXT_LINE = 10.0, 30.0
"""Seconds until a log says how far work is, and between two such lines."""


class WorkBar:
    """Shows how much of one piece of work is done.

    Parameters
    ----------
    console
        Where; stderr by default. Where it is no terminal, lines are printed instead of a bar. The
        first comes after ten seconds, so that quick work leaves no trace in a log.
    clock
        Seconds that have passed.
    """

    def __init__(
        self, console: PlainConsole | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or PlainConsole(stderr=True)
        self._clock = clock
        self._bar: Progress | None = None
        self._label = self._unit = ""
        self._done = self._total = 0.0
        self._begun = self._next = 0.0

    def begin(self, label: str, total: float, unit: str) -> None:
        """Show new work, in place of other work.

        Parameters
        ----------
        label
            What it is, a word.
        total
            How much there is to do; 0 where no one knows.
        unit
            Of what, as "records".
        """
        self.end()
        self._label, self._unit, self._done, self._total = label, unit, 0.0, total
        self._begun = self._clock()
        self._next = self._begun + FIRST_LINE
        if not self._console.is_terminal:
            return
        shape = BarColumn() if total > 0 else SpinnerColumn()
        said = TextColumn("{task.description}")
        self._bar = Progress(shape, said, console=self._console, transient=True)
        self._bar.add_task(self.describe(), total=total or None)
        self._bar.start()

    def advance(self, amount: float) -> None:
        """More is done; what is done twice after a loss is no more than the whole."""
        if self._total > 0:
            # A chunk that is done again after a loss counts once.
            amount = min(amount, self._total - self._done)
        self._done += amount
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=amount, description=self.describe())
        elif self._label and self._clock() >= self._next:
            self._next = self._clock() + NEXT_LINE
            self._console.print(self.describe())

    def end(self) -> None:
        """Take it away."""
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._label = None, ""

    def describe(self) -> str:
        """How far it is, in a line.

        >>> seconds = iter([0.0, 20.0, 20.0])
        >>> bar = WorkBar(PlainConsole(), clock=lambda: next(seconds))
        >>> bar.begin("clean", 1000, "records")
        >>> bar._done = 400
        >>> bar.describe()
        'clean    400 of 1,000 records, 20.0 records/s, 30 s left'
        """
        # A clock may not have moved.
        spent = max(self._clock() - self._begun, 1e-9)
        whole = f" of {self._total:,.0f}" if self._total else ""
        rate = self._done / spent
        line = f"{self._label:8s} {self._done:,.0f}{whole} {self._unit}, {rate:,.1f} {self._unit}/s"
        if self._total and rate > 0:
            line += f", {(self._total - self._done) / rate:,.0f} s left"
        return line


@contextmanager
def showing(label: str, unit: str = "records") -> Iterator[Callable[[int, int], None]]:
    """Show work while it is under way.

    Parameters
    ----------
    label, unit
        As of `WorkBar.begin`.

    Yields
    ------
    listen
        To hear how much is done just now, and how much there is in all, 0 where not known:
        another whole is another piece of work.
    """
    bar, known = WorkBar(), [0]

    def listen(amount: int, whole: int) -> None:
        # A command reports the records of each partition in turn.
        if whole != known[0]:
            bar.begin(label, whole, unit)
            known[0] = whole
        bar.advance(amount)

    bar.begin(label, 0, unit)
    try:
        yield listen
    finally:
        bar.end()
