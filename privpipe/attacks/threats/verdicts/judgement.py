"""Judgement: from the scores of all attacks to one verdict per variable, with its reason.

Every variable is tested twice, and each test has its own error. "leaks" needs a score whose
lower limit exceeds what is allowed. One of many may do so by chance, so the level is shared. Over
variables that is by Holm's steps, over the attacks and scores of each by Bonferroni. "safe" needs
every upper limit within it: one true gain beyond it fails by its own limit, so nothing is shared.
Limits are held against the gain: the advantage beyond knowing the target, which the release is to
preserve.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from privpipe.attacks.adversaries.attack_options import ALONE, JOINT, AttackOptions
from privpipe.attacks.adversaries.evidence import GroupCounts, LeftOut
from privpipe.attacks.statistics.scores import Score
from privpipe.attacks.threats.verdicts import outcomes as results
from privpipe.attacks.threats.verdicts.detectable_effect import count_compared, plan_needed_groups
from privpipe.numerics.limits import Figure, say_limits

FEWEST_RARE = 1000
"""Records of the rarest class below which few audits decide at the usual limits: that is said where
nothing was decided. It is no veto, for the limits of so few are as much wider and err no more."""

NEAR = 0.95
"""Share of what is allowed above which an estimate is not said to be decided by more records. At
.99 of it a hundred times as many were named as at .9, millions of Adult's."""

SCORE_WORDS, SOURCE_WORDS = results.WORDS["scores"], results.WORDS["sources"]
"""Names of scores and sources as sentences show them."""


@dataclass(frozen=True)
class _Found:
    """A deciding score and the attack it is of."""

    outcome: results.AttackOutcome
    score: Score
    allowed: float

    @property
    def gain(self) -> Figure:
        """What is held against what is allowed."""
        score = self.score
        return Figure(score.gain, score.gain_lower, score.gain_upper)

    @property
    def excess(self) -> float:
        """How far the upper limit goes, in units of what is allowed; no number comes first."""
        # Limits of exposures are a tenth of those of advantages: only ratios compare them. What is
        # allowed may be 0.
        return self.gain.over(self.allowed) / max(self.allowed, 1e-6)

    @property
    def rank(self) -> tuple[bool, float]:
        """What keeps a variable from being safe: an estimate beyond what is allowed comes first."""
        return (not self.gain.is_known or self.gain.estimate >= self.allowed, self.excess)


@dataclass(frozen=True)
class _Case:
    """All that is known of one variable, and of the records and groups that were judged."""

    target: str
    outcomes: tuple[results.AttackOutcome, ...]
    options: AttackOptions
    n_records: int
    groups: GroupCounts | None

    @property
    def on_release(self) -> list[results.AttackOutcome]:
        return [o for o in self.outcomes if results.is_of_release(o.attack.source)]

    @property
    def n_unknown(self) -> int:
        return sum(o.status == "unknown" for o in self.on_release)

    @property
    def n_skipped(self) -> int:
        """Attacks that were not run, since a variable leaks for certain."""
        return sum(o.reason == results.SKIPPED for o in self.on_release)

    @property
    def n_compared(self) -> int:
        return count_compared(len(self.on_release), self.outcomes[0].attack.kind, self.options)

    @property
    def is_named(self) -> bool:
        """Whether the variable says which group it is: records of another time judge then."""
        return self.groups is not None and self.target in self.groups.names

    @property
    def n_units(self) -> int:
        """What there is of what more of would decide: records, or groups where they are alike."""
        return self.groups.n_groups if self.groups and not self.is_named else self.n_records

    def found(self, n_open: int | None = None) -> list[_Found]:
        """Deciding scores on the release, with limits for so many undecided variables.

        Without a number with those of "safe", each of which has the whole level.
        """
        # Bonferroni over attacks and scores, Holm over the variables that are still undecided: the
        # fewer these are, the less strict the level, and the narrower the limits.
        options = self.options
        level = options.plan_level(self.n_compared, n_open) if n_open else options.safe_level
        return [
            _Found(o, s.at(level), options.allowed(s.name))
            for o in self.on_release
            for s in o.deciding(options)
        ]

    def leaks(self, n_open: int) -> bool:
        return any(one.gain.exceeds(one.allowed) for one in self.found(n_open))

    @property
    def is_safe(self) -> bool:
        found = self.found()
        # An attack that failed may have been the one that leaks: the others cannot answer for it.
        known = bool(found) and not self.n_unknown
        return known and all(one.gain.within(one.allowed) for one in found)

    def best_advantage(self, source: str) -> float:
        """The largest estimate of an advantage on a source for comparison."""
        values = (
            s.advantage
            for o in self.outcomes
            for s in o.deciding(self.options)
            if o.attack.source == source
            # Advantages by true-positive rates have another unit, a share of records: they are not
            # compared.
            if self.options.allowed(s.name) == self.options.max_advantage
        )
        return max((value for value in values if math.isfinite(value)), default=math.nan)


def say_source(source: str) -> str:
    """What a reading of the release is, for a sentence."""
    if source.startswith(ALONE):
        return f"the included variable {source.removeprefix(ALONE)!r} by itself"
    if source.startswith(JOINT):
        return f"this release joined with the earlier one {source.removeprefix(JOINT)!r}"
    return SOURCE_WORDS.get(source, source)


def decide_variables(
    outcomes: Iterable[results.AttackOutcome],
    options: AttackOptions,
    left_out: Sequence[LeftOut] = (),
    n_records: int = 0,
    groups: GroupCounts | None = None,
) -> tuple[results.Decision, ...]:
    """Decide for every variable, in the order of the outcomes; those left out come last.

    Parameters
    ----------
    outcomes
        Of all attacks.
    options
        Limits, deciding scores and level.
    left_out
        Variables that were not attacked.
    n_records
        Records the outcomes speak of, to say how many would be needed.
    groups
        Groups of these records, if intervals are over groups: these are what is needed then.

    Notes
    -----
    Guarantee: where limits hold at their levels, some variable within what is allowed is said to
    leak with probability at most ``(1 - level) / 2``. A variable with a gain beyond it is said to
    be safe with probability at most ``1 - level``. So is a release with such a variable.

    References
    ----------
    Holm 1979, A Simple Sequentially Rejective Multiple Test Procedure; Berger 1982,
    Multiparameter Hypothesis Testing and Acceptance Sampling.
    """
    by_name: dict[str, list[results.AttackOutcome]] = {}
    for outcome in outcomes:
        by_name.setdefault(outcome.attack.target, []).append(outcome)
    cases = [_Case(name, tuple(mine), options, n_records, groups) for name, mine in by_name.items()]
    leaking = _step_down(cases, _Case.leaks)
    decided = [_decide(case, leaking) for case in cases]
    return (*decided, *(_decline(one, options) for one in left_out))


def _step_down(cases: Sequence[_Case], holds: Callable[[_Case, int], bool]) -> dict[str, int]:
    """Holm's steps: what holds while so many are undecided, by variable."""
    found: dict[str, int] = {}
    while True:
        n_open = len(cases) - len(found)
        new = [case for case in cases if case.target not in found and holds(case, n_open)]
        # A step may decide several variables; their number is what the next step is freed of.
        if not new:
            return found
        found |= {case.target: n_open for case in new}


def _decide(case: _Case, leaking: dict[str, int]) -> results.Decision:
    verdict: results.Verdict
    if case.target in leaking:
        verdict, found = "leaks", case.found(leaking[case.target])
        judged = [one for one in found if one.gain.exceeds(one.allowed)]
        best = max(judged, key=lambda one: one.score.gain_lower - one.allowed, default=None)
    elif case.is_safe:
        verdict, best = "safe", max(case.found(), key=lambda one: one.excess, default=None)
    else:
        best = max(case.found(), key=lambda one: one.rank, default=None)
        is_known = best is not None and math.isfinite(best.excess) and not case.n_unknown
        verdict = "unproven" if is_known else "unknown"
    needed = _count_needed(case) if verdict == "unproven" else math.nan
    return results.Decision(
        target=case.target,
        verdict=verdict,
        reason=_explain(case, verdict, best, needed),
        control_advantage=case.best_advantage("raw"),
        noise_advantage=case.best_advantage("noise"),
        desired_advantage=case.best_advantage("wanted"),
        n_compared=case.n_compared,
        level=case.options.level,
        n_unknown=case.n_unknown,
        n_needed=needed,
        needed=_say_needed(case, needed) if math.isfinite(needed) else "",
        **({} if best is None else _describe(best)),
    )


def _decline(left_out: LeftOut, options: AttackOptions) -> results.Decision:
    reason = f"{left_out.target!r} is unproven, it was not attacked: {left_out.reason}"
    return results.Decision(left_out.target, "unproven", reason, level=options.level)


def _describe(found: _Found) -> dict[str, Any]:
    """Fields of a decision, by what decided it."""
    about = results.describe_score(found.score)
    del about["level"], about["interval"]  # the level of a decision is that of all verdicts jointly
    attack, allowed = found.outcome.attack, found.allowed
    return about | {"source": attack.source, "strongest": attack.adversary, "allowed": allowed}


def _count_needed(case: _Case) -> float:
    """Records or groups with which every upper limit would about reach what is allowed.

    The distance of a limit from the estimate shrinks with the root of their number. Of few groups
    that distance is cut off by what a score can be, and is too short. Where nothing may be behind
    an estimate, as many are needed as show it of a guess. NaN where an estimate is not well within
    what is allowed: more would as soon prove a leak.
    """
    planned = {} if case.groups is None else _plan_groups(case, case.groups)
    needed, n_units = 0.0, case.n_units
    for one in case.found():
        score, allowed = one.score, one.allowed
        # Of few groups the score itself is cut off by 1, so that its upper limit understates the
        # distance.
        if score.gain_lower <= 0 and planned.get(score.name, 0.0) > n_units:
            needed = max(needed, planned[score.name])
            continue
        value, up = score.gain, score.gain_upper - score.gain
        nothing = max(up, score.gain - score.gain_lower)
        is_open = score.gain_upper > allowed
        # Nothing may be behind an estimate, unless so many records should have shown it already.
        if score.gain_lower <= 0 and not (is_open and nothing < allowed):
            value, up = 0.0, nothing
        if not value < NEAR * allowed:
            return math.nan
        # Limits narrow with the root of the number of units.
        needed = max(needed, n_units * (up / (allowed - value)) ** 2)
    return math.ceil(needed) if math.isfinite(needed) else math.nan


def _plan_groups(case: _Case, groups: GroupCounts) -> dict[str, float]:
    """Groups that a guess needs, by score; records of those that the variable names."""
    shares = groups.shares.get(case.target, ())
    needed = plan_needed_groups(
        case.options,
        n_attacks=len(case.on_release),
        n_classes=max(2, len(shares)) if case.outcomes[0].attack.kind == "classes" else None,
        n_variables=1,
        shares=shares,
    )
    if not case.is_named:
        return needed
    # Of a variable that names the group the units are sets of records; the largest sets decide.
    pooled = [o.attack.adversary for o in case.on_release if o.attack.source == "groups"]
    most = max((int(name.rpartition("_")[2]) for name in pooled), default=1)
    return {score: most * n_sets for score, n_sets in needed.items()}


def _explain(case: _Case, verdict: results.Verdict, best: _Found | None, needed: float) -> str:
    """Variable, adversary, score, estimate, limits and what is allowed, in a sentence."""
    if case.n_unknown and verdict == "unknown":
        reasons = [o.reason for o in case.on_release if o.status == "unknown"]
        name = "skipped" if case.n_unknown == case.n_skipped else "failed"
        return results.REASONS[name].format(case=case, n=len(case.on_release), why=reasons[0])
    if best is None:
        return results.REASONS["no_score"].format(case=case)
    score, attack, allowed, gain = best.score, best.outcome.attack, best.allowed, ""
    if score.gained is not None:
        if math.isnan(score.gain):
            return results.REASONS["no_gain"].format(case=case)
        limits = say_limits(score.gain_lower, score.gain_upper, allowed)
        gain = results.REASONS["gain"].format(gain=score.gain, limits=limits)
    elif math.isnan(score.interval.estimate):
        return results.REASONS["too_few"].format(case=case)
    text = results.REASONS["judged"].format(
        case=case,
        verdict="leaks" if verdict == "leaks" else f"is {verdict}",
        adversary=attack.adversary.replace("_", " "),
        source=say_source(attack.source),
        name=SCORE_WORDS.get(score.name, score.name),
        score=score,
        limits=say_limits(score.interval.lower, score.interval.upper, digits=4),
        advantages=say_limits(score.advantage_lower, score.advantage_upper, allowed),
        gain=gain,
        allowed=allowed,
    )
    if verdict == "leaks" and case.n_skipped:
        text += results.REASONS["ended"].format(case=case)
    if verdict != "unproven":
        return text + "."
    rarest = min((o.n_rarest for o in case.on_release if o.n_rarest), default=0)
    if 0 < rarest < FEWEST_RARE:
        text += results.REASONS["rare"].format(rarest=rarest, fewest=FEWEST_RARE)
    if not math.isfinite(needed):
        more = "groups" if case.groups and not case.is_named else "records"
        return text + results.REASONS["beyond"].format(more=more)
    return f"{text}. {_say_needed(case, needed)}"


def _say_needed(case: _Case, needed: float) -> str:
    """So many would decide, of what there are; `max_records` are judged at most."""
    kind = "" if case.groups is None else case.groups.say()
    if case.groups is None or case.is_named:
        same = f", in more stretches of time of the same {kind}," if kind else ""
        return results.REASONS["more_records"].format(case=case, needed=needed, same=same)
    text = results.REASONS["more_groups"].format(case=case, needed=needed, kind=kind)
    n_records, most = needed * case.n_records / case.n_units, case.options.max_records
    if n_records <= most:
        return text
    return f"{text} To judge them all, max_records must be {n_records:,.0f}, not {most:,}."
