"""How far a run is: in fixed words, as Prometheus gauges, and as a page of the Dask dashboard.

Names of stages, units and states are a vocabulary: nothing that a user wrote, no path and no value
of a record ever becomes a label, so that the number of series never grows with runs or records. The
dashboard's own bars show only the tasks that are in flight.

Gauges are on the scheduler's /metrics, in a file, or at a gateway. A scheduler that privpipe
starts, or that is started with `deploy/preload.py`, has the page /privpipe as well; on any other
the gauges alone appear, once a driver has connected.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Self

import dask
from distributed import SchedulerPlugin
from distributed.http.utils import RequestHandler
from prometheus_client import REGISTRY, CollectorRegistry, push_to_gateway, write_to_textfile
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from tornado.template import Template

WORKS = {
    "prove_chunk": "prove",
    "clean_chunk": "clean",
    "sum_reference": "drift",
    "sum_drift": "drift",
    "sum_moments": "train",
    "ask_shards": "train",
    "price_columns": "train",
    "sum_audit": "audit",
    "attack": "audit",
    "publish": "publish",
}
"""The stage of work whose name begins so."""

PLUGIN = "privpipe-progress"
"""Name of the plugin of the scheduler that holds the progress of runs."""

STAGES = ("check", "prove", "train", "clean", "drift", "audit", "gate", "publish", "other")
GATES = ("none", "passed", "failed", "approved", "not gated")
UNITS = ("records", "chunks", "rounds", "attacks", "objects", "seconds")


def find_stage(work: str) -> str:
    """The stage that a piece of work belongs to, of `STAGES`.

    >>> find_stage("clean_chunk"), find_stage("whatever a user wrote")
    ('clean', 'other')
    """
    return next((WORKS[name] for name in WORKS if work.startswith(name)), "other")


@dataclass(frozen=True)
class Progress:
    """A run at one moment.

    Parameters
    ----------
    run
        Its identifier.
    stage
        Of `STAGES`.
    done, total, unit
        Of the work under way; `total` is 0 where it is not known.
    chunks_done, chunks_total
        Of the stage's pass over the records.
    per_second, seconds_left
        Since the work began in this run; 0 where nothing can be said.
    failed, retried
        Tasks that failed for good, and that were tried again.
    withheld, clipped, n_bytes
        Records of the release that hold nothing, records that a bound changed, bytes written.
    gate
        Of `GATES`.
    privacy_loss
        Largest epsilon that a partition of the run has lost, by its account; 0 where none counts.
    """

    run: str = ""
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

    def encode(self) -> dict[str, Any]:
        """Plain values, for an event on the scheduler."""
        return asdict(self)

    @classmethod
    def decode(cls, content: Mapping[str, Any]) -> Self:
        """What `encode` made; words outside the vocabulary become "other" and "none"."""
        known = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
        found = cls(**known)
        return replace(
            found,
            stage=found.stage if found.stage in STAGES else "other",
            unit=found.unit if found.unit in UNITS else "records",
            gate=found.gate if found.gate in GATES else "none",
            # It comes from a client of the scheduler, and becomes a page: nothing but
            # letters and digits.
            run=found.run[:8] if found.run.isalnum() else "",
        )

    def describe(self) -> dict[str, str]:
        """In words for people."""
        whole = f" of {self.total:,.0f}" if self.total else ""
        chunks = f"{self.chunks_done:,}" + (f" of {self.chunks_total:,}" * bool(self.chunks_total))
        minutes, seconds = divmod(round(self.seconds_left), 60)
        return {
            "run": self.run,
            "stage": self.stage,
            "done": f"{self.done:,.0f}{whole} {self.unit}",
            "chunks": chunks,
            "speed": f"{self.per_second:,.{0 if self.per_second >= 10 else 2}f} {self.unit}/s",
            "left": f"{minutes:d} min {seconds:02d} s" if self.seconds_left else "",
            "retried": f"{self.retried:,}",
            "failed": f"{self.failed:,}",
            "withheld": f"{self.withheld:,}",
            "gate": self.gate,
        }


TOPIC = "privpipe-progress"

# A scheduler lives for months: what it holds must not grow with the runs.
MOST_RUNS = 20
"""Newest runs that are shown."""

OURS = ("clean_chunk", "prove_chunk", "sum_", "merge_", "attack", "load_shards", "ask_")


class ShowProgress(SchedulerPlugin):
    """Retains the progress of the newest runs."""

    name = PLUGIN
    idempotent = True

    def __init__(self) -> None:
        self.runs: dict[str, Progress] = {}
        self.retried = self.failed = 0

    async def start(self, scheduler: Any) -> None:
        """Called when it is registered."""
        self.scheduler = scheduler

    def log_event(self, topic: str, msg: Any) -> None:
        """Called for each event on the scheduler."""
        if topic != TOPIC or not isinstance(msg, dict):
            return
        now = replace(Progress.decode(msg), retried=self.retried, failed=self.failed)
        # The run that was heard of last is the last of all.
        self.runs.pop(now.run, None)
        self.runs[now.run] = now
        if len(self.runs) > MOST_RUNS:
            del self.runs[next(iter(self.runs))]
        serve_progress(now)

    def transition(
        self, key: Any, start: Any, finish: Any, *args: Any, stimulus_id: str = "", **kwargs: Any
    ) -> None:
        """Called for each change of a task: lost with its worker, or failed for good."""
        if not str(key).startswith(OURS):
            return
        if finish == "erred":
            self.failed += 1
        # Back from a worker without a result: the worker was lost, and the task is tried
        # again.
        elif start == "processing" and finish in ("released", "waiting") and not kwargs:
            self.retried += 1


GAUGES = {
    "privpipe_done": ("done", "How much of the work under way is done, in its unit."),
    "privpipe_total": ("total", "How much there is; 0 where it is not known."),
    "privpipe_chunks_done": ("chunks_done", "Chunks of the stage that are done."),
    "privpipe_chunks_total": ("chunks_total", "Chunks of the stage."),
    "privpipe_per_second": ("per_second", "Records, or other units of the work, per second."),
    "privpipe_seconds_left": ("seconds_left", "Estimated; 0 where nothing can be said."),
    "privpipe_tasks_failed": ("failed", "Tasks that failed for good."),
    "privpipe_tasks_retried": ("retried", "Tasks that were tried again."),
    "privpipe_records_withheld": ("withheld", "Records whose row holds nothing."),
    "privpipe_records_clipped": ("clipped", "Records that a bound of their noise changed."),
    "privpipe_bytes_written": ("n_bytes", "Bytes of released chunks."),
    "privpipe_privacy_loss": (
        "privacy_loss",
        "Largest epsilon that a partition has lost; 0 where none counts.",
    ),
}
"""By name the field of `Progress` that a gauge shows, and what it is."""


class RunCollector(Collector):
    """Gauges of the run that was heard of last."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called for each scrape."""
        now = self.progress or Progress()
        for name, (field, about) in GAUGES.items():
            yield GaugeMetricFamily(name, about, value=float(getattr(now, field)))
        for name, about, word, words in (
            ("privpipe_stage", "1 for the stage of the run.", now.stage, STAGES),
            ("privpipe_gate", "1 for what the gate said.", now.gate, GATES),
        ):
            family = GaugeMetricFamily(name, about, labels=[name.removeprefix("privpipe_")])
            for known in words:
                family.add_metric([known], float(known == word and self.progress is not None))
            yield family


def serve_progress(progress: Progress) -> None:
    """Show it in this process's registry, which a scheduler serves at /metrics."""
    _register().progress = progress


@cache
def _register() -> RunCollector:
    served = RunCollector()
    with suppress(ValueError):  # somebody else's names
        REGISTRY.register(served)
    return served


def write_progress(progress: Progress, path: str) -> None:
    """Write a file for node_exporter's textfile collector, whole."""
    write_to_textfile(path, _registry(progress))


def push_progress(progress: Progress, gateway: str) -> None:
    """Push to a Prometheus gateway, as the job "privpipe"."""
    push_to_gateway(gateway, job="privpipe", registry=_registry(progress), timeout=5)


def _registry(progress: Progress) -> Any:
    # Its own: the process's may hold gauges of whoever imported us.
    registry = CollectorRegistry()
    registry.register(RunCollector(progress))
    return registry


class _RunsHandler(RequestHandler):
    def find_runs(self) -> list[Progress]:
        """Runs that the scheduler has heard of, the newest first."""
        plugin = self.server.plugins.get(PLUGIN)
        return [] if plugin is None else list(reversed(plugin.runs.values()))


class ProgressPage(_RunsHandler):
    """The page /privpipe: runs in words for people."""

    def get(self) -> None:
        """Answer."""
        # As often as the driver reports, about: more would show nothing new.
        self.set_header("Refresh", "1")
        self.finish(PAGE.generate(runs=self.find_runs(), heads=Progress().describe()))


class ProgressDocument(_RunsHandler):
    """The same as JSON."""

    def get(self) -> None:
        """Answer."""
        self.write({"runs": [asdict(run) for run in self.find_runs()]})


# Tornado escapes all that is filled in.
PAGE = Template("""<!doctype html>
<title>privpipe</title>
<style>body { font-family: sans-serif } td, th { padding: 2px 18px 2px 0; text-align: left }</style>
<table>
<tr>{% for name in heads %}<th>{{ name }}</th>{% end %}<th></th></tr>
{% for run in runs %}
<tr>{% for value in run.describe().values() %}<td>{{ value }}</td>{% end %}
<td>{% if run.total %}<progress max="{{ run.total }}" value="{{ run.done }}">{% end %}</td></tr>
{% end %}
</table>
""")

routes: list[tuple[str, type, dict[str, Any]]] = [
    ("privpipe", ProgressPage, {}),
    ("privpipe.json", ProgressDocument, {}),
]
"""What `distributed` serves of a module that its configuration names."""


def add_page() -> None:
    """Let schedulers that start after this show the page."""
    listed = list(dask.config.get("distributed.scheduler.http.routes"))
    if __name__ not in listed:
        dask.config.set({"distributed.scheduler.http.routes": [*listed, __name__]})
