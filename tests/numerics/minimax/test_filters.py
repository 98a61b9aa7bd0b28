"""Families of filters: vector-Jacobian products against differences, scalings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from privpipe.numerics.minimax.filters import InputScaling, LinearFamily, SigmoidFamily, draw_layers

RNG = np.random.default_rng(0)
FAMILIES = [
    LinearFamily(np.arange(5.0), 3, with_offset=True),
    LinearFamily(np.zeros(5), 3, with_offset=False),
    SigmoidFamily(np.arange(5.0), (4, 3)),
    SigmoidFamily(np.arange(5.0), (3,)),
    SigmoidFamily(np.zeros(5), (4, 2, 3)),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_map_records__pullback_agrees_with_differences(family: Any) -> None:
    x, dz = RNG.normal(size=(11, 5)), RNG.normal(size=(11, 3))
    u = RNG.normal(size=family.n_parameters)
    z, pullback = family.map_records(u, x)
    assert z.shape == (11, 3)
    slope = approx_fprime(u, lambda v: (family.map_records(v, x)[0] * dz).sum(), 1e-7)
    np.testing.assert_allclose(pullback(dz), slope, atol=1e-5)


def test_sigmoid_family__is_the_written_network() -> None:
    family = SigmoidFamily(np.arange(2.0), (2, 1))
    u = np.array([1.0, 2.0, 3.0, 4.0, 0.5, -0.5, 1.0, -1.0, 0.25])
    x = np.array([[0.3, 0.7]])
    s = lambda a: 1 / (1 + np.exp(-a))  # noqa: E731 - the formula reads as in the paper
    h = s(np.array([0.3 - 0.0, 0.7 - 1.0]) @ np.array([[1.0, 2.0], [3.0, 4.0]]) + [0.5, -0.5])
    np.testing.assert_allclose(family.map_records(u, x)[0], [[s(h[0] - h[1] + 0.25)]])


def test_draw_layers__depends_on_the_seed_alone() -> None:
    family = SigmoidFamily(np.zeros(5), (4, 3))
    once = draw_layers(family, 3, first=0.1, rest=1.0)
    np.testing.assert_array_equal(once, draw_layers(family, 3, first=0.1, rest=1.0))
    assert (once != draw_layers(family, 4, first=0.1, rest=1.0)).any()
    assert all((bias == 0).all() for _, bias in family.split(once))


def test_input_scaling__is_a_linear_change_of_the_first_block() -> None:
    scaling = InputScaling(RNG.normal(size=(5, 5)), 4)
    u, g = RNG.normal(size=(2, 5 * 4 + 7))
    assert scaling.to_filter(u) @ g == pytest.approx(u @ scaling.to_optimiser(g))
    np.testing.assert_allclose(scaling.invert(scaling.to_filter(u)), u, atol=1e-9)
    np.testing.assert_array_equal(scaling.to_filter(u)[20:], u[20:])
    unchanged = InputScaling()
    assert unchanged.to_filter(u) is u
    assert unchanged.invert(u) is u
