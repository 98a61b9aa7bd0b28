"""What callers hand to sanitizers, checked: arrays in the dtype to work with, and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.errors import InputError, OptionError
from privpipe.protocols import FloatArray, ShardSchema

__all__ = [
    "as_finite",
    "as_predictor",
    "as_records",
    "check_finite_records",
    "check_unweighted",
]


def as_predictor(values: npt.ArrayLike, name: str = "predictor") -> FloatArray:
    """A linear operator as a float64 matrix (n_features, n_predictions); one column if flat.

    Raises
    ------
    InputError
        If it is empty, not a matrix, or holds values that are not finite.
    """
    a = np.asarray(values, np.float64)
    a = a[:, None] if a.ndim == 1 else a
    problem = ""
    if a.ndim != 2 or a.size == 0:
        problem = f"has shape {a.shape}"
    elif bad := int(np.count_nonzero(~np.isfinite(a))):
        problem = f"holds {bad} of {a.size} values that are not finite"
    if problem:
        raise InputError(
            f"The {name} {problem}.",
            remedy="Give a finite matrix of shape (n_features, n_predictions).",
            code="predictor",
        )
    return a


def as_finite(values: npt.ArrayLike | None, shape: tuple[int, ...], name: str) -> FloatArray:
    """A finite float64 array of that shape; zeros when none is given."""
    array = np.zeros(shape) if values is None else np.asarray(values, np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise InputError(
            f"{name} has shape {array.shape} or is not finite.",
            remedy=f"Give a finite array of shape {shape}.",
        )
    return array


def as_records(x: npt.ArrayLike, n_features: int) -> tuple[FloatArray, np.dtype[Any]]:
    """Records as a floating matrix, and the dtype to release: theirs, or float64 for integers.

    Raises
    ------
    InputError
        If the number of features is wrong.
    """
    records = np.atleast_2d(np.asarray(x))
    if records.ndim != 2 or records.shape[1] != n_features:
        raise InputError(
            f"Records of shape {np.shape(x)} do not fit a map of {n_features} features.",
            remedy=f"Give an array of shape (n_records, {n_features}).",
            code="shape",
        )
    if not np.issubdtype(records.dtype, np.floating):
        records = records.astype(np.float64)
    return records, records.dtype


def check_finite_records(records: FloatArray) -> None:
    """Raise InputError, with a count, if records hold values that are not finite."""
    bad = int(np.count_nonzero(~np.isfinite(records).all(axis=1)))
    if bad:
        raise InputError(
            f"{bad} of {len(records)} records hold values that are not finite.",
            remedy="Remove or impute them before sanitising.",
            code="nonfinite",
        )


def check_unweighted(schema: ShardSchema) -> None:
    """Raise OptionError if records have weights, for fits that count every record once."""
    if schema.weighted:
        raise OptionError(
            "This method counts every record once, but the records have weights.",
            remedy="Leave the weights out, or use null-space cleaning or LEACE.",
            code="weights",
        )
