"""What a cleaner of the null space is made of: predictors fitted or given, mean, covariance.

The options that algorithms 1 and 2 share are here too, once for both, and so is what makes the
keywords of a fit from them (`takes_options`): name, default and description are written once.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Annotated, Any, ClassVar, Literal, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass
from pydantic.fields import FieldInfo

from privpipe.errors import InputError, OptionError
from privpipe.numerics.regression.moments import Coding, LeastSquares
from privpipe.option_values import FORBID
from privpipe.protocols import FloatArray, Shards, ShardSchema
from privpipe.sanitizers.arrays import as_finite, as_predictor
from privpipe.sanitizers.null_space.least_squares import (
    DesignMoments,
    TargetRole,
    fit_predictor,
    summarise_design,
)
from privpipe.sanitizers.null_space.linear_cleaner import (
    BudgetScope,
    OnUnrepresentable,
    Representative,
)
from privpipe.sanitizers.options import MethodOptions

UTILITY_PROMISE = "loss of utility at most the budget, for every record, in floating point"

Intercept = Literal["separate", "augmented", "none"]


@options_dataclass(frozen=True, config=FORBID)
class CleanerOptions(MethodOptions):
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

    @property
    def centres(self) -> bool:
        """Whether deviations from the training mean are cleaned."""
        return self.intercept == "separate" if self.centre is None else self.centre

    weighs: ClassVar[bool] = True

    def files(self) -> Mapping[str, str]:
        """Of the predictor, where one is given."""
        return {"predictor": self.predictor} if self.predictor else {}


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
    def of_file(cls, arrays: Mapping[str, npt.ArrayLike] | None) -> Given | None:
        """From the arrays of a predictor's file."""
        found = arrays or {}
        return cls.of(found.get("coefficients"), found.get("intercept"))


@dataclass(frozen=True, eq=False)
class Learned:
    """What the shards reported; rows of the predictors include the ones' when augmented.

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


def as_file(
    coefficients: npt.ArrayLike | None, intercept: npt.ArrayLike | None
) -> dict[str, npt.ArrayLike]:
    """A predictor of the caller's as a file would bring it; empty when there is none."""
    given = {"coefficients": coefficients, "intercept": intercept}
    return {name: values for name, values in given.items() if values is not None}


def check_augmented(options: CleanerOptions, schema: ShardSchema) -> None:
    """Raise OptionError if a column of ones is to be cleaned along, and deviations too."""
    likely = options.representative == "likely"
    if options.intercept == "augmented" and (options.centres or likely):
        raise OptionError(
            'intercept = "augmented" cleans records as they are.',
            remedy='Leave centre unset and representative = "closest", or use "separate".',
        )


def learn_predictors(
    shards: Shards,
    options: CleanerOptions,
    *,
    desired: Given | None,
    confidential: Given | None,
    targeted: bool,
) -> Learned:
    """Fit or take the predictors; one pass collects all that is asked of the records.

    Parameters
    ----------
    shards
        Training records.
    options
        How they are fitted, and what the cleaner needs beside them.
    desired, confidential
        Predictors to use instead of fitting them.
    targeted
        Whether the confidential predictor is needed.

    Raises
    ------
    RankError, InputError, OptionError
        See `fit_null_space_cleaner`.
    """
    check_augmented(options, shards.schema)
    centre, likely = options.centres, options.representative == "likely"
    roles: tuple[TargetRole, ...] = ()
    if desired is None:
        roles += ("desired",)
    if targeted and confidential is None:
        roles += ("confidential",)
    schema = shards.schema
    moments = DesignMoments(schema.n_features, {})
    if roles or centre or likely:
        moments = shards.reduce(
            partial(summarise_design, schema=schema, coding=options.label_coding, roles=roles)
        )
        moments.say_incomplete()
    fit = partial(
        fit_predictor,
        shards,
        moments=moments,
        coding=options.label_coding,
        ridge=options.ridge,
        with_intercept=options.intercept != "none",
    )
    wanted = fit("desired") if desired is None else _take(desired, schema.n_features, "desired")
    secret = None
    if targeted:
        secret = (
            fit("confidential")
            if confidential is None
            else _take(confidential, schema.n_features, "confidential")
        )
    augmented = options.intercept == "augmented"
    overall = moments.of_role("desired" if "desired" in roles else None)
    n = schema.n_features
    return Learned(
        desired=_with_ones(wanted) if augmented else wanted.coefficients,
        confidential=None
        if secret is None
        else (_with_ones(secret) if augmented else secret.coefficients),
        intercept=np.zeros_like(wanted.intercept) if augmented else wanted.intercept,
        centre=overall.mean[:n] if centre else None,
        covariance=overall.scatter[:n, :n] / max(overall.count, 1) if likely else None,
        condition=wanted.condition,
        solver=wanted.solver,
    )


def _with_ones(found: LeastSquares) -> FloatArray:
    """Coefficients with the row of the appended column of ones."""
    return np.vstack([found.coefficients, found.intercept])


def _take(given: Given, n_features: int, role: str) -> LeastSquares:
    a = as_predictor(given.coefficients, f"{role} predictor")
    if len(a) != n_features:
        raise InputError(
            f"The {role} predictor has {len(a)} rows, the records {n_features} features.",
            remedy=f"Give coefficients of shape ({n_features}, n_predictions).",
            code="predictor",
        )
    intercept = as_finite(given.intercept, a.shape[1:], f"intercept of the {role} predictor")
    return LeastSquares(a, intercept, 0.0, "given")


P = ParamSpec("P")
R = TypeVar("R")

_WIDTH = 96
_HERE = "    **choices\n"
"""Line of a docstring that gives way to the options, each with its description."""


def takes_options(
    kind: type[Any], *, without: tuple[str, ...]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate ``fit(shards, *, further, **choices)``: `choices` are the fields of its options.

    Parameters
    ----------
    kind
        The options class, a pydantic dataclass.
    without
        Fields that are no keywords: the name of the method, URLs where arrays are taken instead.

    Returns
    -------
    decorate
        The decorated fit refuses other keywords as any function does, by TypeError.
    """
    about: dict[str, FieldInfo] = {
        name: field for name, field in kind.__pydantic_fields__.items() if name not in without
    }

    def decorate(fit: Callable[P, R]) -> Callable[P, R]:
        signature = _sign(inspect.signature(fit), about)

        @wraps(fit)
        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            given = signature.bind(*args, **kwargs)
            return fit(*given.args, **given.kwargs)

        bound.__signature__ = signature  # type: ignore[attr-defined]
        bound.__doc__ = (fit.__doc__ or "").replace(_HERE, "".join(_describe(about)))
        return bound

    return decorate


def _sign(own: inspect.Signature, about: dict[str, FieldInfo]) -> inspect.Signature:
    kinds = inspect.Parameter
    first = [p for p in own.parameters.values() if p.kind is kinds.POSITIONAL_OR_KEYWORD]
    further = [p for p in own.parameters.values() if p.kind is kinds.KEYWORD_ONLY]
    options = [
        kinds(
            name,
            kinds.KEYWORD_ONLY,
            default=kinds.empty if field.is_required() else field.get_default(),
            annotation=field.annotation,
        )
        for name, field in about.items()
    ]
    return own.replace(parameters=[*first, *options, *further])


def _describe(about: dict[str, FieldInfo]) -> Iterator[str]:
    for name, field in about.items():
        yield f"    {name}\n"
        yield textwrap.indent(textwrap.fill(field.description or "", _WIDTH - 8), " " * 8) + "\n"
