"""Bounding and lattice: no vector leaves the ball, in integers, whatever goes in."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privpipe.errors import GuaranteeError, OptionError
from privpipe.numerics.noise.bounding import bound_records, measure_norms, project_in_order, tanh_of
from privpipe.numerics.noise.mechanism import Lattice, plan_grid
from tests.numerics.noise.oracles import bound_slowly

KINDS = ("hard", "soft", "normalise")
VALUES = st.one_of(
    st.floats(-1e300, 1e300),
    st.floats(-1.5, 1.5),
    st.sampled_from([0.0, -0.0, 1e300, -1e300, 5e-324, 1e-200, 1.0, 2.0**-1022]),
)


@given(
    arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 40)), elements=VALUES),
    st.sampled_from(KINDS),
    st.sampled_from(["l1", "l2"]),
    st.sampled_from([1e-200, 0.5, 1.0, 3.0, 1e200]),
)
def test_place__every_vector_is_in_the_ball_of_integers(x, kind, norm, threshold) -> None:
    """Magnitudes to 1e300; sums by Python's whole numbers."""
    width = x.shape[1]
    lattice = Lattice(plan_grid(9.0, width, norm), width, norm)
    bounded, clipped, overflowing = bound_records(x.copy(), kind, norm, threshold)
    steps = lattice.place(bounded)
    power = 1 if norm == "l1" else 2
    for row in steps.tolist():
        assert sum(abs(step) ** power for step in row) <= lattice.radius**power
    assert overflowing == 0
    assert clipped <= len(x)
    assert (steps[~x.any(axis=1)] == 0).all()


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("kind", KINDS)
def test_bound__is_the_formula(kind: str, norm: str) -> None:
    x = np.random.default_rng(0).standard_normal((50, 7)) * np.logspace(-3, 3, 50)[:, None]
    bounded, clipped, _ = bound_records(x.copy(), kind, norm, 2.0)  # type: ignore[arg-type]
    np.testing.assert_allclose(bounded, bound_slowly(x, kind, norm, 2.0), rtol=1e-13, atol=1e-15)
    sizes = np.linalg.norm(x, 1 if norm == "l1" else 2, axis=1)
    np.testing.assert_allclose(measure_norms(x, norm), sizes)  # type: ignore[arg-type]
    assert clipped == (0 if kind == "normalise" else (sizes > 2).sum())


def test_bound__norms_are_scaled_before_they_are_summed() -> None:
    """|x| overflows, and its square by far; the direction is kept all the same."""
    x = np.array([[1e308, 1e308, -1e308], [3e-320, 4e-320, 0.0]])
    bounded, clipped, overflowing = bound_records(x.copy(), "normalise", "l2", 1.0)
    np.testing.assert_allclose(bounded[0], np.array([1, 1, -1]) / math.sqrt(3))
    np.testing.assert_allclose(bounded[1], [0.6, 0.8, 0.0], rtol=1e-3)
    assert (clipped, overflowing) == (0, 0)


def test_bound__what_is_not_finite_becomes_zero_and_is_counted() -> None:
    x = np.array([[np.inf, 1.0], [np.nan, 1.0], [1.0, 1.0], [0.0, 0.0]])
    bounded, _, overflowing = bound_records(x, "hard", "l2", 1.0)
    assert overflowing == 2
    assert not bounded[[0, 1, 3]].any()


def test_bound__floats_alone_leave_the_ball_which_is_why_integers_are_asked() -> None:
    """The opponent: |b| <= 1 is false for a good share of records, in rationals."""
    x = np.random.default_rng(0).standard_normal((300, 20))
    bounded, _, _ = bound_records(x, "normalise", "l2", 1.0)
    outside = [sum(Fraction(v) ** 2 for v in row) > 1 for row in bounded.tolist()]
    assert sum(outside) > 30


def test_tanh__is_within_its_bound_everywhere() -> None:
    y = np.concatenate([np.logspace(-300, 2, 4000), np.linspace(0, 31, 4000), [2.0**-9]])
    assert max(abs(tanh_of(v) - math.tanh(v)) for v in y.tolist()) < 2.0**-50


def test_place__a_vector_outside_stops_everything() -> None:
    lattice = Lattice(2.0**-12, 3, "l2")
    for wrong in ([1.01, 0, 0], [np.nan, 0, 0], [0.8, 0.8, 0], [1e300, 0, 0]):
        with pytest.raises(GuaranteeError, match="1 of 2 bounded records are outside"):
            lattice.place(np.array([[0.1, 0.1, 0.1], wrong]))


@pytest.mark.parametrize("grid", [0.001, 2.0**-21, 2.0**-9, 0.0, -(2.0**-12), math.nan, math.inf])
def test_lattice__refuses_grids_that_are_none(grid: float) -> None:
    with pytest.raises(OptionError, match="The grid is"):
        Lattice(grid, 3, "l2")


def test_lattice__refuses_a_grid_too_coarse_for_the_width() -> None:
    with pytest.raises(OptionError, match="too coarse for 4096 coordinates"):
        Lattice(2.0**-10, 4096, "l1")
    assert Lattice(plan_grid(1e3, 4096, "l1"), 4096, "l1").inner > 0.9 * 2**17


def test_place__is_unbiased_but_for_its_factor() -> None:
    lattice = Lattice(2.0**-10, 4, "l2")
    bounded, _, _ = bound_records(
        np.random.default_rng(1).standard_normal((200_000, 4)), "normalise", "l2", 1.0
    )
    error = lattice.place(bounded) / lattice.inner - bounded
    assert np.abs(error).max() < 0.51 / lattice.inner
    assert np.abs(error.mean(axis=0)).max() < 5 / lattice.inner / math.sqrt(12 * 200_000)


@pytest.mark.parametrize("rows", [1, 3, 4, 7])
def test_project__a_record_has_the_same_bits_in_any_block(rows: int) -> None:
    random = np.random.default_rng(2)
    x, weights = random.standard_normal((29, 57)), random.standard_normal((57, 5))
    whole = project_in_order(x, weights, np.ones(5))
    parts = [project_in_order(x[a : a + rows], weights, np.ones(5)) for a in range(0, 29, rows)]
    narrow = x.astype(np.float32)
    widened = project_in_order(narrow.astype(np.float64), weights, np.ones(5))
    assert project_in_order(narrow, weights, np.ones(5)).tobytes() == widened.tobytes()
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    expected = np.ones((29, 5))
    for k in range(57):  # NumPy's own order of the same single operations
        expected = expected + x[:, k : k + 1] * weights[k]
    np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize("width", [1, 2, 9, 20])
def test_diameter_l1__holds_opposite_corners_of_the_ball(width: int) -> None:
    lattice = Lattice(2.0**-12, width, "l2")
    corner = math.floor(lattice.radius / math.sqrt(width))
    assert 2 * width * corner <= lattice.diameter_l1 <= math.sqrt(width) * lattice.diameter
    assert Lattice(2.0**-12, width, "l1").diameter_l1 == 2 * lattice.radius
