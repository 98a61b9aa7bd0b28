"""How far runs are: a value per run, heard and retained by a scheduler, shown as pages.

Stages, units and states are a vocabulary. Names of a deployment and of a release are cut to
letters that a label may have; a path, or a value of a record, never becomes one. What a scheduler
retains is the newest runs, and each has an age: a driver speaks at least every ten seconds, so that
one that is dead is seen to be silent. The dashboard's own bars show only the tasks in flight.

A scheduler that privpipe starts, or that is started with `deploy/preload.py`, has the pages
/privpipe and, in the menu of Dask's pages, /individual-privpipe-runs. Gauges are made of the same
values by `run_metrics`.
"""

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import dask
from distributed import SchedulerPlugin
from distributed.http.utils import RequestHandler
from tornado.template import Template

from privpipe.cluster.workers import run_metrics
from privpipe.cluster.workers.run_metrics import WORKS

PLUGIN = "privpipe-progress"
"""Name of the plugin of the scheduler that holds the progress of runs."""

STAGES = ("check", "prove", "train", "clean", "drift", "audit", "gate", "publish", "other")
GATES = ("none", "passed", "failed", "approved", "not gated")
UNITS = ("records", "chunks", "rounds", "attacks", "objects", "seconds")
STATES = ("running", "waiting", "finished", "failed", "interrupted", "silent")
"""Waiting is for workers; silent is a run whose driver is not heard of: it is dead or away."""

AT_WORK = ("running", "waiting")

SILENT_AFTER = 60.0
"""Seconds; a driver speaks every ten."""

_NO_LABEL = re.compile(r"[^A-Za-z0-9._-]")


def find_stage(work: str) -> str:
    """The stage that a piece of work belongs to, of `STAGES`.

    >>> find_stage("clean_chunk"), find_stage("whatever a user wrote")
    ('clean', 'other')
    """
    return next((stage for name, stage in WORKS.items() if work.startswith(name)), "other")


@dataclass(frozen=True)
class Progress:
    """A run at one moment.

    Parameters
    ----------
    run, release, deployment
        Its identifier, the name of its release, the deployment of Prefect that started it.
    link
        Its page at Prefect, where one is known.
    state
        Of `STATES`.
    stage
        Of `STAGES`.
    done, total, unit
        Of the work under way; `total` is 0 where it is not known.
    chunks_done, chunks_total
        Of the stage's pass over the records.
    per_second, seconds_left
        Over the last minute; 0 where nothing can be said.
    failed, retried
        Tasks of this run that failed for good, and that were tried again.
    withheld, clipped, n_bytes
        Records of the release that hold nothing, records that a bound changed, bytes written.
    gate
        Of `GATES`.
    privacy_loss, privacy_limit
        Largest epsilon that a partition of the run has lost, by its account, and what it may lose;
        0 where none counts.
    published
        When its release became visible, seconds since 1970; 0 before.
    heard
        When the scheduler heard of it last, likewise.
    """

    run: str = ""
    release: str = ""
    deployment: str = ""
    link: str = ""
    state: str = "running"
    stage: str = "check"
    done: float = 0.0
    total: float = 0.0
    unit: str = "records"
    chunks_done: int = 0
    chunks_total: int = 0
    per_second: float = 0.0
    seconds_left: float = 0.0
    failed: int = 0
    retried: int = 0
    withheld: int = 0
    clipped: int = 0
    n_bytes: int = 0
    gate: str = "none"
    privacy_loss: float = 0.0
    privacy_limit: float = 0.0
    published: float = 0.0
    heard: float = 0.0

    def encode(self) -> dict[str, Any]:
        """Plain values, for an event on the scheduler."""
        return asdict(self)

    @classmethod
    def decode(cls, content: Mapping[str, Any]) -> Self:
        """What `encode` made; words outside the vocabulary become "other" and "none"."""
        found = cls(**{name: content[name] for name in cls.__dataclass_fields__ if name in content})
        return replace(
            found,
            release=_NO_LABEL.sub("_", found.release)[:64],
            deployment=_NO_LABEL.sub("_", found.deployment)[:64],
            stage=found.stage if found.stage in STAGES else "other",
            unit=found.unit if found.unit in UNITS else "records",
            gate=found.gate if found.gate in GATES else "none",
            state=found.state if found.state in STATES else "running",
            link=found.link if urlsplit(found.link).scheme in ("http", "https") else "",
            # It comes from a client of the scheduler, and becomes a page: nothing but
            # letters and digits.
            run=found.run[:8] if found.run.isalnum() else "",
        )

    @property
    def age(self) -> float:
        """Seconds since it was heard of; 0 where it is the driver's own."""
        return max(time.time() - self.heard, 0.0) if self.heard else 0.0

    def seen(self) -> Self:
        """As it is now: a run that should speak and does not is silent, and has no time left."""
        if self.state not in AT_WORK or self.age <= SILENT_AFTER:
            return self
        return replace(self, state="silent", per_second=0.0, seconds_left=0.0)

    def describe(self) -> dict[str, str]:
        """In words for people."""
        whole = f" of {self.total:,.0f}" if self.total else ""
        chunks = f"{self.chunks_done:,}" + (f" of {self.chunks_total:,}" * bool(self.chunks_total))
        minutes, seconds = divmod(round(self.seconds_left), 60)
        plain = ("run", "release", "deployment", "state", "stage")
        return {name: getattr(self, name) for name in plain} | {
            "done": f"{self.done:,.0f}{whole} {self.unit}",
            "chunks": chunks,
            "speed": f"{self.per_second:,.{0 if self.per_second >= 10 else 2}f} {self.unit}/s",
            "left": f"{minutes:d} min {seconds:02d} s" if self.seconds_left else "",
            "heard": f"{self.age:.0f} s ago",
            "retried": f"{self.retried:,}",
            "failed": f"{self.failed:,}",
            "withheld": f"{self.withheld:,}",
            "MiB": f"{self.n_bytes / 2**20:,.1f}",
            "gate": self.gate,
            "epsilon": f"{self.privacy_loss:.3g}" if self.privacy_loss else "",
        }


TOPIC = "privpipe-progress"

# A scheduler lives for months: what it holds must not grow with the runs.
MOST_RUNS = 20
"""Newest runs that are shown."""

MOST_COUNTED = 10 * MOST_RUNS
"""Runs whose lost tasks are counted; others' tasks that look like ours may be among them."""

OURS = ("clean_chunk", "prove_chunk", "sum_", "merge_", "attack", "load_shards", "ask_")
_RUN_OF_TASK = re.compile(r"-([0-9a-z]{8})\b")


class ShowProgress(SchedulerPlugin):
    """Retains the progress of the newest runs, and counts what was lost."""

    name = PLUGIN
    idempotent = True

    def __init__(self) -> None:
        self.runs: dict[str, Progress] = {}
        self.retried, self.failed = Counter[str](), Counter[str]()
        self.lost_workers = 0

    async def start(self, scheduler: Any) -> None:
        """Called when it is registered."""
        self.scheduler = scheduler
        run_metrics.serve_runs(self)

    async def close(self) -> None:
        """Called when the scheduler ends."""
        run_metrics.end_runs(self)

    def log_event(self, topic: str, msg: Any) -> None:
        """Called for each event on the scheduler."""
        if topic == "all" and isinstance(msg, dict) and msg.get("action") == "remove-worker":
            self.lost_workers += not msg.get("expected", True)
        if topic != TOPIC or not isinstance(msg, dict):
            return
        now = Progress.decode(msg)
        # The run that was heard of last is the last of all.
        self.runs.pop(now.run, None)
        self.runs[now.run] = replace(now, heard=time.time())
        if len(self.runs) > MOST_RUNS:
            del self.runs[next(iter(self.runs))]

    def transition(
        self, key: Any, start: Any, finish: Any, *args: Any, stimulus_id: str = "", **kwargs: Any
    ) -> None:
        """Called for each change of a task: lost with its worker, or failed for good."""
        # Back from a worker without a result: the worker was lost, and the task is tried
        # again.
        again = start == "processing" and finish in ("released", "waiting") and not kwargs
        if (finish == "erred" or again) and str(key).startswith(OURS):
            found = _RUN_OF_TASK.search(str(key))
            counts = self.failed if finish == "erred" else self.retried
            counts[found[1] if found else ""] += 1
            if len(counts) > MOST_COUNTED:
                del counts[next(iter(counts))]

    def list_runs(self) -> list[Progress]:
        """Runs that the scheduler has heard of as they are now, the newest first."""
        return [
            replace(run.seen(), retried=self.retried[run.run], failed=self.failed[run.run])
            for run in reversed(self.runs.values())
        ]

    def measure_memory(self) -> float:
        """Largest share of its memory that a worker uses."""
        workers = [one for one in self.scheduler.workers.values() if one.memory_limit]
        shares = [float(one.metrics.get("memory", 0)) / one.memory_limit for one in workers]
        return max(shares, default=0.0)


# Tornado escapes all that is filled in.
TABLE = Template(Path(__file__).with_name("runs.html").read_text("utf-8"))
PAGE = """<!doctype html>
<title>privpipe</title>
<style>body { font-family: sans-serif } td, th { padding: 2px 14px 2px 0; text-align: left }</style>
"""


def draw_runs(plugin: ShowProgress | None) -> str:
    """The table of runs, as HTML; without a row before the first driver has connected."""
    heads = Progress().describe()
    if plugin is None:
        return TABLE.generate(runs=[], heads=heads, workers="no", memory=0, lost=0).decode()
    return TABLE.generate(
        runs=plugin.list_runs(),
        heads=heads,
        workers=len(plugin.scheduler.workers),
        memory=round(100 * plugin.measure_memory()),
        lost=plugin.lost_workers,
    ).decode()


class ProgressPage(RequestHandler):
    """The page /privpipe: runs in words for people."""

    def get(self) -> None:
        """Answer."""
        # As often as the driver reports, about: more would show nothing new.
        self.set_header("Refresh", "1")
        self.finish(PAGE + draw_runs(self.server.plugins.get(PLUGIN)))


class ProgressDocument(RequestHandler):
    """The same as JSON."""

    def get(self) -> None:
        """Answer."""
        plugin = self.server.plugins.get(PLUGIN)
        runs: Iterable[Progress] = plugin.list_runs() if plugin else ()
        self.write({"runs": [asdict(run) | {"age": round(run.age, 1)} for run in runs]})


routes: list[tuple[str, type, dict[str, Any]]] = [
    ("privpipe", ProgressPage, {}),
    ("privpipe.json", ProgressDocument, {}),
]
"""What `distributed` serves of a module that its configuration names."""


def show_in_dashboard(scheduler: Any, extra: Mapping[str, Any], doc: Any) -> None:
    """The table as one of Dask's own pages, below its menu, drawn anew each second."""
    from bokeh.models.widgets import Div
    from distributed.dashboard.components.scheduler import env

    table = Div(text=draw_runs(scheduler.plugins.get(PLUGIN)), sizing_mode="stretch_width")
    doc.title = "privpipe"
    doc.add_root(table)
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)

    def draw() -> None:
        table.text = draw_runs(scheduler.plugins.get(PLUGIN))

    doc.add_periodic_callback(draw, 1000)


def add_page() -> None:
    """Let schedulers that start after this show the pages."""
    listed = list(dask.config.get("distributed.scheduler.http.routes"))
    if __name__ not in listed:
        dask.config.set({"distributed.scheduler.http.routes": [*listed, __name__]})
    with suppress(ImportError):  # without bokeh there is no menu
        from distributed.dashboard.scheduler import applications

        # Dask lists what is named individual-... in its menu "More".
        applications["/individual-privpipe-runs"] = show_in_dashboard
