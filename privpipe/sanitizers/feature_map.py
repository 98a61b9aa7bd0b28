"""The base of maps that make a record of each record, and how records are handed to it."""

from typing import Any, ClassVar

import numpy as np

from privpipe.errors import InputError
from privpipe.fitted_names import by_name, giving_back
from privpipe.numerics.finite import as_reals, find_finite_rows
from privpipe.protocols import ArrayLike, FloatArray, Guarantee, RecordStream, Role


class FeatureMap:
    """Reads features, draws nothing, keeps their meaning, promises nothing.

    A new map has a `kind`, says how many features go in and come out, and what it makes of finite
    records (`map_records`). Everything else is a default that it may replace.
    """

    kind: ClassVar[str]
    reads: ClassVar[Role] = "features"
    draws: ClassVar[bool] = False
    keeps_features: ClassVar[bool] = True

    n_features_in: Any
    n_features_out: Any

    @property
    def guarantee(self) -> Guarantee:
        """Nothing."""
        return Guarantee("none", None, "", "every record", "None: nothing is claimed of this map")

    def map_records(self, records: FloatArray) -> FloatArray:
        """What is released of finite records in float64: (n_records, n_features_out)."""
        raise NotImplementedError

    @giving_back
    def apply(self, x: ArrayLike, stream: RecordStream | None = None) -> FloatArray:
        """Map records.

        Parameters
        ----------
        x : (n_records, n_features_in) or (n_features_in,)
            Records, or one record; a table is read by the names that the map was fitted on.
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
        """
        records, dtype = as_records(self, x)
        # Products in double, whatever the records' dtype: a release in single precision differs
        # by its rounding alone.
        records = records.astype(np.float64)
        check_finite_records(records)
        released: FloatArray = self.map_records(records).astype(dtype, copy=False)
        return released[0] if np.ndim(x) == 1 else released


def check_not_lazy(x: Any) -> None:
    """Raise InputError for a lazy array, which would be computed whole in silence."""
    graph = getattr(x, "__dask_graph__", None)
    # Xarray has the method whether or not it is lazy: only a graph says so.
    if (callable(graph) and graph() is not None) or hasattr(x, "data_vars"):
        raise InputError(
            f"Records are a {type(x).__name__}, lazy or of many arrays: `apply` reads no such.",
            remedy="Use privpipe.apply_lazily (Dask) or privpipe.apply_dataset (xarray), which "
            "stay lazy, or call .compute() first.",
            code="lazy",
        )


def as_records(fitted: Any, x: Any) -> tuple[FloatArray, np.dtype[Any]]:
    """Records as the floating matrix that a map reads, and the dtype to release.

    Parameters
    ----------
    fitted
        The map of features.
    x : (n_records, n_features) or (n_features,)
        An array, or a table whose columns are found by name; see `by_name`.

    Returns
    -------
    records : (n_records, n_features)
    dtype
        Theirs, or float64 for integers.

    Raises
    ------
    InputError
        If the number of features is wrong.
    """
    if not isinstance(x, np.ndarray):  # which has no names, and is not lazy
        x = by_name(fitted, x)
        check_not_lazy(x)
    records, n_features = np.atleast_2d(as_reals(x, "Records")), fitted.n_features_in
    if records.ndim != 2 or records.shape[1] != n_features:
        problem = f"Records of shape {np.shape(x)} do not fit a map of {n_features} features."
        remedy = f"Give an array of shape (n_records, {n_features})."
        raise InputError(problem, remedy=remedy, code="shape")
    return records, records.dtype


def check_finite_records(records: FloatArray) -> None:
    """Raise InputError, with a count, if records hold values that are not finite."""
    bad = int(np.count_nonzero(~find_finite_rows(records)))
    if bad:
        problem = f"{bad} of {len(records)} records hold values that are not finite."
        remedy = "Remove or impute them before sanitising."
        raise InputError(problem, remedy=remedy, code="nonfinite")
