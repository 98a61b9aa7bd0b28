"""Showing a run: one line per stage, a bar with records per second, a Prefect artifact."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import FlowRunContext
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["Watch"]

ARTIFACT_EVERY = 5.0
"""Seconds between two updates of the Prefect artifact, each of which is a request."""


class _Speed(ProgressColumn):
    """Records per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} records/s" if task.speed else "")


class Watch:
    """Shows stages on a console and in Prefect; implements `privpipe.dist.progress.Progress`."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._artifact: UUID | None = None
        self._done = self._total = 0
        self._updated = 0.0
        self.run_id: str | None = None
        self.stages: list[tuple[str, float]] = []
        self.current = "check"

    @contextmanager
    def stage(self, name: str, what: str) -> Iterator[None]:
        """Print a line when a stage ends well, with its seconds."""
        begun = time.perf_counter()
        self.current = name
        yield
        spent = time.perf_counter() - begun
        self.stages.append((name, spent))
        self.console.print(f"{name:8s} {what}  [dim]{spent:.1f} s[/dim]")

    def say(self, line: str) -> None:
        """Print a line."""
        self.console.print(line)

    def start(self, stage: str, n_records: int) -> None:
        """Show the bar."""
        self._done, self._total, self._updated = 0, n_records, time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description:8s}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} records"),
            _Speed(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._bar.add_task(stage, total=n_records)
        self._bar.start()
        if FlowRunContext.get() is not None:
            found = create_progress_artifact(0.0, description=f"{stage}: records done")
            self._artifact = found if isinstance(found, UUID) else None

    def advance(self, n_records: int) -> None:
        """Move the bar, and now and then the artifact."""
        self._done += n_records
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], n_records)
        if time.monotonic() - self._updated > ARTIFACT_EVERY:
            self._update_artifact()

    def stalled(self, seconds: float, n_workers: int) -> None:
        """Say that nothing moves."""
        self.say(f"[yellow]Nothing finished for {seconds:.0f} s; {n_workers} workers.[/yellow]")

    def finish(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._update_artifact()
        self._artifact = None

    def _update_artifact(self) -> None:
        self._updated = time.monotonic()
        if self._artifact is not None:
            update_progress_artifact(self._artifact, 100.0 * self._done / max(self._total, 1))
