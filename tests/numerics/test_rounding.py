"""Decisions that no order of summation turns."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.numerics.minimax.spectra import count_directions, fix_signs
from privpipe.numerics.rounding import bound_rank_error, exceeds


@pytest.mark.parametrize("n_terms", [1, 8, 300])
def test_exceeds__no_order_of_summation_makes_a_tie_larger(n_terms):
    rng = np.random.default_rng(n_terms)
    terms = rng.normal(size=(200, n_terms)) * np.exp(5 * rng.normal(size=(200, n_terms)))
    forward = np.add.accumulate(terms, axis=1)[:, -1:]
    backward = np.add.accumulate(terms[:, ::-1], axis=1)[:, -1:]
    size = np.abs(terms).sum(axis=1, keepdims=True)
    assert not exceeds(forward, backward, size, n_terms).any()
    assert not exceeds(backward, forward, size, n_terms).any()
    assert exceeds(forward + 1e-9 * size, backward, size, n_terms).all()


@pytest.mark.parametrize("n_columns", [2, 7, 60])
def test_bound_rank_error__covers_dependent_columns_and_no_other(n_columns):
    rng = np.random.default_rng(n_columns)
    for _ in range(20):
        x = rng.normal(size=(500, n_columns))
        x /= np.linalg.norm(x, axis=0)
        dependent = np.column_stack([x, x @ rng.normal(size=n_columns)])
        sizes = np.linalg.svd(dependent / np.linalg.norm(dependent, axis=0), compute_uv=False)
        assert sizes[-1] < 0.25 * bound_rank_error(n_columns) * sizes[0]
    assert np.linalg.svd(x, compute_uv=False)[-1] > 1e-3


def test_fix_signs__of_equal_entries_the_first_decides_whatever_the_last_bits():
    column = np.array([[-1.0], [1.0]]) / np.sqrt(2)
    for shift in (-1e-16, 0.0, 1e-16):
        turned = fix_signs(column + np.array([[0.0], [shift]]))
        assert turned[0, 0] > 0 > turned[1, 0]


def test_count_directions__counts_the_classes_of_a_variable_but_one():
    rng = np.random.default_rng(0)
    for n_classes in range(3, 9):
        means = rng.normal(size=(30, n_classes))
        means -= means.mean(axis=1, keepdims=True)
        assert count_directions(means) == n_classes - 1
