"""Slow and obvious versions of SPPM: the printed algorithm on HiGHS, and a general solver."""

from __future__ import annotations

import time
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

RATIO_FLOOR = 1e-12


@dataclass
class Printed:
    mapping: sp.csc_array
    information: float
    steps: list[tuple[float, float]]  # seconds so far, information in nats
    multipliers: list[float]


def information(masses: np.ndarray) -> float:
    """masses (n_private, n_symbols)."""
    product = masses.sum(1, keepdims=True) * masses.sum(0)
    cells = masses > 0
    return float((masses[cells] * np.log(masses[cells] / product[cells])).sum())


def all_distances(codes: np.ndarray, kind: str) -> np.ndarray:
    difference = codes[:, None, :] - codes[None, :, :].astype(float)
    if kind == "hamming":
        return (difference != 0).sum(2).astype(float)
    return (difference**2).sum(2) if kind == "squared" else np.abs(difference).sum(2)


def solve_exactly(joint: np.ndarray, distances: np.ndarray, budget: float) -> float:
    """Optimum in nats by Clarabel; for a few dozen symbols."""
    n = joint.shape[1]
    x = cp.Variable((n, n), nonneg=True)
    masses = joint @ x.T
    prior = joint.sum(1, keepdims=True)
    reference = prior @ cp.reshape(cp.sum(masses, axis=0), (1, n), order="C")
    spent = cp.sum(cp.multiply(distances.T * joint.sum(0), x))
    constraints = [cp.sum(x, axis=0) == 1, spent <= budget]
    problem = cp.Problem(cp.Minimize(cp.sum(cp.rel_entr(masses, reference))), constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    assert problem.status == "optimal"
    return float(problem.value)


def frank_wolfe_as_printed(
    joint: np.ndarray, distances: np.ndarray, budget: float, n_steps: int, seconds: float = np.inf
) -> Printed:
    """Algorithms 1 and 2 with dense numpy searches and a HiGHS master.

    `distances[i, j]` is d(released i, original j). The master is scaled by n.
    """
    n, mass = joint.shape[1], joint.sum(0)
    x = sp.eye_array(n, format="csc")
    result = Printed(x, information(joint), [], [])
    start = time.perf_counter()
    for _ in range(n_steps):
        masses = (x @ joint.T).T
        ratios = _ratios(masses)
        direction, multiplier = _solve_linear(joint, mass, ratios, distances, budget)
        result.multipliers.append(multiplier)
        there = (direction @ joint.T).T
        share = _ternary(masses, there)
        x = sp.csc_array((1 - share) * x + share * direction)
        value = information((1 - share) * masses + share * there)
        result.steps.append((time.perf_counter() - start, value))
        if time.perf_counter() - start > seconds:
            break
    result.mapping, result.information = x, result.steps[-1][1]
    return result


def _ratios(masses: np.ndarray) -> np.ndarray:
    q = masses.sum(0)
    ratios = np.zeros_like(masses)
    used = q > 0
    floor = RATIO_FLOOR * masses.sum(1)[:, None] * q[used]
    prior = masses.sum(1)[:, None]
    ratios[:, used] = np.log(np.maximum(masses[:, used], floor) / (prior * q[used]))
    return ratios


def _solve_linear(
    joint: np.ndarray, mass: np.ndarray, ratios: np.ndarray, distances: np.ndarray, budget: float
) -> tuple[sp.csc_array, float]:
    n = len(mass)
    rows, columns = np.arange(n), np.arange(n)
    active = set(zip(rows.tolist(), columns.tolist(), strict=True))
    while True:
        cost = (ratios[:, rows] * joint[:, columns]).sum(0)
        equal = sp.csr_array((np.ones(len(rows)), (columns, np.arange(len(rows)))))
        solved = linprog(
            cost * n,
            A_ub=(mass[columns] * distances[rows, columns] * n)[None, :],
            b_ub=[budget * n],
            A_eq=equal,
            b_eq=np.ones(n),
            method="highs",
        )
        assert solved.status == 0, solved.message
        multiplier, levels = solved.ineqlin.marginals[0], solved.eqlin.marginals / n
        best, value = _search(joint, mass, ratios, distances, multiplier, levels)
        new = [
            (int(i), j)
            for j, (i, v) in enumerate(zip(best, value, strict=True))
            if v < -1e-9 / n and (int(i), j) not in active
        ]
        if not new:
            return sp.csc_array((solved.x, (rows, columns)), shape=(n, n)), -float(multiplier)
        active.update(new)
        rows = np.concatenate([rows, [i for i, _ in new]])
        columns = np.concatenate([columns, [j for _, j in new]])


def _search(
    joint: np.ndarray,
    mass: np.ndarray,
    ratios: np.ndarray,
    distances: np.ndarray,
    multiplier: float,
    levels: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    n = len(mass)
    best, value = np.empty(n, int), np.empty(n)
    step = max(1, 2**22 // n)
    for a in range(0, n, step):
        b = min(a + step, n)
        reduced = ratios.T @ joint[:, a:b] - multiplier * distances[:, a:b] * mass[a:b]
        best[a:b] = reduced.argmin(0)
        value[a:b] = reduced.min(0) - levels[a:b]
    return best, value


def _ternary(here: np.ndarray, there: np.ndarray) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        if information((1 - a) * here + a * there) < information((1 - b) * here + b * there):
            high = b
        else:
            low = a
    return 0.5 * (low + high)
