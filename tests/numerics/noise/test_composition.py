"""What many releases reveal together: never below the exact loss, and near it."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from privpipe.numerics.noise.composition import convert_rho, find_rho
from privpipe.numerics.noise.gaussian import bound_epsilon, find_delta, find_sigma
from privpipe.store.keyring.account import GAUSSIAN_SHARE, Charge, TotalLoss
from tests.numerics.noise.histories import find_exact, measure_histories


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


@pytest.mark.parametrize("epsilon", [0.02, 0.3, 4.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-12])
def test_bound_epsilon__is_the_exact_loss_of_gaussian_noise_to_a_millionth(
    epsilon: float, delta: float
) -> None:
    sigma = find_sigma(epsilon, delta)
    for k in (1, 7, 365, 10**5):
        found = bound_epsilon(k * find_rho(1 / sigma), delta)
        assert find_delta(sigma / math.sqrt(k), found) <= delta
        assert find_delta(sigma / math.sqrt(k), found * (1 - 3e-6)) > delta
        assert found < convert_rho(k * find_rho(1 / sigma), delta)


def test_bound_epsilon__of_nothing_and_of_a_delta_that_is_enough() -> None:
    assert bound_epsilon(0.0, 1e-9) == 0.0
    assert bound_epsilon(1e-12, 1e-6) == 0.0
    # So large that no float tells it from the simpler bound, which holds as well.
    assert 1e9 < bound_epsilon(1e9, 1e-6) <= convert_rho(1e9, 1e-6)


def _sum_delta(sigma: float, epsilons: list[float], epsilon: float) -> mpmath.mpf:
    """Exact delta of Gaussian noise beside randomised responses, over all their outcomes."""
    outcomes = {mpmath.mpf(0): mpmath.mpf(1)}
    for one in map(mpmath.mpf, epsilons):
        yes, more = 1 / (1 + mpmath.exp(-one)), dict[mpmath.mpf, mpmath.mpf]()
        for loss, chance in outcomes.items():
            for each, weight in ((loss + one, yes), (loss - one, 1 - yes)):
                more[each] = more.get(each, 0) + chance * weight
        outcomes = more
    return mpmath.fsum(
        chance * find_delta(sigma, float(epsilon - loss)) for loss, chance in outcomes.items()
    )


@pytest.mark.parametrize("seed", range(12))
def test_compose__of_random_histories_is_never_below_the_exact_loss(seed: int) -> None:
    """Gaussian alone within 1.05; beside pure draws of equal size at most a fourth above."""
    rng = np.random.default_rng([seed, 8])
    size, each = (float(rng.choice([0.02, 0.1, 0.3, 1.0])) for _ in range(2))
    n_gaussian, n_pure = int(rng.integers(1, 40)), int(rng.integers(0, 8))
    sigma = find_sigma(size, 1e-6)
    rho = find_rho(1 / sigma)
    history = [Charge("p", f"g{i}", size, 1e-6, "record", rho) for i in range(n_gaussian)]
    history += [Charge("p", f"n{i}", each, 0.0, "record") for i in range(n_pure)]
    found = TotalLoss.of(history).compose(1e-6)
    together = sigma / math.sqrt(n_gaussian)
    assert _sum_delta(together, [each] * n_pure, found) <= 1e-6
    assert _sum_delta(together, [each] * n_pure, found / (1.25 if n_pure else 1.05)) > 1e-6


def _play(
    limit: float,
    delta: float,
    stop: Callable[[float], Charge | None],
    full: float | None = None,
    n_steps: int = 8,
) -> float:
    """Delta of who draws little Gaussian noise at a time, and once something else, by what is seen.

    Parameters
    ----------
    stop
        What is drawn in the end, after Gaussian draws of so much rho: of an epsilon, or of a delta.
    full
        Largest rho of these; None: what the account admits.

    Notes
    -----
    A game with an end, solved from there: what is worth more at each loss of the Gaussian draws.
    """
    full = full or 0.5 / find_sigma(limit, GAUSSIAN_SHARE * delta) ** 2
    rho = full / n_steps
    step = math.sqrt(2 * rho) / 24  # of the grid of losses
    off = np.arange(-216, 217) * step
    kernel = np.exp(-((off - rho) ** 2) / (4 * rho))
    kernel /= kernel.sum()
    loss = np.arange(-12 * math.sqrt(2 * full), limit + 12 * math.sqrt(2 * full), step)

    def fail(losses: np.ndarray) -> np.ndarray:
        return np.maximum(-np.expm1(limit - losses), 0)

    def end(done: float) -> np.ndarray:
        last = stop(done)
        if last is None:
            return np.zeros(len(loss))
        yes = 1 / (1 + math.exp(-last.epsilon))
        drawn = yes * fail(loss + last.epsilon) + (1 - yes) * fail(loss - last.epsilon)
        return last.delta + (1 - last.delta) * drawn

    value = np.zeros(len(loss))
    for k in range(n_steps, 0, -1):
        value = np.maximum(np.maximum(value, fail(loss)), end(k * rho))
        padded = np.concatenate([np.zeros(216), value, np.full(216, value[-1])])
        value = np.convolve(padded, kernel[::-1], mode="valid")
    return float(np.interp(0.0, loss, value))


def _total(rho: float, *others: Charge) -> TotalLoss:
    return TotalLoss.of(
        [Charge("p", f"g{i}", 1.0, 1e-6, "r", rho / 8) for i in range(8)] + [*others]
    )


@pytest.mark.parametrize("limit", [0.5, 3.0])
def test_compose__holds_where_the_next_size_depends_on_what_was_seen(limit: float) -> None:
    """Who ended with a pure draw when the noise was unlikely failed three times as often."""
    delta = 1e-6

    def largest(done: float) -> Charge | None:
        low, high = 0.0, limit
        while high - low > 1e-4 * limit:
            middle = (low + high) / 2
            fits = _total(done, Charge("p", "n", middle, 0.0, "r")).find_epsilon(delta) <= limit
            low, high = (middle, high) if fits else (low, middle)
        return Charge("p", "n", low, 0.0, "r") if low else None

    assert 0.2 * delta < _play(limit, delta, largest) < delta

    def luckless(done: float) -> Charge | None:
        low, high = 0.0, delta
        while high - low > 1e-4 * delta:
            middle = (low + high) / 2
            fits = _total(done, Charge("p", "n", 1e-9, middle, "r")).find_epsilon(delta) <= limit
            low, high = (middle, high) if fits else (low, middle)
        return Charge("p", "n", 0.0, low, "r")

    # What is left of delta where the noise was likely: nearly twice delta, once.
    assert _play(limit, delta, luckless) < delta


@pytest.mark.parametrize("limit", [1.0, 3.0])
def test_play__no_rule_is_within_a_twentieth_of_the_exact_loss_of_fixed_sizes(limit: float) -> None:
    """One that admits all whose exact loss is the limit over 1.05 would fail more often."""
    delta, at = 1e-6, limit / 1.05

    def largest(done: float) -> Charge | None:
        mu = math.sqrt(2 * done)
        low, high = 0.0, limit
        while high - low > 1e-4 * limit:
            middle = (low + high) / 2
            fits = find_exact(mu, [(1, middle)], at) <= delta
            low, high = (middle, high) if fits else (low, middle)
        return Charge("p", "n", low, 0.0, "r")

    full = 0.5 / find_sigma(at, delta) ** 2
    assert 1.3 * delta < _play(limit, delta, largest, full, n_steps=24) < 2 * delta


def test_find_exact__is_that_of_all_outcomes() -> None:
    for mu, sizes in ((0.3, [0.2, 0.2, 0.7]), (1.0, [0.05] * 5)):
        groups = [(sizes.count(size), size) for size in sorted(set(sizes))]
        for epsilon in (0.5, 2.0):
            found = find_exact(mu, groups, epsilon)
            assert found == pytest.approx(float(_sum_delta(1 / mu, sizes, epsilon)), rel=1e-9)


@pytest.mark.parametrize("n", [60, pytest.param(10_000, marks=pytest.mark.slow)])
def test_find_epsilon__of_random_histories(n: int) -> None:
    """Never below the exact loss; of Gaussian noise within .05 of it, of others within .25."""
    worst = measure_histories(n, seed=5)
    assert min(worst) >= 1.0
    assert worst[0] <= 1.05
    assert max(worst) <= 1.25


def test_compose__takes_a_pure_draw_for_gaussian_noise_that_dominates_it() -> None:
    """The least chance of an error of both kinds, at which the logistic is below the normal law."""
    for epsilon in np.geomspace(1e-4, 25, 200):
        mu = math.sqrt(math.pi / 2) * epsilon
        # By the tails: both are one beyond.
        assert float(mpmath.ncdf(-mu / 2)) <= 1 / (1 + math.exp(epsilon))


def test_find_epsilon__by_sums_needs_a_delta_of_its_own_unless_one_draw_is_all() -> None:
    one, other = (Charge("p", name, 0.5, 4e-7, "record") for name in "ab")
    assert TotalLoss.of([one]).find_epsilon(4e-7) == 0.5
    assert TotalLoss.of([one, other]).find_epsilon(8e-7) > 1.0
    assert TotalLoss.of([one, other]).find_epsilon(1.7e-5) <= 1.0
    pure = [Charge("p", name, 0.5, 0.0, "record") for name in "ab"]
    assert TotalLoss.of(pure).find_epsilon(1e-6) == 1.0


def test_compose__keeps_the_deltas_of_other_draws_apart() -> None:
    """What may fail by another draw is not there for the Gaussian ones."""
    sigma = find_sigma(0.3, 1e-6)
    rho = find_rho(1 / sigma)
    noise = Charge("p", "g", 0.3, 1e-6, "record", rho)
    other = Charge("p", "a", 0.5, 9e-7, "record")
    total = TotalLoss.of([noise, other])
    assert total.compose(1e-6) == math.inf
    assert total.compose(1.9e-5) > 0.5 + bound_epsilon(rho, 1.9e-5)
