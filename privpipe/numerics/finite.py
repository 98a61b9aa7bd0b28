"""Arrays of real numbers; which rows are finite, at the cost of one product with a vector."""

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from privpipe.errors import InputError
from privpipe.protocols import AnyArray, BoolArray

MOST_BINARY = 430
"""Binary digits before or after the point, at which squares of deviations are in range."""


def fill_gaps(x: AnyArray, fill: ArrayLike) -> AnyArray:
    """Rows of any real dtype with ``fill``, (n_columns,), where values are not finite.

    Examples
    --------
    >>> fill_gaps(np.array([[1.0, np.nan], [np.inf, 2.0]]), (5.0, 6.0)).tolist()
    [[1.0, 6.0], [5.0, 2.0]]
    """
    known = np.isfinite(x)
    return x if known.all() else np.where(known, x, np.asarray(fill, x.dtype))


def find_finite_rows(x: AnyArray) -> BoolArray:
    """Which rows hold finite numbers only, (n_rows,).

    What is not finite makes the sum of its row not finite; rows whose sum is finite need no
    second look. That reads the rows once, as fast as they come from memory.

    Parameters
    ----------
    x : (n_rows, n_columns)
        Of any real dtype.

    Examples
    --------
    >>> largest = np.finfo(np.float64).max  # a sum may overflow where no value is at fault
    >>> find_finite_rows(np.array([[1.0, np.nan], [largest, largest], [np.inf, -np.inf]]))
    array([False,  True, False])
    """
    if x.dtype.kind != "f":
        return np.ones(len(x), np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):
        finite: BoolArray = np.isfinite(x @ np.ones(x.shape[1], x.dtype))
    doubtful = np.flatnonzero(~finite)
    finite[doubtful] = np.isfinite(x[doubtful]).all(axis=1)
    return finite


def bring_near(x: AnyArray) -> AnyArray:
    """Columns whose squares float64 does not hold, times a power of two; all others as they are.

    >>> bring_near(np.array([[1.0, 1e-300], [3.0, 2e-300]])).round(3).tolist()
    [[1.0, 0.335], [3.0, 0.67]]
    """
    if x.dtype != np.float64:
        return x
    size = np.frexp(np.abs(x).max(axis=0, initial=0.0))[1]
    far = np.abs(size) > MOST_BINARY
    return np.ldexp(x, np.where(far, -size, 0)) if far.any() else x


def find_empty_rows(x: AnyArray) -> BoolArray:
    """Which rows hold nothing but NaN, (n_rows,), as withheld records do.

    Parameters
    ----------
    x : (n_rows, n_columns)
        At least one column: its NaN show which rows need a look.
    """
    empty: BoolArray = np.isnan(x[:, 0])
    doubtful = np.flatnonzero(empty)
    empty[doubtful] = np.isnan(x[doubtful]).all(axis=1)
    return empty


def keep_rows(x: AnyArray, chosen: BoolArray) -> AnyArray:
    """The rows that are `chosen`: the array itself where all are, else a copy."""
    return x if chosen.all() else x[chosen]


def as_array(values: Any, name: str) -> AnyArray:
    """An array of what is given; see `fill_masked`. Text of a list stays Python's.

    NumPy's text of a fixed width has no NUL at its end, without which two classes may be one.
    """
    found = _convert(filled := fill_masked(values, name), name)
    is_cut = found.dtype.kind in "SU" and not isinstance(filled, np.ndarray)
    return np.asarray(filled, object) if is_cut else found


def _convert(values: Any, name: str) -> AnyArray:
    try:
        return np.asarray(values)
    except ValueError:  # NumPy's refusal of nested lists
        problem, remedy = f"{name} have rows of different lengths.", "Give each as many values."
    raise InputError(problem, remedy=remedy, code="dtype")


def fill_masked(values: Any, name: str = "Records") -> Any:
    """Values; what an array of NumPy masks is missing: NaN, or None where they are no floats.

    Raises
    ------
    InputError
        If they are a sparse matrix, which NumPy takes for a single object.
    """
    if hasattr(values, "tocsr"):
        problem = f"{name}: a sparse matrix of {type(values).__name__} is given."
        raise InputError(problem, remedy="Give a dense array, as of its toarray().", code="dtype")
    if not np.ma.isMA(values):
        return values
    if values.dtype.kind == "f":
        return np.ma.filled(values, np.nan)
    return np.where(np.ma.getmaskarray(values), np.array(None), values.data.astype(object))


def fill_codes(codes: Any) -> Any:
    """Codes; what an array of NumPy masks is -1, missing."""
    return np.where(np.ma.getmask(codes), np.int64(-1), codes.data) if np.ma.isMA(codes) else codes


def as_reals(values: Any, name: str) -> AnyArray:
    """An array of real numbers; anything but floating numbers becomes float64.

    Raises
    ------
    InputError
        If it holds text, objects or complex numbers; values are never quoted.
    """
    found = _convert(fill_masked(values, name), name)
    if found.dtype.kind == "f":
        return found
    # Objects may still be numbers, as of a table with mixed columns; the message never quotes one.
    with suppress(ValueError, TypeError, OverflowError):
        if found.dtype.kind == "O":
            import pandas as pd  # slow to load; its own missing value is no float

            found = np.where(pd.isna(found), np.nan, found)
        if found.dtype.kind in "biuO":
            return found.astype(np.float64)
    problem = f"{name} hold something that is not a real number (dtype {found.dtype})."
    raise InputError(problem, remedy="Leave text out, or turn it into numbers first.", code="dtype")
