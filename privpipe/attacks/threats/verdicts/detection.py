"""What an audit would have found, as values and in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from privpipe.attacks.adversaries.evidence import GroupCounts
from privpipe.attacks.threats.verdicts.outcomes import Decision


@dataclass(frozen=True)
class Detection:
    """The smallest of a kind of planted leak that the audit finds.

    Parameters
    ----------
    target
        Variable that it tells.
    leak
        Kind of leak, a key of `power.LEAKS`.
    size
        Share of the records that it tells, which 19 of 20 such audits find; NaN where none that
        was tried is found as surely.
    adversary
        Who looked for it.
    finds
        Whether a planted one of the size that must be found, or a smaller one, was.
    """

    target: str
    leak: str
    size: float
    adversary: str
    finds: bool


def hold_to_power(
    decisions: Sequence[Decision],
    found: Iterable[Detection],
    must_find: float,
    groups: GroupCounts | None = None,
) -> tuple[Decision, ...]:
    """Decisions of which "safe" is "unproven" where the audit lacks the power to say so.

    Parameters
    ----------
    decisions
        Of all variables.
    found
        What the audit finds of what was planted; leaks are planted in few variables, and speak
        for all of them.
    must_find
        Share of records of which a leak must be found.
    groups
        Groups of which all records tell or none; None where records tell by themselves.
    """
    missed = [one for one in found if not one.finds]
    if not missed:
        return tuple(decisions)
    leaks = ", ".join(dict.fromkeys(one.leak for one in missed))
    why = (
        f" But the audit would not have found a planted leak of {must_find:.3g} of the records "
        f"({leaks}): {_say_more(groups)} or adversaries are needed."
    )
    return tuple(
        replace(one, verdict="unproven", reason=f"{_withdraw(one.reason)}{why}")
        if one.verdict == "safe"
        else one
        for one in decisions
    )


def _say_more(groups: GroupCounts | None) -> str:
    return "more records" if groups is None else f"more {groups.say()} than {groups.n_groups:,}"


def _withdraw(reason: str) -> str:
    return reason.replace(" is safe: ", " is unproven: ", 1)


def say_power(found: Sequence[Detection]) -> str:
    """What would have been found, in a sentence; the weakest of all variables.

    >>> found = Detection("a", "certain", 0.012, "x", True)
    >>> say_power([found, replace(found, leak="bits", size=math.nan)])
    'Would have found, 19 times in 20: certain .012; and none tried of: bits.'
    """
    worst: dict[str, float] = {}
    for one in found:
        size = one.size if math.isfinite(one.size) else math.inf
        worst[one.leak] = max(worst.get(one.leak, 0.0), size)
    seen = [f"{leak} {size:.2g}".replace(" 0.", " .") for leak, size in worst.items() if size < 2]
    none = [leak for leak, size in worst.items() if size >= 2]
    text = (
        f"Would have found, 19 times in 20: {', '.join(seen)}"
        if seen
        else "Would have found nothing"
    )
    return text + (f"; and none tried of: {', '.join(none)}." if none else ".")
