"""Limits of a first gate that as many records as there are can show at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from privpipe.store.collections.collection import Collection
from privpipe_flows.runs.configuration.run_options import AuditOptions, GateSection, RunOptions
from privpipe_flows.runs.stages.gate_check import GateNeeds, plan_limits

__all__ = ["HOLDOUT", "suggest_gate"]

HOLDOUT = 0.5
"""Share held out where the default share is too few records to show anything."""

ROOM = 1.5
"""A limit is so many times what a mere guess reaches, so that not chance alone decides."""


def suggest_gate(options: RunOptions, training: Collection) -> dict[tuple[str, str], Any]:
    """Keys to write into a first configuration; none where the defaults can be shown.

    The limits are those that this number of records can show, no smaller: whoever wants less
    needs more records. They stand in the configuration and in the release.
    """
    options = options.model_copy(update={"gate": GateSection()})
    if _lacks(plan_limits(options, training)) is None:
        return {}
    options = options.model_copy(update={"audit": AuditOptions(holdout=HOLDOUT)})
    limits: dict[str, float] = {}
    for _ in range(2):  # one limit is of exposure, the other of advantage
        needs = _lacks(plan_limits(options, training))
        if needs is None:
            break
        is_share = needs.score.startswith(("tpr", "share"))
        key = "exposed_max" if is_share else "confidential_advantage_max"
        limits[key] = min(1.0, math.ceil(100 * ROOM * needs.reaches) / 100)
        options = options.model_copy(update={"gate": GateSection(**limits)})
    found: dict[tuple[str, str], Any] = {("audit", "holdout"): HOLDOUT}
    return found | {("gate", key): value for key, value in limits.items()}


def _lacks(needs: Sequence[GateNeeds]) -> GateNeeds | None:
    """The limit that most lacks room between it and what a mere guess reaches; None if none."""
    short = [one for one in needs if ROOM * one.reaches > one.limit]
    return max(short, key=lambda one: one.reaches / one.limit, default=None)
