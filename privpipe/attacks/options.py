"""Options of an audit by attack: adversaries, bounds, splits, intervals and the limit."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator
from pydantic.dataclasses import dataclass

__all__ = ["AdversaryName", "AttackOptions"]

AdversaryName = Literal[
    "least_squares",
    "logistic",
    "linear_svm",
    "naive_bayes",
    "nearest_neighbours",
    "rbf",
    "boosting",
]

Share = Annotated[float, Field(gt=0, lt=0.8)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid", hide_input_in_errors=True))
class AttackOptions:
    """How a release is attacked and judged.

    Parameters
    ----------
    adversaries
        Which adversaries to train; those that cannot predict a variable's kind are left out.
    max_advantage
        Largest advantage allowed, as a share of the way from guessing to knowing; the upper
        limit of every adversary's interval must not exceed it.
    decides
        Scores of classes that are held against `max_advantage` (for numbers it is "r2").
        Accuracy alone hides what is known of a rare class; the area under the ROC curve
        does not.
    level
        Confidence that all intervals of one variable hold together (Bonferroni over its
        adversaries and deciding scores).
    max_records
        Records drawn from the collection for the audit.
    max_bytes
        Bytes of one attacked matrix; the sample shrinks until it fits.
    max_test
        Test records each adversary predicts.
    tune_share, test_share
        Shares of the records that choose settings and that judge; the rest trains.
    min_class_records
        Classes with fewer records are too small to be judged.
    rare_classes
        "refuse" such classes, or "merge" them into one.
    seen_records
        What to do with records the sanitiser learned from: "leave_out", or "train", the
        papers' protocol, in which adversaries train on them and are tested on all others.
        It flatters the release: an eraser is exact on its own training records, so that
        they teach an adversary less than fresh ones do.
    n_replicates
        Bootstrap replicates.
    seed
        Seed of sample, split and adversaries; no secret.

    Examples
    --------
    >>> AttackOptions(adversaries=("logistic", "boosting")).level
    0.95
    """

    adversaries: tuple[AdversaryName, ...] = (
        "least_squares",
        "logistic",
        "linear_svm",
        "naive_bayes",
        "nearest_neighbours",
        "rbf",
        "boosting",
    )
    max_advantage: Annotated[float, Field(ge=0, le=1)] = 0.1
    decides: tuple[Literal["accuracy", "balanced_accuracy", "f1", "auc"], ...] = (
        "accuracy",
        "auc",
    )
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    max_records: Annotated[int, Field(ge=50)] = 100_000
    max_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 28
    max_test: Annotated[int, Field(ge=20)] = 20_000
    tune_share: Share = 0.15
    test_share: Share = 0.3
    min_class_records: Annotated[int, Field(ge=4)] = 10
    rare_classes: Literal["refuse", "merge"] = "refuse"
    seen_records: Literal["leave_out", "train"] = "leave_out"
    n_replicates: Annotated[int, Field(ge=50)] = 400
    seed: Annotated[int, Field(ge=0)] = 0

    @field_validator("adversaries", "decides")
    @classmethod
    def _distinct(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names or len(set(names)) < len(names):
            raise ValueError("name at least one, each once")
        return names

    def plan_sample(self, n_records: int, n_features: int) -> int:
        """How many of the records an audit of this width can use."""
        # Matrices above a quarter of the bound are held in single precision.
        fits = self.max_bytes // (4 * max(n_features, 1))
        return min(n_records, self.max_records, max(fits, 50))

    def plan_level(self, n_compared: int) -> float:
        """Confidence of each of several intervals that are to hold together."""
        return 1 - (1 - self.level) / max(n_compared, 1)
