"""Bounds fail as rarely as they say, and are near enough to be worth saying."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats

from privpipe.numerics.mapping.held_out_information import (
    bound_held_out_information,
    find_needed_records,
    make_reference,
)
from privpipe.numerics.mapping.law_bounds import bound_mean, bound_shares
from privpipe.numerics.mapping.worst_case import bound_worst_cases, measure_worst_cases

DRAWS = 400


def measure(masses: np.ndarray) -> float:
    product = masses.sum(axis=0) * masses.sum(axis=1, keepdims=True)
    used = masses > 0
    return float((masses[used] * np.log(masses[used] / product[used])).sum())


@pytest.mark.parametrize("share", [0.002, 0.2, 0.98])
@pytest.mark.parametrize("n", [40, 4000])
def test_bound_mean__misses_as_rarely_as_it_says(share: float, n: int) -> None:
    rng, miss = np.random.default_rng(1), 0.1
    values = np.array([-1.0, 3.0])
    mean, variance = float(values @ [1 - share, share]), 16 * share * (1 - share)
    found = [
        bound_mean(values, np.array([n - ones, ones]), 3.0, variance, miss)
        for ones in rng.binomial(n, share, DRAWS)
    ]
    misses = int((np.array(found) < mean).sum())
    assert misses <= stats.binom.ppf(0.9999, DRAWS, miss)
    if n == 4000:  # no more than twice as far as the normal approximation, and the range
        assert np.mean(found) - mean <= 2 * 1.65 * np.sqrt(variance / n) + 4 * 5 / n


def test_bound_mean__a_wrong_guess_of_the_variance_costs_width_alone() -> None:
    rng, values = np.random.default_rng(2), np.array([0.0, 1.0])
    for guess in (1e-6, 1e3):
        found = [
            bound_mean(values, np.array([500 - k, k]), 1.0, guess, 0.1)
            for k in rng.binomial(500, 0.3, DRAWS)
        ]
        assert (np.array(found) < 0.3).sum() <= stats.binom.ppf(0.9999, DRAWS, 0.1)


def test_bound_shares__both_sides() -> None:
    seen = np.random.default_rng(3).binomial(300, 0.1, DRAWS) / 300
    allowed = stats.binom.ppf(0.9999, DRAWS, 0.1)
    assert (bound_shares(seen, 300, 0.1, upper=True) < 0.1).sum() <= allowed
    assert (bound_shares(seen, 300, 0.1, upper=False) > 0.1).sum() <= allowed
    assert (bound_shares(np.zeros(1), 300, 0.1, upper=True) < 0.01).all()


def test_bound_held_out__is_tight_with_many_records_and_says_how_many_it_needs() -> None:
    rng = np.random.default_rng(6)
    law = rng.dirichlet(np.ones(40)).reshape(2, 20)
    mapping = sp.csc_array(0.5 * np.eye(20) + 0.5 / 20)
    truth = measure(np.asarray((mapping @ law.T).T))
    found = {}
    for n in (2_000, 200_000):
        fitted, fresh = (rng.multinomial(k * n, law.ravel()).reshape(2, 20) for k in (1, 2))
        joint = (fitted + 0.5) / (fitted + 0.5).sum()
        reference = make_reference(joint, mapping, joint.sum(axis=1), n, 2 * n)
        found[n] = bound_held_out_information(reference, fresh, 0.05)
        assert found[n] >= truth
    assert found[200_000] < 1.1 * truth + 1e-3
    needed = find_needed_records(law, mapping, 1.2 * truth, 0.5)
    assert 2_000 < needed < 400_000
    assert find_needed_records(law, mapping, 0.9 * truth, 0.5) is None


def test_measure_worst_cases__by_hand() -> None:
    joint = np.array([[0.3, 0.1, 0.1], [0.1, 0.2, 0.2]])
    found = measure_worst_cases(joint, sp.csc_array(0.7 * np.eye(3) + 0.1))
    given = joint / joint.sum(axis=1, keepdims=True) @ (0.7 * np.eye(3) + 0.1)
    odds = float((given.max(axis=0) / given.min(axis=0)).max())
    assert found["posterior_odds"] == pytest.approx(odds)
    assert found["maximal_leakage"] == pytest.approx(np.log(given.max(axis=0).sum()))
    assert found["local_dp_epsilon"] == pytest.approx(np.log(8))
    posterior = given * 0.5 / (given * 0.5).sum(axis=0)
    assert found["pointwise_leakage"] == pytest.approx(float(np.log(posterior / 0.5).max()))
    assert measure_worst_cases(joint, sp.csc_array(np.eye(3)))["local_dp_epsilon"] == np.inf


@pytest.mark.parametrize("n", [300, 20_000])
@pytest.mark.parametrize("draws", [50, pytest.param(DRAWS // 2, marks=pytest.mark.slow)])
def test_bound_worst_cases__hold_for_all_symbols_but_as_many_as_they_say(
    draws: int, n: int
) -> None:
    rng, misses, near = np.random.default_rng(7), 0, []
    for _ in range(draws):
        law = rng.dirichlet(np.full(36, 0.5)).reshape(3, 12)
        mapping = sp.csc_array(0.6 * np.eye(12) + 0.4 * rng.dirichlet(np.ones(12), 12).T)
        fitted, fresh = (rng.multinomial(n, law.ravel()).reshape(3, 12) for _ in range(2))
        found = bound_worst_cases((fitted + 0.5) / (fitted + 0.5).sum(), fresh, mapping, 0.05)
        released = np.asarray((mapping @ law.T).T)
        given = released / law.sum(axis=1, keepdims=True)
        leakage = np.log((given / released.sum(axis=0)).max(axis=0))
        odds = given.max(axis=0) / given.min(axis=0)
        beyond = (leakage > found["pointwise_leakage_at_most"]) | (
            odds > found["posterior_odds_at_most"]
        )
        misses += bool(released[:, beyond].sum() > found["excepted_at_most"])
        near.append(found["pointwise_leakage_at_most"] / leakage.max())
    assert misses <= stats.binom.ppf(0.9999, draws, 0.05)
    if n == 20_000:
        assert np.median(near) < 1.5


def test_bound_worst_cases__a_symbol_that_only_the_fitted_records_hide_is_found() -> None:
    law = np.array([[0.45, 0.05, 0.0], [0.4, 0.0, 0.1]])
    smooth = np.full((2, 3), 1 / 6)
    found = bound_worst_cases(smooth, law * 10_000, sp.csc_array(np.eye(3)), 0.05)
    assert np.log(2) <= found["pointwise_leakage_at_most"] < 1
    assert found["posterior_odds_at_most"] == np.inf
    rare = np.array([[0.499, 0.001], [0.5, 0.0]])  # gives its value away, and is seldom released
    found = bound_worst_cases(rare, rare * 10_000, sp.csc_array(np.eye(2)), 0.05)
    assert found["pointwise_leakage_at_most"] < 0.1
    assert 0.001 < found["excepted_at_most"] < 0.004
