"""Verdicts on single records of signed sums: "not protected", and what is worse than that.

Surrogates carry exact coefficients, from which whoever knows all other records solves for the one
that is left (`exact_coefficients`). So no attack that fails makes a record safe: the verdict on
single records is "not protected", whatever was measured; its reason says how many were rebuilt.
Beside
it stand the attacks by outsiders who know no record. "leaks" needs a lower limit above what is
allowed, or the farthest record found. One is within its limit by its upper limit alone, where it
succeeded on an unsafe control; else it is unproven, or unknown where it could not be run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats.recovery import RECOVERED
from privpipe.attacks.threats.verdicts.outcomes import Decision, Verdict
from privpipe.numerics.limits import Figure, say_limits

SINGLE_RECORDS = "single records"
"""Target of the decision that stands in every release of exact coefficients."""

CLOSED_FORMS: dict[str, str] = {
    "all_but_one": "by whoever knows all others",
    "with_and_without": "by whoever has this release and one without the record",
}
"""Attacks that no number of surrogates hinders, and who makes them."""

RECORD_ATTACKS: dict[str, str] = {
    "membership": "whether a record is in, by the nearest surrogate",
    "tracing": "whether a record is in, by second moments",
    "independent_components": "a record, by independent components",
    "outlying_record": "the farthest records, by the strongest directions",
}
"""What each attack of an outsider would find. Known signs are not among them: P is destroyed, and
whoever has it has the records; the report says so."""

EARLIER = "two_releases"
"""Names of attacks that join an earlier release begin so."""


def decide_records(
    attacks: Mapping[str, Mapping[str, Any]],
    controls: Mapping[str, Mapping[str, Any]],
    options: AttackOptions,
) -> tuple[Decision, ...]:
    """The decision on `SINGLE_RECORDS`, and one for each attack that is not within its limit.

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
    Guarantee: no decision says "safe". Where all intervals hold, which they do together with
    probability `level`, no attack beyond its limit goes without a decision of its own.
    """
    decided = [
        _decide(name, attacks.get(name), controls.get(name), options) for name in RECORD_ATTACKS
    ]
    joined = [_decide_earlier(name, attacks[name], options) for name in _list_earlier(attacks)]
    worse = (one for one in (*decided, *joined) if one.verdict != "not protected")
    return (_say_single(attacks, options), *worse)


def halve_level(options: AttackOptions) -> AttackOptions:
    """Options of either question about signed sums: confidential variables and single records.

    >>> round(halve_level(AttackOptions(level=0.95)).level, 3)
    0.975
    """
    return replace(options, level=1 - (1 - options.level) / 2)


def share_level(options: AttackOptions) -> AttackOptions:
    """Options of one of the record attacks, whose intervals hold together at the given level.

    >>> round(share_level(AttackOptions(level=0.96)).level, 3)
    0.99
    """
    return replace(options, level=1 - (1 - options.level) / len(RECORD_ATTACKS))


def succeeds(found: Mapping[str, Any], options: AttackOptions) -> bool:
    """Whether an attack finds more than is allowed, or the farthest record."""
    if "failed" in found:
        return False
    gain, allowed = _measure(found, options)
    return gain.exceeds(allowed) or _finds_farthest(found, options)


def _list_earlier(attacks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [name for name in attacks if name.startswith(EARLIER)]


def _say_single(attacks: Mapping[str, Mapping[str, Any]], options: AttackOptions) -> Decision:
    """What stands whatever was found: the coefficients are exact."""
    measured = {
        name: attacks[name]["recovered"]
        for name in CLOSED_FORMS
        if "recovered" in attacks.get(name, {})
    }
    shown = ", ".join(
        f"{one['estimate']:.1%} of those attacked {CLOSED_FORMS[name]}"
        for name, one in measured.items()
    )
    strongest = max(measured, key=lambda name: float(measured[name]["estimate"]), default="")
    found: Mapping[str, Any] = measured.get(strongest, {})
    return Decision(
        SINGLE_RECORDS,
        "not protected",
        "single records are not protected: the coefficients are exact, and give a record to "
        f"whoever knows all others (rebuilt: {shown or 'not measured'}).",
        source="surrogates",
        strongest=strongest,
        score="share found" if found else "",
        estimate=found.get("estimate", math.nan),
        lower=found.get("lower", math.nan),
        upper=found.get("upper", math.nan),
        level=options.level,
    )


def _decide_earlier(name: str, found: Mapping[str, Any], options: AttackOptions) -> Decision:
    """An earlier release: a record that both together give to anybody is a leak."""
    what = f"the record by which {name.removeprefix(EARLIER).strip(' :') or 'two releases'} differs"
    if "failed" in found:
        return Decision(
            what, "unknown", f"{what!r} is unknown: {found['failed']}", level=options.level
        )
    if not found["recovered"]["estimate"]:
        return Decision(what, "not protected", f"{what!r} is not found.", level=options.level)
    reason = (
        f"{what!r} leaks: a raw record is solved for from both releases by whoever knows none "
        f"(cosine {found['cosine']:.4f})."
    )
    return Decision(
        what, "leaks", reason, source="surrogates", strongest=EARLIER, level=options.level
    )


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
    gain, allowed = _measure(found, options)
    verdict: Verdict = "unproven"
    shown = control is not None and succeeds(control, options)
    if succeeds(found, options):
        verdict = "leaks"
    elif shown and gain.within(allowed):
        verdict = "not protected"
    return _describe(name, verdict, gain, allowed, found, shown, options)


def _measure(found: Mapping[str, Any], options: AttackOptions) -> tuple[Figure, float]:
    """How much more is found than by chance, and how much may be."""
    if "recovered" in found:
        mine, chance, allowed = found["recovered"], found["by_chance"], options.max_exposed
    else:
        mine, chance = found["true_positive"], found["false_positive"]
        allowed = options.max_advantage
    return Figure.read(mine).minus(Figure.read(chance)), allowed


def _finds_farthest(found: Mapping[str, Any], options: AttackOptions) -> bool:
    """Whether the farthest record is found, and not as of few features any direction is."""
    alarm = 1 - share_level(options).level
    is_found = (found.get("farthest") or 0.0) >= RECOVERED
    # One direction is held against one: of few features some record meets one of all directions.
    if not is_found:
        return False
    chance = found.get("farthest_by_chance")
    return bool((found["by_chance"]["estimate"] if chance is None else chance) <= alarm)


def _describe(
    name: str,
    verdict: Verdict,
    gain: Figure,
    allowed: float,
    found: Mapping[str, Any],
    shown: bool,
    options: AttackOptions,
) -> Decision:
    what = RECORD_ATTACKS[name]
    mine = found["recovered"] if "recovered" in found else found["true_positive"]
    chance = found["by_chance"] if "recovered" in found else found["false_positive"]
    return Decision(
        target=what,
        verdict=verdict,
        reason=f"{what!r} {'leaks' if verdict == 'leaks' else f'is {verdict}'}: "
        f"{'; '.join(_say_measured(gain, allowed, found, shown))}.",
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
        gain_upper=gain.upper,
        allowed=allowed,
        n_compared=len(RECORD_ATTACKS),
        level=options.level,
    )


def _say_measured(
    gain: Figure, allowed: float, found: Mapping[str, Any], shown: bool
) -> Iterator[str]:
    yield (
        f"{gain.estimate:.3g} beyond chance ({say_limits(gain.lower, gain.upper, allowed)}); "
        f"allowed {allowed:g}"
    )
    if (farthest := found.get("farthest")) is not None:
        yield f"the farthest record at a cosine of {farthest:.2f}"
    yield (
        "on an unsafe control of the same records the attack succeeds"
        if shown
        else "the attack fails on an unsafe control too, and shows nothing"
    )
