"""The frozen maps of linear filters: drawn, from a closed form, or learned in rounds."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privpipe.described import record_map
from privpipe.protocols import FloatArray, Guarantee
from privpipe.sanitizers.feature_map import FeatureMap
from privpipe.sanitizers.grounds import read_grounds

HAMM = "Hamm 2017, Minimax Filter, JMLR 18"

UNKNOWN = ("None", "What it hides is found out by the audit alone.")


def promise_nothing(method: str) -> Guarantee:
    """The guarantee of a filter: none for single records, and what is known instead.

    Parameters
    ----------
    method
        Name of the method that made the filter; of an unknown one nothing is known.
    """
    theorem, assumptions = read_grounds()["filters"].get(method, UNKNOWN)
    return Guarantee("none", None, "nats", "in expectation", theorem, assumptions)


class FeatureFilter(FeatureMap):
    """A map that gives features new meanings, and promises nothing of single records."""

    keeps_features: ClassVar[bool] = False

    @property
    def guarantee(self) -> Guarantee:
        """None for single records; see `promise_nothing`."""
        return promise_nothing("minimax")


@record_map
class LinearFilter(FeatureFilter):
    """Maps records to ``x U + offset``, in float64 to rounding.

    Nothing is promised of what U does not see: the last digits are those of a plain product.

    Parameters
    ----------
    method
        Name of the method that made it.
    weights : (n_features_in, n_features_out)
        U.
    offset : (n_features_out,)

    Examples
    --------
    >>> LinearFilter("rand", np.array([[1.0], [2.0]]), np.zeros(1)).apply(np.eye(2))
    array([[1.],
           [2.]])
    """

    kind: ClassVar[str] = "linear_filter"

    method: str
    weights: FloatArray
    offset: FloatArray

    @property
    def n_features_in(self) -> int:
        return len(self.weights)

    @property
    def n_features_out(self) -> int:
        return int(self.weights.shape[1])

    @property
    def guarantee(self) -> Guarantee:
        """None for single records; see `promise_nothing`."""
        return promise_nothing(self.method)

    def map_records(self, records: FloatArray) -> FloatArray:
        return np.asarray(records @ self.weights + self.offset)


@record_map
class MaskFilter(FeatureFilter):
    """Multiplies every feature by a number between 0 and 1.

    No method fits one any more; those that are stored open and apply.

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

    guarantee: ClassVar[Guarantee] = promise_nothing("ddd")
    """None: whoever standardises the released features undoes the mask."""

    def map_records(self, records: FloatArray) -> FloatArray:
        return np.asarray(records * self.mask)


@dataclass(frozen=True, eq=False)
class TrainingRecord:
    """How training went: what every trained map holds of it.

    Parameters
    ----------
    stopped
        Why the fit ended: "gradient", "progress", "iterations", "held_out", "line_search" or
        "inner" (see `Descent`).
    history : (n_iterations + 1, n_columns)
        How the fit went, one row per iteration, the starting point first. Of an adversary that was
        not drawn yet it says the loss of a constant guess.
    history_columns
        Names of its columns: iteration, phi, ``loss_role:variable`` per task, held_out_phi where
        records are held out, gradient_norm, inner_gap, rounds, bytes, largest_round_bytes.
    task_names
        Tasks in the order of `baselines`, as ``role:variable``.
    baselines : (n_tasks,)
        Loss of the best constant guess of each task: entropy in nats for classes, 1 for
        numbers. A private loss that reaches it says that the trained adversary learned nothing.
    """

    stopped: str
    history: FloatArray
    history_columns: tuple[str, ...]
    task_names: tuple[str, ...]
    baselines: FloatArray


@record_map
class MinimaxFilter(TrainingRecord, LinearFilter):
    """A linear filter learned in rounds, and how learning went.

    Parameters
    ----------
    method, weights, offset
        As of `LinearFilter`.
    stopped, history, history_columns, task_names, baselines
        As of `TrainingRecord`.
    generalisation_bound
        Bound on the expected rise of Phi on new records, in nats, for predictors no larger than
        the fitted ones. See `bound_generalisation_gap` for what it assumes. -1 where it cannot be
        stated, because some task is a number and its loss has no Lipschitz constant.
    """

    kind: ClassVar[str] = "minimax_filter"

    generalisation_bound: float
