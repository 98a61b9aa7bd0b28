"""Null-space cleaning, algorithm 1: its options and its fit.

Xu et al. 2017, Cleaning the Null Space, Figure 2. The map itself is
`privpipe.sanitizers.null_space.null_space_cleaner.NullSpaceCleaner`.
"""

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
from privpipe.sanitizers.null_space.null_space_cleaner import NullSpaceCleaner
from privpipe.sanitizers.null_space.predictors import (
    UTILITY_PROMISE,
    CleanerOptions,
    Given,
    as_file,
    check_augmented,
    learn_predictors,
    takes_options,
)
from privpipe.sanitizers.options import make_options


@options_dataclass(frozen=True, config=FORBID)
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

    def needs(self) -> frozenset[Role]:
        """The desired role, unless its predictor is given."""
        return frozenset() if self.predictor else frozenset({"desired"})

    def needs_labels(self) -> tuple[frozenset[Role], ...]:
        """Records without what the predictor is fitted to are left out."""
        return () if self.predictor else (frozenset({"desired"}),)

    def may_factor(self) -> bool:
        """Coordinates say all."""
        return True

    def factor(self, fitted: Any, dtype: npt.DTypeLike) -> FactoredCleaner:
        """Releases coordinates."""
        return FactoredCleaner.of(fitted, dtype)


@keep_names
@takes_options(NullSpaceOptions, without=("name", "predictor"))
def fit_null_space_cleaner(
    shards: Shards,
    *,
    desired_predictor: npt.ArrayLike | None = None,
    desired_intercept: npt.ArrayLike | None = None,
    **choices: Any,
) -> NullSpaceCleaner:
    """Fit the desired predictor by least squares and make its cleaner.

    One pass over the shards collects centred co-moments; everything else is a function of
    them. Where the scaled Gram matrix is ill-conditioned (above 1e5) a second pass factors the
    records themselves. Records with a missing desired label are left out.

    Parameters
    ----------
    shards
        Training records with at least one desired variable (none with `desired_predictor`).
    **choices
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
    check_budget(choices["utility_budget"])
    options = make_options(NullSpaceOptions, {"name": "null_space", **choices}, "null_space")
    return fit_null_space(shards, options, predictor=as_file(desired_predictor, desired_intercept))


def fit_null_space(
    shards: Shards, options: NullSpaceOptions, **files: Mapping[str, npt.ArrayLike]
) -> NullSpaceCleaner:
    """Fit from options; `files` holds the arrays of the predictor's file, when one is named."""
    check_shards(shards)
    learned = learn_predictors(
        shards,
        options,
        desired=Given.of_file(files.get("predictor")),
        confidential=None,
        targeted=False,
    )
    return NullSpaceCleaner.from_predictor(
        learned.desired,
        utility_budget=options.utility_budget,
        budget=options.budget,
        rule=options.rule,
        representative=options.representative,
        augmented=options.intercept == "augmented",
        on_unrepresentable=options.on_unrepresentable,
        **learned.for_cleaner(),
    )


METHOD = Method(
    name="null_space",
    options=NullSpaceOptions,
    releases="rows",
    fit=fit_null_space,
    source="Xu et al. 2017, Cleaning the Null Space, algorithm 1",
    maps=(NullSpaceCleaner, FactoredCleaner),
    promise=UTILITY_PROMISE,
    statistics=DESIGN_STATISTICS,
    check=check_augmented,
)
