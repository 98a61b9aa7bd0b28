"""Robust mappings: both certificates hold, an adversary over the ball finds nothing above."""

from __future__ import annotations

import os
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.special import rel_entr

from privpipe import solve_privacy_mapping
from privpipe.errors import OptionError
from privpipe.numerics.mapping.held_out_information import measure_gains
from privpipe.numerics.mapping.likelihood_ball import bound_over_ball, find_worst_law
from privpipe.numerics.mapping.problem.programme import measure_information
from privpipe.sanitizers.mapping.solving.robust import solve_robust_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping
from tests.laws_of_records import make_grid, make_laws

SEEDS = range(int(os.environ.get("PRIVPIPE_ROBUST_SEEDS", "1")))


def draw_centre(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts of a law where one value is rare, some cells empty."""
    rng, codes = np.random.default_rng(seed), make_grid(3, 2, 2)
    posterior = np.stack([np.ones(12), rng.choice([0.02, 0.1, 1.0]) * rng.random(12)])
    law = posterior / posterior.sum(axis=0) * rng.dirichlet(np.ones(12))
    return rng.multinomial(4_000, law.ravel()).reshape(2, 12) / 4_000, codes


def hamming(codes: np.ndarray) -> np.ndarray:
    return (codes[:, None] != codes).sum(axis=2).astype(float)


def told_under(matrix: Any, law: np.ndarray) -> float:
    return measure_information(np.asarray(matrix @ law.T))


def attack(matrix: Any, centre: np.ndarray, radius: float, rng: np.random.Generator) -> float:
    """The largest information that climbing from several laws of the ball finds."""
    found = told_under(matrix, centre)
    for start in range(4):
        law = centre
        if start:
            law = find_worst_law(rng.standard_normal(centre.shape), centre, radius)
        for _ in range(30):
            gains = measure_gains(np.asarray(matrix @ law.T).T, law.sum(axis=1))
            law = find_worst_law(np.asarray((matrix.T @ gains.T).T), centre, radius)
            found = max(found, told_under(matrix, law))
    return found


def said_of(mapping: SparseMapping) -> tuple[float, float]:
    said = dict(mapping.guarantee.parameters)
    return said["robust_at_least"], said["robust_at_most"]


@pytest.mark.parametrize("seed", SEEDS)
def test_solve_robust__an_adversary_over_the_ball_stays_below(seed: int) -> None:
    (centre, codes), rng, radius = draw_centre(seed), np.random.default_rng(seed), 0.004
    mapping = solve_robust_mapping(centre, codes, distortion_budget=0.2, radius=radius)
    least, most = said_of(mapping)
    assert attack(mapping.mapping, centre, radius, rng) <= most
    assert least <= most
    assert mapping.distortion <= 0.2 * (1 + 1e-9)
    assert mapping.lower_bound <= mapping.information <= most


@pytest.mark.parametrize("seed", SEEDS)
def test_solve_robust__no_other_mapping_has_a_worst_case_below_the_lower_number(seed: int) -> None:
    (centre, codes), radius = draw_centre(seed), 0.004
    least, most = said_of(
        solve_robust_mapping(centre, codes, distortion_budget=0.2, radius=radius, gap=1e-6)
    )
    rng, prior = np.random.default_rng(seed), centre.sum(axis=1)
    for budget in (0.2, 0.15, 0.1):
        other = solve_privacy_mapping(centre, codes, distortion_budget=budget)
        worst = bound_over_ball(np.asarray(other.mapping @ centre.T).T, prior, radius)
        assert worst >= least
        assert attack(other.mapping, centre, radius, rng) >= least or budget == 0.2
    laws = [centre, *(find_worst_law(rng.standard_normal((2, 12)), centre, radius) for _ in "ab")]
    assert solve_over(laws, centre, hamming(codes), 0.2) <= most + 2e-5


def solve_over(
    laws: list[np.ndarray], centre: np.ndarray, distances: np.ndarray, budget: float
) -> float:
    """Least of the largest information under a few laws, by a convex solver."""
    n, top = len(distances), cp.Variable()
    mapping = cp.Variable((n, n), nonneg=True)
    spent = cp.sum(cp.multiply(centre.sum(axis=0)[:, None] * distances, mapping))
    limits = [cp.sum(mapping, axis=1) == 1, spent <= budget]
    for law in laws:
        masses = law @ mapping
        product = law.sum(axis=1)[:, None] @ cp.sum(masses, axis=0, keepdims=True)
        limits.append(cp.sum(cp.rel_entr(masses, product)) <= top)
    problem = cp.Problem(cp.Minimize(top), limits)
    problem.solve(solver=cp.CLARABEL)
    return float(problem.value)


def test_solve_robust__where_a_value_is_rare_the_worst_case_is_lower_than_the_plain_one() -> None:
    law, rng, n = make_laws()["rare value"], np.random.default_rng(3), 200_000
    centre, radius = rng.multinomial(n, law.joint.ravel()).reshape(2, 36) / n, 5e-4
    plain = solve_privacy_mapping(centre, law.codes, distortion_budget=law.budget, gap=1e-5)
    robust = solve_robust_mapping(
        centre, law.codes, distortion_budget=law.budget, radius=radius, gap=1e-5
    )
    prior = centre.sum(axis=1)
    bound = bound_over_ball(np.asarray(plain.mapping @ centre.T).T, prior, radius)
    assert said_of(robust)[1] < 0.8 * bound
    assert attack(robust.mapping, centre, radius, rng) < attack(plain.mapping, centre, radius, rng)
    assert robust.information > plain.information


def test_solve_robust__a_vanishing_ball_gives_the_plain_optimum() -> None:
    centre, _ = draw_centre(0)
    mapping = solve_robust_mapping(
        centre, np.arange(12), distortion_budget=0.2, radius=1e-12, gap=1e-6
    )
    least, most = said_of(mapping)
    assert mapping.gap <= 1e-5
    assert most - least <= 2e-5


def test_find_worst_law__is_in_the_ball_and_attains_the_bound() -> None:
    rng, radius = np.random.default_rng(5), 0.02
    centre, values = rng.dirichlet(np.ones(12)).reshape(2, 6), rng.standard_normal((2, 6))
    law = find_worst_law(values, centre, radius)
    assert float(rel_entr(centre, law).sum()) <= radius * (1 + 1e-9)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    best = float((law * values).sum())
    for _ in range(50):
        other = find_worst_law(values + 0.3 * rng.standard_normal((2, 6)), centre, radius)
        assert float((other * values).sum()) <= best + 1e-9


def test_solve_robust__ends_in_the_same_bits_when_it_is_solved_again() -> None:
    centre, codes = draw_centre(1)
    one, other = (
        solve_robust_mapping(centre, codes, distortion_budget=0.2, radius=0.004) for _ in "ab"
    )
    np.testing.assert_array_equal(one.probabilities, other.probabilities)
    assert one.guarantee.parameters == other.guarantee.parameters


def test_solve_robust__refuses_what_it_cannot_do() -> None:
    centre, codes = draw_centre(0)
    with pytest.raises(OptionError, match="radius is 0"):
        solve_robust_mapping(centre, codes, distortion_budget=0.2, radius=0.0)
    many = np.full((2, 5000), 1e-4)
    with pytest.raises(OptionError, match=r"5,000 profiles are too many") as error:
        solve_robust_mapping(many, np.arange(5000), distortion_budget=0.2, radius=1.0)
    assert error.value.code == "robust-profiles"
