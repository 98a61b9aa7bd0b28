"""Categorical records as numbers: one indicator column per category."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privpipe.protocols import Column, FloatArray, IntArray


def expand_indicators(codes: IntArray, columns: Sequence[Column]) -> FloatArray:
    """Indicators of each category of each variable; all zero where a code is missing.

    Parameters
    ----------
    codes : (n_records, n_attributes)
    columns
        The variables, all categorical.

    Returns
    -------
    indicators : (n_records, sum of n_categories), float64

    Examples
    --------
    >>> expand_indicators(np.array([[1, 0], [-1, 1]]), [Column("a", 2), Column("b", 2)])
    array([[0., 1., 1., 0.],
           [0., 0., 0., 1.]])
    """
    parts = [
        codes[:, j : j + 1] == np.arange(column.n_categories or 0)
        for j, column in enumerate(columns)
    ]
    return np.concatenate(parts, axis=1).astype(np.float64)


def name_indicators(columns: Sequence[Column]) -> tuple[str, ...]:
    """Name of each indicator: the variable and the number of the category, never its text."""
    return tuple(
        f"{column.name}={k}" for column in columns for k in range(column.n_categories or 0)
    )
