"""How far a run is, as a person asks for it: from the events of all its work, in fixed words.

Names of stages, units and states are a vocabulary: nothing that a user wrote, no path and no value
of a record ever becomes a label. The dashboard's own bars show only the tasks that are in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from privpipe.cluster.events import Event

__all__ = ["GATES", "STAGES", "Progress", "ProgressKeeper", "find_stage"]

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
        Records of the release that hold nothing, values that were bounded, bytes written.
    gate
        Of `GATES`.
    privacy_loss
        Largest epsilon of a record, once a method accounts for it; NaN-free: 0 means none.
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
    def decode(cls, content: Mapping[str, Any]) -> Progress:
        """What `encode` made; words outside the vocabulary become "other" and "none"."""
        known = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
        found = cls(**known)
        return replace(
            found,
            stage=found.stage if found.stage in STAGES else "other",
            unit=found.unit if found.unit in UNITS else "records",
            gate=found.gate if found.gate in GATES else "none",
            run=found.run[:8] if found.run.isalnum() else "",
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
            chunks_total=int(numbers.get("chunks", 0)),
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
        )
