"""TSQR against a reference solver, where co-moments lose digits, in any order of merging."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from privpipe.errors import OptionError, RankError
from privpipe.numerics.moments import CoMoments, solve_least_squares
from privpipe.numerics.tsqr import Frame, TriangularFactor, solve_triangular


def make_design(n_records=300, near=None):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n_records, 6)) * [1, 10, 1e3, 1e-3, 1, 1] + [0, 5, 1e4, 0, -2, 1]
    if near is not None:
        x = np.column_stack([x, x[:, 0] + near * rng.normal(size=n_records)])
    y = np.column_stack([x[:, :3] @ [1, 0.2, -1e-3], x[:, 4]]) + 0.1 * rng.normal(
        size=(n_records, 2)
    )
    return x, y + np.array([3, -7])


def frame_of(x, y, with_intercept=True):
    centre = np.r_[x.mean(axis=0), y.mean(axis=0)] * with_intercept
    return Frame(centre, x.std(axis=0), with_intercept)


def fit(x, y, frame, *, weights=None, order=None, ridge=0.0):
    parts = np.array_split(np.arange(len(x)), 7)
    factors = [
        TriangularFactor.of_design(
            x[rows], y[rows], frame, None if weights is None else weights[rows]
        )
        for rows in (parts if order is None else [parts[i] for i in order])
    ]
    return solve_triangular(reduce(TriangularFactor.merge, factors), frame, ridge=ridge)


@pytest.mark.parametrize("with_intercept", [True, False])
def test_solve_triangular__is_least_squares(with_intercept):
    x, y = make_design()
    found = fit(x, y, frame_of(x, y, with_intercept))
    design = np.column_stack([x, np.ones(len(x))]) if with_intercept else x
    best = np.linalg.lstsq(design, y, rcond=None)[0]
    np.testing.assert_allclose(found.coefficients, best[:6], rtol=1e-8)
    np.testing.assert_allclose(found.intercept, best[6] if with_intercept else 0, rtol=1e-8)
    assert found.solver == "tsqr"


def test_solve_triangular__does_not_depend_on_the_order_of_merging():
    x, y = make_design()
    frame = frame_of(x, y)
    forward, other = fit(x, y, frame), fit(x, y, frame, order=[3, 0, 6, 5, 1, 4, 2])
    np.testing.assert_allclose(forward.coefficients, other.coefficients, rtol=1e-9)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_solve_triangular__agrees_with_co_moments_where_these_suffice(ridge):
    x, y = make_design()
    gram = solve_least_squares(CoMoments.of(np.hstack([x, y])), 6, ridge=ridge)
    found = fit(x, y, frame_of(x, y), ridge=ridge)
    np.testing.assert_allclose(found.coefficients, gram.coefficients, rtol=1e-8)
    np.testing.assert_allclose(found.intercept, gram.intercept, rtol=1e-8)
    assert found.condition == pytest.approx(gram.condition, rel=1e-6)


def test_solve_triangular__keeps_the_digits_that_a_gram_matrix_loses():
    x, y = make_design(near=1e-8)
    frame = frame_of(x, y)
    best = np.linalg.lstsq((x - x.mean(axis=0)) / frame.scale, y - y.mean(axis=0), rcond=None)[0]
    expected = (x - x.mean(axis=0)) / frame.scale @ best + y.mean(axis=0)
    found = fit(x, y, frame).predict(x)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    gram = solve_least_squares(CoMoments.of(np.hstack([x, y])), 7, ridge=1e-16).predict(x)
    assert error < 1e-6
    assert np.linalg.norm(gram - expected) / np.linalg.norm(expected) > 10 * error


def test_weights__count_as_repeated_records():
    x, y = make_design(60)
    times = np.random.default_rng(0).integers(0, 4, 60)
    many_x, many_y = np.repeat(x, times, axis=0), np.repeat(y, times, axis=0)
    frame = frame_of(many_x, many_y)
    light = fit(x, y, frame, weights=times.astype(float), ridge=0.1)
    heavy = fit(many_x, many_y, frame, ridge=0.1)
    np.testing.assert_allclose(light.coefficients, heavy.coefficients, rtol=1e-8)
    sums = CoMoments.of(np.hstack([x, y]), times.astype(float))
    gram = solve_least_squares(sums, 6, ridge=0.1)
    np.testing.assert_allclose(gram.coefficients, heavy.coefficients, rtol=1e-8)
    assert sums.count == times.sum()


def test_solve_triangular__names_dependent_features():
    x, y = make_design()
    x = np.column_stack([x, 10 * x[:, 0] + x[:, 1]])
    factor = TriangularFactor.of_design(x, y, frame_of(x, y))
    names = [f"f{j}" for j in range(7)]
    with pytest.raises(RankError, match="features involved: f0, f1, f6"):
        solve_triangular(factor, frame_of(x, y), names=names)
    with pytest.raises(OptionError, match="ridge"):
        solve_triangular(factor, frame_of(x, y), ridge=-1.0)
