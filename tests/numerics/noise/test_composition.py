"""What many releases reveal together: never below the exact loss, and near it."""

from __future__ import annotations

import math

import mpmath
import pytest

from privpipe.numerics.noise.composition import convert_rho, find_rho
from privpipe.numerics.noise.gaussian import find_delta, find_sigma


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-8, 1e-18])
def test_convert_rho__is_above_the_exact_loss_of_gaussian_noise_and_near(
    epsilon: float, delta: float
) -> None:
    """Of k releases the exact loss is that of one whose deviation is less by the root of k."""
    sigma = find_sigma(epsilon, delta)
    for k in (1, 7, 365):
        found = convert_rho(k * find_rho(1 / sigma), delta)
        assert find_delta(sigma / math.sqrt(k), found) <= delta
        # A sixth less, and it would not hold: the bound is worth having.
        assert find_delta(sigma / math.sqrt(k), found / 1.2) > delta
        assert k == 1 or found < k * epsilon


@pytest.mark.parametrize("k", [1, 5, 60, 365])
@pytest.mark.parametrize("epsilon", [0.02, 0.1, 0.7])
def test_convert_rho__is_above_the_exact_loss_of_pure_draws(epsilon: float, k: int) -> None:
    """Randomised response, drawn k times, is the worst of its epsilon (Kairouz et al. 2015)."""
    found = convert_rho(k * find_rho(epsilon), 1e-6)
    with mpmath.workprec(200):
        yes = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        delta = mpmath.mpf(0)
        for i in range(k + 1):
            mine = mpmath.binomial(k, i) * yes**i * (1 - yes) ** (k - i)
            other = mpmath.binomial(k, i) * yes ** (k - i) * (1 - yes) ** i
            delta += max(mine - mpmath.exp(found) * other, 0)
        assert delta <= 1e-6


def test_convert_rho__of_nothing_and_of_no_delta() -> None:
    assert convert_rho(0.0, 1e-9) == 0.0
    assert convert_rho(0.1, 0.0) == math.inf
    assert convert_rho(math.inf, 1e-6) == math.inf
    assert convert_rho(0.1, -1e-9) == math.inf
