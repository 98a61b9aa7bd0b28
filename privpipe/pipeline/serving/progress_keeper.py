"""Adds up the events of a run to its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from privpipe.cluster.events import Event
from privpipe.cluster.workers.monitoring.progress import (
    GATES,
    STAGES,
    UNITS,
    Progress,
    find_stage,
)


class ProgressKeeper:
    """Adds up events; a listener of executors.

    Parameters
    ----------
    clock
        Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = Progress()
        self._clock = clock
        self._begun, self._known = clock(), 0.0
        self._work = ""

    def hear(self, event: Event) -> None:
        """Count an event."""
        numbers = dict(event.numbers)
        if event.what == "begins":
            self._begin(event, numbers)
        elif event.what == "advances":
            if event.work != self._work:
                self._begin(replace(event, amount=0.0), {})
            self._advance(event, numbers)

    def reach(self, stage: str, run: str | None = None) -> None:
        """A stage begins."""
        stage = stage if stage in STAGES else "other"
        self.now = replace(
            self.now, stage=stage, done=0.0, total=0.0, per_second=0.0, seconds_left=0.0
        )
        self.now = replace(self.now, chunks_done=0, chunks_total=0, run=run or self.now.run)
        self._work = ""

    def judge(self, gate: str) -> None:
        """What the gate said."""
        self.now = replace(self.now, gate=gate if gate in GATES else "none")

    def _begin(self, event: Event, numbers: Mapping[str, float]) -> None:
        self._work, self._begun, self._known = event.work, self._clock(), 0.0
        self.now = replace(
            self.now,
            stage=find_stage(event.work) if find_stage(event.work) != "other" else self.now.stage,
            done=0.0,
            total=event.amount,
            unit=event.unit if event.unit in UNITS else "records",
            chunks_done=0,
            chunks_total=int(numbers.get("chunks", event.amount if event.unit == "chunks" else 0)),
            per_second=0.0,
            seconds_left=0.0,
        )

    def _advance(self, event: Event, numbers: Mapping[str, float]) -> None:
        now = self.now
        done = now.done + event.amount
        if now.total:  # what is done twice after a loss is no more than the whole
            done = min(done, now.total)
        if numbers.get("found"):  # done by an earlier run: no work of this one
            self._known += event.amount
        spent = max(self._clock() - self._begun, 1e-9)
        speed = max(done - self._known, 0.0) / spent
        left = (now.total - done) / speed if speed and now.total else 0.0
        chunks = event.amount if event.unit == "chunks" else numbers.get("chunks", 0)
        self.now = replace(
            now,
            done=done,
            per_second=speed,
            seconds_left=left,
            chunks_done=now.chunks_done + int(chunks),
            withheld=now.withheld + int(numbers.get("withheld", 0)),
            clipped=now.clipped + int(numbers.get("clipped", 0)),
            n_bytes=now.n_bytes + int(numbers.get("bytes", 0)),
            privacy_loss=max(now.privacy_loss, numbers.get("privacy_loss", 0.0)),
        )
