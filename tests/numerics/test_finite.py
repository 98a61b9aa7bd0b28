"""Rows that are not finite are found whatever their values, and rows are kept without a copy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from privpipe.numerics.finite import find_empty_rows, find_finite_rows, keep_rows


@given(
    arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        array_shapes(min_dims=2, max_dims=2),
        elements=st.floats(width=16) | st.sampled_from([np.nan, np.inf, -np.inf]),
    )
)
def test_find_finite_rows__is_what_looking_at_every_value_finds(x):
    np.testing.assert_array_equal(find_finite_rows(x), np.isfinite(x).all(axis=1))


@pytest.mark.parametrize("dtype", ["float32", "float64", ">f4"])
def test_find_finite_rows__is_not_misled_by_sums_that_overflow(dtype):
    x = np.full((4, 3), np.finfo(dtype).max, dtype)
    x[1] *= -1
    x[2, 1] = np.nan
    np.testing.assert_array_equal(find_finite_rows(x), [True, True, False, True])


def test_find_finite_rows__takes_rows_without_columns_and_whole_numbers_as_finite():
    assert find_finite_rows(np.empty((3, 0))).all()
    assert find_finite_rows(np.array([[1, 2], [3, 4]])).tolist() == [True, True]


def test_find_empty_rows__finds_rows_of_nothing_only():
    x = np.array([[np.nan, np.nan], [np.nan, 1.0], [1.0, np.nan], [0.0, 0.0]])
    assert find_empty_rows(x).tolist() == [True, False, False, False]


def test_keep_rows__copies_only_what_it_must():
    x = np.arange(6.0).reshape(3, 2)
    assert keep_rows(x, np.ones(3, bool)) is x
    some = keep_rows(x, np.array([True, False, True]))
    np.testing.assert_array_equal(some, x[[0, 2]])
    assert not np.shares_memory(some, x)
