"""Null-space cleaning, algorithm 2: map, options, fit and row; both predictors from one pass.

Xu et al. 2017, Cleaning the Null Space, Figure 3: the budget is spent first where the confidential
prediction changes most per unit of utility.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy.typing as npt
from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.described import described, facts_of_map
from privpipe.errors import OptionError
from privpipe.fitted_names import keep_names
from privpipe.numerics.null_space.factorisation import order_by_gain, tilt_lift
from privpipe.option_values import FORBID
from privpipe.protocols import FloatArray, Method, Role, Shards
from privpipe.sanitizers.arrays import as_finite, as_predictor, check_confidential, check_shards
from privpipe.sanitizers.null_space import predictors
from privpipe.sanitizers.null_space.factored_cleaner import FactoredCleaner
from privpipe.sanitizers.null_space.least_squares import DESIGN_STATISTICS
from privpipe.sanitizers.null_space.linear_cleaner import (
    BudgetBasis,
    LinearCleaner,
    OnUnrepresentable,
    Representative,
    TargetRelease,
    factor_lift,
    scale_budget,
)
from privpipe.sanitizers.null_space.verbatim_cleaner import PrintedCleaner

Variant = Literal["null_first", "simultaneous"]


@described(facts_of_map)
@dataclass(frozen=True, eq=False)
class TargetedCleaner(TargetRelease):
    """Algorithm 2: spends the budget where it hurts the confidential predictor most.

    The coordinates of algorithm 1 are turned so that the confidential gain per unit of budget
    is one number g_j per coordinate, the same for all records; they are removed by decreasing
    g. With one desired label it is algorithm 1. Two records of equal desired prediction are
    released equal to the last bit, as by algorithm 1: the confidential predictor chooses basis,
    order and lift, once for all records. For the other fields see `LinearCleaner`.

    Parameters
    ----------
    confidential : (n_features_cleaned, n_confidential)
        ``A_c``, the predictor aimed at.
    gain : (rank,)
        ``g``, decreasing.
    variant
        "null_first" or "simultaneous".

    Examples
    --------
    >>> desired = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> secret = np.array([0.0, 3.0, 1.0])
    >>> cleaner = TargetedCleaner.from_predictors(desired, secret, utility_budget=1.0)
    >>> cleaner.apply(np.array([[2.0, 2.0, 2.0]])).round(6) + 0.0
    array([[2., 1., 0.]])
    """

    kind: ClassVar[str] = "targeted_cleaner"
    theorem: ClassVar[str] = "Xu et al. 2017, Theorem 3"

    rule: str = "in_order"
    _: KW_ONLY
    confidential: FloatArray
    gain: FloatArray
    variant: str = "null_first"

    @classmethod
    def from_predictors(
        cls,
        desired_predictor: npt.ArrayLike,
        confidential_predictor: npt.ArrayLike,
        *,
        utility_budget: float,
        variant: Variant = "null_first",
        intercept: npt.ArrayLike | None = None,
        centre: npt.ArrayLike | None = None,
        representative: Representative = "closest",
        covariance: npt.ArrayLike | None = None,
        augmented: bool = False,
        budget: BudgetBasis = "total",
        on_unrepresentable: OnUnrepresentable = "fail",
        condition: float = 0.0,
        solver: str = "given",
    ) -> TargetedCleaner:
        """Make a cleaner for known predictors.

        Parameters
        ----------
        desired_predictor : (n_features, n_desired) or (n_features,)
            The linear operator that the desired predictor starts with.
        confidential_predictor : (n_features, n_confidential) or (n_features,)
            The linear predictor to protect from.
        utility_budget
            Largest loss of utility per record, in squared units of the desired prediction.
        variant
            "null_first": what the desired predictor does not see is removed first, then its
            coordinates by gain (reproduces the paper's tables). "simultaneous": the released
            record keeps as little of the confidential prediction as its coordinates allow;
            exact for Theorem 4, and e_privacy is largest within that basis.
        intercept, centre, representative, covariance, augmented, budget
            See `NullSpaceCleaner.from_predictor`.
        on_unrepresentable, condition, solver
            See `NullSpaceCleaner.from_predictor`.

        Raises
        ------
        OptionError
            If the budget is negative or not finite, or options contradict one another.
        InputError
            If a predictor is not a finite, non-zero matrix, or shapes do not match.

        Warns
        -----
        PrivacyWarning
            If the confidential predictor is a function of the desired one.
        """
        predictor = as_predictor(desired_predictor)
        confidential = check_confidential(confidential_predictor, predictor)
        if variant not in ("null_first", "simultaneous"):
            raise OptionError(
                f"variant is {variant!r}.",
                remedy='Use "null_first" or "simultaneous"; PrintedCleaner has "printed".',
            )
        if variant == "simultaneous" and representative != "closest":
            raise OptionError(
                'variant = "simultaneous" chooses the representative itself.',
                remedy='Leave representative = "closest", or use "null_first".',
            )
        encoder, lift = factor_lift(predictor, representative, covariance)
        if variant == "simultaneous":
            # Before the coordinates are ordered: the gains depend on the lift.
            lift = tilt_lift(predictor, lift, confidential)
        # One order for all records: Figure 3 needs no sorting per record.
        encoder, lift, gain = order_by_gain(encoder, lift, confidential)
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
            on_unrepresentable=on_unrepresentable,
            condition=condition,
            solver=solver,
            confidential=confidential,
            gain=gain,
            variant=variant,
        )


@options_dataclass(frozen=True, config=FORBID)
class TargetedOptions(predictors.CleanerOptions):
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
        The fields of `TargetedOptions`, but for name and files.
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
    return fit_targeted(
        shards,
        predictors.take_options(TargetedOptions, "null_space_targeted", choices),
        predictor=predictors.as_file(desired_predictor, desired_intercept),
        confidential_predictor=predictors.as_file(confidential_predictor, confidential_intercept),
    )


def fit_targeted(
    shards: Shards, options: TargetedOptions, **files: predictors.Arrays
) -> LinearCleaner:
    """Fit from options; `files` holds the arrays of the predictors' files that are named."""
    check_shards(shards)
    learned = predictors.learn_predictors(
        shards,
        options,
        desired=files.get("predictor"),
        confidential=files.get("confidential_predictor"),
        targeted=True,
    )
    assert learned.confidential is not None, "it is required"
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
    promise=predictors.UTILITY_PROMISE,
    statistics=DESIGN_STATISTICS,
    check=predictors.check_augmented,
)
