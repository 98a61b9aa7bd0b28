"""Null-space cleaning, algorithm 2: its options and its fit; both predictors from one pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy.typing as npt
from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.numerics.null_space.knapsack import check_budget
from privpipe.option_values import FORBID
from privpipe.protocols import Method, Role, Shards
from privpipe.sanitizers.arrays import check_shards
from privpipe.sanitizers.names import keep_names
from privpipe.sanitizers.null_space.factored_cleaner import FactoredCleaner
from privpipe.sanitizers.null_space.least_squares import DESIGN_STATISTICS
from privpipe.sanitizers.null_space.linear_cleaner import LinearCleaner
from privpipe.sanitizers.null_space.predictors import (
    UTILITY_PROMISE,
    CleanerOptions,
    Given,
    as_file,
    check_augmented,
    learn_predictors,
    takes_options,
)
from privpipe.sanitizers.null_space.targeted_cleaner import TargetedCleaner
from privpipe.sanitizers.null_space.verbatim_cleaner import PrintedCleaner
from privpipe.sanitizers.options import make_options


@options_dataclass(frozen=True, config=FORBID)
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

    def needs(self) -> frozenset[Role]:
        """The roles whose predictors are not given."""
        return frozenset().union(*self.needs_labels())

    def needs_labels(self) -> tuple[frozenset[Role], ...]:
        """Both predictors are fitted apart, each to the records that have its labels."""
        given: dict[Role, str | None] = {
            "desired": self.predictor,
            "confidential": self.confidential_predictor,
        }
        return tuple(frozenset({role}) for role, file in given.items() if not file)

    def files(self) -> Mapping[str, str]:
        """Of both predictors."""
        given = super().files()
        if not self.confidential_predictor:
            return given
        return {**given, "confidential_predictor": self.confidential_predictor}

    def may_factor(self) -> bool:
        """The coefficients as printed do not make records of coordinates."""
        return self.variant != "printed"

    def factor(self, fitted: Any, dtype: npt.DTypeLike) -> FactoredCleaner:
        """Releases coordinates."""
        return FactoredCleaner.of(fitted, dtype)


@keep_names
@takes_options(TargetedOptions, without=("name", "predictor", "confidential_predictor"))
def fit_targeted_cleaner(
    shards: Shards,
    *,
    desired_predictor: npt.ArrayLike | None = None,
    desired_intercept: npt.ArrayLike | None = None,
    confidential_predictor: npt.ArrayLike | None = None,
    confidential_intercept: npt.ArrayLike | None = None,
    **choices: Any,
) -> LinearCleaner:
    """Fit both predictors in one pass and make the cleaner aimed at the confidential one.

    Each predictor is fitted to the records whose labels for it are complete.

    Parameters
    ----------
    shards
        Training records with desired and confidential variables (not needed for a predictor
        that is given).
    **choices
    desired_predictor, desired_intercept
        See `fit_null_space_cleaner`.
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
    check_budget(choices["utility_budget"])
    given = {"name": "null_space_targeted", **choices}
    return fit_targeted(
        shards,
        make_options(TargetedOptions, given, "null_space_targeted"),
        predictor=as_file(desired_predictor, desired_intercept),
        confidential_predictor=as_file(confidential_predictor, confidential_intercept),
    )


def fit_targeted(
    shards: Shards, options: TargetedOptions, **files: Mapping[str, npt.ArrayLike]
) -> LinearCleaner:
    """Fit from options; `files` holds the arrays of the predictors' files that are named."""
    check_shards(shards)
    learned = learn_predictors(
        shards,
        options,
        desired=Given.of_file(files.get("predictor")),
        confidential=Given.of_file(files.get("confidential_predictor")),
        targeted=True,
    )
    assert learned.confidential is not None, "it was asked for"
    if options.variant == "printed":
        return PrintedCleaner.from_predictors(
            learned.desired,
            learned.confidential,
            utility_budget=options.utility_budget,
            budget=options.budget,
            intercept=learned.intercept,
            augmented=options.intercept == "augmented",
            on_unrepresentable=options.on_unrepresentable,
        )
    return TargetedCleaner.from_predictors(
        learned.desired,
        learned.confidential,
        utility_budget=options.utility_budget,
        variant=options.variant,
        budget=options.budget,
        representative=options.representative,
        augmented=options.intercept == "augmented",
        on_unrepresentable=options.on_unrepresentable,
        **learned.for_cleaner(),
    )


METHOD = Method(
    name="null_space_targeted",
    options=TargetedOptions,
    releases="rows",
    fit=fit_targeted,
    source="Xu et al. 2017, Cleaning the Null Space, algorithm 2",
    maps=(TargetedCleaner, PrintedCleaner, FactoredCleaner),
    promise=UTILITY_PROMISE,
    statistics=DESIGN_STATISTICS,
    check=check_augmented,
)
