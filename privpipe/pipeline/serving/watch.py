"""Showing a run: one line per stage, a bar with records per second, a Prefect artifact."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import FlowRunContext
from rich.text import Text

from privpipe.cluster.events import Event
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.workers.monitoring.progress import find_stage
from privpipe.errors import printable
from privpipe.pipeline.serving.progress_keeper import ProgressKeeper
from privpipe.pipeline.serving.scheduling.prefect_calls import tell_prefect
from privpipe.pipeline.serving.scheduling.structured_log import Telling
from privpipe.report.console import PlainConsole
from privpipe.report.work_bar import WorkBar

SHOW_EVERY = 0.5
"""Seconds between two messages to the scheduler."""

ARTIFACT_EVERY = 5.0
"""Seconds between two updates of the Prefect artifact, each of which is a request."""


class Watch:
    """Shows stages, and the events of long work, on a console and in Prefect."""

    def __init__(self, console: PlainConsole | None = None) -> None:
        self.console = console or PlainConsole(stderr=True)
        self._bar = WorkBar(self.console)
        self._artifact: UUID | None = None
        self._work = ""
        self._updated = self._shown = 0.0
        self.run_id: str | None = None
        self.stages: list[tuple[str, float]] = []
        self.current = "check"
        self.progress = ProgressKeeper()
        self.executor: Executor | None = None
        self._telling = Telling()

    @contextmanager
    def stage(self, name: str, what: str) -> Iterator[None]:
        """Print a line when a stage ends well, with its seconds."""
        begun = time.perf_counter()
        self.current = name
        self.progress.reach(name, self.run_id)
        self._telling.say("begins", self.progress.now)
        self._show(at_once=True)
        try:
            yield
        finally:
            self._close()
            self._show(at_once=True)  # how far it came: what advanced last may not be shown yet
        spent = time.perf_counter() - begun
        self.stages.append((name, spent))
        self._telling.say("ends", self.progress.now, spent)
        line = Text(f"{name:8s} {printable(what)}  ")
        self.console.print(line.append(f"{spent:.1f} s", "dim"))

    def say(self, line: str, style: str | None = None) -> None:
        """Print a line."""
        self.console.print(line, style=style)

    def hear(self, event: Event) -> None:
        """Show what long work tells: a bar while it advances, a line when it stalls."""
        self.progress.hear(event)
        if event.what != "advances" or time.monotonic() - self._shown > SHOW_EVERY:
            self._show()
        if event.what == "stalls":
            n_workers = dict(event.numbers).get("workers", 0)
            line = f"Nothing finished for {event.amount:.0f} s; {n_workers:.0f} workers."
            self.say(line, style="yellow")
        elif event.what == "begins":
            self._open(event)
        elif event.what == "advances":
            if self._work != event.work:  # rounds, whose number nobody knows before
                self._open(replace(event, amount=0))
            self._advance(event.amount)
        else:
            self._close()

    def judge(self, gate: str) -> None:
        """Show what the gate said."""
        self.progress.judge(gate)
        self._telling.say("gate", self.progress.now)
        self._show(at_once=True)

    def _show(self, *, at_once: bool = False) -> None:
        """On the cluster's page and gauges, and where the environment asks for them."""
        self._shown = time.monotonic()
        if self.executor is not None:
            self.executor.show(self.progress.now)
        self._telling.export(self.progress.now, at_once=at_once)

    def _open(self, event: Event) -> None:
        """Show a bar; without an end where the amount of work is not known."""
        self._close()
        self._work = event.work
        self._updated = time.monotonic()
        stage = find_stage(event.work)
        label = event.work if stage == "other" else stage
        self._bar.begin(label, event.amount, event.unit)
        if event.amount > 0 and FlowRunContext.get() is not None:
            about = f"{label}: {event.unit} done"
            found = tell_prefect(create_progress_artifact, 0.0, description=about)
            self._artifact = found if isinstance(found, UUID) else None

    def _advance(self, amount: float) -> None:
        """Move the bar, and now and then the artifact."""
        self._bar.advance(amount)
        if time.monotonic() - self._updated > ARTIFACT_EVERY:
            self._update_artifact()

    def _close(self) -> None:
        """Take the bar away."""
        if self._bar.is_open:
            self._update_artifact()
            self._bar.end()
        self._work, self._artifact = "", None

    def _update_artifact(self) -> None:
        self._updated = time.monotonic()
        if self._artifact is not None:
            tell_prefect(update_progress_artifact, self._artifact, 100.0 * self._bar.share)
