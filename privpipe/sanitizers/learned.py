"""What a cleaner of the null space is made of: predictors fitted or given, mean, covariance.

The options that algorithms 1 and 2 share stand here too, once for both.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.errors import InputError, OptionError, PrivacyWarning
from privpipe.numerics.labels import Coding
from privpipe.protocols import FloatArray, Shards, ShardSchema
from privpipe.sanitizers.arrays import as_finite, as_predictor
from privpipe.sanitizers.design import (
    DesignMoments,
    TargetRole,
    fit_predictor,
    summarise_design,
)
from privpipe.sanitizers.lowrank import BudgetScope, OnUnrepresentable, Representative

__all__ = ["CleanerOptions", "Given", "Intercept", "Learned", "learn_predictors"]

Intercept = Literal["separate", "augmented", "none"]


@options_dataclass(frozen=True, config=ConfigDict(extra="forbid", hide_input_in_errors=True))
class CleanerOptions:
    """Options that both algorithms of null-space cleaning have."""

    name: str
    utility_budget: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Largest loss of utility per record, in squared units of the desired "
            "prediction; 0 removes the exact null space only.",
        ),
    ]
    budget: Annotated[
        BudgetScope,
        Field(
            description="total: the budget covers all desired labels together. per_label: it is "
            "multiplied by their number, as in the paper's tables."
        ),
    ] = "total"
    ridge: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Added to the unit diagonal of the standardised features' Gram matrix.",
        ),
    ] = 0.0
    intercept: Annotated[
        Intercept,
        Field(
            description="separate: fitted and kept apart. augmented: a column of ones is "
            "appended to the record and cleaned along (the paper's reading). none."
        ),
    ] = "separate"
    centre: Annotated[
        bool | None,
        Field(
            description="Clean deviations from the training mean. Default: true with a separate "
            "intercept, false otherwise."
        ),
    ] = None
    representative: Annotated[
        Representative,
        Field(
            description="Which record carries the released coordinates: the closest to the "
            "centre (the paper's) or the most likely under the training covariance."
        ),
    ] = "closest"
    on_unrepresentable: Annotated[
        OnUnrepresentable,
        Field(
            description="What becomes of a record that rounding alone may carry over a positive "
            "budget: fail, or withhold it as a row of NaN."
        ),
    ] = "fail"
    label_coding: Annotated[
        Coding, Field(description="Values of categorical targets: 0/1 or -1/+1.")
    ] = "zero_one"
    predictor: Annotated[
        str | None,
        Field(
            description="File with the desired predictor (.npy: coefficients; .npz or Zarr "
            "group: coefficients and optionally intercept), instead of fitting it."
        ),
    ] = None


@dataclass(frozen=True, eq=False)
class Given:
    """A predictor that the caller brings instead of having it fitted.

    Parameters
    ----------
    coefficients : (n_features, n_predictions)
    intercept : (n_predictions,), optional
    """

    coefficients: npt.ArrayLike
    intercept: npt.ArrayLike | None = None

    @classmethod
    def of(
        cls, coefficients: npt.ArrayLike | None, intercept: npt.ArrayLike | None
    ) -> Given | None:
        """None when there are no coefficients."""
        return None if coefficients is None else cls(coefficients, intercept)

    @classmethod
    def of_file(cls, arrays: Mapping[str, FloatArray] | None) -> Given | None:
        """From the arrays of a predictor's file."""
        found = arrays or {}
        return cls.of(found.get("coefficients"), found.get("intercept"))


@dataclass(frozen=True, eq=False)
class Learned:
    """What the shards told; rows of the predictors include the ones' when augmented.

    Parameters
    ----------
    desired : (n_features_cleaned, n_desired)
    confidential : (n_features_cleaned, n_confidential), optional
    intercept : (n_desired,)
        Of the desired predictor; zero when it is cleaned along.
    centre : (n_features,), optional
    covariance : (n_features, n_features), optional
    condition, solver
        How the desired predictor was fitted.
    """

    desired: FloatArray
    confidential: FloatArray | None
    intercept: FloatArray
    centre: FloatArray | None
    covariance: FloatArray | None
    condition: float
    solver: str

    def for_cleaner(self) -> dict[str, Any]:
        """Arguments of a cleaner's constructor that do not depend on the algorithm."""
        return {
            "intercept": self.intercept,
            "centre": self.centre,
            "covariance": self.covariance,
            "condition": self.condition,
            "solver": self.solver,
        }


def learn_predictors(
    shards: Shards,
    *,
    desired: Given | None,
    confidential: Given | None,
    targeted: bool,
    ridge: float,
    intercept: Intercept,
    centre: bool | None,
    representative: Representative,
    coding: Coding,
) -> Learned:
    """Fit or take the predictors; one pass collects all that is asked of the records.

    Parameters
    ----------
    shards
        Training records.
    desired, confidential
        Predictors to use instead of fitting them.
    targeted
        Whether the confidential predictor is needed.
    ridge, intercept, centre, representative, coding
        See `fit_null_space_cleaner`.

    Raises
    ------
    RankError, InputError, OptionError
        See `fit_null_space_cleaner`.
    """
    centre = intercept == "separate" if centre is None else centre
    likely = representative == "likely"
    if intercept == "augmented" and (centre or likely):
        raise OptionError(
            'intercept = "augmented" cleans records as they are.',
            remedy='Leave centre unset and representative = "closest", or use "separate".',
        )
    schema, roles = shards.schema, list[TargetRole]()
    if desired is None:
        roles.append("desired")
    if targeted and confidential is None:
        roles.append("confidential")
    _warn_same_label(schema)
    moments = DesignMoments(schema.n_features, {})
    if roles or centre or likely:
        summarise = partial(summarise_design, schema=schema, coding=coding, roles=tuple(roles))
        moments = shards.reduce(summarise)

    def find(role: TargetRole, given: Given | None) -> tuple[FloatArray, FloatArray, float, str]:
        if given is not None:
            return *_take(given, schema.n_features, role), 0.0, "given"
        found = fit_predictor(
            shards, role, moments, coding=coding, ridge=ridge, with_intercept=intercept != "none"
        )
        return found.coefficients, found.intercept, found.condition, found.solver

    a, b, condition, solver = find("desired", desired)
    secret = find("confidential", confidential)[:2] if targeted else None
    a_c = None if secret is None else secret[0]
    if intercept == "augmented":
        a, b = np.vstack([a, b]), np.zeros_like(b)
        a_c = None if secret is None else np.vstack(secret)
    overall = moments.of_role("desired" if "desired" in roles else None)
    n = schema.n_features
    return Learned(
        desired=a,
        confidential=a_c,
        intercept=b,
        centre=overall.mean[:n] if centre else None,
        covariance=overall.scatter[:n, :n] / max(overall.count, 1) if likely else None,
        condition=condition,
        solver=solver,
    )


def _take(given: Given, n_features: int, role: str) -> tuple[FloatArray, FloatArray]:
    a = as_predictor(given.coefficients, f"{role} predictor")
    if len(a) != n_features:
        raise InputError(
            f"The {role} predictor has {len(a)} rows, the records {n_features} features.",
            remedy=f"Give coefficients of shape ({n_features}, n_predictions).",
            code="predictor",
        )
    return a, as_finite(given.intercept, a.shape[1:], f"intercept of the {role} predictor")


def _warn_same_label(schema: ShardSchema) -> None:
    both = {column.name for column in schema.desired} & {
        column.name for column in schema.confidential
    }
    if both:
        warnings.warn(
            f"Desired and confidential share {', '.join(sorted(both))}: whoever gets the wanted "
            "prediction gets the confidential one, and no privacy is possible.",
            PrivacyWarning,
            stacklevel=4,
        )
