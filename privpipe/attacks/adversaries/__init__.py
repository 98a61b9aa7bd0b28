"""Who guesses, and from what: adversaries by name, and the evidence they are given.

A new adversary is a module here and one row of `ADVERSARIES`. The module has a function from a
problem to a fitted predictor. Options, configuration, its JSON schema and template, plans and
reports read the row. `problem` is a prediction problem as an adversary sees it; `preparation` makes
the evidence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from privpipe.attacks.adversaries.problem import Features, Fitted, Problem, fit_tuned
from privpipe.protocols import FloatArray


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
    default
        Whether it attacks where no adversaries are named: a new one must not change the audits of
        all who have named none.
    read
        From the values of a source what reads records of it for all folds; None as they are.
    """

    fit: Callable[[Problem], Fitted]
    max_train: int
    max_tune: int = 10_000
    max_test: int = 100_000
    numbers: bool = True
    default: bool = False
    read: Callable[[FloatArray], Features] | None = None


def _load(module: str, name: str, *, tuned: bool = False) -> Callable[[Any], Any]:
    """A function of a module beside this one that is imported when it is called.

    Of a trainer settings are chosen by tuning records; see `fit_tuned`. Scikit-learn takes seconds
    to import; a driver that only plans attacks does without.
    """

    # Not at the top: the driver imports this table to plan, and must not load scikit-learn.
    def call(given: Any) -> Any:
        function = getattr(import_module(f"{__package__}.{module}"), name)
        return fit_tuned(given, function) if tuned else function(given)

    return call


_linear, _estimators = (partial(_load, one, tuned=True) for one in ("linear", "estimators"))
_row = partial(Adversary, default=True)

ADVERSARIES: dict[str, Adversary] = {
    "least_squares": _row(_load("ridges", "fit_least_squares"), 100_000),
    "logistic": _row(_linear("train_logistic"), 50_000, numbers=False),
    "linear_svm": _row(_linear("train_margins"), 20_000),
    "naive_bayes": _row(_linear("train_naive_bayes"), 100_000, numbers=False),
    "nearest_neighbours": _row(_estimators("train_neighbours"), 5_000, 2_000),
    "rbf": _row(_load("ridges", "fit_rbf"), 6_000, 2_000),
    "boosting": _row(_estimators("train_boosting"), 50_000, read=_load("estimators", "find_bands")),
    # Found more on human activity records than all others did, boosting included.
    "forest": _row(_estimators("train_forests"), 8_000, 3_000),
    "quadratic": _row(_linear("train_quadratic"), 20_000, 5_000, numbers=False),
    "polynomial": _row(_linear("train_products"), 10_000, 5_000),
    "network": _row(_estimators("train_networks"), 5_000, 2_000),
}
"""The adversaries by name. Each is fitted once for every fold: those that take long learn from
fewer records, and the audit says what of planted leaks they find."""

READS_BITS, READS_AROUND = "bit_reader", "surroundings_reader"
KNOWS_DESIRED, READS_VARIABLE = "knows_wanted", "variable_reader"

ALWAYS = {
    READS_BITS: Adversary(_load("covert_channels", "fit_bit_reader"), 20_000),
    READS_AROUND: Adversary(_load("covert_channels", "fit_surroundings_reader"), 20_000),
    # Knows the true desired variables and nothing else.
    KNOWS_DESIRED: Adversary(_load("desired_baseline", "fit_desired_baseline"), 50_000),
    # One variable by itself is read as well as the desired ones are.
    READS_VARIABLE: Adversary(_load("desired_baseline", "fit_desired_baseline"), 50_000),
}
"""Adversaries of one source each, which options cannot leave out. Their names are stored."""
