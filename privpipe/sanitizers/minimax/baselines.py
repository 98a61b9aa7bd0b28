"""Filters from one pass or none: least squares minimax, Privacy LDS, PPLS, PCA, random, DDD.

Hamm, JMLR 2017, sections 4.1 and 6.1: the closed-form filters and those that minimax filters are
compared with. PPLS trades covariances (Enev, Jung, Bo, Ren and Kohno 2012, SensorSift); DDD,
discriminately decreasing discriminability, masks features (Whitehill and Movellan 2012).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import scipy.linalg as sl
import scipy.optimize as so
from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.described import described, facts_of_map
from privpipe.errors import InputError
from privpipe.fitted_names import keep_names
from privpipe.numerics.minimax.spectra import fix_signs, guard_directions
from privpipe.option_values import FORBID
from privpipe.protocols import FloatArray, Guarantee, Role, Shards, ShardSchema
from privpipe.sanitizers.arrays import check_shards
from privpipe.sanitizers.minimax.linear_filter import (
    HAMM,
    FeatureFilter,
    LinearFilter,
    as_method,
    promise_nothing,
)
from privpipe.sanitizers.minimax.training import closed_forms, task_planning
from privpipe.sanitizers.minimax.training.labelled_moments import (
    LABEL_STATISTICS,
    LabelledMoments,
    measure_moments,
)
from privpipe.sanitizers.minimax.training.tasks import (
    EigenRidge,
    NonNegative,
    Positive,
    Task,
    TaskOptions,
)
from privpipe.sanitizers.options import MethodOptions

Width = Annotated[int, Field(ge=1, description="Features released.")]
OptionalWidth = Annotated[
    int | None, Field(ge=1, description="Features released. Default: the informative directions.")
]
Find = Callable[[Sequence[Task], LabelledMoments, int, float], tuple[FloatArray, int]]


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class LeastSquaresOptions(TaskOptions):
    """Options of ``[method] name = "minimax_least_squares"``."""

    source: ClassVar[str] = f"{HAMM}, equations (47)-(58)"
    name: Literal["minimax_least_squares"] = "minimax_least_squares"
    n_filtered: OptionalWidth = None
    ridge: EigenRidge = 1e-6


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class PrivacyLdsOptions(TaskOptions):
    """Options of ``[method] name = "privacy_lds"``."""

    source: ClassVar[str] = f"{HAMM}, equations (59)-(62)"
    name: Literal["privacy_lds"] = "privacy_lds"
    n_filtered: OptionalWidth = None
    ridge: EigenRidge = 1e-8


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class PcaOptions(MethodOptions):
    """Options of ``[method] name = "pca"``."""

    source: ClassVar[str] = f"{HAMM}, section 6.1"
    name: Literal["pca"] = "pca"
    n_filtered: Width
    centre: Annotated[
        bool, Field(description="Subtract the training mean. False: the paper's, on raw records.")
    ] = True

    scales: ClassVar[bool] = True

    def needs_labels(self) -> tuple[frozenset[Role], ...]:
        """Records without all labels are left out, as by every filter."""
        return (frozenset({"desired", "confidential"}),)


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class RandOptions(MethodOptions):
    """Options of ``[method] name = "rand"``."""

    source: ClassVar[str] = f"{HAMM}, section 6.1"
    name: Literal["rand"] = "rand"
    n_filtered: Width
    seed: Annotated[
        int, Field(ge=0, description="Of the projection; public, for it protects nothing.")
    ] = 0

    scales: ClassVar[bool] = True
    learns: ClassVar[bool] = False


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class PplsOptions(TaskOptions):
    """Options of ``[method] name = "ppls"``."""

    source: ClassVar[str] = "Enev et al. 2012, SensorSift, Algorithm 1"
    name: Literal["ppls"] = "ppls"
    n_filtered: Width
    tradeoff: Annotated[
        NonNegative,
        Field(
            description="Weight of target covariance against private covariance (one over the "
            "paper's lambda)."
        ),
    ] = 1.0


@keep_names
def fit_least_squares_filter(
    shards: Shards, options: LeastSquaresOptions | None = None
) -> LinearFilter:
    """Learn the minimax filter of least squares tasks exactly, from one pass.

    Classes are predicted as indicators, numbers as they are; see
    `find_least_squares_directions`.

    Returns
    -------
    LinearFilter
        On centred features; its outputs are uncorrelated with unit variance.

    Raises
    ------
    InputError
        If labels or features cannot be used.
    OptionError
        If options contradict the data.

    Warns
    -----
    UserWarning
        If `n_filtered` exceeds the informative directions.

    References
    ----------
    Hamm, JMLR 2017, equations (47)-(58).
    """
    options = options or LeastSquaresOptions()
    return _fit_directions(shards, options, closed_forms.find_least_squares_directions)


@keep_names
def fit_privacy_lds_filter(
    shards: Shards, options: PrivacyLdsOptions | None = None
) -> LinearFilter:
    """Learn Privacy LDS from one pass: target classes apart, private classes together.

    Returns
    -------
    LinearFilter
        On centred features; informative directions first, then guarded principal ones.

    Raises
    ------
    InputError
        If labels or features cannot be used.
    OptionError
        If `n_filtered` exceeds the directions that avoid the confidential classes.

    Warns
    -----
    UserWarning
        If `n_filtered` exceeds the informative directions.

    References
    ----------
    Hamm, JMLR 2017, equations (59)-(62).
    """
    return _fit_directions(shards, options or PrivacyLdsOptions(), closed_forms.find_privacy_lds)


def _fit_directions(
    shards: Shards, options: LeastSquaresOptions | PrivacyLdsOptions, find: Find
) -> LinearFilter:
    moments = measure_moments(shards)
    tasks = task_planning.plan_tasks(options, shards.schema, moments)
    check_baseline(options, shards.schema)
    directions, n_informative = find(tasks, moments, options.n_filtered or 0, options.ridge)
    task_planning.warn_of_width(directions.shape[1], max(n_informative, 1))
    return make_centred_filter(options.name, directions, moments.mean)


def find_ppls_directions(
    target: FloatArray, private: FloatArray, covariance: FloatArray, n_directions: int
) -> FloatArray:
    """Directions w that maximise ``|S^T w|^2 - |R^T w|^2``, the target deflated after each.

    Parameters
    ----------
    target : (n_features, n_targets)
        S, covariance of features and targets.
    private : (n_features, n_private)
        R, covariance of features and private variables.
    covariance : (n_features, n_features)
        Of the features.
    n_directions

    Returns
    -------
    directions : (n_features, n_directions)
        Weights of unit length. Records are filtered with the weights, not with the loadings
        that deflation uses.

    References
    ----------
    Enev et al. 2012, Algorithm 1.
    """
    n = len(covariance)
    spoiled = private @ private.T
    s, loadings, found = target, np.zeros((n, 0)), []
    for _ in range(n_directions):
        matrix = s @ s.T - spoiled
        _, top = sl.eigh(matrix, subset_by_index=(n - 1, n - 1), check_finite=False)
        w = fix_signs(top)
        found.append(w[:, 0])
        loading = covariance @ w
        loading /= max(float(w[:, 0] @ loading[:, 0]), 1e-300)
        basis = loading - loadings @ (loadings.T @ loading)
        basis -= loadings @ (loadings.T @ basis)  # once more: rounding leaves a little
        loadings = np.column_stack([loadings, basis / max(float(np.linalg.norm(basis)), 1e-300)])
        s = target - loadings @ (loadings.T @ target)
    return np.array(found).T


@keep_names
def fit_ppls_filter(shards: Shards, options: PplsOptions) -> LinearFilter:
    """Learn a private partial least squares filter from one pass.

    Returns
    -------
    LinearFilter
        On centred features.

    Raises
    ------
    InputError
        If labels or features cannot be used.
    OptionError
        If `n_filtered` exceeds the features.

    Notes
    -----
    Guarantee: none. Small covariance with a private variable is not small information: every
    direction may still be rescaled by the adversary.

    References
    ----------
    Enev et al. 2012, SensorSift, Algorithm 1.
    """
    moments = measure_moments(shards)
    check_baseline(options, shards.schema)
    tasks = task_planning.plan_tasks(options, shards.schema, moments)
    scaled = [(t, np.sqrt(abs(t.weight)) * closed_forms.cross_moments(t, moments)) for t in tasks]
    directions = find_ppls_directions(
        np.column_stack([cross for t, cross in scaled if t.role != "confidential"]),
        np.column_stack([cross for t, cross in scaled if t.role == "confidential"]),
        moments.covariance,
        options.n_filtered,
    )
    return make_centred_filter("ppls", directions, moments.mean)


@keep_names
def fit_pca_filter(shards: Shards, options: PcaOptions) -> LinearFilter:
    """Keep the directions of largest variance; hides nothing on purpose.

    Raises
    ------
    OptionError
        If `n_filtered` exceeds the features.
    """
    moments = measure_moments(shards)
    n_features = len(moments.mean)
    check_baseline(options, shards.schema)
    mean = moments.mean if options.centre else np.zeros(n_features)
    second = moments.covariance
    # The paper's principal components are of raw records.
    if not options.centre:
        second = second + np.outer(moments.mean, moments.mean)
    nothing = np.empty((n_features, 0))
    directions = guard_directions(second, nothing, nothing, options.n_filtered)
    return make_centred_filter("pca", directions, mean)


@keep_names
def fit_rand_filter(shards: Shards, options: RandOptions) -> LinearFilter:
    """Draw a random projection of full rank; reads no record.

    Raises
    ------
    OptionError
        If `n_filtered` exceeds the features.
    """
    check_shards(shards)
    check_baseline(options, shards.schema)
    n_features = shards.schema.n_features
    # Public: a random projection protects nothing.
    drawn = np.random.default_rng(options.seed).standard_normal((n_features, options.n_filtered))
    return make_centred_filter("rand", drawn / np.sqrt(n_features), np.zeros(n_features))


def check_baseline(options: Any, schema: ShardSchema) -> None:
    """Raise OptionError or InputError if tasks or width do not suit the records."""
    if isinstance(options, TaskOptions):
        options.check(schema)
    if options.n_filtered is not None:
        task_planning.check_width(options.n_filtered, schema.n_features)


def make_centred_filter(method: str, directions: FloatArray, mean: FloatArray) -> LinearFilter:
    """The filter ``(x - mean) U``."""
    # Directions may be a reversed view: in order they need no copy in every product.
    return LinearFilter(method, np.ascontiguousarray(directions), -(mean @ directions))


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class DddOptions(TaskOptions):
    """Options of ``[method] name = "ddd"``."""

    source: ClassVar[str] = "Whitehill and Movellan 2012, mask-type filter"
    name: Literal["ddd"] = "ddd"
    tradeoff: Annotated[
        Positive,
        Field(description="Weight of the target's log criterion against the private one's."),
    ] = 1.0
    ridge: EigenRidge = 0.1
    max_iterations: Annotated[int, Field(ge=1, description="Most iterations of L-BFGS-B.")] = 200


@described(facts_of_map)
@dataclass(frozen=True, eq=False)
class MaskFilter(FeatureFilter):
    """Multiplies every feature by a number between 0 and 1.

    Parameters
    ----------
    mask : (n_features,)
    stopped
        Why the fit ended: "progress", "gradient" or "iterations".

    Examples
    --------
    >>> MaskFilter(np.array([1.0, 0.0]), "progress").apply(np.array([[2.0, 3.0]]))
    array([[2., 0.]])
    """

    kind: ClassVar[str] = "mask_filter"
    keeps_features: ClassVar[bool] = True

    mask: FloatArray
    stopped: str

    @property
    def n_features_in(self) -> int:
        return len(self.mask)

    n_features_out = n_features_in

    @property
    def guarantee(self) -> Guarantee:
        """None: whoever standardises the released features undoes the mask."""
        return promise_nothing("ddd")

    def map_records(self, records: FloatArray) -> FloatArray:
        return np.asarray(records * self.mask)


def measure_fisher(
    mask: FloatArray, difference: FloatArray, within: FloatArray, floor: float
) -> tuple[float, FloatArray]:
    """Log of Fisher's criterion of masked records, with its gradient by the mask.

    ``log (m d)^T (M W M + floor I)^-1 (m d)``: the largest ratio of squared distance between the
    class means to variance within classes, over all directions. The floor is the noise
    of the observer; without it the criterion would not depend on the mask.

    Parameters
    ----------
    mask : (n_features,)
    difference : (n_features,)
        Between the means of the two classes.
    within : (n_features, n_features)
        Covariance within classes.
    floor
        Positive.
    """
    shift = mask * difference
    # Without the floor a mask cancels between difference and metric, and every mask is as good.
    metric = mask[:, None] * within * mask + floor * np.eye(len(mask))
    v = sl.cho_solve(sl.cho_factor(metric, lower=True), shift)
    value = float(shift @ v)
    gradient = 2.0 * v * (difference - within @ (mask * v))
    return float(np.log(max(value, 1e-300))), gradient / max(value, 1e-300)


@keep_names
def fit_ddd_filter(shards: Shards, options: DddOptions | None = None) -> MaskFilter:
    """Learn the mask that keeps Fisher's criterion of the target and lowers the private one's.

    Returns
    -------
    MaskFilter

    Raises
    ------
    InputError
        If a desired or confidential variable has more than two classes or is a number.

    Notes
    -----
    Guarantee: none. A mask is undone by dividing through it wherever it is not exactly zero; an
    adversary who standardises features sees nearly what the raw records show.
    Departure: the original's authors do not state the floor of the within-class covariance; ours
    is the option `ridge` times the mean variance. The mask is confined to [0, 1].

    References
    ----------
    Whitehill and Movellan 2012, Discriminately decreasing discriminability with learned image
    filters.
    """
    options = options or DddOptions()
    moments = measure_moments(shards)
    tasks = task_planning.plan_tasks(options, shards.schema, moments)
    if any(task.n_scores != 1 or not task.is_classification for task in tasks):
        raise _not_binary()
    parts = [(task.weight, *_scatters(task, moments)) for task in tasks]
    floor = options.ridge * float(np.trace(moments.covariance)) / len(moments.mean)

    def cost(mask: FloatArray) -> tuple[float, FloatArray]:
        total, gradient = 0.0, np.zeros_like(mask)
        for weight, difference, within in parts:
            value, slope = measure_fisher(mask, difference, within, floor)
            total -= weight * value
            gradient -= weight * slope
        return total, gradient

    found = so.minimize(
        cost,
        np.ones(len(moments.mean)),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * len(moments.mean),
        options={"maxiter": options.max_iterations},
    )
    stopped = "iterations" if found.status == 1 else "progress"
    return MaskFilter(np.asarray(found.x, np.float64), stopped)


def _scatters(task: Task, moments: LabelledMoments) -> tuple[FloatArray, FloatArray]:
    """Difference of the two class means, up to scale, and covariance within classes."""
    columns = closed_forms.between_classes(task, moments)
    return columns[:, 1], moments.covariance - columns @ columns.T


def check_ddd(options: DddOptions, schema: ShardSchema) -> None:
    """Raise OptionError or InputError if a task is known to have more than two classes."""
    options.check(schema)
    # A confidential class that is singled out is one of two: it, and the rest.
    confidential = () if options.single_out is not None else schema.confidential
    numbers = [
        column.n_categories is None and kind == "regression"
        for kind, columns in (
            (options.desired_task, schema.desired),
            (options.confidential_task, schema.confidential),
        )
        for column in columns
    ]
    many = [(column.n_categories or 2) > 2 for column in (*schema.desired, *confidential)]
    if any(numbers) or any(many) or options.reconstruction_weight:
        raise _not_binary()


def _not_binary() -> InputError:
    return InputError(
        "ddd weighs variables of two classes only.",
        remedy="Choose binary variables, or another method such as minimax or ppls.",
    )


METHODS = (
    as_method(
        LeastSquaresOptions,
        fit_least_squares_filter,
        LinearFilter,
        check_baseline,
        LABEL_STATISTICS,
    ),
    as_method(
        PrivacyLdsOptions, fit_privacy_lds_filter, LinearFilter, check_baseline, LABEL_STATISTICS
    ),
    as_method(PcaOptions, fit_pca_filter, LinearFilter, check_baseline, LABEL_STATISTICS),
    as_method(RandOptions, fit_rand_filter, LinearFilter, check_baseline, LABEL_STATISTICS),
    as_method(PplsOptions, fit_ppls_filter, LinearFilter, check_baseline, LABEL_STATISTICS),
    as_method(DddOptions, fit_ddd_filter, MaskFilter, check_ddd, LABEL_STATISTICS),
)
