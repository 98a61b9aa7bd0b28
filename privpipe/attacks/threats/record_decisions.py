"""Verdicts on single records of signed sums: "not protected", and what is worse than that.

Surrogates carry exact coefficients, from which whoever knows all other records solves for the one
that is left (`record_recovery`). So no attack that fails makes a record safe. The verdict on single
records is "not protected", whatever was measured. Its reason says how many were rebuilt. With it
come the attacks by outsiders who know no record. "leaks" needs a lower limit above what is allowed,
or the farthest record found. One is within its limit by its upper limit alone, where it succeeded
on an unsafe control. Else it is unproven, or unknown where it could not be run.

Of noisy moments a theorem says what single records keep. The same attacks can only show that it was
broken, and where none does the verdict is "safe".
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.statistics.intervals import Interval
from privpipe.attacks.threats.attack_table import CLOSED_FORMS, RECORD_ATTACKS
from privpipe.attacks.threats.membership import MembershipReport
from privpipe.attacks.threats.record_recovery import RECOVERED, RecoveryReport
from privpipe.attacks.threats.verdicts.outcomes import Decision, Verdict
from privpipe.errors import InputError
from privpipe.numerics.limits import Figure, say_limits

Found = RecoveryReport | MembershipReport | InputError
"""What came of an attack on single records: its report, or why it could not be run."""

SINGLE_RECORDS = "single records"
"""Target of the decision that is in every release of exact coefficients."""

EARLIER = "two_releases"
"""Names of attacks that join an earlier release begin so."""


def decide_records(
    attacks: Mapping[str, Found],
    controls: Mapping[str, Found],
    options: AttackOptions,
    promised: str = "",
) -> tuple[Decision, ...]:
    """The decision on `SINGLE_RECORDS`, and one for each attack that is not within its limit.

    Parameters
    ----------
    attacks, controls
        What came of the attacks on the release by name, and of the same on unsafe controls.
    options
        Limits. Membership is held against `max_advantage`, recovered records against
        `max_exposed`. The intervals are of `share_level`, so that they hold jointly at `level`.

    promised
        What differential privacy promises of single records; empty where nothing is.

    Notes
    -----
    Guarantee: no decision says "safe" where nothing is promised. Where all intervals hold, which
    they do jointly with probability `level`, no attack beyond its limit goes without a decision.
    """
    decided = [
        *(_decide(name, attacks.get(name), controls.get(name), options) for name in RECORD_ATTACKS),
        *(_decide_earlier(name, found, options) for name, found in attacks.items()),
    ]
    # What shows nothing shows no breach of a promise either.
    passing = ("not protected", *(("unknown", "unproven") if promised else ()))
    worse = (one for one in decided if one is not None and one.verdict not in passing)
    return (_decide_single(attacks, options, promised), *worse)


def halve_level(options: AttackOptions) -> AttackOptions:
    """Options of either half of an audit of signed sums: confidential variables, single records.

    >>> round(halve_level(AttackOptions(level=0.95)).level, 3)
    0.975
    """
    return replace(options, level=1 - (1 - options.level) / 2)


def share_level(options: AttackOptions) -> AttackOptions:
    """Options of one of the record attacks, whose intervals hold jointly at the given level.

    >>> round(share_level(AttackOptions(level=0.96)).level, 3)
    0.99
    """
    # Bonferroni, since attacks on one sample depend on one another in ways that are not known.
    return replace(options, level=1 - (1 - options.level) / len(RECORD_ATTACKS))


def succeeds(found: Found | None, options: AttackOptions) -> bool:
    """Whether an attack finds more than is allowed, or the farthest record."""
    if found is None or isinstance(found, InputError):
        return False
    gain, allowed = _measure(found, options)
    return gain.exceeds(allowed) or _finds_farthest(found, options)


def _decide_single(attacks: Mapping[str, Found], options: AttackOptions, promised: str) -> Decision:
    """What holds whatever was found: the coefficients are exact, or a promise, unless it broke."""
    measured: dict[str, Interval] = {
        name: found.recovered
        for name in CLOSED_FORMS
        if isinstance(found := attacks.get(name), RecoveryReport)
    }
    pairs = measured.items()
    rates = (f"{one.estimate:.1%} of those attacked {CLOSED_FORMS[name]}" for name, one in pairs)
    shown = ", ".join(rates) or "not measured"
    decision = Decision(
        SINGLE_RECORDS,
        "not protected",
        "single records are not protected: the coefficients are exact, and give a record to "
        f"whoever knows all others (rebuilt: {shown}).",
        source="surrogates",
        level=options.level,
    )
    if promised:
        broken = any(succeeds(attacks.get(name), options) for name in CLOSED_FORMS)
        said = f"rebuilt: {shown}"
        reason = f"single records are protected by {promised} ({said})."
        if broken:
            reason = f"single records leak, although {promised} is promised ({said}): report this."
        decision = replace(decision, verdict="leaks" if broken else "safe", reason=reason)
    if not measured:
        return decision
    strongest, best = max(measured.items(), key=lambda item: item[1].estimate)
    return replace(decision, strongest=strongest, score="share found", **_limits(best))


def _decide_earlier(name: str, found: Found, options: AttackOptions) -> Decision | None:
    """An earlier release: a record that both together give to anybody is a leak."""
    if not name.startswith(EARLIER):
        return None
    what = f"the record by which {name.removeprefix(EARLIER).strip(' :') or 'two releases'} differs"
    if not isinstance(found, RecoveryReport):
        return Decision(what, "unknown", f"{what!r} is unknown: {found}", level=options.level)
    # One trial has no interval to speak of: the attack itself decides by chance below .01.
    if not found.recovered.estimate:
        return Decision(what, "not protected", f"{what!r} is not found.", level=options.level)
    reason = f"{what!r} leaks: both releases give a raw record (cosine {found.cosine:.4f})."
    return Decision(what, "leaks", reason, "surrogates", EARLIER, level=options.level)


def _decide(name: str, found: Found | None, null: Found | None, options: AttackOptions) -> Decision:
    what = RECORD_ATTACKS[name]
    if found is None or isinstance(found, InputError):
        why = "it was not run" if found is None else str(found)
        return Decision(what, "unknown", f"{what!r} is unknown: {why}", level=options.level)
    gain, allowed = _measure(found, options)
    verdict: Verdict = "unproven"
    # An attack that fails on records made to be found shows nothing by failing on the release.
    shown = succeeds(null, options)
    if succeeds(found, options):
        verdict = "leaks"
    elif shown and gain.within(allowed):
        verdict = "not protected"
    mine, chance = _find_rates(found)
    said = [
        f"{gain.estimate:.3g} beyond chance ({say_limits(gain.lower, gain.upper, allowed)}); "
        f"allowed {allowed:g}",
        *_say_farthest(found),
        "on an unsafe control of the same records the attack succeeds"
        if shown
        else "the attack fails on an unsafe control too, and shows nothing",
    ]
    about: dict[str, Any] = _limits(mine) | {"baseline": chance.estimate, "allowed": allowed}
    for end, limit in (("", gain.estimate), ("_lower", gain.lower), ("_upper", gain.upper)):
        about |= {f"advantage{end}": limit, f"gain{end}": limit}
    return Decision(
        what,
        verdict,
        f"{what!r} {'leaks' if verdict == 'leaks' else f'is {verdict}'}: {'; '.join(said)}.",
        source="surrogates",
        strongest=name,
        score="share found",
        n_compared=len(RECORD_ATTACKS),
        level=options.level,
        **about,
    )


def _limits(one: Interval) -> dict[str, Any]:
    return {"estimate": one.estimate, "lower": one.lower, "upper": one.upper}


def _find_rates(found: RecoveryReport | MembershipReport) -> tuple[Interval, Interval]:
    """How much is found, and how much by chance."""
    if isinstance(found, RecoveryReport):
        return found.recovered, found.by_chance
    return found.true_positive, found.false_positive


def _measure(done: RecoveryReport | MembershipReport, given: AttackOptions) -> tuple[Figure, float]:
    """How much more is found than by chance, and how much may be."""
    mine, chance = (Figure(o.estimate, o.lower, o.upper) for o in _find_rates(done))
    recovers = isinstance(done, RecoveryReport)
    return mine.minus(chance), given.max_exposed if recovers else given.max_advantage


def _finds_farthest(found: RecoveryReport | MembershipReport, options: AttackOptions) -> bool:
    """Whether the farthest record is found, and not as of few features any direction is."""
    if not isinstance(found, RecoveryReport) or (found.farthest or 0.0) < RECOVERED:
        return False
    # One direction is held against one: of few features some record meets one of all directions.
    chance = found.farthest_by_chance
    alarm = 1 - share_level(options).level
    return (found.by_chance.estimate if chance is None else chance) <= alarm


def _say_farthest(found: RecoveryReport | MembershipReport) -> list[str]:
    if not isinstance(found, RecoveryReport) or found.farthest is None:
        return []
    return [f"the farthest record at a cosine of {found.farthest:.2f}"]
