"""Verdicts: what the outcomes of an audit decide for each variable, and the report of all.

The strongest adversary decides by the upper limit of its interval. A variable with an attack that
failed is never "safe".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from privpipe.attacks.measures import Score
from privpipe.attacks.options import AttackOptions
from privpipe.attacks.outcomes import TABLE_SCHEMA, Attack, AttackOutcome
from privpipe.errors import GateError, InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "DECISION_SCHEMA",
    "AttackReport",
    "Decision",
    "Verdict",
    "check_attacks",
    "count_compared",
    "summarise_outcomes",
]

Verdict = Literal["safe", "leaks", "unproven", "unknown"]

FORMAT = 1
"""Version of the JSON form of a report."""

DECISION_SCHEMA = {
    "target": ("str", "confidential variable"),
    "verdict": ("str", "safe, leaks, unproven (the interval reaches too far) or unknown"),
    "strongest": ("str", "adversary with the largest upper limit"),
    "score": ("str", "score by which it is the strongest"),
    "estimate": ("float64", "its score"),
    "upper": ("float64", "upper limit of its score"),
    "baseline": ("float64", "score of a guess without records"),
    "advantage": ("float64", "its advantage"),
    "advantage_upper": ("float64", "largest advantage within its limits; decides"),
    "allowed": ("float64", "largest advantage allowed"),
    "control_advantage": ("float64", "best advantage on the raw records; NaN without them"),
    "noise_advantage": ("float64", "best advantage on noise of equal utility; NaN without it"),
    "n_compared": ("int64", "intervals that hold together (adversaries times scores)"),
    "level": ("float64", "confidence with which they hold together"),
    "n_unknown": ("int64", "attacks on the release that failed"),
}
"""Columns of `AttackReport.decisions`: dtype and meaning. One row per variable."""


@dataclass(frozen=True)
class Decision:
    """Verdict on one confidential variable; fields as in `DECISION_SCHEMA`."""

    target: str
    verdict: Verdict
    strongest: str
    score: str
    estimate: float
    upper: float
    baseline: float
    advantage: float
    advantage_upper: float
    allowed: float
    control_advantage: float
    noise_advantage: float
    n_compared: int
    level: float
    n_unknown: int


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
    """

    outcomes: tuple[AttackOutcome, ...]
    options: AttackOptions
    n_records: int
    n_given: int
    n_withheld: int = 0
    n_seen: int = 0

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
        """Let the strongest adversary decide for each variable, by its upper limit."""
        targets = dict.fromkeys(outcome.attack.target for outcome in self.outcomes)
        return tuple(self._decide_target(target) for target in targets)

    def _decide_target(self, target: str) -> Decision:
        mine = [o for o in self.outcomes if o.attack.target == target]
        on_release = [o for o in mine if o.attack.source == "released"]
        n_unknown = sum(o.status == "unknown" for o in on_release)
        judged = self._judged(on_release)
        n_compared = count_compared(len(on_release), mine[0].attack.kind, self.options)
        # A score that is no number comes first: it must not hide behind the others.
        best = max(judged, key=lambda pair: _or_largest(pair[1].advantage_upper), default=None)
        largest = _largest(score.advantage for _, score in judged)
        score = best[1] if best else None
        return Decision(
            target=target,
            verdict=self._judge(score, largest, n_unknown),
            strongest=best[0] if best else "",
            score=score.name if score else "",
            estimate=score.interval.estimate if score else math.nan,
            upper=score.interval.upper if score else math.nan,
            baseline=score.baseline if score else math.nan,
            advantage=score.advantage if score else math.nan,
            advantage_upper=score.advantage_upper if score else math.nan,
            allowed=self.options.max_advantage,
            control_advantage=self._best_advantage(mine, "raw"),
            noise_advantage=self._best_advantage(mine, "noise"),
            n_compared=n_compared,
            level=self.options.level,
            n_unknown=n_unknown,
        )

    def _judged(self, outcomes: list[AttackOutcome]) -> list[tuple[str, Score]]:
        deciding = {"r2", *self.options.decides}
        return [(o.attack.adversary, s) for o in outcomes for s in o.scores if s.name in deciding]

    def _judge(self, score: Score | None, largest: float, n_unknown: int) -> Verdict:
        allowed = self.options.max_advantage
        if score is not None and largest > allowed:
            return "leaks"
        if score is None or n_unknown or not math.isfinite(score.advantage_upper):
            return "unknown"
        return "safe" if score.advantage_upper <= allowed else "unproven"

    def _best_advantage(self, outcomes: list[AttackOutcome], source: str) -> float:
        judged = self._judged([o for o in outcomes if o.attack.source == source])
        return _largest(score.advantage for _, score in judged)

    def to_json(self) -> str:
        """The report as JSON: format version, options, counts, decisions and table.

        Numbers that do not exist (an attack that failed) are null.
        """
        document = {
            "format": FORMAT,
            "verdict": self.verdict,
            "options": asdict(self.options),
            "n_records": self.n_records,
            "n_given": self.n_given,
            "n_withheld": self.n_withheld,
            "n_seen": self.n_seen,
            "decisions": [asdict(decision) for decision in self.decide()],
            "table": [row for outcome in self.outcomes for row in outcome.rows()],
        }
        return json.dumps(_without_nan(document), allow_nan=False, indent=1)


def _largest(values: Iterable[float]) -> float:
    """The largest of those that are numbers; NaN where none is."""
    return max((value for value in values if math.isfinite(value)), default=math.nan)


def _or_largest(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def check_attacks(report: AttackReport) -> None:
    """Let a release pass its gate, or raise.

    Raises
    ------
    GateError
        Unless every variable is safe; `code` is the worst verdict.
    """
    failed = [d for d in report.decide() if d.verdict != "safe"]
    if not failed and report.verdict == "safe":
        return
    remedies = {
        "leaks": "Sanitise more strongly, or allow a larger max_advantage.",
        "unproven": "Audit more records, or allow a larger max_advantage.",
        "unknown": "See the column reason of the report's table.",
    }
    raise GateError(
        "The attacks do not let this release pass: "
        + ("; ".join(_explain(d) for d in failed) or "nothing was attacked")
        + ".",
        remedy=remedies[report.verdict],
        code=report.verdict,
    )


def _explain(decision: Decision) -> str:
    name, allowed = decision.target, decision.allowed
    if decision.verdict == "unknown":
        return f"{name!r} is unknown ({decision.n_unknown} attacks failed)"
    return (
        f"{name!r} {'leaks' if decision.verdict == 'leaks' else 'is unproven'} "
        f"({decision.strongest} has an advantage of {decision.advantage:.3f}, "
        f"at most {decision.advantage_upper:.3f}; allowed {allowed:.3f})"
    )


def summarise_outcomes(
    outcomes: Iterable[AttackOutcome],
    plan: Sequence[Attack],
    options: AttackOptions,
    *,
    n_records: int,
    n_given: int,
    n_withheld: int = 0,
    n_seen: int = 0,
) -> AttackReport:
    """The report of outcomes that came in any order; a planned attack without one is unknown."""
    found = {outcome.attack: outcome for outcome in outcomes}
    missing = {
        attack: AttackOutcome(attack, "unknown", reason="The attack was not run.")
        for attack in plan
    }
    ordered = tuple((missing | found)[attack] for attack in plan)
    return AttackReport(ordered, options, n_records, n_given, n_withheld, n_seen)


def count_compared(n_adversaries: int, kind: str, options: AttackOptions) -> int:
    """Number of intervals of one variable that must hold together."""
    return n_adversaries * (len(options.decides) if kind == "classes" else 1)


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
