"""Only the target: each record is released as what a linear predictor says of it, and nothing else.

The least that keeps a target usable. What the prediction itself reveals of a confidential variable
is all that is left to reveal. So it is what a null-space cleaner's release tends to. Of that, what
the target itself does not say can be left out: `equalise_odds`.
"""

from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.special import ndtri

from privpipe import protocols
from privpipe.described import record_map
from privpipe.errors import InputError
from privpipe.fitted_names import keep_names
from privpipe.numerics import moments, rounding
from privpipe.numerics.null_space.prediction_grid import predict_on_grid
from privpipe.numerics.null_space.rounding_margin import plan_grid
from privpipe.protocols import ArrayLike, FloatArray, Guarantee, Method, Role, Shards
from privpipe.sanitizers import arrays, feature_map, grounds
from privpipe.sanitizers.null_space import predictors
from privpipe.sanitizers.options import MethodOptions, method_options

MIDDLE = 0.5
"""Where a predicted indicator, 0 or 1, becomes the class."""

INDICATORS = 2
"""Of `TargetOnly.is_class`: one column for each of several classes. A code of six classes in one
column, which earlier models release, left a linear model .35 of HAR's activities for .85."""


@method_options
class TargetOnlyOptions(MethodOptions):
    """Options of ``[method] name = "target_only"``."""

    name: Literal["target_only"] = "target_only"
    n_bins: Annotated[int, Field(ge=2, le=1000)] | None = None
    """Release numeric targets as one of so many bins, about equally frequent, instead of the
    predicted number."""
    ridge: predictors.Ridge = 0.01
    """Added to the unit diagonal of the standardised features' Gram matrix."""
    variant: Literal["plain", "equalised_odds"] = "plain"
    """equalised_odds: predict without what says more of the confidential variables than the target
    does (`equalise_odds`)."""

    multiplies: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    uses: ClassVar[frozenset[Role]] = frozenset({"desired"})
    """What is released; records without it are left out."""

    def needs(self) -> frozenset[Role]:
        """The confidential variables as well, where odds are equalised."""
        return self.uses | ({"confidential"} if self.variant == "equalised_odds" else frozenset())

    def needs_labels(self) -> tuple[frozenset[Role], ...]:
        """The predictor is fitted to all that have the target, odds to those that have both."""
        return tuple(dict.fromkeys((self.uses, self.needs())))


@record_map
class TargetOnly(feature_map.FeatureMap):
    """Releases the predicted class of each categorical target, and each predicted number.

    The exact prediction is rounded correctly to a grid first, as null-space cleaning rounds it.
    Low-order digits reveal nothing of the record, and the capability `FollowsTarget` holds.

    Parameters
    ----------
    predictor : (n_features, n_predictions)
        Of the targets, classes as indicators.
    intercept : (n_predictions,)
    widths : (n_targets,)
        Predictions of each target: one of a number or of two classes, else one of each class.
    is_class : (n_targets,)
        `INDICATORS` where one of several classes is released, 1 where it is released as its code,
        0 where a number is.
    edges : (n_targets, n_bins - 1)
        Between the bins of numbers; without columns where the number itself is released.
    """

    kind: ClassVar[str] = "target_only"
    keeps_features: ClassVar[bool] = False

    predictor: FloatArray
    intercept: FloatArray
    widths: protocols.IntArray
    is_class: protocols.IntArray
    edges: FloatArray

    @property
    def n_features_in(self) -> int:
        return len(self.predictor)

    @property
    def n_features_out(self) -> int:
        return int(np.where(self.is_class == INDICATORS, self.widths, 1).sum())

    guarantee: ClassVar[Guarantee] = grounds.say_promise("target_only")
    """Nothing of single records: what the target reveals is measured."""

    target_theorem: ClassVar[str] = (
        "the exact target prediction A^T x is rounded correctly to a grid, and the release is "
        "computed from that value alone"
    )
    """What `FollowsTarget` rests on, in a sentence."""

    def predict_target(self, x: ArrayLike) -> FloatArray:
        """What is released of ``A^T x``, (n_records, n_features_out): class, bin or number.

        The class and not the score behind it: who has the release and the model knows no score.
        """
        records, _ = feature_map.as_records(self, x)
        # As for a budget of zero: rounding to a grid that knows nothing of the record.
        grid = plan_grid(0.0, self.predictor.shape[1], self.n_features_in)
        weights = rounding.measure_columns(self.predictor.T)
        values = predict_on_grid(np.asarray(records, np.float64), self.predictor, weights, grid)
        found = list[protocols.AnyArray]()
        for j, (end, width) in enumerate(zip(np.cumsum(self.widths), self.widths, strict=True)):
            scores = values[:, end - width : end] + self.intercept[end - width : end]
            if self.is_class[j]:
                best = np.argmax(scores, axis=1) if width > 1 else scores[:, 0] > MIDDLE
                several = self.is_class[j] == INDICATORS
                found.append(np.eye(width)[best] if several else best[:, None])
            else:
                binned = np.searchsorted(self.edges[j], scores)
                found.append(binned if self.edges.shape[1] else scores)
        return np.column_stack(found).astype(np.float64)

    def release_target(self, values: FloatArray, dtype: protocols.DTypeLike) -> FloatArray:
        """The same as it is stored, (n_records, n_features_out), in `dtype`."""
        return values.astype(dtype)

    def map_records(self, records: FloatArray) -> FloatArray:
        """Predict, (n_records, n_features_out)."""
        return self.predict_target(records)


@keep_names
def fit_target_only(shards: Shards, options: TargetOnlyOptions | None = None) -> TargetOnly:
    """Fit the predictor of the targets by least squares, from one pass of co-moments.

    Parameters
    ----------
    shards
        Training records with at least one desired variable.
    options

    Returns
    -------
    TargetOnly

    Raises
    ------
    InputError
        If there is no desired variable or it is constant, fewer than two complete records, or
        features are constant or not finite. Of equalised odds see `equalise_odds`.
    RankError
        If the features are dependent and ``ridge = 0``.

    Notes
    -----
    Edges of bins are quantiles of the normal law with mean and variance of the predictions. Both
    follow from the co-moments, and no edge is the value of a record.

    Examples
    --------
    >>> from privpipe import Records
    >>> x = np.random.default_rng(1).normal(size=(50, 3))
    >>> found = fit_target_only(Records(x, desired=np.where(x[:, 0] > 0, "yes", "no")))
    >>> float((found.apply(x)[:, 0] == (x[:, 0] > 0)).mean()) > 0.8
    True
    """
    arrays.check_shards(shards, products=True)
    options = options or TargetOnlyOptions()
    schema = shards.schema
    equalised = options.variant == "equalised_odds"
    roles: tuple[predictors.TargetRole, ...]
    roles = ("desired", "confidential") if equalised else ("desired",)
    ask = partial(predictors.summarise_design, coding="zero_one", roles=roles)
    sums = shards.reduce(partial(ask, schema=schema))
    sums.say_incomplete()
    fit = predictors.fit_predictor(
        shards, "desired", moments=sums, coding="zero_one", ridge=options.ridge, with_intercept=True
    )
    n, found = schema.n_features, sums.of_role("desired")
    predictors.check_varies(found, n, "desired")
    widths = np.array([moments.count_targets([column]) for column in schema.desired])
    is_class = np.array([int(column.is_categorical) for column in schema.desired])
    is_class[widths > 1] = INDICATORS
    if equalised:
        whole = sums.parts.get(roles, moments.CoMoments.empty(0))
        fit = equalise_odds(fit, whole, options.ridge, found, np.repeat(is_class > 0, widths))
    edges = np.empty((len(widths), 0))
    if options.n_bins is not None:
        first = np.cumsum(widths) - widths
        spread = np.einsum("ij,ik,kj->j", fit.coefficients, found.scatter[:n, :n], fit.coefficients)
        mean = found.mean[:n] @ fit.coefficients + fit.intercept
        # Equally frequent under the normal law: quantiles of the records would be values of
        # records.
        at = ndtri(np.arange(1, options.n_bins) / options.n_bins)
        edges = mean[first, None] + np.sqrt(spread[first, None] / max(found.count, 1)) * at
    return TargetOnly(fit.coefficients, fit.intercept, widths, is_class, edges)


ROUNDING = 1e-10
"""Share of a variable's variance below which rounding predicts it, or is all that is left of it."""

LEAST_LABELLED = 0.01
"""Share of the records with a target that must have a confidential label as well."""


def equalise_odds(
    fit: moments.LeastSquares,
    sums: moments.CoMoments,
    ridge: float,
    found: moments.CoMoments,
    is_class: protocols.BoolArray,
) -> moments.LeastSquares:
    """The closest predictor that goes with no confidential variable beyond the target.

    Its predictions have no covariance with what is left of the confidential variables when the
    targets are regressed out. That is equalised odds, as far as a linear reader sees them. Let
    ``G`` be the features' ridged covariance and ``C`` that with what is left. The predictor is ``A
    - G^-1 C (C^T G^-1 C)^+ C^T A``, the constrained minimum of the same squares. Predictions of
    classes are then given the spread that they had. Narrower ones would hardly ever be the largest,
    and one class be said of nearly all records.

    Parameters
    ----------
    fit
        The predictor of the targets, (n_features, n_predictions).
    sums
        Co-moments of ``[features, targets, confidential variables]``.
    ridge
        That of the fit.
    found
        The same of all records with a target, whose mean is predicted as before.
    is_class : (n_predictions,)
        Which are of classes.

    Raises
    ------
    InputError
        If no confidential variable is named, or varies, or few records have both labels; or if
        nothing is left of a target but rounding.

    References
    ----------
    Hardt, Price and Srebro 2016, Equality of opportunity in supervised learning, definition 2.1;
    Zafar et al. 2017, Fairness constraints (covariance in place of dependence).
    """
    n, n_targets = fit.coefficients.shape
    if sums.count <= LEAST_LABELLED * found.count or len(sums.mean) == n + n_targets:
        problem = f"{sums.count:g} training records have the target and a confidential variable."
        remedy = "Name one in confidential, with labels, or leave variant out."
        raise InputError(problem, remedy=remedy)
    known = sums.select(np.r_[:n, n + n_targets : len(sums.mean)])
    predictors.check_varies(known, n, "confidential")
    spread = np.where(np.diag(sums.scatter) > 0, np.sqrt(np.diag(sums.scatter)), 1.0)
    scaled = sums.scatter / np.outer(spread, spread)
    x, y, z = np.split(np.arange(len(spread)), [n, n + n_targets])
    # Indicators add up to one, so that the targets' covariance may have no inverse; what rounding
    # makes of zero differs from kernel to kernel.
    inverse = np.linalg.pinv(scaled[np.ix_(y, y)], rcond=ROUNDING, hermitian=True)
    left = scaled[:, z] - scaled[:, y] @ inverse @ scaled[np.ix_(y, z)]
    gram, cross = scaled[np.ix_(x, x)] + ridge * np.eye(n), left[x]
    solved = np.linalg.lstsq(gram, cross, rcond=None)[0]
    share, vectors = np.linalg.eigh(cross.T @ solved)
    vectors = vectors[:, share > ROUNDING] / np.sqrt(share[share > ROUNDING])
    usual = fit.coefficients * spread[x, None]
    fair = usual - solved @ vectors @ (vectors.T @ (cross.T @ usual))
    before, after = (np.sum(a * (scaled[np.ix_(x, x)] @ a), axis=0) for a in (usual, fair))
    varies = before > 0  # a class that no training record has is predicted by a constant
    if (after[varies] <= ROUNDING * before[varies]).any():
        problem = "Nothing is left of a target: all that features say of it reveals more than it."
        remedy = "Leave variant out, add features, or name fewer confidential variables."
        raise InputError(problem, remedy=remedy, code="nothing-left")
    wider = np.sqrt(np.divide(before, after, out=np.ones(n_targets), where=is_class & varies))
    fair = fair * wider / spread[x, None]
    moved = found.mean[:n] @ (fit.coefficients - fair)
    return replace(fit, coefficients=fair, intercept=fit.intercept + moved)


METHOD = Method(
    options=TargetOnlyOptions,
    fit=fit_target_only,
    source="Least squares prediction of the target, rounded to a grid; nothing else is released",
    maps=(TargetOnly,),
    promise="none in advance: a function of the target prediction alone, whose leakage is measured",
    statistics=predictors.DESIGN_STATISTICS,
)
