"""Null-space cleaning, algorithm 1: options, fit, and the frozen cleaner.

Xu et al. 2017, Cleaning the Null Space: subtract from each record what a known linear
predictor does not need, within a utility budget per record. Low-rank form throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.errors import GuaranteeError, InputError, OptionError
from privpipe.numerics.knapsack import check_budget, shrink_coordinates
from privpipe.numerics.labels import Coding, code_targets, count_targets
from privpipe.numerics.lowrank import factor_predictor, lift_likely, measure_rounding_margin
from privpipe.numerics.moments import CoMoments, solve_least_squares
from privpipe.protocols import (
    FloatArray,
    Guarantee,
    RecordStream,
    Role,
    Shard,
    Shards,
    ShardSchema,
)

__all__ = ["NullSpaceCleaner", "NullSpaceOptions", "fit_null_space_cleaner"]

Intercept = Literal["separate", "augmented", "none"]
Representative = Literal["closest", "likely"]


@options_dataclass(frozen=True, config=ConfigDict(extra="forbid", hide_input_in_errors=True))
class NullSpaceOptions:
    """Options of ``[method] name = "null_space"``."""

    name: Literal["null_space"]
    utility_budget: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="Largest loss of utility per record, in squared units of the desired "
            "prediction; 0 removes the exact null space only.",
        ),
    ]
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
class NullSpaceCleaner:
    """Keeps of each record only what its desired prediction needs.

    With ``A = U S W^T`` the coordinates ``b = E^T (x - centre)``, ``E = U S``, carry the whole
    desired prediction; they are shrunk within the budget and lifted back to a record:
    ``x~ = centre + D shrink(b)``. Two records of equal desired prediction are released equal.

    Parameters
    ----------
    predictor : (n_features_out, n_desired)
        ``A``; its last row belongs to the appended column of ones when `augmented`.
    intercept : (n_desired,)
        Added by the ally; it takes no part in cleaning.
    encoder, lift : (n_features_out, rank)
        ``E`` and ``D``.
    centre : (n_features_out,)
        Zero when records are cleaned as they are.
    utility_budget
        In squared units of the desired prediction.
    representative
        "closest" or "likely".
    augmented
        Whether a column of ones is appended to the record and cleaned along.

    Examples
    --------
    The toy example of the paper, where the wanted label is ``x1 - x2``:

    >>> cleaner = NullSpaceCleaner.from_predictor(np.array([[1.0], [-1.0]]), utility_budget=0)
    >>> cleaner.apply(np.array([[3.0, 1.0], [4.0, 2.0], [5.0, 1.0], [6.0, 5.0]])).round(12)
    array([[ 1. , -1. ],
           [ 1. , -1. ],
           [ 2. , -2. ],
           [ 0.5, -0.5]])
    """

    kind: ClassVar[str] = "null_space_cleaner"
    reads: ClassVar[Role] = "features"

    predictor: FloatArray
    intercept: FloatArray
    encoder: FloatArray
    lift: FloatArray
    centre: FloatArray
    utility_budget: float
    representative: str
    augmented: bool

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
    ) -> NullSpaceCleaner:
        """Make a cleaner for a known predictor.

        Parameters
        ----------
        desired_predictor : (n_features, n_desired) or (n_features,)
            The linear operator that the desired predictor starts with.
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

        Raises
        ------
        OptionError
            If the budget is negative or not finite, or "likely" has no covariance.
        InputError
            If the predictor is not a finite, non-zero matrix, or shapes do not match.
        """
        check_budget(utility_budget)
        predictor = _as_predictor(desired_predictor)
        encoder, lift = factor_predictor(predictor)
        if representative == "likely":
            if covariance is None:
                raise OptionError(
                    'representative = "likely" needs a covariance.',
                    remedy="Give the covariance of the training features.",
                )
            lift = lift_likely(encoder, _of_shape(covariance, (len(predictor),) * 2, "covariance"))
        n_desired = predictor.shape[1]
        return cls(
            predictor=predictor,
            intercept=_of_shape(
                np.zeros(n_desired) if intercept is None else intercept, (n_desired,), "intercept"
            ),
            encoder=encoder,
            lift=lift,
            centre=_of_shape(
                np.zeros(len(predictor)) if centre is None else centre, (len(predictor),), "centre"
            ),
            utility_budget=float(utility_budget),
            representative=representative,
            augmented=augmented,
        )

    @property
    def n_features_in(self) -> int:
        return len(self.predictor) - int(self.augmented)

    @property
    def n_features_out(self) -> int:
        return len(self.predictor)

    @property
    def guarantee(self) -> Guarantee:
        """Bound on ``|A^T x~ - A^T x|^2`` of every record."""
        if self.utility_budget == 0:
            unit_roundoff = float(np.finfo(np.float32).eps) / 2
            bound = np.linalg.norm(self.predictor) * (
                unit_roundoff + 4 * self.n_features_out * 2.0**-53
            )
            return Guarantee(
                kind="exact_up_to_rounding",
                number=float(bound),
                unit="error of the desired prediction per unit of |x| + |x~| (float32 release)",
                scope="every record",
                theorem="Xu et al. 2017, Theorem 1 with budget 0: only the null space is removed",
            )
        return Guarantee(
            kind="utility_bound",
            number=self.utility_budget,
            unit="squared units of the desired prediction",
            scope="every record",
            theorem="Xu et al. 2017, Theorem 1, with a margin for rounding",
        )

    def apply(self, x: npt.ArrayLike, stream: RecordStream | None = None) -> FloatArray:
        """Clean records.

        Parameters
        ----------
        x : (n_records, n_features_in) or (n_features_in,)
            Records, or one record.
        stream
            Ignored: the map draws nothing.

        Returns
        -------
        released : (n_records, n_features_out) or (n_features_out,)
            In the floating dtype of `x`; float64 for integers.

        Raises
        ------
        InputError
            If the shape is wrong or values are not finite; the message counts them.
        GuaranteeError
            If rounding to the dtype alone may cost some record more than a positive budget.

        Notes
        -----
        Guarantee: ``|A^T (x~ - x)|**2 <= utility_budget`` for every record as stored, checked
        in exact arithmetic. The budget spent is smaller by a margin that covers the rounding
        of the stored record and of the dot products (see `measure_rounding_margin`).

        References
        ----------
        Xu et al. 2017, Figure 2.
        """
        one = np.ndim(x) == 1
        records, dtype = self._check(np.atleast_2d(np.asarray(x)))
        coordinates = records @ self.encoder - self.centre @ self.encoder
        kept = shrink_coordinates(coordinates, self._budgets(records, coordinates, dtype))
        released: FloatArray = (self.centre + kept @ self.lift.T).astype(dtype)
        return released[0] if one else released

    def predict(self, released: npt.ArrayLike) -> FloatArray:
        """Desired prediction of released (or augmented) records, (n_records, n_desired)."""
        x = np.asarray(released, np.float64)
        prediction: FloatArray = x @ self.predictor + self.intercept
        return prediction

    def _check(self, x: npt.NDArray[Any]) -> tuple[FloatArray, np.dtype[Any]]:
        """Return float64 records, with ones appended when augmented, and the dtype to release."""
        if x.ndim != 2 or x.shape[1] != self.n_features_in:
            raise InputError(
                f"Records of shape {x.shape} do not fit a cleaner of {self.n_features_in} "
                "features.",
                remedy=f"Give an array of shape (n_records, {self.n_features_in}).",
                code="shape",
            )
        dtype = x.dtype if np.issubdtype(x.dtype, np.floating) else np.dtype(np.float64)
        records = x.astype(np.float64)
        bad = int(np.count_nonzero(~np.isfinite(records).all(axis=1)))
        if bad:
            raise InputError(
                f"{bad} of {len(records)} records hold values that are not finite.",
                remedy="Remove or impute them before cleaning.",
                code="nonfinite",
            )
        if self.augmented:
            records = np.column_stack([records, np.ones(len(records))])
        return records, dtype

    def _budgets(
        self, records: FloatArray, coordinates: FloatArray, dtype: np.dtype[Any]
    ) -> FloatArray:
        """Budget of each record after the rounding margin."""
        if self.utility_budget == 0:
            return np.zeros(len(records))
        centre_norm = float(np.linalg.norm(self.centre))
        released_norm = centre_norm + np.abs(coordinates) @ np.linalg.norm(self.lift, axis=0)
        margin = measure_rounding_margin(
            float(np.linalg.norm(self.predictor)),
            np.sqrt(np.einsum("ij,ij->i", records, records)) + centre_norm,
            released_norm,
            self.n_features_out,
            dtype,
        )
        root = np.sqrt(self.utility_budget)
        lost = int(np.count_nonzero(margin > root))
        if lost:
            raise GuaranteeError(
                f"Rounding to {dtype} alone may cost {lost} of {len(records)} records more than "
                "the utility budget.",
                remedy="Release float64 records, scale the features, or raise the budget.",
                code="unrepresentable",
            )
        budgets: FloatArray = (root - margin) ** 2
        return budgets


def fit_null_space_cleaner(
    shards: Shards,
    *,
    utility_budget: float,
    ridge: float = 0.0,
    intercept: Intercept = "separate",
    centre: bool | None = None,
    representative: Representative = "closest",
    label_coding: Coding = "zero_one",
    desired_predictor: npt.ArrayLike | None = None,
    desired_intercept: npt.ArrayLike | None = None,
) -> NullSpaceCleaner:
    """Fit the desired predictor by least squares and make its cleaner.

    One pass over the shards collects centred co-moments; everything else is a function of
    them. Records with a missing desired label are left out.

    Parameters
    ----------
    shards
        Training records with at least one desired variable (none with `desired_predictor`).
    utility_budget
        Largest loss of utility per record, in squared units of the desired prediction.
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
        If the features are dependent and ``ridge = 0``.
    InputError
        If there is no desired variable, or features are not finite.
    OptionError
        If options contradict one another or are out of range.

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
    """
    check_budget(utility_budget)
    centre = intercept == "separate" if centre is None else centre
    if intercept == "augmented" and (centre or representative == "likely"):
        raise OptionError(
            'intercept = "augmented" cleans records as they are.',
            remedy='Leave centre unset and representative = "closest", or use "separate".',
        )
    schema = shards.schema
    fitted = desired_predictor is None
    if fitted and not schema.desired:
        raise InputError(
            "There is no desired variable to fit a predictor to.",
            remedy="Name one in desired, or give a predictor.",
        )
    make = partial(CoMoments.empty, schema.n_features)
    moments = (
        shards.reduce(partial(summarise_design, schema=schema, coding=label_coding, targets=fitted))
        if fitted or centre or representative == "likely"
        else make()
    )
    if fitted:
        found = solve_least_squares(
            moments,
            schema.n_features,
            ridge=ridge,
            with_intercept=intercept != "none",
            names=schema.feature_names,
        )
        a, b = found.coefficients, found.intercept
    else:
        a = _as_predictor(desired_predictor)
        b = np.zeros(a.shape[1]) if desired_intercept is None else np.asarray(desired_intercept)
    if intercept == "augmented":
        a, b = np.vstack([a, b]), np.zeros_like(b)
    n = schema.n_features
    return NullSpaceCleaner.from_predictor(
        a,
        utility_budget=utility_budget,
        intercept=b,
        centre=moments.mean[:n] if centre else None,
        representative=representative,
        covariance=moments.scatter[:n, :n] / max(moments.count, 1)
        if representative == "likely"
        else None,
        augmented=intercept == "augmented",
    )


def fit_null_space(
    shards: Shards, options: NullSpaceOptions, **files: Mapping[str, FloatArray]
) -> NullSpaceCleaner:
    """Fit from options; `files` holds the arrays of the predictor's file, when one is named."""
    given = files.get("predictor", {})
    return fit_null_space_cleaner(
        shards,
        utility_budget=options.utility_budget,
        ridge=options.ridge,
        intercept=options.intercept,
        centre=options.centre,
        representative=options.representative,
        label_coding=options.label_coding,
        desired_predictor=given.get("coefficients"),
        desired_intercept=given.get("intercept"),
    )


def summarise_design(
    shard: Shard, *, schema: ShardSchema, coding: Coding, targets: bool = True
) -> CoMoments:
    """Co-moments of ``[features, desired targets]`` over the records that are complete."""
    x = shard.features
    bad = int(np.count_nonzero(~np.isfinite(x).all(axis=1)))
    if bad:
        raise InputError(
            f"{bad} of {len(x)} training records hold features that are not finite.",
            remedy="Remove or impute them before training.",
            code="nonfinite",
        )
    if not targets:
        return CoMoments.of(x)
    y = code_targets(shard.desired, schema.desired, coding)
    complete = ~np.isnan(y).any(axis=1)
    rows = np.empty((int(complete.sum()), schema.n_features + count_targets(schema.desired)))
    rows[:, : schema.n_features] = x[complete]
    rows[:, schema.n_features :] = y[complete]
    return CoMoments.of(rows)


def _as_predictor(values: npt.ArrayLike | None) -> FloatArray:
    a = np.asarray(values, np.float64)
    return a[:, None] if a.ndim == 1 else a


def _of_shape(values: npt.ArrayLike, shape: tuple[int, ...], name: str) -> FloatArray:
    array = np.asarray(values, np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise InputError(
            f"{name} has shape {array.shape} or is not finite.",
            remedy=f"Give a finite array of shape {shape}.",
        )
    return array
