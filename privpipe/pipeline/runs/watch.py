"""Showing a run: a line per stage, a bar with records per second, gauges for who reads them."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from privpipe.cluster.executors.executor import Event, Executor
from privpipe.cluster.workers.progress import GATES, STAGES, UNITS, Progress, find_stage
from privpipe.errors import printable
from privpipe.report.console import PlainConsole
from privpipe.report.work_bar import WorkBar

SHOW_EVERY = 0.5
"""Seconds between two messages to the scheduler."""

EXPORT_EVERY = 5.0
"""Seconds between two exports of gauges, each of which is a file or a request."""


class Watch:
    """Shows stages, and the events of long work, on a console and to whoever reads metrics."""

    def __init__(self, console: PlainConsole | None = None) -> None:
        self.console = console or PlainConsole(stderr=True)
        self._bar = WorkBar(self.console)
        self._work = ""
        self._shown, self._exported = 0.0, -EXPORT_EVERY
        self.run_id: str | None = None
        self.stages: list[tuple[str, float]] = []
        self.current = "check"
        self.progress = ProgressKeeper()
        self.executor: Executor | None = None

    @contextmanager
    def stage(self, name: str, what: str) -> Iterator[None]:
        """Print a line when a stage ends well, with its seconds."""
        begun = time.perf_counter()
        self.current = name
        self.progress.enter(name, self.run_id)
        log_progress("begins", self.progress.now)
        self._show(at_once=True)
        try:
            yield
        finally:
            self._close()
            self._show(at_once=True)  # how far it came: what advanced last may not be shown yet
        spent = time.perf_counter() - begun
        self.stages.append((name, spent))
        log_progress("ends", self.progress.now, spent)
        line = Text(f"{name:8s} {printable(what)}  ")
        self.console.print(line.append(f"{spent:.1f} s", "dim"))

    def say(self, line: str, style: str | None = None) -> None:
        """Print a line."""
        self.console.print(line, style=style)

    def hear(self, event: Event) -> None:
        """Show what long work reports: a bar while it advances, a line when it stalls."""
        self.progress.hear(event)
        # What begins, ends or stalls is shown at once; progress now and then.
        if event.what != "advances" or time.monotonic() - self._shown > SHOW_EVERY:
            self._show()
        if event.what == "stalls":
            n_workers = dict(event.numbers).get("workers", 0)
            line = f"Nothing finished for {event.amount:.0f} s; {n_workers:.0f} workers."
            self.say(line, style="yellow")
        elif event.what == "ends":
            self._close()
        else:
            begins = event.what == "begins"
            if begins or self._work != event.work:  # rounds, whose number no one knows before
                self._work, stage = event.work, find_stage(event.work)
                label = event.work if stage == "other" else stage
                self._bar.begin(label, event.amount if begins else 0, event.unit)
            if not begins:
                self._bar.advance(event.amount)

    def judge(self, gate: str) -> None:
        """Show what the gate said."""
        self.progress.judge(gate)
        log_progress("gate", self.progress.now)
        self._show(at_once=True)

    def _show(self, *, at_once: bool = False) -> None:
        """On the cluster's page and gauges, and where the environment names a place for them.

        Gauges are written or pushed now and then, but for what must not be missed: a stage, a
        verdict.
        """
        self._shown = now = time.monotonic()
        if self.executor is not None:
            self.executor.show(self.progress.now)
        if at_once or now - self._exported >= EXPORT_EVERY:
            self._exported = now
            export_progress(self.progress.now)

    def _close(self) -> None:
        """Take the bar away."""
        self._bar.end()
        self._work = ""


NOTHING_DONE: dict[str, Any] = {
    "done": 0.0,
    "total": 0.0,
    "per_second": 0.0,
    "seconds_left": 0.0,
    "chunks_done": 0,
    "chunks_total": 0,
}
"""Of a `Progress` where work begins."""


class ProgressKeeper:
    """Adds up events; a listener of executors.

    Parameters
    ----------
    clock
        Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = Progress()
        self._clock = clock
        self._begun, self._known = clock(), 0.0
        self._work = ""

    def hear(self, event: Event) -> None:
        """Count an event."""
        numbers = dict(event.numbers)
        if event.what == "begins":
            self._begin(event, numbers)
        elif event.what == "advances":
            if event.work != self._work:
                self._begin(replace(event, amount=0.0), {})
            self._advance(event, numbers)

    def enter(self, stage: str, run: str | None = None) -> None:
        """A stage begins."""
        stage = stage if stage in STAGES else "other"
        self.now = replace(self.now, **NOTHING_DONE, stage=stage, run=run or self.now.run)
        self._work = ""

    def judge(self, gate: str) -> None:
        """What the gate said."""
        # Labels of gauges are few and known: any other text would make a series of its own.
        self.now = replace(self.now, gate=gate if gate in GATES else "none")

    def _begin(self, event: Event, numbers: Mapping[str, float]) -> None:
        self._work, self._begun, self._known = event.work, self._clock(), 0.0
        stage, chunks = find_stage(event.work), event.amount if event.unit == "chunks" else 0
        changed: dict[str, Any] = NOTHING_DONE | {
            "total": event.amount,
            "chunks_total": int(numbers.get("chunks", chunks)),
        }
        self.now = replace(
            self.now,
            **changed,
            stage=self.now.stage if stage == "other" else stage,
            unit=event.unit if event.unit in UNITS else "records",
        )

    def _advance(self, event: Event, numbers: Mapping[str, float]) -> None:
        now = self.now
        done = now.done + event.amount
        if now.total:  # what is done twice after a loss is no more than the whole
            done = min(done, now.total)
        if numbers.get("found"):  # done by an earlier run: no work of this one
            self._known += event.amount
        spent = max(self._clock() - self._begun, 1e-9)
        speed = max(done - self._known, 0.0) / spent
        left = (now.total - done) / speed if speed and now.total else 0.0
        chunks = event.amount if event.unit == "chunks" else numbers.get("chunks", 0)
        self.now = replace(
            now,
            done=done,
            per_second=speed,
            seconds_left=left,
            chunks_done=now.chunks_done + int(chunks),
            withheld=now.withheld + int(numbers.get("withheld", 0)),
            clipped=now.clipped + int(numbers.get("clipped", 0)),
            n_bytes=now.n_bytes + int(numbers.get("bytes", 0)),
            privacy_loss=max(now.privacy_loss, numbers.get("privacy_loss", 0.0)),
        )


def log_progress(what: str, now: Progress, seconds: float | None = None) -> None:
    """Write one line for whoever reads logs of the driver, if lines are requested."""
    if os.environ.get("PRIVPIPE_LOG") != "json":
        return
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "event": what,
        **now.encode(),
        "seconds": None if seconds is None else round(seconds, 3),
    }
    with suppress(OSError):  # no one reads any more
        sys.stderr.write(json.dumps(line) + "\n")


def export_progress(now: Progress) -> None:
    """Write or push the gauges, if a place is named; never a reason for a run to fail."""
    path = os.environ.get("PRIVPIPE_METRICS_FILE")
    gateway = os.environ.get("PRIVPIPE_METRICS_GATEWAY")
    if not (path or gateway):
        return
    # prometheus_client is loaded for those who need it only.
    from privpipe.cluster.workers.progress import push_progress, write_progress

    with suppress(Exception):
        if path:
            write_progress(now, path)
        if gateway:
            push_progress(now, gateway)
