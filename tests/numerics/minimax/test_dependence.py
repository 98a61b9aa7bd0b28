"""Partial covariances against residuals, and error rates of the limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privpipe.numerics.minimax.dependence import PartialCovariance, limit_dependence, measure_chance
from tests.bench.certificates import bound_limit


def _draw(n: int, strength: float, random: np.random.Generator) -> tuple[Any, Any, Any]:
    """A target of 2 classes, and 5 columns that say something of 3 classes and of the target."""
    target, private = random.integers(0, 2, n), random.integers(0, 3, n)
    left = random.normal(size=(n, 5))
    left[:, 0] += strength * (private == 1) + 2.0 * target
    return np.column_stack([np.ones(n), np.eye(2)[target]]), left, np.eye(3)[private]


def _measure(records: tuple[Any, Any, Any]) -> tuple[PartialCovariance, tuple[float, ...]]:
    rows, n = np.column_stack(records), len(records[0])
    found = PartialCovariance.of(rows.T @ rows, n, records[0].shape[1], records[1].shape[1])
    of = found.measure_influences(records)
    return found, limit_dependence(found, np.array([of.sum(0), (of**2).sum(0)]), n, 0.95)


def test_partial_covariance__is_that_of_residuals_of_least_squares() -> None:
    given, left, right = _draw(200, 1.0, np.random.default_rng(0))
    found, _ = _measure((given, left, right))
    a, b = (y - given @ np.linalg.lstsq(given, y, rcond=None)[0] for y in (left, right))
    assert found.cross == pytest.approx(a.T @ b / 200, abs=1e-12)
    assert found.norm == pytest.approx(np.linalg.norm(a.T @ b / 200), rel=1e-10)
    correlations, u, v = found.correlate()
    assert np.corrcoef(a @ u, b @ v)[0, 1] == pytest.approx(correlations[0], rel=1e-9)
    best = max(
        np.corrcoef(a @ p, b @ q)[0, 1]
        for p, q in (
            (np.random.default_rng(j).normal(size=5), np.random.default_rng(-~j).normal(size=3))
            for j in range(200)
        )
    )
    assert best <= correlations[0]


@pytest.mark.parametrize("strength", [0.0, 0.5, 3.0])
def test_limits__cover_the_truth_as_often_as_they_say(strength: float) -> None:
    """The target is given: what the left columns say of it counts for nothing."""
    truth, _ = _measure(_draw(200_000, strength, np.random.default_rng(1)))
    exact = 0.0 if strength == 0 else float(truth.correlate()[0][0])
    random = np.random.default_rng(2)
    limits = np.array([_measure(_draw(300, strength, random))[1] for _ in range(300)])
    # Of 300 at least 273 with probability .9985 where the rate is .95.
    assert (limits[:, 2] >= exact).sum() >= 273
    assert (limits[:, 0] >= truth.norm**2 * (strength > 0)).sum() >= 273
    # A limit that is always one would cover, too.
    assert np.median(limits[:, 2]) <= exact + 0.3


@pytest.mark.parametrize("strength", [0.0, 0.3, pytest.param(1.0, marks=pytest.mark.slow)])
def test_limits__of_many_columns_take_off_what_noise_fits_and_no_more(strength: float) -> None:
    """Noise of 40 columns is larger in records whose class is hardly ever another one."""

    def draw(n: int, random: np.random.Generator) -> tuple[Any, Any, Any]:
        rare = random.random(n) < 0.3
        left = random.normal(size=(n, 40)) * np.where(rare, 1.8, 0.7)[:, None]
        odds = strength * left[:, 0] + np.where(rare, -1.8, 0.2)
        private = (random.logistic(size=n) < odds).astype(int)
        return np.column_stack([~rare, rare]).astype(float), left, np.eye(2)[private]

    truth, _ = _measure(draw(200_000, np.random.default_rng(1)))
    exact = 0.0 if strength == 0 else float(truth.correlate()[0][0])
    random = np.random.default_rng(2)
    limits = np.array([_measure(draw(600, random))[1][2] for _ in range(200)])
    # Of 200 at least 180 with probability .998 where the rate is .95.
    assert (limits >= exact).sum() >= 180
    # Noise alone shows .25 and, with the quantile, .32.
    assert np.median(limits) <= (0.2, 0.25, exact + 0.08)[(0.0, 0.3, 1.0).index(strength)]


@pytest.mark.parametrize("strength", [0.0, 0.25])
def test_limits__cover_and_are_near_the_least_that_any_certificate_can_have(
    strength: float,
) -> None:
    """Of 24 functions and 970 records; they were 1.12 times as much where nothing is there."""

    def draw(n: int, random: np.random.Generator) -> tuple[Any, Any, Any]:
        left = random.normal(size=(n, 24))
        private = (random.logistic(size=n) < strength * left[:, 0]).astype(int)
        return np.ones((n, 1)), left, np.eye(2)[private]

    truth, _ = _measure(draw(100_000, np.random.default_rng(1)))
    exact = 0.0 if strength == 0 else float(truth.correlate()[0][0])
    random = np.random.default_rng(2)
    limits = np.array([_measure(draw(970, random))[1][2] for _ in range(150)])
    # Of 150 at least 135 with probability .996 where the rate is .95.
    assert (limits >= exact).sum() >= 135
    assert np.median(limits) <= 1.04 * bound_limit(970, 24, exact)


def test_chance__is_uniform_without_dependence() -> None:
    random, chances = np.random.default_rng(3), []
    for _ in range(300):
        rows = np.column_stack([np.ones(400), random.normal(size=(400, 7))])
        found = PartialCovariance.of(rows.T @ rows, 400, 1, 5).correlate()[0]
        chances.append(measure_chance(found, 400, 5, 2))
    assert 3 <= sum(c < 0.05 for c in chances) <= 28
