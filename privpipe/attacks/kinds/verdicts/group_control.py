"""The positive control of attacks on groups: raw records must tell who their release does not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.verdicts.outcomes import AttackOutcome, Decision

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
