"""The scheduler hears how far runs are, and shows it as Prometheus gauges.

On the scheduler's /metrics, in a file, or at a gateway. A scheduler that privpipe starts, or that
is started with `deploy/preload.py`, has the page /privpipe as well; on any other the gauges alone
appear, once a driver has connected.

Labels are words of `progress` alone, so that the number of series never grows with runs or records.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from distributed import SchedulerPlugin
from prometheus_client import REGISTRY, CollectorRegistry, push_to_gateway, write_to_textfile
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from privpipe.cluster.workers.progress import GATES, PLUGIN, STAGES, Progress

TOPIC = "privpipe-progress"

# A scheduler lives for months: what it holds must not grow with the runs.
MOST_RUNS = 20
"""Newest runs that are shown."""

OURS = ("clean_chunk", "prove_chunk", "sum_", "merge_", "attack", "load_shards", "ask_")


class ShowProgress(SchedulerPlugin):
    """Keeps the progress of the newest runs."""

    name = PLUGIN
    idempotent = True

    def __init__(self) -> None:
        self.runs: OrderedDict[str, Progress] = OrderedDict()
        self.retried = self.failed = 0

    async def start(self, scheduler: Any) -> None:
        """Called when it is registered."""
        self.scheduler = scheduler

    def log_event(self, topic: str, msg: Any) -> None:
        """Called for each event on the scheduler."""
        if topic != TOPIC or not isinstance(msg, dict):
            return
        now = replace(Progress.decode(msg), retried=self.retried, failed=self.failed)
        self.runs[now.run] = now
        self.runs.move_to_end(now.run)
        while len(self.runs) > MOST_RUNS:
            self.runs.popitem(last=False)
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
    "privpipe_done": "How much of the work under way is done, in its unit.",
    "privpipe_total": "How much there is; 0 where it is not known.",
    "privpipe_chunks_done": "Chunks of the stage that are done.",
    "privpipe_chunks_total": "Chunks of the stage.",
    "privpipe_per_second": "Records, or other units of the work, per second.",
    "privpipe_seconds_left": "Estimated; 0 where nothing can be said.",
    "privpipe_tasks_failed": "Tasks that failed for good.",
    "privpipe_tasks_retried": "Tasks that were tried again.",
    "privpipe_records_withheld": "Records whose row holds nothing.",
    "privpipe_records_clipped": "Records that a bound of their noise changed.",
    "privpipe_bytes_written": "Bytes of released chunks.",
    "privpipe_privacy_loss": "Largest epsilon that a partition has lost; 0 where none counts.",
}

FIELDS = (
    "done total chunks_done chunks_total per_second seconds_left failed retried withheld clipped "
    "n_bytes privacy_loss"
).split()
"""Of `Progress`, in the order of `GAUGES`."""


class RunCollector(Collector):
    """Gauges of the run that was heard of last."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called for each scrape."""
        now = self.progress or Progress()
        for (name, about), field in zip(GAUGES.items(), FIELDS, strict=True):
            yield GaugeMetricFamily(name, about, value=float(getattr(now, field)))
        for name, about, word, words in (
            ("privpipe_stage", "1 for the stage of the run.", now.stage, STAGES),
            ("privpipe_gate", "1 for what the gate said.", now.gate, GATES),
        ):
            family = GaugeMetricFamily(name, about, labels=[name.removeprefix("privpipe_")])
            for known in words:
                family.add_metric([known], float(known == word and self.progress is not None))
            yield family


_SERVED = RunCollector()
_registered: list[RunCollector] = []


def serve_progress(progress: Progress) -> None:
    """Show it in this process's registry, which a scheduler serves at /metrics."""
    _SERVED.progress = progress
    if not _registered:
        with suppress(ValueError):  # somebody else's names
            REGISTRY.register(_SERVED)
        _registered.append(_SERVED)


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
