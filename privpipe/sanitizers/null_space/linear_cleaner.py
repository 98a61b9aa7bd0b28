"""What all cleaners of the null space are: a low-rank map within a utility budget per record.

Xu et al. 2017, Cleaning the Null Space: subtract from each record what a known linear predictor
does not need. `NullSpaceCleaner` is algorithm 1, `TargetedCleaner` algorithm 2. Their released
record is made of the target prediction on a grid and of nothing else (`TargetRelease`). That holds
for any budget, closest or likely representative, with or without a column of ones, and also for
which records rounding withholds. Not so what happens before: imputed values are another record.

`FactoredCleaner` releases the few coordinates of each record instead. The map ``x~ = centre + D
b~`` is one to one, so coordinates and basis say exactly what the records say. They do so in a small
share of their bytes (Figure 2, in low-rank form).
"""

import warnings
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, Self, TypedDict

import numpy as np

from privpipe.capabilities import UtilityPromise, UtilitySummary
from privpipe.described import record_map
from privpipe.errors import GuaranteeError, OptionError, PrivacyWarning
from privpipe.fitted_names import giving_back
from privpipe.numerics.null_space import cleaning, knapsack, prediction_grid, rounding_margin
from privpipe.numerics.null_space.factorisation import factor_predictor, lift_likely
from privpipe.protocols import ArrayLike, DTypeLike, FloatArray, Guarantee, RecordStream
from privpipe.sanitizers.arrays import as_finite
from privpipe.sanitizers.feature_map import FeatureMap, as_records, check_finite_records
from privpipe.sanitizers.grounds import say_promise

BudgetBasis = Literal["total", "per_label"]
OnUnrepresentable = Literal["fail", "withhold"]
Representative = Literal["closest", "likely"]


class CleanerChoices(TypedDict, total=False):
    """What cleaners take beside predictors and budget; see `NullSpaceCleaner.from_predictor`."""

    intercept: ArrayLike | None
    centre: ArrayLike | None
    representative: Representative
    covariance: ArrayLike | None
    augmented: bool
    budget: BudgetBasis
    on_unrepresentable: OnUnrepresentable
    condition: float
    solver: str


AT_BUDGET = 1e-3
"""A record counts as at its budget when it spent all but this share of it."""


@dataclass(frozen=True, eq=False)
class LinearCleaner(FeatureMap):
    """A cleaner in low-rank form: ``x~ = centre + D shrink(W^T A^T (x - centre))``.

    What is released, and whether, is a function of the desired prediction ``A^T x`` on a grid and
    of nothing else. It is so bit for bit (`prediction_grid`).

    Parameters
    ----------
    predictor : (n_features_cleaned, n_desired)
        ``A``; its last row belongs to the appended column of ones when `augmented`.
    intercept : (n_desired,)
        Added by the ally; it takes no part in cleaning.
    encoder, lift : (n_features_cleaned, rank)
        ``E`` and ``D``; ``E^T D`` is the identity.
    centre : (n_features_cleaned,)
        Zero when records are cleaned as they are.
    utility_budget
        Per record, in squared units of the desired prediction, over all desired labels.
    representative
        "closest" or "likely".
    augmented
        Whether a column of ones is appended to the record and cleaned along.
    rule
        How the budget is shared out: "greedy", "kkt", or "in_order" of the columns.
    on_unrepresentable
        "fail" or "withhold" records whose rounding alone may cost more than a positive budget.
    condition
        Condition of the scaled Gram matrix that the predictor was fitted from; 0 when given.
    solver
        How it was fitted: "co-moments", "tsqr", or "given".
    """

    theorem: ClassVar[str]

    predictor: FloatArray
    intercept: FloatArray
    encoder: FloatArray
    lift: FloatArray
    centre: FloatArray
    utility_budget: float
    representative: str = "closest"
    augmented: bool = False
    rule: str = "greedy"
    on_unrepresentable: str = "fail"
    condition: float = 0.0
    solver: str = "given"

    def __post_init__(self) -> None:
        knapsack.check_budget(self.utility_budget)

    @property
    def n_features_in(self) -> int:
        return len(self.predictor) - int(self.augmented)

    @property
    def n_features_out(self) -> int:
        return len(self.predictor)

    @property
    def rank(self) -> int:
        """Number of coordinates that carry the whole desired prediction."""
        return int(self.encoder.shape[1])

    @property
    def guarantee(self) -> Guarantee:
        """Bound on ``|A^T x~ - A^T x|^2`` of every record."""
        if self.utility_budget == 0:
            return say_promise("exact", self._rounding_bound(), by=self.theorem)
        return say_promise("budget", self.utility_budget, by=self.theorem)

    @property
    def promise(self) -> UtilityPromise:
        """The predictor and budget that every released record is held to."""
        return UtilityPromise(self.predictor, self.utility_budget)

    @giving_back
    def apply(self, x: ArrayLike, stream: RecordStream | None = None) -> FloatArray:
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
            In the floating dtype of `x`; float64 for integers. NaN where withheld.

        Raises
        ------
        InputError
            If the shape is wrong or values are not finite; the message counts them.
        GuaranteeError
            If rounding to the dtype alone may cost some record more than a positive budget, or
            a record leaves the range of the dtype. Only where `on_unrepresentable` is "fail".

        Notes
        -----
        Guarantee: ``|A^T (x~ - x)|**2 <= utility_budget`` for every record as stored, checked
        in exact arithmetic. The budget spent is smaller by a margin that covers the rounding
        of the stored record and the step of the grid (see `plan_margin`). In float64 a record loses
        less than a millionth of its budget to it while its prediction is below a million times the
        budget's root. In dtypes narrower than float64, records whose margin is wide are rounded
        with care instead (`round_in_balance`).

        References
        ----------
        Xu et al. 2017, Figures 2 and 3.
        """
        return self.apply_measured(x)[0]

    def apply_measured(
        self, x: ArrayLike, stream: RecordStream | None = None, *, overwrite_x: bool = False
    ) -> tuple[FloatArray, UtilitySummary]:
        """Clean records and summarise what it cost; see `apply`.

        Parameters
        ----------
        x, stream
            See `apply`.
        overwrite_x
            `x` is not needed any more: where they fit, released records take its place, which
            saves their memory. It must be finite, which is not looked into again.
        """
        cleaned = self._clean_checked(x, overwrite_x)
        released = cleaned.released
        return released[0] if np.ndim(x) == 1 else released, self._summarise(cleaned)

    def predict(self, released: ArrayLike) -> FloatArray:
        """Desired prediction of released (or augmented) records, (n_records, n_desired)."""
        return np.asarray(np.asarray(released, np.float64) @ self.predictor + self.intercept)

    def _clean_checked(self, x: ArrayLike, overwrite_x: bool) -> cleaning.CleanedBlock:
        records, dtype = as_records(self, x)
        # Of the same shape only: an augmented record is one column wider.
        fits = self.n_features_in == self.n_features_out and records.flags.writeable
        out = records if overwrite_x and fits else None
        cleaned = self._clean(records, dtype, out=out, of_target=False)
        lost = int(np.count_nonzero(cleaned.withheld))
        # Only if some are withheld: a record that is not finite is, and the error names the reason.
        if lost and not overwrite_x:
            check_finite_records(records)
        if lost and self.on_unrepresentable == "fail":
            raise GuaranteeError(
                f"Rounding to {dtype} alone may cost {lost} of {len(records)} records the budget.",
                remedy="Release float64 records, scale the features, raise the budget, or set "
                'on_unrepresentable = "withhold".',
                code="unrepresentable",
            )
        return cleaned

    def _clean(
        self, x: FloatArray, dtype: np.dtype[Any], *, out: FloatArray | None, of_target: bool
    ) -> cleaning.CleanedBlock:
        form = self._form(dtype)
        form = form.of_target() if of_target else form
        # What does not keep the features releases coordinates.
        return cleaning.clean_block(x, form, dtype, lifted=self.keeps_features, out=out)

    def _form(self, dtype: np.dtype[Any]) -> cleaning.LinearForm:
        n, root, found = self.n_features_in, float(np.sqrt(self.utility_budget)), self._defects
        grid = rounding_margin.plan_grid(root, self.predictor.shape[1], n)
        plan = partial(rounding_margin.plan_margin, found, root, grid, dtype)
        # What it takes to correct records of a narrow dtype; float64 needs none.
        return cleaning.LinearForm(
            predictor=self.predictor[:n],
            weights=found.weights[:n],
            grid=grid,
            lift=self.lift,
            # No -0.0 in the centre: a released zero has one sign.
            centre=self.centre + 0.0,
            defects=found,
            root=root,
            rule=self.rule,
            margin=plan(),
            balance=rounding_margin.Balance(self.encoder, plan(storing=False))
            if root and np.finfo(dtype).nmant < np.finfo(np.float64).nmant
            else None,
        )

    @cached_property
    def _defects(self) -> rounding_margin.Defects:
        return rounding_margin.measure_defects(
            self.predictor, self.encoder, self.lift, self.centre, int(self.augmented)
        )

    def _rounding_bound(self) -> float:
        found = self._defects
        # Sums, a float32 release, and the grid that predictions without a budget are rounded to.
        rounding = 4 * found.length * rounding_margin.UNIT + 2.0**-24
        rounding += 2.0**-rounding_margin.DIGITS_UNBOUNDED
        rounding *= found.predictor_norm
        return float(rounding + found.encoder + found.lift @ np.linalg.norm(self.encoder, axis=0))

    def _summarise(self, cleaned: cleaning.CleanedBlock) -> UtilitySummary:
        released = ~cleaned.withheld
        spent = cleaned.spent[released]
        # The rounding margin is not spent; of a record within range it is far below a thousandth.
        at_budget = spent >= self.utility_budget * (1 - AT_BUDGET)
        n_withheld = int(np.count_nonzero(cleaned.withheld))
        total, largest = float(spent.sum()), float(spent.max(initial=0.0))
        n_at_budget = int(np.count_nonzero(at_budget)) if self.utility_budget else 0
        return UtilitySummary(len(released), n_withheld, total, largest, n_at_budget)


def factor_lift(
    predictor: FloatArray,
    *,
    representative: Representative = "closest",
    covariance: ArrayLike | None = None,
    **_: Any,
) -> tuple[FloatArray, FloatArray]:
    """Encoder and lift of a predictor for the record that shall carry its coordinates."""
    encoder, lift = factor_predictor(predictor)
    if encoder.shape[0] == encoder.shape[1] > 1:
        said = "The desired predictions determine the whole record: only the budget removes."
        warnings.warn(said, PrivacyWarning, stacklevel=3)
    if representative == "closest":
        return encoder, lift
    if covariance is None:
        problem = 'representative = "likely" needs a covariance.'
        raise OptionError(problem, remedy="Give the covariance of the training features.")
    return encoder, lift_likely(encoder, as_finite(covariance, (len(predictor),) * 2, "covariance"))


def check_fields(
    predictor: FloatArray,
    utility_budget: float,
    *,
    budget: BudgetBasis = "total",
    intercept: ArrayLike | None = None,
    centre: ArrayLike | None = None,
    covariance: ArrayLike | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Fields of a cleaner that do not depend on its basis, from what a caller chose."""
    del covariance  # the lift is made of it
    n_features, n_desired = predictor.shape
    knapsack.check_budget(utility_budget)
    if budget not in ("total", "per_label"):
        raise OptionError(f"budget is {budget!r}.", remedy='Use "total" or "per_label".')
    return {
        "predictor": predictor,
        "intercept": as_finite(intercept, (n_desired,), "intercept"),
        "centre": as_finite(centre, (n_features,), "centre"),
        "utility_budget": float(utility_budget) * (n_desired if budget == "per_label" else 1),
        **fields,
    }


class TargetRelease(LinearCleaner):
    """The capability `FollowsTarget`.

    Examples
    --------
    >>> from privpipe import NullSpaceCleaner
    >>> cleaner = NullSpaceCleaner.from_predictor(np.array([[1.0], [-1.0]]), utility_budget=0.1)
    >>> x = np.array([[3.0, 1.0], [5.0, 1.0]])
    >>> made = cleaner.release_target(cleaner.predict_target(x), "float64")
    >>> made.tobytes() == cleaner.apply(x).tobytes()
    True
    """

    target_theorem: ClassVar[str] = (
        "null-space cleaning rounds the exact prediction A^T x correctly to a grid and computes "
        "the rest from it, element by element in fixed order"
    )
    """What it rests on, in a sentence."""

    def predict_target(self, x: ArrayLike) -> FloatArray:
        """Values on the grid of the exact predictions ``A^T x``.

        Parameters
        ----------
        x : (n_records, n_features_in)
            Finite.

        Returns
        -------
        values : (n_records, n_desired), float64
        """
        records, _ = as_records(self, x)
        form = self._form(np.dtype(np.float64))  # the grid knows nothing of the dtype
        wide = np.asarray(records, np.float64)
        return prediction_grid.predict_on_grid(wide, form.predictor, form.weights, form.grid)

    def release_target(self, values: FloatArray, dtype: DTypeLike) -> FloatArray:
        """What is released of records of these predictions.

        Parameters
        ----------
        values : (n_records, n_desired)
            On the grid.
        dtype
            Of the released records.

        Returns
        -------
        released : (n_records, n_features_cleaned), in `dtype`
            As readers see them; NaN where withheld.

        Notes
        -----
        The predictions are cleaned as if they were the record, under the identity as predictor. A
        value on the grid is its own rounding, and no other number of a record is at hand.
        """
        x = np.asarray(values, np.float64)
        return self._clean(x, np.dtype(dtype), out=None, of_target=True).released


@record_map
class FactoredCleaner(TargetRelease):
    """Releases the retained coordinates instead of the cleaned record.

    They too are a function of the desired prediction on a grid alone, and readers lift them in a
    fixed order. The same coordinates make the same bytes, alone or in a block.

    For the other fields see `LinearCleaner`.

    Parameters
    ----------
    released_dtype
        Dtype of the records made of the coordinates, "float32" or "float64": the rounding
        margin is for them. Coordinates are float64 always.
    source_kind, source_theorem
        Of the cleaner it was made from.

    Examples
    --------
    >>> from privpipe import NullSpaceCleaner
    >>> cleaner = NullSpaceCleaner.from_predictor(np.array([[1.0], [-1.0]]), utility_budget=0)
    >>> factored = FactoredCleaner.of(cleaner, "float64")
    >>> coordinates = factored.apply(np.array([[3.0, 1.0], [5.0, 1.0]]))
    >>> coordinates.shape, factored.reconstruct(coordinates).round(12).tolist()
    ((2, 1), [[1.0, -1.0], [2.0, -2.0]])
    """

    kind: ClassVar[str] = "factored_cleaner"
    keeps_features: ClassVar[bool] = False
    theorem: ClassVar[str] = ""

    _: KW_ONLY
    released_dtype: str
    source_kind: str
    source_theorem: str

    @classmethod
    def of(cls, cleaner: LinearCleaner, released_dtype: DTypeLike) -> Self:
        """The factored form of a cleaner.

        Parameters
        ----------
        cleaner
            Algorithm 1 or 2.
        released_dtype
            Dtype of the records that readers will make.

        Raises
        ------
        OptionError
            If the cleaner or the dtype has no factored form.
        """
        dtype = np.dtype(released_dtype)
        if dtype not in (np.float32, np.float64):
            problem = f"There is no factored release of {cleaner.kind} in {dtype}."
            raise OptionError(problem, remedy="Use float32 or float64.")
        shared = {item.name: getattr(cleaner, item.name) for item in fields(LinearCleaner)}
        source: Any = {"source_kind": cleaner.kind, "source_theorem": cleaner.theorem}
        return cls(**shared, **source, released_dtype=dtype.name)

    @property
    def n_features_out(self) -> int:
        return self.rank

    @property
    def guarantee(self) -> Guarantee:
        """That of the cleaner, for records made by `reconstruct`."""
        promise = super().guarantee
        given = f"For records made of the coordinates in {self.released_dtype}."
        return replace(promise, theorem=self.source_theorem + promise.theorem, assumptions=given)

    def reconstruct(self, coordinates: ArrayLike) -> FloatArray:
        """Make records of released coordinates.

        Parameters
        ----------
        coordinates : (n_records, rank)

        Returns
        -------
        released : (n_records, n_features_cleaned), in `released_dtype`
        """
        wide = np.asarray(coordinates, np.float64)
        return cleaning.reconstruct_records(wide, self.lift, self.centre, self.released_dtype)

    def predict(self, released: ArrayLike) -> FloatArray:
        """Desired prediction of released coordinates, (n_records, n_desired)."""
        return super().predict(self.reconstruct(released))

    def release_target(self, values: FloatArray, dtype: DTypeLike) -> FloatArray:
        """See `TargetRelease`; records as readers make them of the coordinates."""
        return self.reconstruct(super().release_target(values, dtype))

    def _clean(self, x: FloatArray, dtype: np.dtype[Any], **how: Any) -> cleaning.CleanedBlock:
        # The margin is for the records that readers will make, in their dtype; coordinates are few,
        # and no record's place is needed for them.
        return super()._clean(x, np.dtype(self.released_dtype), **{**how, "out": None})
