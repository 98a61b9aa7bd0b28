"""Results of attacks, one outcome each: numbers about records, no value of any.

An attack that could not be trained or judged is "unknown"; its row of the table holds no number.
"""

import math
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from privpipe.attacks.adversaries.attack_options import ALONE, JOINT, AttackOptions
from privpipe.attacks.statistics.intervals import Interval
from privpipe.attacks.statistics.scores import Score

WORDS: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("words.toml").read_text("utf-8")
)
REASONS = WORDS["reasons"]
"""Sentences of the reasons of verdicts, to be filled in."""

Verdict = Literal["safe", "not protected", "leaks", "unproven", "unknown"]
"""Of "not protected" nothing is required: it is the verdict where no attack that fails could show
more."""

WORST_FIRST: tuple[Verdict, ...] = ("leaks", "unknown", "unproven", "not protected", "safe")

OF_RELEASE = ("released", "everything", "bits", "surroundings", "joined", "groups")
"""Sources that are readings of the release; see `Evidence`. So are those of one variable by itself
and those that join an earlier release."""

SKIPPED = "The attack was skipped: a variable leaks for certain."
"""Reason of an attack that an audit which ended early did not run."""

SCORED = "baseline advantage advantage_lower advantage_upper gain gain_lower gain_upper".split()
"""What tables and decisions hold of a score beside its interval."""


@dataclass(frozen=True)
class Attack:
    """One adversary against one variable of one source; a plan is a tuple of these."""

    target: str
    kind: Literal["classes", "numbers"]
    source: str
    adversary: str

    @property
    def name(self) -> str:
        """Readable name, unique within a plan."""
        return f"{self.source}-{self.adversary}-{self.target}"


@dataclass(frozen=True)
class AttackOutcome:
    """What came of one attack; holds numbers about records, no value of any.

    Parameters
    ----------
    attack
        Which one.
    status
        "measured", or "unknown" where the adversary could not be trained or judged.
    reason
        Why it is unknown: an error's class, or the message of one of ours.
    scores
        Scores on the test records; none when unknown.
    settings
        Those that did best on the tuning records.
    n_train, n_tune, n_test
        Records that it was fitted on, that chose its settings, and that judged it.
    n_features, n_coordinates
        Columns of the source, and those that the adversary read: the rank where that is low.
    seconds
        Time taken.
    roc
        True-positive rates at the false-positive rates `roc.GRID`; none when unknown.
    n_rarest
        Records of the rarest class among those that judged it; 0 of a number.
    """

    attack: Attack
    status: Literal["measured", "unknown"]
    reason: str = ""
    scores: tuple[Score, ...] = ()
    settings: str = ""
    n_train: int = 0
    n_tune: int = 0
    n_test: int = 0
    n_features: int = 0
    n_coordinates: int = 0
    seconds: float = 0.0
    roc: tuple[float, ...] = ()
    n_rarest: int = 0

    @property
    def is_known(self) -> bool:
        """Whether it was measured."""
        return self.status == "measured"

    def deciding(self, options: AttackOptions) -> list[Score]:
        """Its scores that decide."""
        return [one for one in self.scores if one.name in options.deciding(self.attack.kind)]

    def rows(self) -> list[dict[str, Any]]:
        """Rows of the table, see `AttackReport.table`; one without numbers when unknown."""
        # The order of the keys is that of the columns of stored tables.
        counts = ("n_train", "n_tune", "n_test", "n_features", "n_coordinates")
        about = {n: getattr(self, n) for n in (*counts, "seconds", "status", "reason", "settings")}
        scores = [describe_score(score) for score in self.scores] or [_NO_SCORE]
        return [asdict(self.attack) | score | about for score in scores]


def describe_score(score: Score) -> dict[str, Any]:
    """A score as columns of a table: estimate and limits, baseline, advantage and gain."""
    one = score.interval
    return {
        "score": score.name,
        **{"estimate": one.estimate, "lower": one.lower, "upper": one.upper},
        **{"level": one.level, "interval": one.method},
        **{name: getattr(score, name) for name in SCORED},
    }


# The advantage over a baseline of NaN would be 0, as that over one of 1 is: it is set afterwards.
_NO_SCORE = describe_score(Score("", Interval(math.nan, math.nan, math.nan, math.nan, "none"), 0.0))
_NO_SCORE |= {"baseline": math.nan}


@dataclass(frozen=True)
class Decision:
    """Verdict on one confidential variable.

    Parameters
    ----------
    target
        The confidential variable.
    verdict, reason
        Safe, leaks, unproven (the limits are too wide) or unknown, and why in a sentence.
    source, strongest, score
        What the deciding adversary read, its name, and the score by which it decides.
    estimate, lower, upper, baseline
        Of that score, with its limits; that of a guess without records.
    advantage, advantage_lower, advantage_upper
        Share of the way from guessing to knowing.
    gain, gain_lower, gain_upper, allowed
        Advantage beyond that of knowing the desired variables (all of it, if there are none), and
        how large it may be. With a lower limit above that the variable leaks; with an upper limit
        within it, it is safe.
    control_advantage, noise_advantage, desired_advantage
        Best advantages on the raw records, on noise of equal utility, and of knowing the desired
        variables alone; NaN where these were not attacked.
    n_compared, level
        Intervals that hold jointly (attacks times scores); confidence of all verdicts jointly.
    n_unknown
        Attacks on the release that failed.
    n_labels, gain_slope
        Labels that the strongest adversary of a safe variable had, at most, and what it gains per
        doubling of these. NaN of what is not safe.
    n_needed
        Records, or groups where they have some, that would about decide an unproven variable;
        else NaN.
    needed
        The same in a sentence.
    """

    target: str
    verdict: Verdict
    reason: str
    source: str = ""
    strongest: str = ""
    score: str = ""
    estimate: float = math.nan
    lower: float = math.nan
    upper: float = math.nan
    baseline: float = math.nan
    advantage: float = math.nan
    advantage_lower: float = math.nan
    advantage_upper: float = math.nan
    gain: float = math.nan
    gain_lower: float = math.nan
    gain_upper: float = math.nan
    allowed: float = math.nan
    control_advantage: float = math.nan
    noise_advantage: float = math.nan
    desired_advantage: float = math.nan
    n_compared: int = 0
    level: float = math.nan
    n_unknown: int = 0
    n_labels: int = 0
    gain_slope: float = math.nan
    n_needed: float = math.nan
    needed: str = ""

    def as_row(self) -> dict[str, Any]:
        """As reports store it: one key is of a time with another name for desired variables."""
        return {
            "wanted_advantage" if name == "desired_advantage" else name: value
            for name, value in asdict(self).items()
        }


def is_of_release(source: str) -> bool:
    """Whether a source is a reading of the release, and no comparison."""
    return source in OF_RELEASE or source.startswith((ALONE, JOINT))


def without_nan(value: Any) -> Any:
    """Numbers that do not exist as null, which JSON has."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
