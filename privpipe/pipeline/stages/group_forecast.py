"""How far groups that are judged together carry a verdict: known before any work."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.group_inference import list_known_sizes
from privpipe.attacks.kinds.verdicts.reach import plan_needed_groups, plan_reach
from privpipe.pipeline.runs.earlier import count_earlier
from privpipe.pipeline.runs.run import Run, find_attack_options
from privpipe.pipeline.stages.gate_forecast import GateNeeds, count_attacks
from privpipe.pipeline.stages.label_check import GroupTally
from privpipe.protocols import Column


@dataclass(frozen=True)
class GroupNeeds:
    """What the gate asks of groups where their records are alike, or of records that name them.

    Parameters
    ----------
    name
        Of the variable that says whose records belong together.
    n_groups
        With records in the training collection.
    n_held_out
        Of these.
    holdout
        Share of the groups that is held out.
    max_records, mean
        Records that adversaries are given at most, and the mean number in a group: of groups held
        out, which are given whole, so many are judged.
    gate
        What the gate would need, counting groups that are judged where it counts records.
    named
        Whether its variable says which group a record is of: then it counts records, since those
        of another time judge.
    """

    name: str
    n_groups: int
    n_held_out: int
    holdout: float
    max_records: int
    mean: float
    gate: GateNeeds
    named: bool = False

    @property
    def is_enough(self) -> bool:
        """Whether a release that tells nothing passes by more than chance."""
        return self.gate.n_held_out >= self.gate.n_needed

    def describe(self) -> str:
        """In a sentence or two."""
        gate = self.gate
        if self.named:
            return self._describe_named()
        held_out = f"{self.n_groups:,} groups of {self.name!r}, {self.n_held_out:,} held out"
        if gate.n_held_out < self.n_held_out:
            held_out += f", {gate.n_held_out:,} judged by {self.max_records:,} records"
        if self.is_enough:
            return f"{held_out}: enough for the gate even where the records of a group are alike."
        return (
            f"{held_out}. All records of a group have one value of {gate.variable!r}: where they "
            "are alike, a group counts as one record. With so few the upper limit of even a guess "
            f"is {gate.reaches:.3g}, allowed {gate.limit:g}, and planted leaks may not be found: "
            f"the gate may stay closed whatever is released. {self._say_needed()}, or raise the "
            "limits of [gate]."
        )

    def _describe_named(self) -> str:
        """The same where the groups are the classes."""
        gate = self.gate
        found = (
            f"{gate.variable!r} says which of {self.n_groups:,} groups of {self.name!r} a record "
            f"is of: {self.n_held_out:,} groups are held out, and judged by "
            f"{gate.n_held_out:,} of their records, at other times than those that train"
        )
        if self.is_enough:
            return f"{found}: enough for the gate."
        if not math.isfinite(gate.n_needed):
            return f"{found}. No number of records is enough. Raise the limits of [gate]."
        also = f", judged with [audit] max_records = {gate.n_needed:.0f}"
        return (
            f"{found}. With so few the upper limit of even a guess is {gate.reaches:.3g}, allowed "
            f"{gate.limit:g}: the gate may stay closed whatever is released. About "
            f"{gate.n_needed:,.0f} records of the same groups would have to be held out"
            f"{also * (gate.n_needed > self.max_records)}; more groups do not help. Take more "
            "stretches of time of each, or raise the limits of [gate]."
        )

    def _say_needed(self) -> str:
        if not math.isfinite(self.gate.n_needed):
            return "No number of groups is enough: hold more out"
        n_records = math.ceil(self.gate.n_needed * self.mean)
        if self.n_held_out >= self.gate.n_needed:
            return (
                f"About {self.gate.n_needed:,.0f} of them have to be judged: set [audit] "
                f"max_records = {n_records}"
            )
        also = f", judged with [audit] max_records = {n_records}" * (n_records > self.max_records)
        n_all = math.ceil(self.gate.n_needed / (self.holdout or 1.0))
        return (
            f"About {self.gate.n_needed:,.0f} groups would have to be held out, {n_all:,} in all "
            f"with [audit] holdout = {self.holdout:g}{also}; more records of the same groups do "
            "not help. Take records of more groups"
        )


def plan_groups(run: Run, tally: GroupTally | None) -> GroupNeeds | None:
    """What the groups that were counted can show.

    Parameters
    ----------
    run
    tally
        Of `count_labels`.

    Returns
    -------
    needs
        Of the limit that asks for most; None without gate, or where no confidential variable is
        one of whole groups, so that records count.
    """
    if tally is None or not run.options.gate.enforce:
        return None
    columns = [c for c in run.training.schema.confidential if c.name in tally.shares]
    options = find_attack_options(run.options)
    found = [one for column in columns for one in _plan_column(run, options, column, tally)]
    worst = max(found, key=lambda one: (one.n_needed, one.reaches / one.limit), default=None)
    if worst is None:
        return None
    return GroupNeeds(
        tally.name,
        tally.n_groups,
        tally.n_held_out,
        run.options.audit.holdout,
        options.max_records,
        tally.mean,
        worst,
        _is_named(tally, worst.variable),
    )


def _count_judged(options: AttackOptions, tally: GroupTally) -> int:
    """Groups held out whose records adversaries are given: whole groups, as many as have room."""
    return min(tally.n_held_out, int(options.max_records / tally.mean))


def _is_named(tally: GroupTally, name: str) -> bool:
    """Whether a value of the variable is of one group alone."""
    return min(tally.shares[name], default=1.0) * tally.n_groups < 1.5


def _plan_column(
    run: Run, options: AttackOptions, column: Column, tally: GroupTally
) -> Iterator[GateNeeds]:
    """What every limit asks for of one variable, in groups or in records of those it names."""
    named, n_groups = _is_named(tally, column.name), max(2, tally.n_held_out)
    sizes = list_known_sizes(column, options, tally.typical, named=named)
    shares: Sequence[float] = (1 / n_groups,) * n_groups if named else tally.shares[column.name]
    n_judged = _count_judged(options, tally)
    if not named:
        yield from _plan_limits(run, options, column, shares, n_judged, len(sizes))
        return
    largest = max((size for size in sizes if size is not None), default=1)
    n_records = int(min(options.max_records, tally.n_held_out * tally.mean))
    n_sets = max(2, n_records // largest)
    for one in _plan_limits(run, options, column, shares, n_sets, len(sizes)):
        yield replace(one, n_needed=largest * one.n_needed, n_held_out=n_records)


def _plan_limits(
    run: Run,
    options: AttackOptions,
    column: Column,
    shares: Sequence[float],
    n_judged: int,
    n_sizes: int,
) -> Iterator[GateNeeds]:
    """What every limit asks for of so many groups, or sets of records of one, that judge."""
    n_attacks = n_sizes + count_attacks(
        run.options, column, bool(run.training.desired), count_earlier(run)
    )
    n_variables = len(run.training.schema.confidential)
    n_classes = max(2, len(shares)) if column.is_categorical else None
    given: dict[str, Any] = {
        "n_attacks": n_attacks,
        "n_classes": n_classes,
        "n_variables": n_variables,
    }
    needed = plan_needed_groups(options, shares=shares, **given)
    for score, n_needed in needed.items():
        reaches = plan_reach(options, score, max(2, n_judged), shares=shares, grouped=True, **given)
        n_intervals = n_attacks * len(needed)
        yield GateNeeds(
            column.name,
            score,
            n_needed,
            n_judged,
            n_intervals,
            options.allowed(score),
            reaches,
        )
