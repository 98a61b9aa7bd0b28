"""Which rows are finite, at the cost of one product with a vector; rows selected without a copy."""

import numpy as np

from privpipe.protocols import AnyArray, BoolArray


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
