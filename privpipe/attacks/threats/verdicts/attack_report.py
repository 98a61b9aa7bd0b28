"""The report of all attacks of an audit, and what they decide for each variable.

How scores become verdicts is in `judgement`. A variable with an attack that failed is never "safe".
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from privpipe.attacks.adversaries.attack_options import ALONE, AttackOptions
from privpipe.attacks.adversaries.evidence import Coverage, GroupCounts, LeftOut
from privpipe.attacks.statistics.roc import GRID
from privpipe.attacks.statistics.scores import Score
from privpipe.attacks.threats.verdicts import judgement, safeguards
from privpipe.attacks.threats.verdicts import outcomes as results
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome, Decision, Verdict
from privpipe.described import described
from privpipe.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 3
"""Version of the JSON form of a report."""

COUNTS = ("n_records", "n_given", "n_withheld", "n_seen")


def _facts(report: "AttackReport") -> dict[str, str]:
    """Verdict and reason, and the verdict on each variable."""
    return {
        "verdict": report.verdict,
        "because": report.reason,
        "variables": ", ".join(f"{one.target} {one.verdict}" for one in report.decide()) or "none",
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
        What more labels would reveal of variables that are safe up to that.
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
    power: tuple[safeguards.Detection, ...] = ()
    groups: GroupCounts | None = None
    curves: tuple[safeguards.LearningCurve, ...] = ()
    coverage: Coverage | None = None

    @property
    def table(self) -> "pd.DataFrame":
        """One row per attack and score, see `AttackOutcome`.

        Columns:

        - ``target``
        - ``kind``: classes or numbers
        - ``source``: what was read. Of the release these are released, which are the features,
          everything, bits, joined and groups. They are also "alone: NAME" of an included variable
          and "together: NAME" of an earlier release. To compare with there are raw, raw groups,
          noise and `wanted`.
        - ``adversary``
        - ``score``, its limits and their ``level`` after the multiplicity correction
        - ``interval``: how the limits were found
        - ``baseline``, advantage and gain as in `Decision`
        """
        import pandas as pd  # slow to load, and attacks on workers never need it

        return pd.DataFrame([row for outcome in self.outcomes for row in outcome.rows()])

    @property
    def decisions(self) -> "pd.DataFrame":
        """One row per confidential variable, columns as the fields of `Decision`."""
        import pandas as pd  # slow to load

        return pd.DataFrame([decision.as_row() for decision in self.decide()])

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of any variable: leaks, then unknown, then unproven, then safe."""
        found = {decision.verdict for decision in self.decide()}
        return next((verdict for verdict in results.WORST_FIRST if verdict in found), "unknown")

    def strongest(self, target: str, score: str, source: str = "released") -> tuple[str, Score]:
        """The adversary with the largest upper limit of one score, and that score.

        Parameters
        ----------
        target, score, source
            As in `table`.

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
            problem = f"No attack on {source} measured {score} of {target!r}."
            remedy = "See the columns target, source and score of the report's table."
            raise InputError(problem, remedy=remedy)
        return max(found, key=lambda pair: pair[1].advantage_upper)

    def decide(self) -> tuple[Decision, ...]:
        """A decision per variable; see `judgement`."""
        return self._decided

    @cached_property
    def _decided(self) -> tuple[Decision, ...]:
        about = self.left_out, self.n_records, self.groups
        decided = judgement.decide_variables(self.outcomes, self.options, *about)
        return tuple(map(self._hold, decided))

    def _hold(self, decision: Decision) -> Decision:
        """A decision after all that "safe" must survive, one after the other."""
        options = self.options
        decision = safeguards.hold_to_control(decision, self.outcomes, options)
        decision = safeguards.hold_to_power(decision, self.power, options.must_find, self.groups)
        # Unproven turns unknown as well: no more records of the same groups would decide it.
        decision = safeguards.hold_to_group_control(decision, self.outcomes, options)
        return safeguards.hold_to_curve(decision, self.curves)

    @property
    def leakage(self) -> tuple[dict[str, Any], ...]:
        """What each included variable by itself reveals of each confidential one.

        By the deciding score of the largest lower limit; all limits hold together. ``tells_more``
        is true where it reveals more than the desired variables.
        """
        found = list[dict[str, Any]]()
        for outcome in self.outcomes:
            attack, scores = outcome.attack, outcome.deciding(self.options)
            if attack.source.startswith(ALONE) and scores:
                best = max(scores, key=lambda one: one.gain_lower)
                row = results.describe_score(best) | {"allowed": self.options.allowed(best.name)}
                named = {"included": attack.source.removeprefix(ALONE), "target": attack.target}
                fields = ("score", "gain", "gain_lower", "gain_upper", "allowed")
                found.append(named | {k: row[k] for k in fields} | {"tells_more": best.is_more})
        return tuple(found)

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
        known = (one for one in self.outcomes if one.roc)
        curves = [asdict(one.attack) | {"true_positive": list(one.roc)} for one in known]
        document = {
            "format": FORMAT,
            "verdict": self.verdict,
            "reason": self.reason,
            "options": asdict(self.options),
            **{name: getattr(self, name) for name in COUNTS},
            # Keys are those of format 3, which pages of earlier releases are rendered from.
            "n_groups": self.groups and self.groups.n_groups,
            "sample": None if self.coverage is None else asdict(self.coverage),
            "sample_sentence": "" if self.coverage is None else self.coverage.say(),
            "power": [asdict(one) for one in self.power],
            "power_sentence": safeguards.say_power(self.power) if self.power else "",
            "curves": [asdict(one) for one in self.curves],
            "decisions": [decision.as_row() for decision in self.decide()],
            "roc": {"false_positive": list(GRID), "curves": curves},
            "included": list(self.leakage),
            "table": [row for outcome in self.outcomes for row in outcome.rows()],
        }
        return json.dumps(results.without_nan(document), allow_nan=False, indent=1)


def summarise_outcomes(
    outcomes: Iterable[AttackOutcome], plan: Sequence[Attack], options: AttackOptions, **counts: Any
) -> AttackReport:
    """The report of outcomes that came in any order; a planned attack without one is unknown.

    `counts` are further fields of the report, as `Evidence.counts` gives them.
    """
    # Workers end in any order, and a report has that of the plan: equal audits give equal
    # documents.
    found = {outcome.attack: outcome for outcome in outcomes}
    reason = "The attack was not run."
    ordered = (found.get(one) or AttackOutcome(one, "unknown", reason=reason) for one in plan)
    return AttackReport(tuple(ordered), options, **counts)
