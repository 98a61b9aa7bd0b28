"""Null-space cleaning, algorithm 2: aimed at a known confidential predictor.

Xu et al. 2017, Cleaning the Null Space, Figure 3: the budget is spent first where the confidential
prediction changes most per unit of utility.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import numpy.typing as npt

from privpipe.described import described, facts_of_map
from privpipe.errors import OptionError
from privpipe.numerics.null_space.factorisation import order_by_gain, tilt_lift
from privpipe.protocols import FloatArray
from privpipe.sanitizers.arrays import as_finite, as_predictor, check_confidential
from privpipe.sanitizers.null_space.linear_cleaner import (
    BudgetScope,
    OnUnrepresentable,
    Representative,
    TargetRelease,
    factor_lift,
    scale_budget,
)

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
        budget: BudgetScope = "total",
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
            lift = tilt_lift(predictor, lift, confidential)
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
