"""Distinct rows: the same as NumPy's, whatever the numbers are."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.numerics.kinds import find_distinct_rows

TABLES = {
    "codes": np.random.default_rng(0).integers(-1, 9, (500, 4)),
    "one column": np.random.default_rng(1).integers(0, 3, (50, 1)),
    "bytes": np.random.default_rng(2).integers(-128, 128, (300, 3)).astype(np.int8),
    "one row": np.array([[4, -7]]),
    "far apart": np.random.default_rng(3).integers(-(2**40), 2**40, (200, 3)),
    "no row": np.empty((0, 3), np.int64),
}


@pytest.mark.parametrize("name", TABLES)
def test_distinct_rows__are_those_of_numpy(name: str) -> None:
    table = TABLES[name]
    distinct, places = find_distinct_rows(table)
    expected, inverse = np.unique(table, axis=0, return_inverse=True)
    np.testing.assert_array_equal(distinct, expected)
    np.testing.assert_array_equal(places, inverse.ravel())
    assert distinct.dtype == table.dtype
    np.testing.assert_array_equal(distinct[places], table)
