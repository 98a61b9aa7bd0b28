"""On the scheduler: hears how far runs are, counts what is tried again, shows it.

A scheduler that privpipe starts, or that is started with `deploy/preload.py`, has the page
/privpipe; on any other the gauges alone appear, once a driver has connected.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

from distributed import SchedulerPlugin

from privpipe.cluster.workers.monitoring.metrics import serve_progress
from privpipe.cluster.workers.monitoring.progress import Progress

TOPIC = "privpipe-progress"

MOST_RUNS = 20
"""Newest runs that are shown."""

OURS = ("clean_chunk", "prove_chunk", "sum_", "merge_", "attack", "load_shards", "ask_")


class ShowProgress(SchedulerPlugin):
    """Keeps the progress of the newest runs."""

    name = "privpipe-progress"
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
        elif start == "processing" and finish in ("released", "waiting") and not kwargs:
            self.retried += 1


def find_runs(scheduler: Any) -> list[Progress]:
    """Runs that a scheduler has heard of, the newest first."""
    plugin = scheduler.plugins.get(ShowProgress.name)
    return [] if plugin is None else list(reversed(plugin.runs.values()))
