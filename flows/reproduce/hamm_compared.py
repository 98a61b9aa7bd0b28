"""PPLS and DDD, which Hamm's figures compare minimax filters with.

Hamm, JMLR 2017, section 6.1. PPLS trades covariances (Enev, Jung, Bo, Ren and Kohno 2012,
SensorSift); DDD, discriminately decreasing discriminability, masks features (Whitehill and Movellan
2012). Neither promises anything, and an adversary undoes both: they are no methods of a run.
"""

from typing import Annotated, ClassVar, Literal

import numpy as np
import scipy.linalg as sl
import scipy.optimize as so
from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.errors import InputError
from privpipe.fitted_names import keep_names
from privpipe.numerics.minimax import spectra
from privpipe.option_values import FORBID
from privpipe.protocols import FloatArray, Shards, ShardSchema
from privpipe.sanitizers.minimax.baselines import (
    Width,
    between_classes,
    cross_moments,
    make_centred_filter,
)
from privpipe.sanitizers.minimax.linear_filter import LinearFilter, MaskFilter
from privpipe.sanitizers.minimax.training import tasks as planning
from privpipe.sanitizers.minimax.training.labelled_moments import measure_tasks


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class PplsOptions(planning.TaskOptions):
    """Options of ``[method] name = "ppls"``."""

    source: ClassVar[str] = "Enev et al. 2012, SensorSift, Algorithm 1"
    name: Literal["ppls"] = "ppls"
    n_filtered: Width
    tradeoff: planning.NonNegative = 1.0
    """Weight of target against private covariance (1 over the paper's lambda)"""


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


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class DddOptions(planning.TaskOptions):
    """Options of ``[method] name = "ddd"``."""

    source: ClassVar[str] = "Whitehill and Movellan 2012, mask-type filter"
    name: Literal["ddd"] = "ddd"
    tradeoff: planning.Positive = 1.0
    """Weight of the target's log criterion against the private one's."""
    ridge: planning.Positive = 0.1
    max_iterations: Annotated[int, Field(ge=1)] = 200
    """Most iterations of L-BFGS-B."""

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
