"""Verdicts on single records of signed sums: one for each kind of attack that must fail.

"leaks" needs a lower limit above what is allowed. "safe" needs the upper limit within it and the
same attack to have succeeded on an unsafe control: one that finds nothing where there is something
to find tells nothing. A single record found no nearer than others are met by chance, as with two or
three features, is unproven. So is all else, or unknown where the attack could not be run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.verdicts.judgement import Decision, Verdict

__all__ = ["RECORD_ATTACKS", "decide_records", "halve_level", "share_level", "succeeds"]

RECORD_ATTACKS: dict[str, str] = {
    "membership": "whether a record is in, by the nearest surrogate",
    "tracing": "whether a record is in, by second moments",
    "all_but_one": "a record, by whoever knows all others",
    "independent_components": "a record, by independent components",
    "outlying_record": "the farthest record, by the strongest direction",
}
"""What each attack that decides would find. Known signs are not among them: P is destroyed, and
whoever has it has the records; the report says so."""


@dataclass(frozen=True)
class _Gain:
    """How much more is found than by chance, with limits, and how much may be."""

    estimate: float
    lower: float
    upper: float
    allowed: float


def decide_records(
    attacks: Mapping[str, Mapping[str, Any]],
    controls: Mapping[str, Mapping[str, Any]],
    options: AttackOptions,
) -> tuple[Decision, ...]:
    """A decision for each of `RECORD_ATTACKS`.

    Parameters
    ----------
    attacks
        JSON forms of the reports on the release by kind; one that could not be run holds
        "failed", with the reason.
    controls
        The same on the unsafe controls.
    options
        Limits. Membership is held against `max_advantage`, recovered records against
        `max_exposed`. The intervals are of `share_level`, so that they hold together at `level`.

    Notes
    -----
    Guarantee: where all intervals hold, which they do together with probability `level`, no
    attack beyond its limit is said to fail, and none within it to succeed.
    """
    return tuple(
        _decide(name, attacks.get(name), controls.get(name), options) for name in RECORD_ATTACKS
    )


def halve_level(options: AttackOptions) -> AttackOptions:
    """Options of either question about signed sums: confidential variables and single records.

    >>> round(halve_level(AttackOptions(level=0.95)).level, 3)
    0.975
    """
    return replace(options, level=1 - (1 - options.level) / 2)


def share_level(options: AttackOptions) -> AttackOptions:
    """Options of one of the record attacks, whose intervals hold together at the given level.

    >>> round(share_level(AttackOptions(level=0.95)).level, 3)
    0.99
    """
    return replace(options, level=1 - (1 - options.level) / len(RECORD_ATTACKS))


def succeeds(found: Mapping[str, Any], options: AttackOptions) -> bool:
    """Whether an attack finds more than is allowed."""
    if "failed" in found:
        return False
    gain = _measure(found, options)
    return bool(found["recovered"]["estimate"] == 1) if _is_single(found) else _leaks(gain)


def _decide(
    name: str,
    found: Mapping[str, Any] | None,
    control: Mapping[str, Any] | None,
    options: AttackOptions,
) -> Decision:
    what = RECORD_ATTACKS[name]
    if found is None or "failed" in found:
        why = "it was not run" if found is None else str(found["failed"])
        return Decision(what, "unknown", f"{what!r} is unknown: {why}", level=options.level)
    gain, verdict = _measure(found, options), "unproven"
    shown = control is not None and succeeds(control, options)
    if succeeds(found, options):
        verdict = "unproven" if _is_met_by_chance(found, options) else "leaks"
    elif shown and (_is_single(found) or gain.upper <= gain.allowed):
        verdict = "safe"
    return _describe(name, verdict, gain, found, shown, options)  # type: ignore[arg-type]


def _measure(found: Mapping[str, Any], options: AttackOptions) -> _Gain:
    if "recovered" in found:
        mine, chance, allowed = found["recovered"], found["by_chance"], options.max_exposed
    else:
        mine, chance = found["true_positive"], found["false_positive"]
        allowed = options.max_advantage
    return _Gain(
        mine["estimate"] - chance["estimate"],
        mine["lower"] - chance["upper"],
        mine["upper"] - chance["lower"],
        allowed,
    )


def _is_single(found: Mapping[str, Any]) -> bool:
    """Whether one record alone is attacked: it is found or not, and no share is estimated."""
    return found.get("n_attacked") == 1


def _is_met_by_chance(found: Mapping[str, Any], options: AttackOptions) -> bool:
    """Whether one record that was found may have been met: of few features, directions are few."""
    alarm = 1 - share_level(options).level
    return _is_single(found) and bool(found["by_chance"]["estimate"] > alarm)


def _leaks(gain: _Gain) -> bool:
    return gain.lower > gain.allowed


def _describe(
    name: str,
    verdict: Verdict,
    gain: _Gain,
    found: Mapping[str, Any],
    shown: bool,
    options: AttackOptions,
) -> Decision:
    what = RECORD_ATTACKS[name]
    mine = found["recovered"] if "recovered" in found else found["true_positive"]
    chance = found["by_chance"] if "recovered" in found else found["false_positive"]
    says = {"leaks": "leaks", "safe": "is safe"}.get(verdict, f"is {verdict}")
    if _is_single(found):
        hit = "is found" if mine["estimate"] else "is not found"
        told = f"it {hit} (cosine {found['cosine']:.2f})"
        if mine["estimate"] and _is_met_by_chance(found, options):
            told += f", as {chance['estimate']:.1%} of records are that are in no surrogate"
    else:
        told = (
            f"{gain.estimate:.3g} beyond chance ({gain.lower:.3g} to {gain.upper:.3g}); allowed "
            f"{gain.allowed:.3g}"
        )
    power = (
        "on an unsafe control of the same records the attack succeeds"
        if shown
        else "the attack fails on an unsafe control too, and shows nothing"
    )
    return Decision(
        target=what,
        verdict=verdict,
        reason=f"{what!r} {says}: {told}; {power}.",
        source="surrogates",
        strongest=name,
        score="share found",
        estimate=mine["estimate"],
        lower=mine["lower"],
        upper=mine["upper"],
        baseline=chance["estimate"],
        advantage=gain.estimate,
        advantage_lower=gain.lower,
        advantage_upper=gain.upper,
        gain=gain.estimate,
        gain_lower=gain.lower,
        gain_upper=mine["estimate"] if _is_single(found) else gain.upper,
        allowed=gain.allowed,
        n_compared=len(RECORD_ATTACKS),
        level=options.level,
        n_unknown=0,
        n_needed=math.nan,
    )
