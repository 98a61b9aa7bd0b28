"""The discrete Gaussian law, its size, and what being discrete may add."""

import math
from collections import Counter
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy.stats as st

from privpipe.errors import OptionError
from privpipe.numerics.noise.gaussian import (
    draw_discrete_gaussian,
    find_delta,
    find_sigma,
    find_slack,
)
from privpipe.numerics.random.streams import KeyedStream


def stream(n: int, key: int = 1) -> KeyedStream:
    return KeyedStream(bytes([key] * 32), partition="p", first_record=0, n_records=n)


@pytest.mark.parametrize(
    "variance", [2, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 5, 11))]
)
def test_draw__has_the_exact_law(variance: int) -> None:
    """Chi-square against the probabilities themselves; a false alarm in 100,000."""
    n = 12_000
    counts = Counter(draw_discrete_gaussian([variance] * n, stream(n)))
    reach = range(-40, 41)
    weights = np.exp(-np.square(np.array(reach, float)) / (2 * variance))
    expected = n * weights / weights.sum()
    kept = expected > 8
    seen = np.array([counts[k] for k in reach], float)
    seen, expected = (np.append(x[kept], x[~kept].sum() + 1e-9) for x in (seen, expected))
    assert st.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 1e-5


def test_draw__of_a_large_variance_is_a_normal_in_every_bit() -> None:
    n, sigma = 4000, 2**40 + 12345
    drawn = draw_discrete_gaussian([sigma**2] * n, stream(n))
    assert st.kstest(np.array(drawn, float) / sigma, "norm").pvalue > 1e-5
    low = Counter(one % 16 for one in drawn)
    assert st.chisquare([low[k] for k in range(16)]).pvalue > 1e-5


def test_draw__is_a_function_of_key_and_place_alone() -> None:
    drawn = draw_discrete_gaussian([9**9] * 40, stream(40))
    assert draw_discrete_gaussian([9**9] * 20, stream(90)) == drawn[:20]
    assert draw_discrete_gaussian([9**9] * 40, stream(40, key=2)) != drawn


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-6), (10.0, 1e-9), (50, 1e-12)]
)
def test_find_sigma__is_the_least_that_keeps_delta(epsilon: float, delta: float) -> None:
    """Against the integral of what is beyond epsilon, which is the definition of delta."""
    sigma = find_sigma(epsilon, delta)
    assert find_delta(sigma, epsilon) <= delta
    assert find_delta(sigma * 0.9999, epsilon) > delta
    with mpmath.workprec(120):

        def beyond(x: mpmath.mpf) -> mpmath.mpf:
            here = mpmath.npdf(x, 0, sigma)
            return here - mpmath.exp(epsilon) * mpmath.npdf(x, 1, sigma)

        # Where the loss (1 - 2x) / (2 sigma^2) is epsilon: below it is larger.
        edge = 0.5 - epsilon * mpmath.mpf(sigma) ** 2
        points = [edge - k * 4 * sigma for k in (10, 5, 2, 1, 0)]
        integral = mpmath.quad(beyond, points)
        assert float(integral) == pytest.approx(float(find_delta(sigma, epsilon)), rel=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-6), (-1, 1e-6), (1, 0.0), (1, 1), (101, 0.1)]
)
def test_find_sigma__refuses_what_it_cannot_promise(epsilon: float, delta: float) -> None:
    with pytest.raises(OptionError, match="at most 100"):
        find_sigma(epsilon, delta)


@pytest.mark.parametrize("variance", [40, 400, 90_000])
def test_slack__bounds_the_log_of_every_ratio(variance: int) -> None:
    """The lemma of the proof, term by term, to forty standard deviations."""
    with mpmath.workprec(500):
        sigma = mpmath.sqrt(variance)
        reach = math.ceil(40 * sigma)
        total = 1 + 2 * mpmath.fsum(
            mpmath.exp(-mpmath.mpf(n * n) / (2 * variance)) for n in range(1, reach)
        )
        worst = mpmath.mpf(0)
        for n in [0, 1, 2, reach // 40, reach // 4, reach // 2, reach]:
            ours = mpmath.exp(-(mpmath.mpf(n) ** 2) / (2 * variance)) / total
            low, high = (n - mpmath.mpf("0.5")) / sigma, (n + mpmath.mpf("0.5")) / sigma
            # Differences of the upper tail keep their digits.
            rounded = (mpmath.erfc(low / mpmath.sqrt(2)) - mpmath.erfc(high / mpmath.sqrt(2))) / 2
            worst = max(worst, abs(mpmath.log(ours / rounded)))
        assert 2 * worst <= float(find_slack(variance, 1))
        assert find_slack(variance, 7) == 7 * find_slack(variance, 1) > Fraction(0)
