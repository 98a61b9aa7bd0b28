"""Gauges of runs for Prometheus: on a scheduler's /metrics, in a file, or at a gateway.

Every series of a run has the labels deployment, release and run, so that rules can join them. A
series goes a quarter of an hour after its run has ended: their number does not grow with the runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import yaml
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


class Source(Protocol):
    """Where runs are known: a scheduler's plugin, or `OneRun`."""

    def list_runs(self) -> Sequence[Any]:
        """Values of `Progress`."""


@runtime_checkable
class FleetSource(Source, Protocol):
    """A scheduler's plugin, which also knows the workers."""

    lost_workers: int
    """Workers that went without being sent away."""

    def measure_memory(self) -> float:
        """Largest share of its memory that a worker uses."""


class OneRun:
    """The run of this process."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress

    def list_runs(self) -> Sequence[Any]:
        """It alone."""
        return [self.progress]


class RunCollector(Collector):
    """Gauges of the runs of a source."""

    def __init__(self, *sources: Source) -> None:
        self.sources = list(sources)

    @property
    def source(self) -> Source | None:
        """The last that began and has not ended."""
        return self.sources[-1] if self.sources else None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called for each scrape."""
        runs = list(self.source.list_runs()) if self.source else []
        shown = [run for run in runs if run.age < RETAINED]
        for name, (field, about) in GAUGES.items():
            family = GaugeMetricFamily(name, about, labels=LABELS)
            for run in shown:
                family.add_metric(_labels(run), float(getattr(run, field)))
            yield family
        for name, (field, about) in WORDS.items():
            family = GaugeMetricFamily(name, about, labels=(*LABELS, field))
            for run in shown:
                family.add_metric([*_labels(run), getattr(run, field)], 1.0)
            yield family
        yield self._date_releases(runs)
        if isinstance(self.source, FleetSource):
            values = (self.source.lost_workers, self.source.measure_memory())
            for (name, about), value in zip(OF_ALL.items(), values, strict=True):
                yield GaugeMetricFamily(name, about, value=float(value))

    def _date_releases(self, runs: Sequence[Any]) -> GaugeMetricFamily:
        """Of every deployment that has published, for as long as one of its runs is known."""
        newest: dict[str, float] = {}
        for run in runs:
            if run.published:
                newest[run.deployment] = max(newest.get(run.deployment, 0.0), run.published)
        return _date(newest)


def _labels(run: Any) -> list[str]:
    return [str(getattr(run, name)) for name in LABELS]


def _date(newest: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(RELEASED, "When a release became visible.", labels=["deployment"])
    for deployment, moment in newest.items():
        family.add_metric([deployment], moment)
    return family


class PromiseCollector(Collector):
    """What became of the releases that a deployment's schedule promises."""

    def __init__(self, deployment: str, counts: Mapping[str, int], newest: float) -> None:
        self.deployment, self.counts, self.newest = deployment, counts, newest

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called once, for a file or a gateway."""
        about = "Releases that the schedule promised, by what became of them."
        family = GaugeMetricFamily(PROMISED, about, labels=["deployment", "outcome"])
        for outcome, count in self.counts.items():
            family.add_metric([self.deployment, outcome], float(count))
        yield family
        yield _date({self.deployment: self.newest})


def serve_runs(source: Source) -> None:
    """Show them in this process's registry, which a scheduler serves at /metrics."""
    _register().sources.append(source)


def end_runs(source: Source) -> None:
    """Show those of the scheduler before: one that has ended has no workers."""
    with suppress(ValueError):  # it was never shown
        _register().sources.remove(source)


@cache
def _register() -> RunCollector:
    served = RunCollector()
    with suppress(ValueError):  # somebody else's names
        REGISTRY.register(served)
    return served


def write_gauges(collector: Collector, path: str) -> None:
    """Write a file for node_exporter's textfile collector, whole."""
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
