"""Null-space cleaning, algorithm 1: its options and its fit.

Xu et al. 2017, Cleaning the Null Space, Figure 2. The map itself is
`privpipe.sanitizers.cleaner.NullSpaceCleaner`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy.typing as npt
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.numerics.knapsack import check_budget
from privpipe.numerics.labels import Coding
from privpipe.protocols import FloatArray, Shards
from privpipe.sanitizers.arrays import check_shards
from privpipe.sanitizers.cleaner import NullSpaceCleaner
from privpipe.sanitizers.learned import CleanerOptions, Given, Intercept, learn_predictors
from privpipe.sanitizers.lowrank import (
    BudgetScope,
    OnUnrepresentable,
    Representative,
)
from privpipe.sanitizers.options import make_options

__all__ = ["NullSpaceCleaner", "NullSpaceOptions", "fit_null_space", "fit_null_space_cleaner"]


@options_dataclass(frozen=True, config=ConfigDict(extra="forbid", hide_input_in_errors=True))
class NullSpaceOptions(CleanerOptions):
    """Options of ``[method] name = "null_space"``."""

    name: Literal["null_space"]
    rule: Annotated[
        Literal["greedy", "kkt"],
        Field(
            description="greedy: the paper's knapsack, smallest components first. kkt: maximises "
            "the sum of removed shares, which is what Theorem 2 states."
        ),
    ] = "greedy"


def fit_null_space_cleaner(
    shards: Shards,
    *,
    utility_budget: float,
    budget: BudgetScope = "total",
    rule: Literal["greedy", "kkt"] = "greedy",
    ridge: float = 0.0,
    intercept: Intercept = "separate",
    centre: bool | None = None,
    representative: Representative = "closest",
    on_unrepresentable: OnUnrepresentable = "fail",
    label_coding: Coding = "zero_one",
    desired_predictor: npt.ArrayLike | None = None,
    desired_intercept: npt.ArrayLike | None = None,
) -> NullSpaceCleaner:
    """Fit the desired predictor by least squares and make its cleaner.

    One pass over the shards collects centred co-moments; everything else is a function of
    them. Where the scaled Gram matrix is ill-conditioned (above 1e5) a second pass factors the
    records themselves. Records with a missing desired label are left out.

    Parameters
    ----------
    shards
        Training records with at least one desired variable (none with `desired_predictor`).
    utility_budget
        Largest loss of utility per record, in squared units of the desired prediction.
    budget
        "total", or "per_label": the budget is multiplied by the number of desired labels.
    rule
        "greedy": the paper's knapsack. "kkt": maximises what Theorem 2 states.
    ridge
        See `solve_least_squares`.
    intercept
        "separate": fitted, kept beside the predictor, not cleaned. "augmented": a column of
        ones is appended to each record and cleaned along, as in the paper's experiments; the
        released record has one feature more. "none".
    centre
        Clean deviations from the training mean; by default only with a separate intercept.
    representative
        "closest" (the paper's) or "likely"; see `NullSpaceCleaner.from_predictor`.
    on_unrepresentable
        "fail" or "withhold"; see `NullSpaceCleaner.from_predictor`.
    label_coding
        Values of categorical targets: "zero_one" or "plus_minus".
    desired_predictor : (n_features, n_desired), optional
        Use this predictor instead of fitting one; the pass then only finds mean and covariance.
    desired_intercept : (n_desired,), optional
        Its intercept.

    Returns
    -------
    NullSpaceCleaner

    Raises
    ------
    RankError
        If the features are dependent to the precision of float64 and ``ridge = 0``.
    InputError
        If there is no desired variable, or features are not finite.
    OptionError
        If options contradict one another or are out of range.

    Warns
    -----
    PrivacyWarning
        If a variable is both desired and confidential: no privacy is possible.

    References
    ----------
    Xu et al. 2017, Figure 2; methods of fitting: section "Experimental results".

    Examples
    --------
    >>> x = np.array([[3.0, 1.0], [4.0, 2.0], [5.0, 1.0], [6.0, 5.0]])
    >>> from privpipe import Records
    >>> cleaner = fit_null_space_cleaner(
    ...     Records(x, desired=x[:, 0] - x[:, 1]), utility_budget=0.01
    ... )
    >>> loss = (cleaner.predict(cleaner.apply(x)) - cleaner.predict(x)) ** 2
    >>> bool((loss <= 0.01).all())
    True

    Principal components: their loadings are the linear operator that the ally starts with.

    >>> loadings = np.linalg.svd(x - x.mean(axis=0))[2][:1].T
    >>> cleaner = fit_null_space_cleaner(
    ...     Records(x), utility_budget=0.0, desired_predictor=loadings
    ... )
    >>> np.allclose(cleaner.apply(x) @ loadings, x @ loadings)
    True
    """
    check_shards(shards)
    check_budget(utility_budget)
    choices = {
        "rule": rule,
        "budget": budget,
        "ridge": ridge,
        "intercept": intercept,
        "representative": representative,
        "on_unrepresentable": on_unrepresentable,
        "label_coding": label_coding,
    }
    given = {"name": "null_space", "utility_budget": utility_budget, **choices}
    make_options(NullSpaceOptions, given, "null_space")
    learned = learn_predictors(
        shards,
        desired=Given.of(desired_predictor, desired_intercept),
        confidential=None,
        targeted=False,
        ridge=ridge,
        intercept=intercept,
        centre=centre,
        representative=representative,
        coding=label_coding,
    )
    return NullSpaceCleaner.from_predictor(
        learned.desired,
        utility_budget=utility_budget,
        budget=budget,
        rule=rule,
        representative=representative,
        augmented=intercept == "augmented",
        on_unrepresentable=on_unrepresentable,
        **learned.for_cleaner(),
    )


def fit_null_space(
    shards: Shards, options: NullSpaceOptions, **files: Mapping[str, FloatArray]
) -> NullSpaceCleaner:
    """Fit from options; `files` holds the arrays of the predictor's file, when one is named."""
    given = files.get("predictor", {})
    return fit_null_space_cleaner(
        shards,
        utility_budget=options.utility_budget,
        budget=options.budget,
        rule=options.rule,
        ridge=options.ridge,
        intercept=options.intercept,
        centre=options.centre,
        representative=options.representative,
        on_unrepresentable=options.on_unrepresentable,
        label_coding=options.label_coding,
        desired_predictor=given.get("coefficients"),
        desired_intercept=given.get("intercept"),
    )
