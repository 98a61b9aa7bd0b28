"""What each included variable tells by itself: whether more than the wanted answer does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.readers import ALONE
from privpipe.attacks.kinds.verdicts.outcomes import AttackOutcome, Decision, is_of_release
from privpipe.attacks.kinds.verdicts.reach import count_compared


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
