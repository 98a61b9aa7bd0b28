"""The audit of a surrogate release: can it be told whose records it was made from?

No released record belongs to a raw one, so nothing is compared row by row. Membership is attacked
with records of the fit and held-out ones; "safe" is never said, for what a surrogate tells of a
confidential variable is not judged here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats.attack_table import Sample, run_kind
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.attack_sample import draw_missing
from privpipe.cluster.passes.sample_drawing import (
    Drawing,
    Published,
    gather_sample,
    make_sample_key,
)
from privpipe.errors import InputError, PrivpipeError
from privpipe.pipeline.runs.run import MOST_RECORDS, Run
from privpipe.protocols import FloatArray
from privpipe.records.sampling import Part
from privpipe.store.arrays.blocks import read_block
from privpipe.store.arrays.layout import FEATURES
from privpipe.store.collections.collection import Collection
from privpipe.store.releases.release_writing import ReleasePlan

NOT_COMPARED: dict[str, Any] = {
    "n_groups": None,
    "privacy": {},
    "desired": {},
    "confidential": {},
    "e_utility": None,
}
"""Findings of single variables: no released record belongs to a raw one."""


def audit_surrogate(run: Run, plan: ReleasePlan, executor: Executor) -> dict[str, Any]:
    """Attack the membership of the records that the surrogate was made from.

    Returns
    -------
    findings
        As `audit_stage` gives them, without figures of single variables; `membership` holds the
        report of the attack.
    """
    audited = run.options.audit
    options = AttackOptions(
        max_advantage=run.options.gate.confidential_advantage_max, level=audited.level
    )
    if audited.holdout > 0:
        whole = replace(run.training, desired=(), confidential=())
        parts: tuple[Part, ...] = ("fit", "test")
        sides = draw_sides(run, [whole.keeping(run.split, part) for part in parts], executor)
        tasks = [("1", (*sides, plan, options))]
        [(_, found)] = executor.map_tasks(attack_membership, tasks, prefix="attack")
        if isinstance(found, PrivpipeError) and not isinstance(found, InputError):
            raise found
    else:
        found = InputError("No record was held out.", remedy="Set [audit] holdout.")
    attacked = not isinstance(found, PrivpipeError)
    n_judged = found["n_members"] + found["n_others"] if attacked else 0
    return NOT_COMPARED | {
        "basis": "A surrogate release: its records are nobody's.",
        "n_records": n_judged,
        "membership": found if attacked else None,
        "adversaries": _judge(found, options) if attacked else say_nothing(str(found)),
    }


def attack_membership(
    fitted: Drawing, held_out: Drawing, plan: ReleasePlan, options: AttackOptions
) -> dict[str, Any]:
    """Worker side: read both sides and the release, and attack; numbers alone come back."""
    n_released = plan.chunks.n_records
    sample = Sample(
        released=np.asarray(
            read_block(plan.data_url, FEATURES, 0, min(n_released, MOST_RECORDS), plan.run),
            np.float64,
        ),
        members=read_drawn_features(fitted),
        others=read_drawn_features(held_out),
    )
    found: dict[str, Any] = json.loads(run_kind("membership", sample, options).to_json())
    return found


def draw_sides(run: Run, sides: Sequence[Collection], executor: Executor) -> tuple[Drawing, ...]:
    """Draw records of some parts of the split, with equal chances."""
    place = (run.sample_url, make_sample_key(run.sample_url))
    drawings = tuple(Drawing(side, Published(), MOST_RECORDS, *place) for side in sides)
    draw_missing(executor, drawings)
    return drawings


def read_drawn_features(drawing: Drawing) -> FloatArray:
    """Worker side: features of the records that were drawn, (n_records, n_features)."""
    features = gather_sample(drawing).shard.features
    return features.reshape(-1, drawing.collection.schema.n_features).astype(np.float64)


def _judge(found: dict[str, Any], options: AttackOptions) -> dict[str, Any]:
    """Membership that is told for certain is a leak; less proves nothing of other attacks."""
    least = found["true_positive"]["lower"] - found["false_positive"]["upper"]
    most = found["true_positive"]["upper"] - found["false_positive"]["lower"]
    told = f"membership is told with an advantage of {least:.3f} to {most:.3f}"
    if least > options.max_advantage:
        return say_nothing(f"{told}; {options.max_advantage:g} is allowed.", "leaks")
    return say_nothing(f"{told}; what the release tells of confidential variables is not judged.")


def say_nothing(reason: str, verdict: str = "unknown") -> dict[str, Any]:
    """Findings of adversaries, where none decides."""
    return {"verdict": verdict, "reason": reason, "decisions": []}
