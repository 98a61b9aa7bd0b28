"""Results of attacks, one outcome each: numbers about records, no value of any.

An attack that could not be trained or judged is "unknown"; its row of the table holds no number.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from privpipe.attacks.adversaries.attack_options import ALONE, JOINT
from privpipe.attacks.statistics.scores import Score

Verdict = Literal["safe", "not protected", "leaks", "unproven", "unknown"]
"""Of "not protected" nothing is asked: it is said where no attack that fails could show more."""
OF_RELEASE = ("released", "everything", "bits", "surroundings", "joined", "groups")
"""Sources that are readings of the release; see `Evidence`. So are those of one variable by itself
and those that join an earlier release."""
DECISION_SCHEMA = {
    "target": ("str", "confidential variable"),
    "verdict": ("str", "safe, leaks, unproven (the limits reach too far) or unknown"),
    "reason": ("str", "the verdict's reason in a sentence"),
    "source": ("str", "what the deciding adversary read"),
    "strongest": ("str", "adversary that decides"),
    "score": ("str", "score by which it decides"),
    "estimate": ("float64", "its score"),
    "lower": ("float64", "lower limit of its score"),
    "upper": ("float64", "upper limit of its score"),
    "baseline": ("float64", "score of a guess without records"),
    "advantage": ("float64", "its advantage"),
    "advantage_lower": ("float64", "smallest advantage within its limits"),
    "advantage_upper": ("float64", "largest advantage within its limits"),
    "gain": ("float64", "advantage beyond knowing the wanted answer (all, if none is wanted)"),
    "gain_lower": ("float64", "smallest gain within its limits; above allowed it leaks"),
    "gain_upper": ("float64", "largest gain within its limits; within allowed is safe"),
    "allowed": ("float64", "largest gain allowed of this score"),
    "control_advantage": ("float64", "best advantage on the raw records; NaN without them"),
    "noise_advantage": ("float64", "best advantage on noise of equal utility; NaN without it"),
    "wanted_advantage": ("float64", "advantage of knowing the wanted answer alone, by accuracy"),
    "n_compared": ("int64", "intervals that hold together (attacks times scores)"),
    "level": ("float64", "confidence of all verdicts together"),
    "n_unknown": ("int64", "attacks on the release that failed"),
    "n_labels": ("int64", "labels that the strongest adversary of a safe variable had, at most"),
    "gain_slope": ("float64", "gain per doubling of these labels; NaN of what is not safe"),
    "n_needed": (
        "float64",
        "records, or groups where they have some, that would about decide an unproven variable; "
        "else NaN",
    ),
}
"""Columns of `AttackReport.decisions`: dtype and meaning. One row per variable."""

TABLE_SCHEMA = {
    "target": ("str", "confidential variable that was guessed"),
    "kind": ("str", "classes or numbers"),
    "source": (
        "str",
        "what was read: released (features), everything, bits, joined, groups, alone: NAME (an "
        "included variable), together: NAME (an earlier release), wanted, raw, raw groups, noise",
    ),
    "adversary": ("str", "who guessed"),
    "score": ("str", "accuracy, balanced_accuracy, f1, auc, tpr_at_..., r2 or rmse"),
    "estimate": ("float64", "score on the test records"),
    "lower": ("float64", "lower confidence limit"),
    "upper": ("float64", "upper confidence limit"),
    "level": ("float64", "confidence of these two limits, after the multiplicity correction"),
    "interval": ("str", "how the limits were found"),
    "baseline": ("float64", "score of a guess without records: majority class or mean"),
    "advantage": ("float64", "share of the way from guessing to knowing"),
    "advantage_lower": ("float64", "smallest advantage within the limits"),
    "advantage_upper": ("float64", "largest advantage within the limits"),
    "gain": ("float64", "advantage beyond knowing the wanted answer (all, if none is wanted)"),
    "gain_lower": ("float64", "smallest gain within the limits"),
    "gain_upper": ("float64", "largest gain within the limits"),
    "n_train": ("int64", "records the adversary was fitted on"),
    "n_tune": ("int64", "records that chose its settings"),
    "n_test": ("int64", "records it was judged by"),
    "n_features": ("int64", "columns of the source"),
    "n_coordinates": ("int64", "columns the adversary read, the rank where that is low"),
    "seconds": ("float64", "time taken, seconds"),
    "status": ("str", "measured or unknown"),
    "reason": ("str", "why it is unknown"),
    "settings": ("str", "settings that did best on the tuning records"),
}
"""Columns of `AttackReport.table`: dtype and meaning. One row per attack and score."""


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
    settings, n_train, n_tune, n_test, n_features, n_coordinates, seconds
        As in `TABLE_SCHEMA`.
    roc
        True-positive rates at the false-positive rates `roc.GRID`; none when unknown.
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

    def rows(self) -> list[dict[str, Any]]:
        """Rows of the table; one without numbers when unknown."""
        about: dict[str, Any] = asdict(self.attack)
        about |= {
            name: getattr(self, name)
            for name in TABLE_SCHEMA
            if name not in about and hasattr(self, name)
        }
        rows = [about | _describe_score(score) for score in self.scores]
        empty = {name: math.nan for name, (dtype, _) in TABLE_SCHEMA.items() if dtype == "float64"}
        rows = rows or [empty | about | {"score": "", "interval": "none"}]
        return [{name: row[name] for name in TABLE_SCHEMA} for row in rows]


def _describe_score(score: Score) -> dict[str, Any]:
    interval = score.interval
    return {
        "score": score.name,
        "estimate": interval.estimate,
        "lower": interval.lower,
        "upper": interval.upper,
        "level": interval.level,
        "interval": interval.method,
        "baseline": score.baseline,
        "advantage": score.advantage,
        "advantage_lower": score.advantage_lower,
        "advantage_upper": score.advantage_upper,
        "gain": score.gain,
        "gain_lower": score.gain_lower,
        "gain_upper": score.gain_upper,
    }


@dataclass(frozen=True)
class Decision:
    """Verdict on one confidential variable; fields as in `DECISION_SCHEMA`."""

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
    wanted_advantage: float = math.nan
    n_compared: int = 0
    level: float = math.nan
    n_unknown: int = 0
    n_labels: int = 0
    gain_slope: float = math.nan
    n_needed: float = math.nan


def is_of_release(source: str) -> bool:
    """Whether a source is a reading of the release, and no comparison."""
    return source in OF_RELEASE or source.startswith((ALONE, JOINT))
