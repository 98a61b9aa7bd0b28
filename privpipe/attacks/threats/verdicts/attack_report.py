"""Verdicts: what the outcomes of an audit decide for each variable, and the report of all.

How scores become verdicts is in `judgement`. A variable with an attack that failed is never "safe".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Coverage, GroupCounts, LeftOut
from privpipe.attacks.statistics.roc import GRID
from privpipe.attacks.statistics.scores import Score
from privpipe.attacks.threats.verdicts.detection import Detection, hold_to_power, say_power
from privpipe.attacks.threats.verdicts.judgement import decide_variables
from privpipe.attacks.threats.verdicts.learning import (
    LearningCurve,
    hold_to_control,
    hold_to_curves,
)
from privpipe.attacks.threats.verdicts.outcomes import (
    DECISION_SCHEMA,
    TABLE_SCHEMA,
    Attack,
    AttackOutcome,
    Decision,
    Verdict,
)
from privpipe.described import described
from privpipe.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


from collections.abc import Iterator
from dataclasses import replace

from privpipe.attacks.adversaries.attack_options import ALONE
from privpipe.attacks.threats.verdicts.detectable_effect import count_compared
from privpipe.attacks.threats.verdicts.outcomes import is_of_release


@dataclass(frozen=True)
class Telling:
    """What one included variable tells of one confidential variable.

    Parameters
    ----------
    included, target
        The two variables.
    score
        Deciding score whose lower limit is the largest beside what is allowed of it.
    gain, gain_lower, gain_upper
        What it tells beyond the wanted answer (all, if none is wanted), with limits that hold
        together with all others of the audit.
    allowed
        Largest gain allowed of this score.
    tells_more
        Whether it tells more than the wanted answer: its lower limit is above nothing.
    """

    included: str
    target: str
    score: str
    gain: float
    gain_lower: float
    gain_upper: float
    allowed: float
    tells_more: bool


def find_telling(
    outcomes: Sequence[AttackOutcome], decisions: Iterable[Decision], options: AttackOptions
) -> Iterator[Telling]:
    """Of every included variable and every confidential one, in the order of the outcomes.

    Parameters
    ----------
    outcomes
        Of all attacks.
    decisions
        Variables that were judged; they share the level.
    options
        Level and deciding scores.
    """
    n_variables = len({one.target for one in decisions if one.n_compared})
    for outcome in outcomes:
        attack = outcome.attack
        scores = [one for one in outcome.scores if one.name in options.deciding(attack.kind)]
        if not attack.source.startswith(ALONE) or not scores:
            continue
        n_attacks = sum(
            one.attack.target == attack.target and is_of_release(one.attack.source)
            for one in outcomes
        )
        n_compared = count_compared(n_attacks, attack.kind, options)
        level = options.plan_level(n_compared, n_variables)
        best = max((one.at(level) for one in scores), key=lambda one: one.gain_lower)
        yield Telling(
            attack.source.removeprefix(ALONE),
            attack.target,
            best.name,
            best.gain,
            best.gain_lower,
            best.gain_upper,
            options.allowed(best.name),
            best.gain_lower > 0,
        )


RAW_GROUPS = "raw groups"


def hold_to_group_control(
    decisions: Sequence[Decision], outcomes: Iterable[AttackOutcome], options: AttackOptions
) -> tuple[Decision, ...]:
    """Decisions of which only "leaks" is believed where raw records tell no more than chance.

    Parameters
    ----------
    decisions
        Of all variables.
    outcomes
        Of all attacks; those of the source "raw groups" are the control: raw records of one group,
        in the split that judges the release. A variable without any is not held to it.
    options
        Scores that decide.

    Notes
    -----
    The control tells where the lower limit of a deciding score is above guessing. Else the variable
    cannot be judged, which is "unknown": the gate stays closed.
    """
    controls: dict[str, list[AttackOutcome]] = {}
    for outcome in outcomes:
        if outcome.attack.source == RAW_GROUPS:
            controls.setdefault(outcome.attack.target, []).append(outcome)
    blind = {
        target for target, mine in controls.items() if not any(_tells(o, options) for o in mine)
    }
    return tuple(
        replace(one, verdict="unknown", reason=_explain(one.target))
        if one.target in blind and one.verdict != "leaks"
        else one
        for one in decisions
    )


def _tells(outcome: AttackOutcome, options: AttackOptions) -> bool:
    deciding = options.deciding(outcome.attack.kind)
    return any(s.advantage_lower > 0 for s in outcome.scores if s.name in deciding)


def _explain(target: str) -> str:
    return (
        f"{target!r} cannot be judged: who knows several raw records of one group does no better "
        "than chance by the records that judge, so that finding nothing in the release shows "
        "nothing. Audit more records and groups, or leave out a variable that features do not tell."
    )


FORMAT = 3
"""Version of the JSON form of a report."""


def _facts(report: AttackReport) -> dict[str, str]:
    """Verdict and reason, and the verdict on each variable."""
    each = ", ".join(f"{one.target} {one.verdict}" for one in report.decide())
    return {
        "verdict": report.verdict,
        "because": report.reason,
        "variables": each or "none",
        "records": f"{report.n_records:,} judged, {report.n_given:,} given",
        "attacks": f"{len(report.outcomes):,}",
    }


@described(_facts)
@dataclass(frozen=True)
class AttackReport:
    """All outcomes of an audit by attack, and what they decide.

    Parameters
    ----------
    outcomes
        In the order of the plan.
    options
        Limit, level and bounds.
    n_records, n_given, n_withheld, n_seen
        Records attacked, given, withheld by the release, and left out because the sanitiser
        learned from them.
    left_out
        Variables that could not be attacked, and why.
    power
        What of planted leaks the audit finds; without it "safe" says nothing of that.
    groups
        Groups of the records attacked, where intervals are over groups.
    curves
        What more labels would tell of variables that are safe up to that.
    coverage
        What the records given are a sample of; None where that is not known.
    """

    outcomes: tuple[AttackOutcome, ...]
    options: AttackOptions
    n_records: int
    n_given: int
    n_withheld: int = 0
    n_seen: int = 0
    left_out: tuple[LeftOut, ...] = ()
    power: tuple[Detection, ...] = ()
    groups: GroupCounts | None = None
    curves: tuple[LearningCurve, ...] = ()
    coverage: Coverage | None = None

    @property
    def table(self) -> pd.DataFrame:
        """One row per attack and score, columns as `TABLE_SCHEMA`."""
        return _frame([row for outcome in self.outcomes for row in outcome.rows()], TABLE_SCHEMA)

    @property
    def decisions(self) -> pd.DataFrame:
        """One row per confidential variable, columns as `DECISION_SCHEMA`."""
        return _frame([asdict(decision) for decision in self.decide()], DECISION_SCHEMA)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of any variable: leaks, then unknown, then unproven, then safe."""
        found = {decision.verdict for decision in self.decide()}
        order: tuple[Verdict, ...] = ("leaks", "unknown", "unproven")
        return next((v for v in order if v in found), "safe" if found else "unknown")

    def strongest(self, target: str, score: str, source: str = "released") -> tuple[str, Score]:
        """The adversary with the largest upper limit of one score, and that score.

        Parameters
        ----------
        target, score, source
            As in `TABLE_SCHEMA`.

        Raises
        ------
        InputError
            If no attack measured that.
        """
        found = [
            (outcome.attack.adversary, measured)
            for outcome in self.outcomes
            if (outcome.attack.target, outcome.attack.source) == (target, source)
            for measured in outcome.scores
            if measured.name == score
        ]
        if not found:
            raise InputError(
                f"No attack on {source} measured {score} of {target!r}.",
                remedy="See the columns target, source and score of the report's table.",
            )
        return max(found, key=lambda pair: pair[1].advantage_upper)

    def decide(self) -> tuple[Decision, ...]:
        """A decision per variable; see `judgement`."""
        return self._decided

    @cached_property
    def _decided(self) -> tuple[Decision, ...]:
        found = decide_variables(
            self.outcomes, self.options, self.left_out, self.n_records, self.groups
        )
        found = hold_to_control(found, self.outcomes, self.options)
        found = hold_to_power(found, self.power, self.options.must_find, self.groups)
        found = hold_to_group_control(found, self.outcomes, self.options)
        return hold_to_curves(found, self.curves)

    @property
    def telling(self) -> tuple[Telling, ...]:
        """What each included variable by itself tells of each confidential one."""
        return tuple(find_telling(self.outcomes, self.decide(), self.options))

    @property
    def reason(self) -> str:
        """The verdict's reason: the sentence of the first variable that has this verdict."""
        verdict = self.verdict
        found = (d.reason for d in self.decide() if d.verdict == verdict)
        return next(found, "Nothing was attacked.")

    def to_json(self) -> str:
        """The report as JSON: format version, options, counts, decisions and table.

        Numbers that do not exist (an attack that failed) are null.
        """
        document = {
            "format": FORMAT,
            "verdict": self.verdict,
            "reason": self.reason,
            "options": asdict(self.options),
            "n_records": self.n_records,
            "n_given": self.n_given,
            "n_withheld": self.n_withheld,
            "n_seen": self.n_seen,
            "n_groups": self.groups and self.groups.n_groups,
            "sample": None if self.coverage is None else asdict(self.coverage),
            "sample_sentence": "" if self.coverage is None else self.coverage.say(),
            "power": [asdict(one) for one in self.power],
            "power_sentence": say_power(self.power) if self.power else "",
            "curves": [asdict(one) for one in self.curves],
            "decisions": [asdict(decision) for decision in self.decide()],
            "roc": {
                "false_positive": list(GRID),
                "curves": [
                    asdict(outcome.attack) | {"true_positive": list(outcome.roc)}
                    for outcome in self.outcomes
                    if outcome.roc
                ],
            },
            "included": [asdict(one) for one in self.telling],
            "table": [row for outcome in self.outcomes for row in outcome.rows()],
        }
        return json.dumps(_without_nan(document), allow_nan=False, indent=1)


def summarise_outcomes(
    outcomes: Iterable[AttackOutcome],
    plan: Sequence[Attack],
    options: AttackOptions,
    *,
    n_records: int,
    n_given: int,
    n_withheld: int = 0,
    n_seen: int = 0,
    left_out: tuple[LeftOut, ...] = (),
    groups: GroupCounts | None = None,
    coverage: Coverage | None = None,
) -> AttackReport:
    """The report of outcomes that came in any order; a planned attack without one is unknown."""
    found = {outcome.attack: outcome for outcome in outcomes}
    missing = {
        attack: AttackOutcome(attack, "unknown", reason="The attack was not run.")
        for attack in plan
    }
    ordered = tuple((missing | found)[attack] for attack in plan)
    return AttackReport(
        ordered,
        options,
        n_records,
        n_given,
        n_withheld,
        n_seen,
        left_out,
        groups=groups,
        coverage=coverage,
    )


def _frame(rows: list[dict[str, Any]], schema: dict[str, tuple[str, str]]) -> pd.DataFrame:
    import pandas as pd  # slow to load, and attacks on workers never need it

    frame = pd.DataFrame(rows, columns=list(schema))
    return frame.astype({name: dtype for name, (dtype, _) in schema.items()})


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
