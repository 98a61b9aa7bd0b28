"""Null-space cleaning, algorithm 2: its options and its fit; both predictors from one pass."""

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
from privpipe.sanitizers.learned import CleanerOptions, Given, Intercept, learn_predictors
from privpipe.sanitizers.lowrank import (
    BudgetScope,
    LinearCleaner,
    OnUnrepresentable,
    Representative,
)
from privpipe.sanitizers.options import make_options
from privpipe.sanitizers.printed import PrintedCleaner
from privpipe.sanitizers.targeted import TargetedCleaner

__all__ = ["TargetedOptions", "fit_targeted", "fit_targeted_cleaner"]


@options_dataclass(frozen=True, config=ConfigDict(extra="forbid", hide_input_in_errors=True))
class TargetedOptions(CleanerOptions):
    """Options of ``[method] name = "null_space_targeted"``."""

    name: Literal["null_space_targeted"]
    variant: Annotated[
        Literal["null_first", "simultaneous", "printed"],
        Field(
            description="null_first: reproduces the paper's tables. simultaneous: exact for "
            "Theorem 4. printed: the paper's coefficients to the letter, for reproductions "
            "only; it warns, because an adversary who retrains sees nearly everything."
        ),
    ] = "null_first"
    confidential_predictor: Annotated[
        str | None,
        Field(description="File with the confidential predictor, instead of fitting it."),
    ] = None


def fit_targeted_cleaner(
    shards: Shards,
    *,
    utility_budget: float,
    variant: Literal["null_first", "simultaneous", "printed"] = "null_first",
    budget: BudgetScope = "total",
    ridge: float = 0.0,
    intercept: Intercept = "separate",
    centre: bool | None = None,
    representative: Representative = "closest",
    on_unrepresentable: OnUnrepresentable = "fail",
    label_coding: Coding = "zero_one",
    desired_predictor: npt.ArrayLike | None = None,
    desired_intercept: npt.ArrayLike | None = None,
    confidential_predictor: npt.ArrayLike | None = None,
    confidential_intercept: npt.ArrayLike | None = None,
) -> LinearCleaner:
    """Fit both predictors in one pass and make the cleaner aimed at the confidential one.

    Each predictor is fitted to the records whose labels for it are complete.

    Parameters
    ----------
    shards
        Training records with desired and confidential variables (not needed for a predictor
        that is given).
    utility_budget, budget, ridge, intercept, centre, representative, on_unrepresentable,
    label_coding, desired_predictor, desired_intercept
        See `fit_null_space_cleaner`.
    variant
        See `TargetedCleaner.from_predictors`; "printed" gives a `PrintedCleaner` and warns.
    confidential_predictor : (n_features, n_confidential), optional
        Use this predictor instead of fitting one.
    confidential_intercept : (n_confidential,), optional
        Its intercept; it matters only with ``intercept = "augmented"``.

    Returns
    -------
    TargetedCleaner or PrintedCleaner

    Raises
    ------
    RankError, InputError, OptionError
        See `fit_null_space_cleaner`.

    Warns
    -----
    PrivacyWarning
        If no privacy is possible, or with ``variant = "printed"``.

    References
    ----------
    Xu et al. 2017, Figure 3.

    Examples
    --------
    >>> from privpipe import Records
    >>> x = np.random.default_rng(1).normal(size=(50, 4))
    >>> records = Records(x, desired=x[:, :2], confidential=x[:, 1] + x[:, 3])
    >>> cleaner = fit_targeted_cleaner(records, utility_budget=0.1)
    >>> cleaner.gain.round(6)
    array([1., 0.])
    """
    check_shards(shards)
    check_budget(utility_budget)
    choices = {
        "variant": variant,
        "budget": budget,
        "ridge": ridge,
        "intercept": intercept,
        "representative": representative,
        "on_unrepresentable": on_unrepresentable,
        "label_coding": label_coding,
    }
    given = {"name": "null_space_targeted", "utility_budget": utility_budget, **choices}
    make_options(TargetedOptions, given, "null_space_targeted")
    learned = learn_predictors(
        shards,
        desired=Given.of(desired_predictor, desired_intercept),
        confidential=Given.of(confidential_predictor, confidential_intercept),
        targeted=True,
        ridge=ridge,
        intercept=intercept,
        centre=centre,
        representative=representative,
        coding=label_coding,
    )
    assert learned.confidential is not None, "it was asked for"
    if variant == "printed":
        return PrintedCleaner.from_predictors(
            learned.desired,
            learned.confidential,
            utility_budget=utility_budget,
            budget=budget,
            intercept=learned.intercept,
            augmented=intercept == "augmented",
            on_unrepresentable=on_unrepresentable,
        )
    return TargetedCleaner.from_predictors(
        learned.desired,
        learned.confidential,
        utility_budget=utility_budget,
        variant=variant,
        budget=budget,
        representative=representative,
        augmented=intercept == "augmented",
        on_unrepresentable=on_unrepresentable,
        **learned.for_cleaner(),
    )


def fit_targeted(
    shards: Shards, options: TargetedOptions, **files: Mapping[str, FloatArray]
) -> LinearCleaner:
    """Fit from options; `files` holds the arrays of the predictors' files that are named."""
    given = files.get("predictor", {})
    secret = files.get("confidential_predictor", {})
    return fit_targeted_cleaner(
        shards,
        utility_budget=options.utility_budget,
        variant=options.variant,
        budget=options.budget,
        ridge=options.ridge,
        intercept=options.intercept,
        centre=options.centre,
        representative=options.representative,
        on_unrepresentable=options.on_unrepresentable,
        label_coding=options.label_coding,
        desired_predictor=given.get("coefficients"),
        desired_intercept=given.get("intercept"),
        confidential_predictor=secret.get("coefficients"),
        confidential_intercept=secret.get("intercept"),
    )
