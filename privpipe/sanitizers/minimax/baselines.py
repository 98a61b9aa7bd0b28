"""Filters from one pass or none: least squares minimax, Privacy LDS, PCA, random.

Hamm, JMLR 2017, sections 4.1 and 6.1: the closed forms, and what minimax filters are compared with.
The forms (equations 47-62) are generalised eigenproblems, which have only as many informative
directions as the target tasks have outputs. PPLS and DDD of the same comparison are in the papers'
reproductions.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from privpipe.errors import OptionError
from privpipe.fitted_names import keep_names
from privpipe.numerics.minimax import spectra
from privpipe.protocols import FloatArray, Role, Shards, ShardSchema
from privpipe.sanitizers.arrays import check_shards, check_spread
from privpipe.sanitizers.minimax.linear_filter import HAMM, LinearFilter
from privpipe.sanitizers.minimax.training import labelled_moments
from privpipe.sanitizers.minimax.training import tasks as planning
from privpipe.sanitizers.minimax.training.labelled_moments import LabelledMoments, LabelMoments
from privpipe.sanitizers.minimax.training.tasks import Task
from privpipe.sanitizers.options import MethodOptions, method_options

Width = Annotated[int, Field(ge=1)]
Find = Callable[[Sequence[Task], LabelledMoments, int, float], tuple[FloatArray, int]]


@method_options
class LeastSquaresOptions(planning.TaskOptions):
    """Options of ``[method] name = "minimax_least_squares"``."""

    source: ClassVar[str] = f"{HAMM}, equations (47)-(58)"
    name: Literal["minimax_least_squares"] = "minimax_least_squares"
    n_filtered: Width | None = None
    """Features released. Default: the informative directions."""
    ridge: planning.Positive = 1e-6
    """Added to the metric of the eigenproblem, relative to its mean eigenvalue."""


@method_options
class PrivacyLdsOptions(planning.TaskOptions):
    """Options of ``[method] name = "privacy_lds"``."""

    source: ClassVar[str] = f"{HAMM}, equations (59)-(62)"
    name: Literal["privacy_lds"] = "privacy_lds"
    n_filtered: Width | None = None
    """Features released. Default: the informative directions."""
    ridge: planning.Positive = 1e-8
    """Added to the metric of the eigenproblem, relative to its mean eigenvalue."""


@method_options
class PcaOptions(MethodOptions):
    """Options of ``[method] name = "pca"``."""

    source: ClassVar[str] = f"{HAMM}, section 6.1"
    name: Literal["pca"] = "pca"
    n_filtered: Width
    """Features released."""
    centre: bool = True
    """Subtract the training mean. False: the paper's, on raw records."""

    multiplies: ClassVar[bool] = True
    scales: ClassVar[bool] = True

    def needs_labels(self) -> tuple[frozenset[Role], ...]:
        """Records without all labels are left out, as by every filter."""
        return (frozenset({"desired", "confidential"}),)

    def check(self, schema: ShardSchema) -> None:
        """Raise OptionError if `n_filtered` exceeds the features."""
        planning.check_width(self.n_filtered, schema.n_features)


@method_options
class RandOptions(MethodOptions):
    """Options of ``[method] name = "rand"``."""

    source: ClassVar[str] = f"{HAMM}, section 6.1"
    name: Literal["rand"] = "rand"
    n_filtered: Width
    """Features released."""
    seed: int = Field(default=0, ge=0)
    """Of the projection; public, for it protects nothing."""

    scales: ClassVar[bool] = True
    learns: ClassVar[bool] = False

    def check(self, schema: ShardSchema) -> None:
        """Raise OptionError if `n_filtered` exceeds the features."""
        planning.check_width(self.n_filtered, schema.n_features)


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
    moments, tasks = labelled_moments.measure_tasks(options, shards)
    directions, n_informative = find(tasks, moments, options.n_filtered or 0, options.ridge)
    planning.warn_of_width(directions.shape[1], max(n_informative, 1))
    return make_centred_filter(options.name, directions, moments.mean)


@keep_names
def fit_pca_filter(shards: Shards, options: PcaOptions) -> LinearFilter:
    """Keep the directions of largest variance; hides nothing on purpose.

    Raises
    ------
    OptionError
        If `n_filtered` exceeds the features.
    """
    check_shards(shards, products=True)
    options.check(shards.schema)
    moments = labelled_moments.measure_moments(shards)
    mean, second = moments.mean, moments.covariance
    check_spread("feature", np.diag(second), mean)
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


# Far above rounding of the eigenproblem and far below any direction worth its leak.
INFORMATIVE = 1e-10
"""An eigenvalue of at most so much of the largest says nothing about the target."""


def cross_moments(task: Task, moments: LabelledMoments) -> FloatArray:
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


def between_classes(task: Task, moments: LabelledMoments) -> FloatArray:
    """Columns B with ``B B^T`` the scatter between the classes of a task, per record (60).

    For a number, the part of the features' covariance that it explains.
    """
    if not task.is_classification:
        return cross_moments(task, moments)
    cross, share = _class_moments(task, moments.labels[task.column], moments)
    return np.asarray((cross / np.sqrt(share)[:, None]).T)


def _class_moments(
    task: Task, label: LabelMoments, moments: LabelledMoments
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
    deviations = means - moments.mean
    # Means are rounded in proportion to their size: what all classes share of it, beside means of
    # 1e9, was one more direction between them than there is.
    deviations -= share @ deviations
    return share[:, None] * deviations, share


def find_least_squares_directions(
    tasks: Sequence[Task], moments: LabelledMoments, width: int, ridge: float, *, fill: bool = False
) -> tuple[FloatArray, int]:
    """Minimise Phi with least squares tasks exactly: an eigenproblem.

    With heads solved, a task costs ``const - tr((U^T C U)^-1 U^T C_t C_t^T U)``. So Phi is the sum
    of the eigenvalues of ``(-sum_t a_t C_t C_t^T, C)`` on the space chosen. Private tasks have
    negative weights a_t. The smallest are best and only negative ones are worth their leak.

    Parameters
    ----------
    width
        Number of directions; 0 takes the informative ones. Beyond those, principal directions
        that are uncorrelated with them and with the private variables.
    ridge
        Of the features' covariance, relative to its mean eigenvalue.

    Returns
    -------
    directions : (n_features, width)
        ``U^T (C + ridge) U = I``.
    n_informative
        Number of negative eigenvalues.

    References
    ----------
    Hamm, JMLR 2017, equations (47)-(58).
    """
    pairs = [(task, cross_moments(task, moments)) for task in tasks]
    signs = np.concatenate([np.full(cross.shape[1], -task.weight) for task, cross in pairs])
    crosses = np.column_stack([cross for _, cross in pairs])
    # Solved in the range of the class moments: a square eigensolver returned 36 directions of
    # rounding as informative ones on motion records.
    values, vectors = spectra.solve_generalised(crosses, signs, moments.covariance, ridge)
    n_informative = int((values < -INFORMATIVE * np.abs(values).max(initial=1e-300)).sum())
    taken = vectors[:, : min(max(n_informative, 1), width or len(values))]
    if (missing := width - taken.shape[1]) > 0:
        hide = [cross for task, cross in pairs if task.weight < 0]
        closed, avoided = np.column_stack(hide), moments.covariance @ taken
        rest = _guard(moments, closed, avoided, missing, fill=fill)
        rest = spectra.scale_to_unit_variance(rest, moments.covariance)
        taken = np.column_stack([taken, rest])
    return taken, n_informative


def find_privacy_lds(
    tasks: Sequence[Task], moments: LabelledMoments, width: int, ridge: float, *, fill: bool = False
) -> tuple[FloatArray, int]:
    """Directions that separate target classes and not the private ones.

    The informative ones are generalised eigenvectors of the scatters between classes (62). The rest
    are principal directions inside the null space of the private scatter, which a linear adversary
    cannot use. They replace the arbitrary vectors that the eigenproblem leaves open.

    Returns
    -------
    directions : (n_features, width)
        Of unit length.
    n_informative
        Rank of the target scatter.
    """
    scaled = [(t.weight, np.sqrt(abs(t.weight)) * between_classes(t, moments)) for t in tasks]
    target = np.column_stack([columns for weight, columns in scaled if weight > 0])
    private = np.column_stack([columns for weight, columns in scaled if weight < 0])
    ones = np.ones(target.shape[1])
    values, vectors = spectra.solve_generalised(target, ones, private @ private.T, ridge)
    width = width or len(values)
    taken = vectors[:, ::-1][:, :width]
    taken = taken / np.linalg.norm(taken, axis=0)
    if missing := width - taken.shape[1]:
        taken = np.column_stack([taken, _guard(moments, private, taken, missing, fill=fill)])
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
        problem = f"n_filtered is {taken.shape[1] + missing}, and {most} directions are free."
        raise OptionError(problem, remedy=f"Use at most {most}.")
    found = spectra.guard_directions(moments.covariance, closed, taken, min(missing, room))
    if missing > room:
        # A start takes what room there is and is filled up: 28 of 400 odd problems were refused
        # before.
        there = np.column_stack([taken, found])
        open_ = spectra.guard_directions(moments.covariance, there[:, :0], there, missing - room)
        found = np.column_stack([found, open_])
    return found
