"""How named variables become the target columns of a linear predictor.

A numeric variable is one column as it is. A categorical one with two categories is one column,
coded 0/1 or -1/+1; one with more is one column per category (one against rest).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from privpipe.protocols import Column, FloatArray

Coding = Literal["zero_one", "plus_minus"]


def code_targets(values: FloatArray, columns: Sequence[Column], coding: Coding) -> FloatArray:
    """Turn codes and numbers into target columns; a missing value makes its columns NaN.

    Parameters
    ----------
    values : (n_records, n_variables), float64
        Codes of categorical variables (missing: -1 or NaN), values of numeric ones.
    columns
        What each variable is.
    coding
        Values of the columns of categorical variables.

    Returns
    -------
    targets : (n_records, n_targets), float64

    Examples
    --------
    >>> code_targets(np.array([[0.0], [2.0]]), [Column("digit", 3)], "plus_minus")
    array([[ 1., -1., -1.],
           [-1., -1.,  1.]])
    """
    low = 0.0 if coding == "zero_one" else -1.0
    parts = [_code_one(values[:, j], column, low) for j, column in enumerate(columns)]
    return np.concatenate(parts, axis=1) if parts else np.empty((len(values), 0))


def name_targets(columns: Sequence[Column]) -> tuple[str, ...]:
    """Name each target column: the variable, or ``variable=k`` for its k-th category."""
    names: list[str] = []
    for column in columns:
        k = column.n_categories or 0
        names += [f"{column.name}={i}" for i in range(k)] if k > 2 else [column.name]
    return tuple(names)


def count_targets(columns: Sequence[Column]) -> int:
    """Number of target columns of these variables."""
    return len(name_targets(columns))


def _code_one(values: FloatArray, column: Column, low: float) -> FloatArray:
    if column.n_categories is None:
        return values[:, None].astype(np.float64)
    positive = [1] if column.n_categories <= 2 else range(column.n_categories)
    hits = values[:, None] == np.asarray(positive, np.float64)
    coded = np.where(hits, 1.0, low)
    coded[~(values >= 0)] = np.nan
    return coded
