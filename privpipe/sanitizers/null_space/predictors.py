"""What a cleaner of the null space is made of: predictors fitted or given, mean, covariance.

The options that algorithms 1 and 2 share are here too, once for both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.errors import InputError, OptionError
from privpipe.numerics.moments import Coding, LeastSquares
from privpipe.numerics.null_space.knapsack import check_budget
from privpipe.option_values import FORBID
from privpipe.protocols import FloatArray, Shards, ShardSchema
from privpipe.sanitizers.arrays import as_finite, as_predictor
from privpipe.sanitizers.null_space import least_squares, linear_cleaner
from privpipe.sanitizers.options import MethodOptions, make_options

UTILITY_PROMISE = "loss of utility at most the budget, for every record, in floating point"

T = TypeVar("T", bound=MethodOptions)

Intercept = Literal["separate", "augmented", "none"]

Arrays = Mapping[str, npt.ArrayLike]
"""Of a predictor that is given instead of fitted, as its file holds them."""


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
        linear_cleaner.BudgetBasis,
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
            description="separate: fitted and stored apart. augmented: a column of ones is "
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
        linear_cleaner.Representative,
        Field(
            description="Which record carries the released coordinates: the closest to the "
            "centre (the paper's) or the most likely under the training covariance."
        ),
    ] = "closest"
    on_unrepresentable: Annotated[
        linear_cleaner.OnUnrepresentable,
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
    if coefficients is None:
        return {}
    return {"coefficients": coefficients} | ({} if intercept is None else {"intercept": intercept})


def take_options(kind: type[T], name: str, choices: Mapping[str, Any]) -> T:
    """Options of a method from the keywords of its fit.

    Raises
    ------
    OptionError
        If they are wrong, or name a file: from Python a predictor is given as arrays.
    """
    check_budget(choices.get("utility_budget", 0.0))
    options = make_options(kind, {"name": name, **choices}, name)
    if files := sorted(options.files()):
        raise OptionError(
            f"{', '.join(files)} names a file.",
            remedy="Give the coefficients themselves: desired_predictor=..., "
            "confidential_predictor=...",
        )
    return options


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
    desired: Arrays | None,
    confidential: Arrays | None,
    targeted: bool,
) -> Learned:
    """Fit or take the predictors; one pass collects all that the records must say.

    Parameters
    ----------
    shards
        Training records.
    options
        How they are fitted, and what the cleaner needs beside them.
    desired, confidential
        Predictors to use instead of fitting them: ``coefficients`` (n_features, n_predictions), and
        ``intercept`` (n_predictions,) where there is one.
    targeted
        Whether the confidential predictor is needed.

    Raises
    ------
    RankError, InputError, OptionError
        See `fit_null_space_cleaner`.
    """
    check_augmented(options, shards.schema)
    centre, likely = options.centres, options.representative == "likely"
    given: dict[least_squares.TargetRole, Arrays | None] = {"desired": desired}
    if targeted:
        given["confidential"] = confidential
    # What is given needs no labels.
    roles = tuple(role for role, arrays in given.items() if not arrays)
    schema = shards.schema
    moments = least_squares.DesignMoments(schema.n_features, {})
    # A given predictor without centre or covariance needs no record at all.
    if roles or centre or likely:
        moments = shards.reduce(
            partial(
                least_squares.summarise_design,
                schema=schema,
                coding=options.label_coding,
                roles=roles,
            )
        )
        moments.say_incomplete()
    fit = partial(
        least_squares.fit_predictor,
        shards,
        moments=moments,
        coding=options.label_coding,
        ridge=options.ridge,
        with_intercept=options.intercept != "none",
    )
    n = schema.n_features
    found = {
        role: _take(arrays, n, role) if arrays else fit(role) for role, arrays in given.items()
    }
    target, secret = found["desired"], found.get("confidential")
    augmented = options.intercept == "augmented"
    overall = moments.of_role("desired" if "desired" in roles else None)
    return Learned(
        desired=_list_rows(target, augmented),
        confidential=None if secret is None else _list_rows(secret, augmented),
        intercept=np.zeros_like(target.intercept) if augmented else target.intercept,
        centre=overall.mean[:n] if centre else None,
        covariance=overall.scatter[:n, :n] / max(overall.count, 1) if likely else None,
        condition=target.condition,
        solver=target.solver,
    )


def _list_rows(found: LeastSquares, augmented: bool) -> FloatArray:
    """Coefficients, with the row of the appended column of ones where there is one."""
    return np.vstack([found.coefficients, *([found.intercept] if augmented else [])])


def _take(arrays: Arrays, n_features: int, role: str) -> LeastSquares:
    a = as_predictor(arrays["coefficients"], f"{role} predictor")
    if len(a) != n_features:
        raise InputError(
            f"The {role} predictor has {len(a)} rows, the records {n_features} features.",
            remedy=f"Give coefficients of shape ({n_features}, n_predictions).",
            code="predictor",
        )
    intercept = as_finite(
        arrays.get("intercept"), a.shape[1:], f"intercept of the {role} predictor"
    )
    return LeastSquares(a, intercept, 0.0, "given")
