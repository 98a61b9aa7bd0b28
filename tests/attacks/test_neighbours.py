"""The distinguishing test: it finds what naive noise gives away, and never more than is there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from privpipe.attacks.threats.membership import distinguish_neighbours
from privpipe.errors import InputError
from privpipe.numerics.noise.mechanism import plan_mechanism
from tests.numerics.noise.oracles import stream

RANDOM = np.random.default_rng(7)


def draw_naive_knorm(n: int, width: int) -> Any:
    normal = RANDOM.standard_normal((n, width))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    return normal * RANDOM.gamma(width, 2.0, n)[:, None]


def test_distinguish__naive_laplace_noise_is_above_five() -> None:
    """Mironov 2012: its low bits tell the record, at a declared epsilon of 1."""
    worlds = (RANDOM.laplace(size=(60_000, 1)), 1 + RANDOM.laplace(size=(60_000, 1)))
    assert distinguish_neighbours(*worlds).epsilon_floor > 5


def test_distinguish__naive_knorm_noise_is_above_five() -> None:
    n, e = 100_000, np.eye(20)
    worlds = (e[0] + draw_naive_knorm(n, 20), e[1] + draw_naive_knorm(n, 20))
    assert distinguish_neighbours(*worlds).epsilon_floor > 5


@pytest.mark.parametrize("law", ["knorm", "discrete", "privunit"])
@pytest.mark.parametrize("width", [1, 2, 20])
def test_distinguish__ours_is_never_above_epsilon(law: Any, width: int) -> None:
    """The same events on the same numbers of releases, at the diameter: no low bit, no tail."""
    mechanism, n = plan_mechanism(1.0, width, "l2", law), 60_000
    bounded = np.zeros((n, width))
    bounded[:, 0] = 1.0
    worlds = [mechanism.release(sign * bounded, stream(n, key=3 + sign)) for sign in (1, -1)]
    report = distinguish_neighbours(*worlds, level=1 - 1e-6)
    assert report.epsilon_floor <= 1.0
    fine = next(e for e in report.events if e.event == "finer than 2**-53")
    assert fine.share == fine.other_share == 0
    if width == 1:
        assert report.epsilon_floor > 0.75  # the test has power: it comes near


def test_distinguish__unrounded_noise_of_the_same_law_is_above_five() -> None:
    """What the grid is for: the same K-norm draws, added as floats."""
    mechanism, n = plan_mechanism(1.0, 20, "l2", "knorm"), 100_000
    noise = mechanism.noise.draw(stream(n)) * mechanism.grid
    other = mechanism.noise.draw(stream(n, key=9)) * mechanism.grid
    tiny = RANDOM.uniform(0, mechanism.grid, (2, n, 20))  # bits below the grid, as floats have
    e = np.eye(20)
    worlds = (e[0] + (noise + tiny[0]), e[1] + (other + tiny[1]))
    assert distinguish_neighbours(*worlds).epsilon_floor > 5


def test_distinguish__false_alarms_and_power_are_as_declared() -> None:
    """Randomised response of a known epsilon: above it in 5 % at most, near it mostly."""
    epsilon, above, near = 1.0, 0, 0
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    for _ in range(100):
        worlds = [(RANDOM.random((4_000, 1)) < p).astype(float) for p in (chance, 1 - chance)]
        floor = distinguish_neighbours(*worlds).epsilon_floor
        above += floor > epsilon
        near += floor > 0.7 * epsilon
    assert above <= 12  # 5 expected at most; 12 or more: .4 %
    assert near >= 80


def test_distinguish__refuses_too_few() -> None:
    with pytest.raises(InputError, match="at least 200"):
        distinguish_neighbours(np.zeros((100, 1)), np.zeros((100, 1)))
