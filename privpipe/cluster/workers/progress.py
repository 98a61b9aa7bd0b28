"""How far runs are: a value per run, heard and retained by a scheduler, shown as gauges.

Stages, units and states are a vocabulary. Names of a deployment and of a release are cut to letters
that a label may have. A path, or a value of a record, never becomes a label. What a scheduler
retains is the newest runs, and each has an age. A driver speaks at least every ten seconds, so that
one that is dead is seen to be silent. `dashboard` shows the same values on pages.

Gauges are for Prometheus: on a scheduler's /metrics, in a file, or at a gateway. Every series of a
run has the labels deployment, release and run, so that rules can join them. A series goes a quarter
of an hour after its run has ended: their number does not grow with the runs.
"""

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import yaml
from distributed import SchedulerPlugin
from prometheus_client import REGISTRY, CollectorRegistry, push_to_gateway, write_to_textfile
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_GAUGES = yaml.safe_load(Path(__file__).with_name("gauges.yaml").read_text("utf-8"))
GAUGES: dict[str, tuple[str, str]] = _GAUGES["runs"]
"""By name the field of a run that a gauge shows, and what it is."""

WORDS: dict[str, tuple[str, str]] = _GAUGES["words"]
"""Likewise of what is a word, which becomes a label of the field's name."""

WORKS: dict[str, str] = _GAUGES["works"]
"""The stage of work whose name begins so."""

OF_ALL: dict[str, str] = _GAUGES["all"]
RELEASED = "privpipe_last_release_timestamp_seconds"
PROMISED = "privpipe_promised_releases"

LABELS = ("deployment", "release", "run")

RETAINED = 900.0
"""Seconds for which a run that has ended, or fell silent, is served: scrapes see how it ended."""

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

    @property
    def percent(self) -> float:
        """How far it is through its stages, as if all took the same time."""
        n = STAGES.index(self.stage) + min(self.done / (self.total or 1e300), 1.0)
        return 100.0 * (n / len(STAGES) if self.state != "finished" else 1.0)

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
        _register().sources.append(self)

    async def close(self) -> None:
        """Called when the scheduler ends: those of the one before are shown again."""
        with suppress(ValueError):  # it was never shown
            _register().sources.remove(self)

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

    def measure_memory(self) -> dict[str, float]:
        """Share of its memory that each worker uses, by name."""
        workers = [one for one in self.scheduler.workers.values() if one.memory_limit]
        return {str(w.name): float(w.metrics.get("memory", 0)) / w.memory_limit for w in workers}


class OneRun:
    """The run of this process."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress

    def list_runs(self) -> Sequence[Any]:
        """It alone."""
        return [self.progress]


class RunCollector(Collector):
    """Gauges of the runs of a source."""

    def __init__(self, *sources: ShowProgress | OneRun) -> None:
        self.sources = list(sources)

    @property
    def source(self) -> ShowProgress | OneRun | None:
        """The last that began and has not ended."""
        return self.sources[-1] if self.sources else None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called for each scrape."""
        runs = list(self.source.list_runs()) if self.source else []
        shown = [run for run in runs if run.age < RETAINED]
        for name, (field, about) in GAUGES.items():
            rows = [(_labels(run), float(getattr(run, field))) for run in shown]
            yield _fill(name, about, LABELS, rows)
        for name, (field, about) in WORDS.items():
            rows = [([*_labels(run), getattr(run, field)], 1.0) for run in shown]
            yield _fill(name, about, (*LABELS, field), rows)
        # Of every deployment that has published, for as long as one of its runs is known.
        dated = sorted((run.published, run.deployment) for run in runs if run.published)
        yield _date({deployment: moment for moment, deployment in dated})
        if isinstance(self.source, ShowProgress):
            (lost, of_lost), (memory, of_memory) = OF_ALL.items()
            yield GaugeMetricFamily(lost, of_lost, value=float(self.source.lost_workers))
            rows = [([worker], share) for worker, share in self.source.measure_memory().items()]
            yield _fill(memory, of_memory, ["worker"], rows)


def _labels(run: Any) -> list[str]:
    return [str(getattr(run, name)) for name in LABELS]


def _date(newest: Mapping[str, float]) -> GaugeMetricFamily:
    rows = [([deployment], moment) for deployment, moment in newest.items()]
    return _fill(RELEASED, "When a release became visible.", ["deployment"], rows)


def _fill(name: str, about: str, labels: Sequence[str], rows: Sequence[Any]) -> GaugeMetricFamily:
    """A gauge with its series, each as the values of its labels and its own."""
    family = GaugeMetricFamily(name, about, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


class PromiseCollector(Collector):
    """What became of the releases that a deployment's schedule promises."""

    def __init__(self, deployment: str, counts: Mapping[str, int], newest: float) -> None:
        self.deployment, self.counts, self.newest = deployment, counts, newest

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called once, for a file or a gateway."""
        about = "Releases that the schedule promised, by what became of them."
        rows = [([self.deployment, outcome], float(n)) for outcome, n in self.counts.items()]
        yield _fill(PROMISED, about, ["deployment", "outcome"], rows)
        yield _date({self.deployment: self.newest})


@cache
def _register() -> RunCollector:
    served = RunCollector()
    with suppress(ValueError):  # somebody else's names
        REGISTRY.register(served)
    return served


def write_gauges(collector: Collector, path: str) -> None:
    """Write a file for node_exporter's textfile collector, whole, and its folder."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_to_textfile(path, _registry(collector))


def push_gauges(collector: Collector, gateway: str, **key: str) -> None:
    """Push to a Prometheus gateway, as the job "privpipe"; `key` names their group."""
    registry = _registry(collector)
    push_to_gateway(gateway, job="privpipe", grouping_key=key, registry=registry, timeout=5)


def _registry(collector: Collector) -> Any:
    # Its own: the process's may hold gauges of whoever imported us.
    registry = CollectorRegistry()
    registry.register(collector)
    return registry
