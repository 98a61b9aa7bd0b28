"""The adversaries by name, how much each trains on, and the memory that takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from privpipe.attacks.evidence import Evidence
from privpipe.attacks.linear_adversaries import (
    fit_least_squares,
    fit_linear_svm,
    fit_logistic,
    fit_naive_bayes,
)
from privpipe.attacks.nonlinear_adversaries import fit_boosting, fit_nearest_neighbours, fit_rbf
from privpipe.attacks.problem import Fitted, Problem

__all__ = ["ADVERSARIES", "Adversary", "plan_attack_bytes"]

_FIXED_BYTES = 256 << 20
"""Kernel features of one width, a block of bootstrap weights with its sums, and slack."""


@dataclass(frozen=True)
class Adversary:
    """How one kind of adversary is trained, and on how much.

    Parameters
    ----------
    fit
        Trains it on a problem.
    max_train, max_tune, max_test
        Most records used; they bound the time and the memory of one attack.
    numbers
        Whether it can predict numbers as well as classes.
    """

    fit: Callable[[Problem], Fitted]
    max_train: int
    max_tune: int = 10_000
    max_test: int = 20_000
    numbers: bool = True


ADVERSARIES: dict[str, Adversary] = {
    "least_squares": Adversary(fit_least_squares, 100_000),
    "logistic": Adversary(fit_logistic, 50_000, numbers=False),
    "linear_svm": Adversary(fit_linear_svm, 20_000),
    "naive_bayes": Adversary(fit_naive_bayes, 100_000, numbers=False),
    "nearest_neighbours": Adversary(fit_nearest_neighbours, 20_000, 2_000, 5_000),
    "rbf": Adversary(fit_rbf, 30_000, 5_000),
    "boosting": Adversary(fit_boosting, 50_000),
}
"""The adversaries by name. Their bounds were chosen on 100,000 records of 300 features."""


def plan_attack_bytes(evidence: Evidence) -> int:
    """Bytes one attack needs beside the evidence, at most.

    The records it trains and tunes on are copied, once as they are and once in double precision.
    """
    widest: int = max(source.values.shape[1] for source in evidence.sources.values())
    itemsize: int = max(source.values.itemsize for source in evidence.sources.values())
    n = max(
        min(evidence.n_records, adversary.max_train + adversary.max_tune)
        for adversary in ADVERSARIES.values()
    )
    return _FIXED_BYTES + n * widest * (itemsize + 8)
