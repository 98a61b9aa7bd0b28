"""Who guesses, and from what: adversaries by name, and the evidence they are given.

A new adversary is a module here, with a function from a problem to a fitted predictor, and one row
of `ADVERSARIES`: options, configuration, its JSON schema and template, plans and reports read it.
`problem` is a prediction problem as an adversary sees it; `preparation` makes the evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module

from privpipe.attacks.adversaries.problem import Fitted, Problem


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


def _load(module: str, name: str) -> Callable[[Problem], Fitted]:
    """A function of a module beside this one that is imported when it is called.

    Scikit-learn takes seconds to import; a driver that only plans attacks does without.
    """

    def fit(problem: Problem) -> Fitted:
        found: Fitted = getattr(import_module(f"{__package__}.{module}"), name)(problem)
        return found

    return fit


_linear = partial(_load, "linear")
_estimators = partial(_load, "estimators")

ADVERSARIES: dict[str, Adversary] = {
    "least_squares": Adversary(_load("ridges", "fit_least_squares"), 100_000),
    "logistic": Adversary(_linear("fit_logistic"), 50_000, numbers=False),
    "linear_svm": Adversary(_linear("fit_linear_svm"), 20_000),
    "naive_bayes": Adversary(_linear("fit_naive_bayes"), 100_000, numbers=False),
    "nearest_neighbours": Adversary(_estimators("fit_nearest_neighbours"), 20_000, 2_000, 5_000),
    "rbf": Adversary(_load("ridges", "fit_rbf"), 30_000, 5_000),
    "boosting": Adversary(_estimators("fit_boosting"), 50_000),
    "forest": Adversary(_estimators("fit_forest"), 10_000, 5_000),
    "quadratic": Adversary(_load("quadratic", "fit_quadratic"), 20_000, 5_000, numbers=False),
    "polynomial": Adversary(_linear("fit_polynomial"), 10_000, 5_000),
    "network": Adversary(_estimators("fit_network"), 20_000, 5_000),
}
"""The adversaries by name. Their bounds were chosen on 100,000 records of 300 features."""

BIT_READER = Adversary(_load("covert_channels", "fit_bit_reader"), 20_000)
"""Reads the bits of released values; none that options can leave out."""

AROUND_READER = Adversary(_load("covert_channels", "fit_surroundings_reader"), 20_000)
"""Reads what stands around a record in the release; none that options can leave out."""

DESIRED_READER = Adversary(_load("desired_baseline", "fit_desired_baseline"), 50_000)
"""Knows the true wanted answer and nothing else."""

VARIABLE_READER = DESIRED_READER
"""Reads one included variable: the best on tuning records of frequencies, lines and trees."""
