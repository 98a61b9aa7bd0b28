"""How far a run is, in words for people: from the events of all its work, in fixed words.

Names of stages, units and states are a vocabulary: nothing that a user wrote, no path and no value
of a record ever becomes a label. The dashboard's own bars show only the tasks that are in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

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
    def decode(cls, content: Mapping[str, Any]) -> Progress:
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


def find_runs(scheduler: Any) -> list[Progress]:
    """Runs that a scheduler has heard of, the newest first."""
    plugin = scheduler.plugins.get(PLUGIN)
    return [] if plugin is None else list(reversed(plugin.runs.values()))
