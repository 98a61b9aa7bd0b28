"""Each alert fires in its accident and in no other, evaluated by Prometheus' own `promtool`.

The series are what our collectors serve while an accident is played, minute by minute; Dask's and
Prometheus' own are added. promtool is of Debian's package prometheus (`make prometheus`).
"""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from privpipe.cluster.workers import progress
from privpipe.cluster.workers.progress import (
    TOPIC,
    Progress,
    PromiseCollector,
    RunCollector,
    ShowProgress,
)

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "alerts.yaml"
TOOLS = ROOT / ".venv-prometheus" / "usr" / "bin"
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=TOOLS)

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="make prometheus")

RUN = Progress(
    run="0badcafe",
    release="people.zarr",
    deployment="release",
    stage="clean",
    total=60_000.0,
    chunks_total=600,
    per_second=16.0,
    privacy_limit=2.0,
)


@dataclass
class Played:
    """One scheduler and its runs at one minute."""

    minute: int
    plugin: ShowProgress
    workers: int = 2
    up: int = 1
    gaps: dict[str, int] = field(default_factory=dict)

    def say(self, **changed: Any) -> None:
        """What the driver says in this minute: by default that it gets on."""
        now = min(self.minute, 60)
        advanced = replace(RUN, done=1_000.0 * now, chunks_done=10 * now)
        self.plugin.log_event(TOPIC, replace(advanced, **changed).encode())

    def lose(self, *, expected: bool) -> None:
        self.plugin.log_event("all", {"action": "remove-worker", "expected": expected})


def play_healthy(at: Played) -> None:
    """A run that gets on, is scaled down, is published, and is followed by another next day."""
    at.say(gate="passed" if at.minute > 55 else "none")
    if at.minute in (20, 21, 22, 23):
        at.lose(expected=True)
    if at.minute >= 60:
        at.say(state="finished", stage="publish", gate="passed", published=60 * 60.0)


def play_night(at: Played) -> None:
    if at.minute == 0:
        at.say(state="finished", published=60.0)


def play_lost_workers(at: Played) -> None:
    at.say()
    if at.minute in (30, 31, 32, 33):
        at.lose(expected=False)


def play_failed_tasks(at: Played) -> None:
    at.say()
    if at.minute == 30:
        at.plugin.transition("clean_chunk-0badcafe-000007", "processing", "erred")


def play_no_scheduler(at: Played) -> None:
    at.up = int(at.minute < 30)


Play = Callable[[Played], None]

ACCIDENTS: dict[str, tuple[Play, int, set[str]]] = {
    "healthy": (play_healthy, 75, set()),
    "nothing gets done": (lambda at: at.say(done=5.0, chunks_done=5), 55, {"PrivpipeStalled"}),
    "no worker at all": (
        lambda at: (at.say(done=5.0, chunks_done=5, state="waiting"), setattr(at, "workers", 0))[0],
        55,
        {"PrivpipeStalled", "PrivpipeNoWorkers"},
    ),
    "the driver is killed": (
        lambda at: at.say() if at.minute < 30 else None,
        36,
        {"PrivpipeSilent"},
    ),
    "the run fails": (lambda at: at.say(state="failed"), 30, {"PrivpipeFailed"}),
    "the run is cancelled": (lambda at: at.say(state="interrupted"), 30, {"PrivpipeFailed"}),
    "no release for 27 hours": (play_night, 27 * 60, {"PrivpipeNight"}),
    "a release after 25 hours": (play_night, 25 * 60, set()),
    "promised and missing": (
        lambda at: (at.say(), at.gaps.update(made=9, missing=1))[0],
        90,
        {"PrivpipeGaps", "PrivpipeStalled"},
    ),
    "the gate closes": (
        lambda at: at.say(state="failed", gate="failed"),
        30,
        {"PrivpipeFailed", "PrivpipeGateClosed"},
    ),
    "no gate": (lambda at: at.say(gate="not gated"), 30, {"PrivpipeNotGated"}),
    "a task fails": (play_failed_tasks, 35, {"PrivpipeTasksFail"}),
    "workers die": (play_lost_workers, 36, {"PrivpipeWorkersDie"}),
    "records are withheld": (lambda at: at.say(withheld=700), 30, {"PrivpipeWithholds"}),
    "the scheduler is gone": (play_no_scheduler, 40, {"PrivpipeNoScheduler"}),
    "the budget is near its end": (lambda at: at.say(privacy_loss=1.7), 30, {"PrivpipeBudget"}),
}


def record(play: Play, minutes: int, step: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, list]:
    """Values of each series at each scrape; None where it is not there."""
    plugin = ShowProgress()
    plugin.scheduler = SimpleNamespace(workers={})
    registry = CollectorRegistry()
    registry.register(RunCollector(plugin))
    found: dict[str, list] = defaultdict(list)
    for number, minute in enumerate(range(0, minutes + 1, step)):
        # Each scrape is half a minute after the driver last spoke.
        monkeypatch.setattr(progress.time, "time", lambda minute=minute: 60.0 * minute)
        at = Played(minute, plugin)
        play(at)
        monkeypatch.setattr(progress.time, "time", lambda minute=minute: 60.0 * minute + 1)
        for series, value in list_samples(at, registry):
            found[series] += [None] * (number - len(found[series])) + [value]
    return found


def list_samples(at: Played, registry: CollectorRegistry) -> Iterator[tuple[str, float]]:
    yield 'up{job="privpipe",instance="s:8787"}', at.up
    if not at.up:
        return
    promised = CollectorRegistry()
    if at.gaps:
        promised.register(PromiseCollector("release", at.gaps, 60.0 * at.minute))
    text = (generate_latest(registry) + generate_latest(promised)).decode()
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = one.labels | {"job": "privpipe", "instance": "s:8787"}
            named = ",".join(f'{name}="{label}"' for name, label in sorted(labels.items()))
            yield f"{one.name}{{{named}}}", one.value
    for state, count in (("idle", 0), ("saturated", at.workers), ("partially_saturated", 0)):
        yield f'dask_scheduler_workers{{job="privpipe",instance="s:8787",state="{state}"}}', count


def test_alerts__each_fires_in_its_accident_and_in_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = []
    for name, (play, minutes, firing) in ACCIDENTS.items():
        step = 1 if minutes < 120 else 5
        series = record(play, minutes, step, monkeypatch)
        tests.append(
            {
                "name": name,
                "interval": f"{step}m",
                "input_series": [
                    {"series": key, "values": " ".join("_" if v is None else f"{v!r}" for v in row)}
                    for key, row in series.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{minutes}m",
                        "exp_samples": [
                            {"labels": f'{{alertname="{alert}"}}', "value": 1}
                            for alert in sorted(firing)
                        ],
                    }
                ],
            }
        )
    path = tmp_path / "alerts_test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": tests}))
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    fired = set().union(*(firing for _, _, firing in ACCIDENTS.values()))
    assert fired == {rule["alert"] for rule in rules}, "an alert that no accident fires"


def test_metrics__have_names_that_prometheus_lints_without_a_word() -> None:
    registry = CollectorRegistry()
    plugin = ShowProgress()
    plugin.scheduler = SimpleNamespace(workers={})
    Played(3, plugin).say()
    registry.register(RunCollector(plugin))
    promised = CollectorRegistry()
    promised.register(PromiseCollector("release", {"made": 1}, 1.0))
    for served in (generate_latest(registry), generate_latest(promised)):
        done = subprocess.run(
            [str(PROMTOOL), "check", "metrics"], input=served, capture_output=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
