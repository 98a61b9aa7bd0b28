"""The frozen maps of linear filters: drawn, from a closed form, or learned in rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from privpipe.errors import InputError
from privpipe.protocols import FloatArray, Guarantee, RecordStream, Role
from privpipe.sanitizers.arrays import as_reals, check_finite_records, check_not_lazy

__all__ = ["EMPIRICAL", "LinearFilter", "MinimaxFilter", "check_records"]

EMPIRICAL = Guarantee(
    kind="none",
    number=None,
    unit="nats",
    scope="in expectation",
    theorem="Hamm, JMLR 2017, Theorem 4: the learned filter does as well in expectation as the "
    "best of its family, up to a term that falls with the number of training records",
    assumptions="Adversaries are of the family trained against; audit the release with others.",
)


@dataclass(frozen=True, eq=False)
class LinearFilter:
    """Maps records to ``x U + offset``.

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
    reads: ClassVar[Role] = "features"
    draws: ClassVar[bool] = False
    keeps_features: ClassVar[bool] = False

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
        """None for single records: the promise is empirical and in expectation."""
        return EMPIRICAL

    def apply(self, x: npt.ArrayLike, stream: RecordStream | None = None) -> FloatArray:
        """Filter records.

        Parameters
        ----------
        x : (n_records, n_features_in)
        stream
            Ignored: the map draws nothing.

        Returns
        -------
        z : (n_records, n_features_out)
            In the floating dtype of `x`; float64 for integers.

        Raises
        ------
        InputError
            If the shape is wrong or values are not finite; the message counts them.
        """
        records, dtype = check_records(x, self.n_features_in)
        released: FloatArray = (records @ self.weights + self.offset).astype(dtype)
        return released


@dataclass(frozen=True, eq=False)
class MinimaxFilter(LinearFilter):
    """A linear filter learned in rounds, and how learning went.

    Parameters
    ----------
    method, weights, offset
        As of `LinearFilter`.
    stopped
        Why the fit ended: "gradient", "progress", "iterations", "held_out" or "line_search".
    history : (n_iterations + 1, n_columns)
        How the fit went, one row per iteration, the starting point first.
    history_columns
        Names of its columns: iteration, phi, ``loss_role:variable`` per task, held_out_phi where
        records are held out, gradient_norm, inner_gap, rounds, bytes, largest_round_bytes.
    task_names
        Tasks in the order of `baselines`, as ``role:variable``.
    baselines : (n_tasks,)
        Loss of the best constant guess of each task: entropy in nats for classes, 1 for
        numbers. A private loss that reaches it says that the trained adversary learned nothing.
    generalisation_bound
        Bound on the expected rise of Phi on new records, in nats, for predictors no larger than
        the fitted ones; see `bound_generalisation_gap` for what it assumes. -1 where it cannot
        be stated, because some task is a number and its loss has no Lipschitz constant.
    """

    kind: ClassVar[str] = "minimax_filter"

    stopped: str
    history: FloatArray
    history_columns: tuple[str, ...]
    task_names: tuple[str, ...]
    baselines: FloatArray
    generalisation_bound: float


def check_records(x: npt.ArrayLike, n_features: int) -> tuple[FloatArray, np.dtype[Any]]:
    """Return float64 records and the dtype to release, or refuse them."""
    check_not_lazy(x)
    records = as_reals(x, "Records")
    if records.ndim != 2 or records.shape[1] != n_features:
        raise InputError(
            f"Records of shape {records.shape} do not fit a filter of {n_features} features.",
            remedy=f"Give an array of shape (n_records, {n_features}).",
            code="shape",
        )
    dtype = records.dtype
    records = records.astype(np.float64)
    check_finite_records(records)
    return records, dtype
