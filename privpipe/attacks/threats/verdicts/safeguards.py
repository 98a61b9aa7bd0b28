"""What "safe" must survive: planted leaks, the raw records as a control, and more labels.

"Safe" says that adversaries with these labels find too little. It says nothing where they would not
find a leak that was planted. Nor does it where they find nothing in raw records either, as of
labels joined to the wrong records. It says too little where what they find still grows towards the
limit.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from privpipe.attacks.adversaries.attack_options import RAW_GROUPS, AttackOptions
from privpipe.attacks.adversaries.evidence import GroupCounts
from privpipe.attacks.threats.verdicts.outcomes import REASONS, AttackOutcome, Decision
from privpipe.numerics.limits import say_lower

MISSED = "the audit would not have found a planted leak"

EXPONENTS = np.linspace(0.25, 1.0, 61)
"""Of the power of the labels with which errors shrink; see `expect_gain`."""


@dataclass(frozen=True)
class Detection:
    """The smallest planted leak of one sort that the audit finds.

    Parameters
    ----------
    target
        Variable that it reveals.
    leak
        A key of `power.LEAKS`.
    size
        Share of the records that it reveals, which 19 of 20 such audits find; NaN where none that
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


@dataclass(frozen=True)
class LearningCurve:
    """What the strongest adversary gains with a quarter, half and all of its labels.

    Parameters
    ----------
    target, source, adversary, score
        Of what; the score is the one that is expected to come nearest to its limit.
    n_labels
        Labels of training records, as many numbers as gains.
    gains
        With each; the last is that of the audit up to the choice of records.
    rise_lower
        Lower limit of what all labels gain over the fewest, on the same test records.
    n_total
        Labels that somebody may have: records of the release.
    expected
        Gain expected with so many.
    allowed
        Limit of this score.
    reason
        Why there is none; then no figure is.
    """

    target: str
    source: str = ""
    adversary: str = ""
    score: str = ""
    n_labels: tuple[int, ...] = ()
    gains: tuple[float, ...] = ()
    rise_lower: float = math.nan
    n_total: int = 0
    expected: float = math.nan
    allowed: float = math.nan
    reason: str = ""

    @property
    def is_known(self) -> bool:
        """Whether it was measured."""
        numbers = (*self.gains, self.rise_lower, self.expected)
        return bool(self.gains) and all(map(math.isfinite, numbers))

    @property
    def slope(self) -> float:
        """Gain per doubling of the labels."""
        if not self.is_known:
            return math.nan
        return (self.gains[-1] - self.gains[0]) / math.log2(self.n_labels[-1] / self.n_labels[0])

    @property
    def rises_too_far(self) -> bool:
        """Whether it is shown to rise, and expected to exceed what is allowed."""
        return self.rise_lower > 0 and self.expected > self.allowed

    def say(self) -> str:
        """How many labels there were, and what they gained, in a sentence."""
        if not self.is_known:
            return f"The learning curve is unknown: {self.reason or 'it was not measured'}."
        counts = ", ".join(f"{n:,}" for n in self.n_labels)
        gains = ", ".join(f"{gain:.3g}" for gain in self.gains)
        adversary, score = self.adversary.replace("_", " "), self.score.replace("_", " ")
        text = f"With {counts} labels {adversary} gains {gains} by {score}"
        # So written that NaN is no rise.
        return text + REASONS["rises" if self.rise_lower > 0 else "level"].format(curve=self)


def withdraw_safe(decision: Decision, why: str) -> Decision:
    """The same decision as "unproven", with what is missing behind its reason."""
    reason = decision.reason.replace(" is safe: ", " is unproven: ", 1)
    return replace(decision, verdict="unproven", reason=f"{reason} {why}")


NOTHING = "the same adversaries find nothing in the raw records"
"""Of labels that mean nothing; no other method of release changes that."""


def hold_to_control(
    decision: Decision, outcomes: Iterable[AttackOutcome], options: AttackOptions
) -> Decision:
    """A decision, "unproven" instead of "safe" where raw records reveal no more than chance.

    Of a variable that `AttackOptions.uninformative` names this is said and accepted. Where raw
    records were not given nothing is known of them, and that is said. What the release surely
    reveals the raw records reveal as well.
    """
    if decision.verdict != "safe":
        return decision
    mine = [one for one in outcomes if one.attack.target == decision.target]
    raw, released = ([o for o in mine if o.attack.source == s] for s in ("raw", "released"))
    if decision.target in options.uninformative:
        why = "The operator says that raw records do not reveal it (uninformative)."
    elif not raw:
        why = "No raw records were given as a control."
    elif (lower := max([*_list_lower(raw, options), *_list_lower(released, options), 0.0])) > 0:
        why = f"Raw records reveal it by an advantage of at least {say_lower(lower)}."
    else:
        why = REASONS["nothing"].format(nothing=NOTHING, target=decision.target)
        return withdraw_safe(decision, why)
    return replace(decision, reason=f"{decision.reason} {why}")


def _list_lower(some: list[AttackOutcome], options: AttackOptions) -> Iterator[float]:
    """Lower limits of the advantage on raw or on released records, which hold jointly with both."""
    for outcome in some:
        # An area over classes has wide limits where one is rare; the mean of their hits has not.
        names = (*options.deciding(outcome.attack.kind), "balanced_accuracy")
        # One success of many tries is expected by chance: the tries share the level.
        level = options.plan_level(2 * len(some) * len(names))
        found = (score.at(level) for score in outcome.scores if score.name in names)
        # No gain is counted of raw records: `is_more` is of the advantage.
        yield from (one.advantage_lower if one.is_more else 0.0 for one in found)


def hold_to_power(
    decision: Decision, found: Iterable[Detection], must_find: float, groups: GroupCounts | None
) -> Decision:
    """A decision, "unproven" instead of "safe" where the audit lacks the power to say so.

    Parameters
    ----------
    decision
        On any variable: leaks are planted in few, and speak for all of them.
    found
        What the audit finds of what was planted.
    must_find
        Share of records of which a leak must be found.
    groups
        Groups whose records leak all or none; None where records leak by themselves.
    """
    missed = dict.fromkeys(one.leak for one in found if not one.finds)
    if decision.verdict != "safe" or not missed:
        return decision
    more = "records" if groups is None else f"{groups.say()} than {groups.n_groups:,}"
    which = f"of {must_find:.3g} of the records ({', '.join(missed)})"
    return withdraw_safe(decision, f"But {MISSED} {which}: more {more} or adversaries are needed.")


def hold_to_group_control(
    decision: Decision, outcomes: Iterable[AttackOutcome], options: AttackOptions
) -> Decision:
    """A decision, "unknown" where several raw records of a group reveal no more than chance.

    "leaks" is believed all the same. A variable without attacks on raw groups is not held to them.
    """
    key = (RAW_GROUPS, decision.target)
    controls = [one for one in outcomes if (one.attack.source, one.attack.target) == key]
    # In the split that judges the release: a control by other records could pass where these
    # cannot.
    revealed = any(score.is_more for outcome in controls for score in outcome.deciding(options))
    if not controls or revealed or decision.verdict == "leaks":
        return decision
    reason = REASONS["no_groups"].format(target=decision.target)
    return replace(decision, verdict="unknown", reason=reason)


def hold_to_curve(decision: Decision, curves: Iterable[LearningCurve]) -> Decision:
    """A decision, "unproven" instead of "safe" where more labels would reveal too much."""
    curve = next((one for one in curves if one.target == decision.target), None)
    if decision.verdict != "safe" or curve is None:
        return decision
    decision = replace(decision, n_labels=max(curve.n_labels, default=0), gain_slope=curve.slope)
    if curve.is_known and not curve.rises_too_far:
        return replace(decision, reason=f"{decision.reason} {curve.say()}")
    more = "More labelled records to judge by, or a stronger method, are needed."
    return withdraw_safe(decision, f"But: {curve.say()} {more}")


def say_power(found: Sequence[Detection]) -> str:
    """What would have been found, in a sentence; the weakest of all variables.

    >>> found = Detection("a", "certain", 0.012, "x", True)
    >>> say_power([found, replace(found, leak="bits", size=math.nan)])
    'Detection power (95 %): certain .012. Leaks by bits were not found at any size tried.'
    """
    worst: dict[str, float] = {}
    for one in found:
        # Leaks are planted in few variables and speak for all: the worst of them does.
        size = one.size if math.isfinite(one.size) else math.inf
        worst[one.leak] = max(worst.get(one.leak, 0.0), size)
    seen = [f"{leak} {size:.2g}".replace(" 0.", " .") for leak, size in worst.items() if size < 2]
    none = [leak for leak, size in worst.items() if size >= 2]
    text = f"Detection power (95 %): {', '.join(seen) or 'none'}."
    return text + f" Leaks by {', '.join(none)} were not found at any size tried." * bool(none)


def expect_gain(n_labels: Sequence[int], gains: Sequence[float], n_total: int) -> float:
    """What is gained with more labels, where the gain approaches its end as a power of them.

    ``gain = end - a n**-b`` by least squares, with a at least 0; of equal fits the slowest. The
    power b is between 1/4 and 1. No less than with the labels that there were.

    References
    ----------
    Hestness et al. 2017, Deep Learning Scaling is Predictable, Empirically (power laws).

    Examples
    --------
    >>> round(expect_gain([1000, 2000, 4000], [0.1, 0.15, 0.185355], 10**9), 2)
    0.27
    """
    n, y = np.asarray(n_labels, np.float64), np.asarray(gains, np.float64)
    best = (math.inf, float(y[-1]))
    for exponent in EXPONENTS:
        # For a given exponent the curve is linear in its other two parameters: the best of 61
        # lines.
        power = n**-exponent
        centred = power - power.mean()
        slope = min(0.0, float(centred @ y / (centred @ centred)))
        end = float(y.mean() - slope * power.mean())
        error = float(((end + slope * power - y) ** 2).sum())
        # The slowest of equal fits expects the most: exponents rise, and only a better one wins.
        if error < best[0] - 1e-12:
            best = error, end + slope * max(n_total, n[-1]) ** -exponent
    return float(max(best[1], y[-1]))
