"""Null-space cleaning, algorithm 1: map, options, fit and row.

Xu et al. 2017, Cleaning the Null Space, Figure 2: what a known linear predictor does not need is
removed from each record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy.typing as npt
from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.described import described, facts_of_map
from privpipe.fitted_names import keep_names
from privpipe.option_values import FORBID
from privpipe.protocols import Method, Role, Shards
from privpipe.sanitizers.arrays import as_finite, as_predictor, check_shards
from privpipe.sanitizers.null_space import predictors
from privpipe.sanitizers.null_space.factored_cleaner import FactoredCleaner
from privpipe.sanitizers.null_space.least_squares import DESIGN_STATISTICS
from privpipe.sanitizers.null_space.linear_cleaner import (
    BudgetBasis,
    OnUnrepresentable,
    Representative,
    TargetRelease,
    factor_lift,
    scale_budget,
)


@options_dataclass(frozen=True, config=FORBID)
class NullSpaceOptions(predictors.CleanerOptions):
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


@described(facts_of_map)
@dataclass(frozen=True, eq=False)
class NullSpaceCleaner(TargetRelease):
    """Algorithm 1: keeps of each record only what its desired prediction needs.

    With ``A = U S W^T`` the coordinates ``b = W^T A^T (x - centre)`` carry the whole desired
    prediction; they are shrunk within the budget and lifted back to a record:
    ``x~ = centre + D shrink(b)``. Two records of equal desired prediction ``A^T x``, in exact
    arithmetic, are released equal to the last bit, and so withheld: all is made of the
    prediction on a grid. Records are read as float64; wider numbers are rounded to it first.
    For the fields see `LinearCleaner`.

    Examples
    --------
    The toy example of the paper, where the target label is ``x1 - x2``:

    >>> cleaner = NullSpaceCleaner.from_predictor(np.array([[1.0], [-1.0]]), utility_budget=0)
    >>> cleaner.apply(np.array([[3.0, 1.0], [4.0, 2.0], [5.0, 1.0], [6.0, 5.0]])).round(12)
    array([[ 1. , -1. ],
           [ 1. , -1. ],
           [ 2. , -2. ],
           [ 0.5, -0.5]])
    """

    kind: ClassVar[str] = "null_space_cleaner"
    theorem: ClassVar[str] = "Xu et al. 2017, Theorem 1"

    @classmethod
    def from_predictor(
        cls,
        desired_predictor: npt.ArrayLike,
        *,
        utility_budget: float,
        intercept: npt.ArrayLike | None = None,
        centre: npt.ArrayLike | None = None,
        representative: Representative = "closest",
        covariance: npt.ArrayLike | None = None,
        augmented: bool = False,
        rule: Literal["greedy", "kkt"] = "greedy",
        budget: BudgetBasis = "total",
        on_unrepresentable: OnUnrepresentable = "fail",
        condition: float = 0.0,
        solver: str = "given",
    ) -> NullSpaceCleaner:
        """Make a cleaner for a known predictor.

        Parameters
        ----------
        desired_predictor : (n_features, n_desired) or (n_features,)
            The linear operator that the desired predictor starts with: coefficients of a
            linear or multi-label regression, weights of a neural network's first layer
            (n_inputs, n_units), or loadings of principal components (n_features, n_components).
        utility_budget
            Largest loss of utility per record, in squared units of the desired prediction.
            0 removes the exact null space only.
        intercept : (n_desired,), optional
            Stored beside the predictor for those who predict with it.
        centre : (n_features,), optional
            Clean deviations from this record, usually the training mean.
        representative
            "closest": the released record nearest to the centre (the paper's). "likely": the
            most likely one under `covariance`.
        covariance : (n_features, n_features), optional
            Of the training features; only for "likely".
        augmented
            The last row of the predictor belongs to a column of ones, which `apply` appends.
        rule
            "greedy": the paper's knapsack. "kkt": maximises what Theorem 2 states.
        budget
            "total": the budget is for all desired labels together. "per_label": for each of
            them, as in the paper's tables; it is multiplied by their number.
        on_unrepresentable
            "fail", or "withhold" records that rounding alone may carry over the budget.
        condition, solver
            How the predictor was fitted, for the record.

        Raises
        ------
        OptionError
            If the budget is negative or not finite, or "likely" has no covariance.
        InputError
            If the predictor is not a finite, non-zero matrix, or shapes do not match.

        Examples
        --------
        Any predictor that starts with a linear operator will do: what comes after it sees the
        same numbers, up to the budget. The paper's four kinds, each on the same records:

        >>> x = np.random.default_rng(0).normal(size=(200, 5))
        >>> def cleaned(operator):
        ...     return NullSpaceCleaner.from_predictor(operator, utility_budget=0.0).apply(x)

        Linear regression: the coefficients, as `sklearn` has them in ``coef_``.

        >>> from sklearn.linear_model import LinearRegression, LogisticRegression
        >>> ally = LinearRegression().fit(x, x[:, 0] - x[:, 3])
        >>> np.allclose(ally.predict(cleaned(ally.coef_)), ally.predict(x))
        True

        Multi-label classification by regression and thresholds: a column per label.

        >>> labels = np.column_stack([x[:, 0] > 0, x[:, 1] + x[:, 2] > 0])
        >>> ally = LogisticRegression().fit(x, labels @ [1, 2])
        >>> bool((ally.predict(cleaned(ally.coef_.T)) == ally.predict(x)).all())
        True

        A neural network: the weights of its first layer, (n_inputs, n_units).

        >>> layer = np.array([[1.0, 0.0], [1.0, 0.5], [0.0, 2.0], [0.0, 0.0], [-1.0, 1.0]])
        >>> np.allclose(np.tanh(cleaned(layer) @ layer), np.tanh(x @ layer))
        True

        Principal components: the loadings, (n_features, n_components), and their mean as centre.

        >>> from sklearn.decomposition import PCA
        >>> ally = PCA(2).fit(x)
        >>> cleaner = NullSpaceCleaner.from_predictor(
        ...     ally.components_.T, utility_budget=0.0, centre=ally.mean_
        ... )
        >>> np.allclose(ally.transform(cleaner.apply(x)), ally.transform(x))
        True

        In a file for ``[method] predictor``: ``np.savez("ally.npz", coefficients=operator)``.
        """
        predictor = as_predictor(desired_predictor)
        encoder, lift = factor_lift(predictor, representative, covariance)
        n_features, n_desired = predictor.shape
        return cls(
            predictor=predictor,
            intercept=as_finite(intercept, (n_desired,), "intercept"),
            encoder=encoder,
            lift=lift,
            centre=as_finite(centre, (n_features,), "centre"),
            utility_budget=scale_budget(utility_budget, budget, n_desired),
            representative=representative,
            augmented=augmented,
            rule=rule,
            on_unrepresentable=on_unrepresentable,
            condition=condition,
            solver=solver,
        )


@keep_names
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
        The fields of `NullSpaceOptions`, but for name and files.
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
    options = predictors.take_options(NullSpaceOptions, "null_space", choices)
    return fit_null_space(
        shards, options, predictor=predictors.as_file(desired_predictor, desired_intercept)
    )


def fit_null_space(
    shards: Shards, options: NullSpaceOptions, **files: predictors.Arrays
) -> NullSpaceCleaner:
    """Fit from options; `files` holds the arrays of the predictor's file, when one is named."""
    check_shards(shards)
    learned = predictors.learn_predictors(
        shards, options, desired=files.get("predictor"), confidential=None, targeted=False
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
    promise=predictors.UTILITY_PROMISE,
    statistics=DESIGN_STATISTICS,
    check=predictors.check_augmented,
)
