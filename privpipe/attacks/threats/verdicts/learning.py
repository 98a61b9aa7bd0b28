"""What more labels would have told: learning curves, and the positive control of the raw records.

"Safe" says that adversaries with these labels find too little. It says nothing where the same
adversaries find nothing in raw records either, as of labels joined to the wrong records, and too
little where what they find still grows towards the limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats.verdicts.outcomes import AttackOutcome, Decision
from privpipe.numerics.limits import say_lower

EXPONENTS = np.linspace(0.25, 1.0, 61)
"""Of the power of the labels with which errors shrink; see `expect_gain`."""


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
    def rises_beyond(self) -> bool:
        """Whether it is shown to rise, and expected to exceed what is allowed."""
        return self.rise_lower > 0 and self.expected > self.allowed

    def say(self) -> str:
        """How many labels there were, and what they gained, in a sentence."""
        if not self.is_known:
            return f"The learning curve is unknown: {self.reason or 'it was not measured'}."
        counts = ", ".join(f"{n:,}" for n in self.n_labels)
        gains = ", ".join(f"{gain:.3g}" for gain in self.gains)
        text = (
            f"With {counts} labels {self.adversary.replace('_', ' ')} gains {gains} by "
            f"{self.score.replace('_', ' ')}"
        )
        if not self.rise_lower > 0:
            return f"{text}; no rise is shown."
        return (
            f"{text}, which rises: about {self.expected:.3g} with labels of all "
            f"{self.n_total:,} records; allowed {self.allowed:g}."
        )


def expect_gain(n_labels: Sequence[int], gains: Sequence[float], n_total: int) -> float:
    """What is gained with more labels, where the gain approaches its end as a power of them.

    ``gain = end - a n**-b`` with a at least 0 and b between 1/4 and 1, by least squares; of equal
    fits the slowest. No less than with the labels that there were.

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
        power = n**-exponent
        centred = power - power.mean()
        slope = min(0.0, float(centred @ y / (centred @ centred)))
        end = float(y.mean() - slope * power.mean())
        error = float(((end + slope * power - y) ** 2).sum())
        if error < best[0] - 1e-12:
            best = error, end + slope * max(n_total, n[-1]) ** -exponent
    return float(max(best[1], y[-1]))


def hold_to_control(
    decisions: Sequence[Decision], outcomes: Iterable[AttackOutcome], options: AttackOptions
) -> tuple[Decision, ...]:
    """Decisions of which "safe" is "unproven" where raw records tell no more than chance.

    Of a variable that `AttackOptions.uninformative` names this is said and accepted; where raw
    records were not given nothing is known of them, and that is said.
    """
    found = list(outcomes)
    return tuple(
        _control(one, found, options) if one.verdict == "safe" else one for one in decisions
    )


def _control(decision: Decision, outcomes: list[AttackOutcome], options: AttackOptions) -> Decision:
    raw = [
        one
        for one in outcomes
        if one.attack.source == "raw" and one.attack.target == decision.target
    ]
    if decision.target in options.uninformative:
        why = "The operator says that raw records do not tell it (uninformative)."
        return replace(decision, reason=f"{decision.reason} {why}")
    if not raw:
        why = "No raw records were given as a control."
        return replace(decision, reason=f"{decision.reason} {why}")
    if (lower := max(_list_lower(raw, options), default=-math.inf)) > 0:
        why = f"Raw records tell it by an advantage of at least {say_lower(lower)}."
        return replace(decision, reason=f"{decision.reason} {why}")
    why = (
        "But the same adversaries find nothing in the raw records: labels that mean nothing make "
        "everything safe. Check how labels were joined to records; where the raw records do not "
        f"tell it, say so: [audit] uninformative = ['{decision.target}']."
    )
    return replace(decision, verdict="unproven", reason=f"{_withdraw(decision.reason)} {why}")


def _list_lower(raw: list[AttackOutcome], options: AttackOptions) -> Iterator[float]:
    """Lower limits of the advantage on raw records, which hold together."""
    for outcome in raw:
        deciding = options.deciding(outcome.attack.kind)
        level = options.plan_level(len(raw) * len(deciding))
        for score in outcome.scores:
            lower = score.at(level).advantage_lower
            if score.name in deciding and math.isfinite(lower):
                yield lower


def hold_to_curves(
    decisions: Sequence[Decision], curves: Iterable[LearningCurve]
) -> tuple[Decision, ...]:
    """Decisions of which "safe" is "unproven" where more labels would tell too much."""
    known = {one.target: one for one in curves}
    return tuple(
        _follow(one, known[one.target]) if one.verdict == "safe" and one.target in known else one
        for one in decisions
    )


def _follow(decision: Decision, curve: LearningCurve) -> Decision:
    n_labels = max(curve.n_labels, default=0)
    decision = replace(decision, n_labels=n_labels, gain_slope=curve.slope)
    if curve.is_known and not curve.rises_beyond:
        return replace(decision, reason=f"{decision.reason} {curve.say()}")
    why = "More labelled records to judge by, or a stronger method, are needed."
    reason = f"{_withdraw(decision.reason)} But: {curve.say()} {why}"
    return replace(decision, verdict="unproven", reason=reason)


def _withdraw(reason: str) -> str:
    return reason.replace(" is safe: ", " is unproven: ", 1)
