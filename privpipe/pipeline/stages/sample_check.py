"""What a few chunks tell before Prefect and a cluster start: rank, classes, alphabet, gate.

`check` shows it, `run` refuses by it: what would end the fit after a minute ends the command now.
"""

from __future__ import annotations

from dataclasses import dataclass

from privpipe.capabilities import Forecast
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.stages.budget import MOST_CHUNKS, BudgetMeaning, explain_budget
from privpipe.pipeline.stages.check import check_variation
from privpipe.pipeline.stages.earlier import count_earlier
from privpipe.pipeline.stages.gate_check import GateNeeds, plan_gate, suggest_gate, write_keys
from privpipe.pipeline.stages.group_check import GroupNeeds, plan_groups
from privpipe.pipeline.stages.label_check import LabelFindings, count_labels
from privpipe.pipeline.stages.preview import forecast_run, measure_rarest


@dataclass(frozen=True)
class SampleFindings:
    """What a few chunks tell of a run.

    Parameters
    ----------
    labels
        What labels tell, of all records.
    constant
        Features that do not vary there.
    meaning
        What the budget means; None for methods without one.
    forecast
        What the method tells of itself: its alphabet, its noise; None where it tells nothing.
    gate
        What the gate needs of classes of such sizes; None where it is not enforced, or judges
        no variable.
    instead
        Keys with which so many records would do, where the gate will hardly open.
    groups
        What the gate needs of groups that are judged together; None where there are none.
    """

    labels: LabelFindings
    constant: tuple[str, ...]
    meaning: BudgetMeaning | None
    forecast: Forecast | None
    gate: GateNeeds | None
    instead: str = ""
    groups: GroupNeeds | None = None

    @property
    def dependence(self) -> str:
        """A sentence where the fit will probably refuse the features; else nothing."""
        if self.meaning is None or not self.meaning.dependence:
            return ""
        return (
            f"The fit will probably refuse the features: {self.meaning.dependence} Set [method] "
            "ridge = 1e-6."
        )

    @property
    def warning(self) -> str:
        """A sentence where the gate will hardly open, or by chance alone; else nothing."""
        if self.gate is None or self.gate.has_room:
            return ""
        how = "may stay closed by chance" if self.gate.can_pass else "will hardly open"
        return f"The gate {how}: {self.gate.describe()} So many records can show: {self.instead}."


def check_sample(run: Run) -> SampleFindings:
    """Read a few chunks of a run that was checked, and fit where fitting is quick.

    Raises
    ------
    InputError, RankError
        If no record has a variable, one does not vary, groups are too small to be read together,
        records have gaps that the run would fail on, or the fit refuses the features.
    """
    labels = count_labels(run)
    constant, _ = check_variation(run)
    if run.method.examine is not None and run.training.plan.n_chunks <= MOST_CHUNKS:
        run.method.examine(run.options.method, run.training.keeping(run.split, "fit"))
    meaning = explain_budget(run, strict=True)
    forecast = forecast_run(run)
    if not run.options.gate.enforce:
        return SampleFindings(labels, tuple(constant), meaning, forecast, None)
    audit = run.options.audit
    rarest = measure_rarest(run.training, audit.min_class_records / (audit.holdout or 1.0))
    known = (run.options, run.training, rarest, count_earlier(run))
    needs = plan_gate(*known)
    has_room = needs is None or needs.has_room
    instead = "" if has_room else write_keys(suggest_gate(*known))
    groups = plan_groups(run, labels.groups)
    return SampleFindings(labels, tuple(constant), meaning, forecast, needs, instead, groups)
