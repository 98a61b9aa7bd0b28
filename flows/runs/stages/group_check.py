"""How far groups that are judged together carry a verdict: known before any work."""

from __future__ import annotations

from dataclasses import dataclass

from privpipe_flows.runs.run import Run
from privpipe_flows.runs.stages.earlier import count_earlier
from privpipe_flows.runs.stages.gate_check import GateNeeds, plan_gate

__all__ = ["GroupNeeds", "plan_groups"]


@dataclass(frozen=True)
class GroupNeeds:
    """What the gate asks of groups where their records are alike.

    Parameters
    ----------
    name
        Of the variable that says whose records belong together.
    n_groups
        As many as its categories, or records if these are fewer.
    gate
        What the gate would need, counting groups where it counts records.
    """

    name: str
    n_groups: int
    gate: GateNeeds

    def describe(self) -> str:
        """In a sentence or two."""
        gate = self.gate
        held_out = f"{self.n_groups:,} groups of {self.name!r}, {gate.n_held_out:,} held out"
        if gate.can_pass:
            return f"{held_out}: enough for the gate even where the records of a group are alike."
        return (
            f"{held_out}: where the records of a group are alike, as when all of them have one "
            f"value of {gate.variable!r}, a group counts as one record. Then about "
            f"{gate.n_needed:,.0f} of them would have to be held out, and with these the upper "
            f"limit of even a guess may be {gate.reaches:.3g}, allowed {gate.limit:g}: the gate "
            "may stay closed whatever is released. Take records of more groups, or raise the "
            "limits of [gate]."
        )


def plan_groups(run: Run) -> GroupNeeds | None:
    """What is known of groups from the metadata; None without gate or groups of known number."""
    name = run.options.audit.group
    if name is None or not run.options.gate.enforce:
        return None
    schema = run.training.schema_of_records
    categories = schema.variable(name).categories
    if not categories:
        return None
    n_groups = min(len(categories), schema.n_records)
    gate = plan_gate(run.options, run.training, None, count_earlier(run), n_units=n_groups)
    return None if gate is None else GroupNeeds(name, n_groups, gate)
