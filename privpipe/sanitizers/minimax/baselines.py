"""Filters from one pass or none: least squares minimax, Privacy LDS, PPLS, PCA, random, DDD.

Hamm, JMLR 2017, sections 4.1 and 6.1: the closed forms (equations 47-62: generalised eigenproblems,
which have only as many informative directions as the target tasks have outputs) and what minimax
filters are compared with. PPLS trades covariances (Enev, Jung, Bo, Ren and Kohno 2012, SensorSift);
DDD, discriminately decreasing discriminability, masks features (Whitehill and Movellan 2012).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import scipy.linalg as sl
import scipy.optimize as so
from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.described import described, facts_of_map
from privpipe.errors import InputError, OptionError
from privpipe.fitted_names import keep_names
from privpipe.numerics.minimax import spectra
from privpipe.option_values import FORBID
from privpipe.protocols import FloatArray, Guarantee, Role, Shards, ShardSchema
from privpipe.sanitizers.arrays import check_shards
from privpipe.sanitizers.minimax.linear_filter import (
    HAMM,
    FeatureFilter,
    LinearFilter,
    promise_nothing,
)
from privpipe.sanitizers.minimax.training import tasks as planning
from privpipe.sanitizers.minimax.training.labelled_moments import (
    LabelledMoments,
    LabelMoments,
    measure_moments,
    measure_tasks,
)
from privpipe.sanitizers.options import MethodOptions

Width = Annotated[int, Field(ge=1, description="Features released.")]
OptionalWidth = Annotated[
    int | None, Field(ge=1, description="Features released. Default: the informative directions.")
]
Find = Callable[[Sequence[planning.Task], LabelledMoments, int, float], tuple[FloatArray, int]]


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class LeastSquaresOptions(planning.TaskOptions):
    """Options of ``[method] name = "minimax_least_squares"``."""

    source: ClassVar[str] = f"{HAMM}, equations (47)-(58)"
    name: Literal["minimax_least_squares"] = "minimax_least_squares"
    n_filtered: OptionalWidth = None
    ridge: planning.EigenRidge = 1e-6


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class PrivacyLdsOptions(planning.TaskOptions):
    """Options of ``[method] name = "privacy_lds"``."""

    source: ClassVar[str] = f"{HAMM}, equations (59)-(62)"
    name: Literal["privacy_lds"] = "privacy_lds"
    n_filtered: OptionalWidth = None
    ridge: planning.EigenRidge = 1e-8


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class PcaOptions(MethodOptions):
    """Options of ``[method] name = "pca"``."""

    source: ClassVar[str] = f"{HAMM}, section 6.1"
    name: Literal["pca"] = "pca"
    n_filtered: Width
    centre: bool = Field(
        default=True, description="Subtract the training mean. False: the paper's, on raw records."
    )

    scales: ClassVar[bool] = True

    def needs_labels(self) -> tuple[frozenset[Role], ...]:
        """Records without all labels are left out, as by every filter."""
        return (frozenset({"desired", "confidential"}),)

    def check(self, schema: ShardSchema) -> None:
        """Raise OptionError if `n_filtered` exceeds the features."""
        planning.check_width(self.n_filtered, schema.n_features)


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class RandOptions(MethodOptions):
    """Options of ``[method] name = "rand"``."""

    source: ClassVar[str] = f"{HAMM}, section 6.1"
    name: Literal["rand"] = "rand"
    n_filtered: Width
    seed: int = Field(
        default=0, ge=0, description="Of the projection; public, for it protects nothing."
    )

    scales: ClassVar[bool] = True
    learns: ClassVar[bool] = False

    def check(self, schema: ShardSchema) -> None:
        """Raise OptionError if `n_filtered` exceeds the features."""
        planning.check_width(self.n_filtered, schema.n_features)


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class PplsOptions(planning.TaskOptions):
    """Options of ``[method] name = "ppls"``."""

    source: ClassVar[str] = "Enev et al. 2012, SensorSift, Algorithm 1"
    name: Literal["ppls"] = "ppls"
    n_filtered: Width
    tradeoff: planning.NonNegative = Field(
        default=1.0,
        description="Weight of target against private covariance (1 over the paper's lambda)",
    )


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
    return _fit_directions(shards, options, find_least_squares_directions)


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
    return _fit_directions(shards, options or PrivacyLdsOptions(), find_privacy_lds)


def _fit_directions(
    shards: Shards, options: LeastSquaresOptions | PrivacyLdsOptions, find: Find
) -> LinearFilter:
    moments, tasks = measure_tasks(options, shards)
    directions, n_informative = find(tasks, moments, options.n_filtered or 0, options.ridge)
    planning.warn_of_width(directions.shape[1], max(n_informative, 1))
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
        w = spectra.fix_signs(top)
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
    moments, tasks = measure_tasks(options, shards)
    scaled = [(t, np.sqrt(abs(t.weight)) * cross_moments(t, moments)) for t in tasks]
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
    check_shards(shards)
    options.check(shards.schema)
    moments = measure_moments(shards)
    mean, second = moments.mean, moments.covariance
    # The paper's principal components are of raw records.
    if not options.centre:
        mean, second = np.zeros_like(mean), second + np.outer(mean, mean)
    nothing = second[:, :0]
    directions = spectra.guard_directions(second, nothing, nothing, options.n_filtered)
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
    options.check(shards.schema)
    n_features = shards.schema.n_features
    # Public: a random projection protects nothing.
    drawn = np.random.default_rng(options.seed).standard_normal((n_features, options.n_filtered))
    return make_centred_filter("rand", drawn / np.sqrt(n_features), np.zeros(n_features))


def make_centred_filter(method: str, directions: FloatArray, mean: FloatArray) -> LinearFilter:
    """The filter ``(x - mean) U``."""
    # Directions may be a reversed view: in order they need no copy in every product.
    return LinearFilter(method, np.ascontiguousarray(directions), -(mean @ directions))


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class DddOptions(planning.TaskOptions):
    """Options of ``[method] name = "ddd"``."""

    source: ClassVar[str] = "Whitehill and Movellan 2012, mask-type filter"
    name: Literal["ddd"] = "ddd"
    tradeoff: planning.Positive = Field(
        default=1.0, description="Weight of the target's log criterion against the private one's."
    )
    ridge: planning.EigenRidge = 0.1
    max_iterations: Annotated[int, Field(ge=1, description="Most iterations of L-BFGS-B.")] = 200

    def check(self, schema: ShardSchema) -> None:
        """Raise InputError if a task is known to have more than two classes; see `TaskOptions`."""
        super().check(schema)
        read = [(self.desired_task, column) for column in schema.desired]
        # A confidential class that is singled out is one of two: it, and the rest.
        if self.single_out is None:
            read += [(self.confidential_task, column) for column in schema.confidential]
        for kind, column in read:
            is_number = column.n_categories is None and kind == "regression"
            if is_number or (column.n_categories or 2) > 2 or self.reconstruction_weight:
                raise _not_binary()


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
    moments, tasks = measure_tasks(options, shards)
    if any(task.n_scores != 1 or not task.is_classification for task in tasks):
        raise _not_binary()
    parts = []
    for task in tasks:
        # Columns of both classes: the difference of their means, up to scale, is the second.
        columns = between_classes(task, moments)
        parts.append((task.weight, columns[:, 1], moments.covariance - columns @ columns.T))
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


def _not_binary() -> InputError:
    return InputError(
        "ddd weighs variables of two classes only.",
        remedy="Choose binary variables, or another method such as minimax or ppls.",
    )


# Far above rounding of the eigenproblem and far below any direction worth its leak.
INFORMATIVE = 1e-10
"""An eigenvalue of at most so much of the largest says nothing about the target."""


def cross_moments(task: planning.Task, moments: LabelledMoments) -> FloatArray:
    """Covariance of the features with a task's targets, ``E[x y^T]``, centred.

    Classes are coded one column each, 0 or 1; a number is standardised.

    Returns
    -------
    cross : (n_features, n_outputs)
    """
    if task.role == "features":
        return np.asarray(moments.covariance / task.scale)
    label = moments.labels[task.column]
    if not task.is_classification:
        return np.asarray((label.cross / moments.count / task.scale)[:, None])
    return _class_moments(task, label, moments)[0].T


def between_classes(task: planning.Task, moments: LabelledMoments) -> FloatArray:
    """Columns B with ``B B^T`` the scatter between the classes of a task, per record (60).

    For a number, the part of the features' covariance that it explains.
    """
    if not task.is_classification:
        return cross_moments(task, moments)
    label = moments.labels[task.column]
    cross, share = _class_moments(task, label, moments)
    return np.asarray((cross / np.sqrt(share)[:, None]).T)


def _class_moments(
    task: planning.Task, label: LabelMoments, moments: LabelledMoments
) -> tuple[FloatArray, FloatArray]:
    """Share of each class times the deviation of its mean, and the shares."""
    counts, means = label.counts.astype(np.float64), label.means
    if not np.isnan(task.singled_out):
        chosen = label.values == task.singled_out
        pooled = (counts[~chosen] @ means[~chosen]) / counts[~chosen].sum()
        counts = np.array([counts[~chosen].sum(), counts[chosen][0]])
        means = np.vstack([pooled, means[chosen]])
    # Deviations weighted once here and by the root in `between_classes`: (60) of the paper.
    share = counts / moments.count
    return share[:, None] * (means - moments.mean), share


def find_least_squares_directions(
    tasks: Sequence[planning.Task],
    moments: LabelledMoments,
    n_filtered: int,
    ridge: float,
    *,
    fill: bool = False,
) -> tuple[FloatArray, int]:
    """Minimise Phi with least squares tasks exactly: an eigenproblem.

    With heads solved, a task costs ``const - tr((U^T C U)^-1 U^T C_t C_t^T U)``, so Phi is the sum
    of the eigenvalues of ``(-sum_t a_t C_t C_t^T, C)`` on the space chosen, private tasks having
    negative weights a_t; the smallest are best and only negative ones are worth their leak.

    Parameters
    ----------
    n_filtered
        Number of directions; 0 takes the informative ones. Beyond those, principal directions
        that are uncorrelated with them and with the private variables.
    ridge
        Of the features' covariance, relative to its mean eigenvalue.

    Returns
    -------
    directions : (n_features, n_filtered)
        ``U^T (C + ridge) U = I``.
    n_informative
        Number of negative eigenvalues.

    References
    ----------
    Hamm, JMLR 2017, equations (47)-(58).
    """
    crosses = [cross_moments(task, moments) for task in tasks]
    signs = np.concatenate(
        [np.full(c.shape[1], -t.weight) for t, c in zip(tasks, crosses, strict=True)]
    )
    # Solved in the range of the class moments: a square eigensolver returned 36 directions of
    # rounding as informative ones on motion records.
    values, vectors = spectra.solve_generalised(
        np.column_stack(crosses), signs, moments.covariance, ridge
    )
    n_informative = int((values < -INFORMATIVE * np.abs(values).max(initial=1e-300)).sum())
    taken = vectors[:, : min(max(n_informative, 1), n_filtered or len(values))]
    if (missing := n_filtered - taken.shape[1]) > 0:
        hide = [cross for t, cross in zip(tasks, crosses, strict=True) if t.weight < 0]
        closed, avoided = np.column_stack(hide), moments.covariance @ taken
        rest = _guard(moments, closed, avoided, missing, fill=fill)
        rest = spectra.scale_to_unit_variance(rest, moments.covariance)
        taken = np.column_stack([taken, rest])
    return taken, n_informative


def find_privacy_lds(
    tasks: Sequence[planning.Task],
    moments: LabelledMoments,
    n_filtered: int,
    ridge: float,
    *,
    fill: bool = False,
) -> tuple[FloatArray, int]:
    """Directions that separate target classes and not the private ones.

    The informative ones are generalised eigenvectors of the scatters between classes (62); the
    rest are principal directions inside the null space of the private scatter, which a linear
    adversary cannot use, rather than the arbitrary vectors that the eigenproblem leaves open.

    Returns
    -------
    directions : (n_features, n_filtered)
        Of unit length.
    n_informative
        Rank of the target scatter.
    """
    scaled = [(t.weight, np.sqrt(abs(t.weight)) * between_classes(t, moments)) for t in tasks]
    target = np.column_stack([columns for weight, columns in scaled if weight > 0])
    private = np.column_stack([columns for weight, columns in scaled if weight < 0])
    ones = np.ones(target.shape[1])
    values, vectors = spectra.solve_generalised(target, ones, private @ private.T, ridge)
    width = n_filtered or len(values)
    taken = vectors[:, ::-1][:, :width]
    taken = taken / np.linalg.norm(taken, axis=0)
    if missing := width - taken.shape[1]:
        rest = _guard(moments, private, taken, missing, fill=fill)
        taken = np.column_stack([taken, rest])
    return taken, len(values)


def _guard(
    moments: LabelledMoments, closed: FloatArray, taken: FloatArray, missing: int, *, fill: bool
) -> FloatArray:
    """Principal directions that a linear adversary cannot use; others, or OptionError, if too few.

    A start may hold any direction: training leaves it. A filter that is final may not.
    """
    # The rank by the rule that closes the directions: the classes of a variable are dependent, and
    # whether their last singular value is above eps is for each processor another matter.
    room = len(moments.mean) - spectra.count_directions(np.column_stack([closed, taken]))
    if missing > room and not fill:
        most = taken.shape[1] + room
        raise OptionError(
            f"n_filtered is {taken.shape[1] + missing}, but only {most} directions avoid the "
            "confidential variables.",
            remedy=f"Use at most {most}.",
        )
    found = spectra.guard_directions(moments.covariance, closed, taken, min(missing, room))
    if missing > room:
        # A start takes what room there is and is filled up: 28 of 400 odd problems were refused
        # before.
        there = np.column_stack([taken, found])
        more = missing - room
        open_ = spectra.guard_directions(moments.covariance, there[:, :0], there, more)
        found = np.column_stack([found, open_])
    return found
