"""Showing a run: a line per stage, a bar with records per second, gauges for who reads them.

And what it leaves: ``run_results.json``, what a run did and how it ended, written also when it
failed.
"""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from threading import Event as Flag
from threading import RLock, Thread
from typing import Any

import fsspec
from rich.text import Text

from privpipe.cluster.executors.boundary import seal
from privpipe.cluster.executors.executor import Event, Executor
from privpipe.cluster.workers.progress import OneRun, Progress, RunCollector, find_stage
from privpipe.errors import PrivpipeError, printable
from privpipe.pipeline.runs.run import now
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.tracing import open_span
from privpipe.report.console import PlainConsole
from privpipe.report.work_bar import WorkBar
from privpipe.store.access import location, objects
from privpipe.store.arrays.layout import companion_url

SHOW_EVERY = 0.5
"""Seconds between two messages to the scheduler."""

EXPORT_EVERY = 5.0
"""Seconds between two exports of gauges, each of which is a file or a request."""

BEAT_EVERY = 10.0
"""Seconds after which a run is heard of though nothing happens."""

SPEED_OVER = 60.0
"""Seconds over which the speed of a run is measured."""

RESULTS = "report/run_results.json"
"""Where a run notes beside its release what it did."""

AMOUNTS = ("done", "total", "per_second", "seconds_left", "chunks_done", "chunks_total")
NOTHING_DONE: dict[str, Any] = dict.fromkeys(AMOUNTS, 0)
"""Of a `Progress` where work begins."""


class Watch:
    """Shows stages, and the events of long work, on a console and to whoever reads metrics.

    Parameters
    ----------
    console
        Standard error by default.
    deployment, link
        Of Prefect, where it started the run: its deployment, and its page.
    log
        Gets each line as well.
    """

    def __init__(
        self,
        console: PlainConsole | None = None,
        *,
        deployment: str = "",
        link: str = "",
        log: Callable[[str], object] = str,
    ) -> None:
        self.log = log
        self.console = console or PlainConsole(stderr=True)
        self.run_id: str | None = None
        self.stages: list[tuple[str, float]] = []
        self.current = "check"
        self.now = Progress.decode({"deployment": deployment, "link": link})
        self.executor: Executor | None = None
        self.move: Callable[[Progress], object] = id  # shows a beat elsewhere; it must not raise
        self._bar = WorkBar(self.console)
        self._work, self._found = "", 0.0
        self._marks = deque[tuple[float, float]]()
        self._lock = RLock()  # a beat shows what the run changes
        self._shown, self._exported = 0.0, -EXPORT_EVERY

    @contextmanager
    def beating(self, release_url: str, privacy_limit: float | None) -> Iterator[None]:
        """Let a run be heard of while it lives, whatever it does, and how it ended."""
        release = release_url.rstrip("/").rpartition("/")[2]
        self._change(release=release, privacy_limit=privacy_limit or 0.0)
        stop = Flag()

        def beat() -> None:
            while not stop.wait(BEAT_EVERY):
                self._show()
                self.move(self.now)

        thread = Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            with self._closing():
                yield
        finally:
            stop.set()
            thread.join()
            self.move(self.now)

    @contextmanager
    def working(self, executor: Executor) -> Iterator[None]:
        """Show the run on the cluster that works for it, and there how that ended."""
        self.executor = executor
        self._change(state="running")
        try:
            with self._closing():
                yield
        finally:
            self.executor = None

    @contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._show(state="failed" if isinstance(error, Exception) else "interrupted")
            raise
        self._show(state="finished")

    def publish(self) -> None:
        """Show that the release is visible from now on."""
        self._show(published=time.time())

    @contextmanager
    def stage(self, name: str, what: str) -> Iterator[None]:
        """Print a line when a stage ends well, with its seconds."""
        begun = time.perf_counter()
        self.current, self._work = name, ""
        self._show(**NOTHING_DONE, stage=name, run=self.run_id or self.now.run)
        log_progress("begins", self.now)
        try:
            with open_span(name, run=self.now.run, release=self.now.release):
                yield
        finally:
            self._close()
            self._show()  # how far it came: what advanced last may not be shown yet
        spent = time.perf_counter() - begun
        self.stages.append((name, spent))
        log_progress("ends", self.now, spent)
        line = Text(f"{name:8s} {printable(what)}  ")
        self.log(f"{line.plain}{spent:.1f} s")
        self.console.print(line.append(f"{spent:.1f} s", "dim"))

    def checking(self, options: RunOptions) -> AbstractContextManager[None]:
        """The stage that comes first, and is shown before Prefect and a cluster start."""
        what = f"{location.shown(options.collection.path)}, method {options.method.name}"
        self._change(release=options.release.path.rstrip("/").rpartition("/")[2])
        return self.stage("check", what)

    def say(self, *lines: str, style: str | None = None) -> None:
        """Print lines."""
        for line in lines:
            self.log(line)
            self.console.print(line, style=style)

    def judge(self, gate: str) -> None:
        """Show what the gate said."""
        self._show(gate=gate)
        log_progress("gate", self.now)

    def hear(self, event: Event) -> None:
        """Show what long work reports: a bar while it advances, a line when it stalls."""
        numbers, begins = dict(event.numbers), event.what == "begins"
        with self._lock:
            if event.what == "stalls":
                n_workers = numbers.get("workers", 0)
                self._change(state="running" if n_workers else "waiting")
                line = f"Nothing finished for {event.amount:.0f} s; {n_workers:.0f} workers."
                self.say(line, style="yellow")
            elif event.what == "decides":
                here, task, workers = (numbers[name] for name in ("here", "task", "workers"))
                ended = f"sent to {workers:.0f} threads" if event.amount else "done here"
                self.say(f"pilot    {event.work}: {here:.2g} s here, {task:.2g} s a task; {ended}")
                return
            elif event.what == "ends":
                self._close()
            elif begins or event.work != self._work:  # rounds, whose number no one knows before
                self._begin(event, event.amount if begins else 0.0, numbers if begins else {})
            if event.what == "advances":
                self._advance(event, numbers)
            # What begins, ends or stalls is shown at once; progress now and then.
            if event.what != "advances" or time.monotonic() - self._shown > SHOW_EVERY:
                self._show(at_once=False)

    def _begin(self, event: Event, total: float, numbers: Mapping[str, float]) -> None:
        self._work, self._found = event.work, 0.0
        self._marks = deque([(time.monotonic(), 0.0)])
        stage, chunks = find_stage(event.work), total if event.unit == "chunks" else 0
        known = stage != "other"
        self._bar.begin(stage if known else event.work, total, event.unit)
        begun = NOTHING_DONE | {"total": total, "chunks_total": int(numbers.get("chunks", chunks))}
        self._change(**begun, stage=stage if known else self.now.stage, unit=event.unit)

    def _advance(self, event: Event, numbers: Mapping[str, float]) -> None:
        self._bar.advance(event.amount)
        now = self.now
        # What is done twice after a loss is no more than the whole.
        done = min(now.done + event.amount, now.total or float("inf"))
        if numbers.get("found"):  # done by an earlier run: no work of this one
            self._found += event.amount
        self._marks.append((time.monotonic(), max(done - self._found, 0.0)))
        chunks = event.amount if event.unit == "chunks" else numbers.get("chunks", 0)
        self._change(
            done=done,
            state="running",
            chunks_done=now.chunks_done + int(chunks),
            withheld=now.withheld + int(numbers.get("withheld", 0)),
            clipped=now.clipped + int(numbers.get("clipped", 0)),
            n_bytes=now.n_bytes + int(numbers.get("bytes", 0)),
            privacy_loss=max(now.privacy_loss, numbers.get("privacy_loss", 0.0)),
        )

    def _change(self, **changed: Any) -> None:
        with self._lock:
            # Labels of gauges are few and known: any other text would make a series of its own.
            self.now = Progress.decode(self.now.encode() | changed)

    def _measure_speed(self) -> None:
        """Of the last minute, so that a run that slows down is seen to."""
        now, marks = time.monotonic(), self._marks
        while len(marks) > 1 and marks[1][0] < now - SPEED_OVER:
            marks.popleft()
        speed = (marks[-1][1] - marks[0][1]) / max(now - marks[0][0], 1e-9) if marks else 0.0
        left = (self.now.total - self.now.done) / speed if speed and self.now.total else 0.0
        self._change(per_second=speed, seconds_left=left)

    def _show(self, *, at_once: bool = True, **changed: Any) -> None:
        """What changed, on the cluster's page and gauges, and where the environment names a place.

        Gauges are written or pushed now and then, but for what must not be missed: a stage, a
        verdict.
        """
        with self._lock:
            self._change(**changed)
            self._measure_speed()
            self._shown = now = time.monotonic()
            if self.executor is not None:
                self.executor.show(self.now)
            if at_once or now - self._exported >= EXPORT_EVERY:
                self._exported = now
                export_progress(self.now)

    def _close(self) -> None:
        """Take the bar away."""
        self._bar.end()
        self._work = ""


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
    """Write or push the gauges of a run, if a place is named."""
    if os.environ.get("PRIVPIPE_METRICS_FILE") or os.environ.get("PRIVPIPE_METRICS_GATEWAY"):
        # A gateway retains what was pushed last: a group for each deployment, not for each run.
        export_gauges(RunCollector(OneRun(now)), deployment=now.deployment)


def export_gauges(collector: Any, **key: str) -> None:
    """Write or push gauges, if a place is named; never a reason for a run to fail."""
    path = os.environ.get("PRIVPIPE_METRICS_FILE")
    gateway = os.environ.get("PRIVPIPE_METRICS_GATEWAY")
    # prometheus_client is loaded for those who need it only.
    from privpipe.cluster.workers.progress import push_gauges, write_gauges

    with suppress(Exception):
        if path:
            write_gauges(collector, path)
        if gateway:
            push_gauges(collector, gateway, **{name: text for name, text in key.items() if text})


def write_results(
    release_url: str, watch: Watch | None, outcome: str, error: Exception | None = None
) -> None:
    """Write the results beside the release, in the folder of its report.

    Parameters
    ----------
    release_url
        The release.
    watch
        Has seen the stages; None when a run ended before its first.
    outcome
        "published", "stopped" (as ordered, before the last stage), "nothing to do", "failed" or
        "interrupted".
    error
        Why it failed; only what an error of ours says is written.
    """
    watch = watch or Watch()
    # The text of a foreign exception may hold values of records.
    sealed = None if error is None else seal(error, "privpipe")
    content = {
        "format_version": 1,
        "release": release_url,
        "model": companion_url(release_url, "model.zarr"),
        "report": companion_url(release_url, "report"),
        "run": watch.run_id,
        "outcome": outcome,
        "finished": now(),
        "stages": [{"stage": name, "seconds": round(spent, 3)} for name, spent in watch.stages],
        "error": None if sealed is None else sealed.describe() | {"stage": watch.current},
    }
    objects.write_file(companion_url(release_url, RESULTS), json.dumps(content, indent=1))


def write_failure(release_url: str, watch: Watch | None, error: BaseException) -> None:
    """Write why a run failed; what hinders that must not hide why the run failed.

    Nothing is written where the release shall not be: within its own source, or nowhere.
    """
    if getattr(error, "code", "") not in ("output-inside-input", "place"):
        reason = error if isinstance(error, Exception) else None
        outcome = "interrupted" if reason is None else "failed"
        with suppress(OSError, PrivpipeError):
            write_results(release_url, watch, outcome, reason)


def read_results(release_url: str) -> dict[str, Any]:
    """What the last run of a release left."""
    with fsspec.open(companion_url(release_url, RESULTS)) as file:
        content: dict[str, Any] = json.load(file)
    return content
