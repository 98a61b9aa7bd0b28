"""Discriminately decreasing discriminability: a mask on the features, for binary variables.

Whitehill and Movellan 2012, with the mask-type filter that Hamm, JMLR 2017, compares with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import scipy.linalg as sl
import scipy.optimize as so
from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.described import described, facts_of_map
from privpipe.errors import InputError
from privpipe.option_values import FORBID
from privpipe.protocols import FloatArray, Guarantee, RecordStream, Role, Shards, ShardSchema
from privpipe.sanitizers.minimax.linear_filter import as_method, check_records, promise_nothing
from privpipe.sanitizers.minimax.training.closed_forms import between_classes
from privpipe.sanitizers.minimax.training.labelled_moments import LabelledMoments, measure_moments
from privpipe.sanitizers.minimax.training.task_planning import check_tasks, plan_tasks
from privpipe.sanitizers.minimax.training.tasks import EigenRidge, Task, TaskOptions
from privpipe.sanitizers.names import by_name, keep_names


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class DddOptions(TaskOptions):
    """Options of ``[method] name = "ddd"``."""

    name: Literal["ddd"] = "ddd"
    tradeoff: Annotated[
        float,
        Field(
            gt=0,
            allow_inf_nan=False,
            description="Weight of the target's log criterion against the private one's.",
        ),
    ] = 1.0
    ridge: EigenRidge = 0.1
    max_iterations: Annotated[int, Field(ge=1, description="Most iterations of L-BFGS-B.")] = 200


@described(facts_of_map)
@dataclass(frozen=True, eq=False)
class MaskFilter:
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
    reads: ClassVar[Role] = "features"
    draws: ClassVar[bool] = False
    keeps_features: ClassVar[bool] = True

    mask: FloatArray
    stopped: str

    @property
    def n_features_in(self) -> int:
        return len(self.mask)

    @property
    def n_features_out(self) -> int:
        return len(self.mask)

    @property
    def guarantee(self) -> Guarantee:
        """None: whoever standardises the released features undoes the mask."""
        return promise_nothing("ddd")

    def apply(self, x: npt.ArrayLike, stream: RecordStream | None = None) -> FloatArray:
        """Mask records, (n_records, n_features); see `LinearFilter.apply`."""
        records, dtype = check_records(by_name(self, x), self.n_features_in)
        released: FloatArray = (records * self.mask).astype(dtype)
        return released


def measure_fisher(
    mask: FloatArray, difference: FloatArray, within: FloatArray, floor: float
) -> tuple[float, FloatArray]:
    """Log of Fisher's criterion of masked records, with its gradient by the mask.

    ``log (m d)^T (M W M + floor I)^-1 (m d)``: the largest ratio of squared distance between the
    class means to variance within classes, over all directions. The floor stands for the noise
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
    tasks = plan_tasks(options, shards.schema, moments)
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
    columns = between_classes(task, moments)
    return columns[:, 1], moments.covariance - columns @ columns.T


def check_ddd(options: DddOptions, schema: ShardSchema) -> None:
    """Raise OptionError or InputError if a task is known to have more than two classes."""
    check_tasks(options, schema)
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
        DddOptions,
        fit_ddd_filter,
        MaskFilter,
        check_ddd,
        source="Whitehill and Movellan 2012, mask-type filter",
    ),
)
