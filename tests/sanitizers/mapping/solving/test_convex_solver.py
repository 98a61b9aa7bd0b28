"""Both certificates against a convex solver that shares nothing with ours, on random problems."""

from __future__ import annotations

import os
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from privpipe import solve_privacy_mapping
from privpipe.errors import OptionError
from privpipe.sanitizers.mapping.solving.constrained import solve_constrained_mapping

PROBLEMS = int(os.environ.get("PRIVPIPE_CONVEX_PROBLEMS", "12"))
TOLERANCE = 2e-5
"""Nats that the convex solver itself may be off; measured on problems of known optimum."""


def solve_convex(
    joint: np.ndarray, distances: np.ndarray, budget: float, odds: float | None, leak: float | None
) -> float:
    """Least information in nats, by the definition; infinite where there is no mapping."""
    k, n = joint.shape
    mapping = cp.Variable((n, n), nonneg=True)  # original, released
    masses, prior = joint @ mapping, joint.sum(axis=1)
    together = cp.sum(masses, axis=0, keepdims=True)
    product = cp.multiply(np.repeat(prior[:, None], n, axis=1), np.ones((k, 1)) @ together)
    limits = [
        cp.sum(mapping, axis=1) == 1,
        cp.sum(cp.multiply(joint.sum(axis=0)[:, None] * distances, mapping)) <= budget,
    ]
    given = cp.multiply(1 / prior[:, None] * np.ones((1, n)), masses)
    if odds is not None:
        limits += [given[a] <= odds * given[b] for a in range(k) for b in range(k) if a != b]
    if leak is not None:
        limits.append(cp.sum(cp.max(given, axis=0)) <= np.exp(leak))
    problem = cp.Problem(cp.Minimize(cp.sum(cp.rel_entr(masses, product))), limits)
    problem.solve(solver=cp.CLARABEL)
    if problem.status.startswith("infeasible"):
        return float("inf")
    assert problem.status == "optimal", problem.status
    return float(problem.value)


def draw_problem(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    k, n = int(rng.integers(2, 4)), int(rng.integers(3, 9))
    joint = rng.dirichlet(np.full(k * n, rng.choice([0.5, 2.0]))).reshape(k, n) + 1e-4
    distances = rng.random((n, n))
    np.fill_diagonal(distances, 0.0)
    joint /= joint.sum()
    least = float((joint.sum(axis=0) @ distances).min())
    kind = seed % 3
    return {
        "joint": joint,
        "distances": distances,
        "budget": float(rng.uniform(0.1, 0.8)) * least,
        "odds": float(rng.uniform(1.5, 4.0)) if kind == 1 else None,
        "leak": float(rng.uniform(0.05, 0.3)) if kind == 2 else None,
    }


@pytest.mark.parametrize("first", range(0, PROBLEMS, max(1, PROBLEMS // 4)))
def test_solve__certificates_bracket_the_optimum_of_a_convex_solver(first: int) -> None:
    for seed in range(first, min(first + max(1, PROBLEMS // 4), PROBLEMS)):
        given = draw_problem(seed)
        optimum = solve_convex(*given.values())
        joint, codes, distances = given["joint"], np.arange(len(given["distances"])), given
        try:
            if given["odds"] is None and given["leak"] is None:
                mapping = solve_privacy_mapping(
                    joint, codes, distances["distances"], distortion_budget=given["budget"]
                )
            else:
                mapping = solve_constrained_mapping(
                    joint,
                    codes,
                    distances["distances"],
                    distortion_budget=given["budget"],
                    max_posterior_odds=given["odds"],
                    max_leakage=given["leak"],
                    gap=1e-5,
                )
        except OptionError:
            assert optimum == float("inf"), seed
            continue
        assert mapping.gap <= 2e-5, seed
        assert mapping.lower_bound <= optimum + TOLERANCE, seed
        assert mapping.information >= optimum - TOLERANCE, seed
