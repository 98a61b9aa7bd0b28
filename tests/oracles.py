"""Slow and obvious versions of what the package computes, record by record, as printed."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import linprog


def exact_loss(predictor: np.ndarray, x: np.ndarray, released: np.ndarray) -> np.ndarray:
    """``|A^T (x~ - x)|**2`` in extended precision, (n_records,)."""
    wide = np.longdouble
    change = (released.astype(wide) - x.astype(wide)) @ predictor.astype(wide)
    return (change * change).sum(axis=1)


def fill_knapsack(gain: np.ndarray, cost: np.ndarray, budget: float) -> np.ndarray:
    """Xu et al. 2017, Figure 1 with the augmented step 4, for one record."""
    alpha = np.zeros(len(gain))
    alpha[cost == 0] = 1.0
    rest = [j for j in range(len(gain)) if cost[j] > 0]
    rest.sort(key=lambda j: gain[j] / cost[j], reverse=True)
    spent = 0.0
    for j in rest:
        if spent + cost[j] < budget:
            alpha[j], spent = 1.0, spent + cost[j]
        else:
            alpha[j] = math.sqrt((budget - spent) / cost[j])
            break
    return alpha


def clean_as_printed(predictor: np.ndarray, x: np.ndarray, budget: float) -> np.ndarray:
    """Xu et al. 2017, Figure 2: all n eigenvectors of ``A A^T``, one record after the other."""
    values, vectors = np.linalg.eigh(predictor @ predictor.T)
    values[values < 1e-12 * values.max()] = 0.0
    return np.array([clean_record(row, values, vectors, budget) for row in x])


def clean_record(
    x: np.ndarray, values: np.ndarray, vectors: np.ndarray, budget: float
) -> np.ndarray:
    """Figure 2 for one record, component by component."""
    a = np.array([vectors[:, j] @ x for j in range(len(x))])
    cost = np.array([values[j] * a[j] ** 2 for j in range(len(x))])
    alpha = fill_knapsack(np.ones(len(x)), cost, budget)
    released = x.copy()
    for j in range(len(x)):
        released = released - alpha[j] * a[j] * vectors[:, j]
    return released


def clean_targeted(
    desired: np.ndarray, confidential: np.ndarray, x: np.ndarray, budget: float
) -> np.ndarray:
    """Figure 3 with the null space removed first: the pencil inside the range of ``A_d``."""
    u, s, _ = np.linalg.svd(desired, full_matrices=False)
    u = u[:, s > 1e-12 * s[0]]
    d, c = u.T @ desired, u.T @ confidential
    root = np.linalg.inv(np.linalg.cholesky(d @ d.T))
    gain, turn = np.linalg.eigh(root @ c @ c.T @ root.T)
    basis = root.T @ turn  # u @ basis: desired-orthonormal, confidential-orthogonal
    dual = np.linalg.inv(basis).T
    released = []
    for row in x:
        a = dual.T @ (u.T @ row)
        alpha = fill_knapsack(gain * a**2, a**2, budget)
        released.append(u @ (basis @ ((1 - alpha) * a)))
    return np.array(released)


def maximise_knapsack(gain: np.ndarray, cost: np.ndarray, budget: float) -> float:
    """Largest ``sum(alpha**2 * gain)``, by a general linear program in ``alpha**2``."""
    found = linprog(-gain, A_ub=cost[None, :], b_ub=[budget], bounds=(0, 1), method="highs")
    assert found.success
    return -float(found.fun)


def share_evenly(size: np.ndarray, budget: float) -> np.ndarray:
    """Theorem 2's shares ``min(1, mu / b**2)``, mu by bisection, for one record."""
    cost = size**2
    low, high = 0.0, float(cost.max()) + 1.0
    for _ in range(200):
        mu = (low + high) / 2
        alpha = np.minimum(1.0, mu / np.maximum(cost, 1e-300))
        low, high = (mu, high) if (alpha**2 * cost).sum() <= budget else (low, mu)
    return np.minimum(1.0, low / np.maximum(cost, 1e-300))


def complete_literally(
    observed: np.ndarray, weights: np.ndarray, penalty: float, n_steps: int, decrease: float = 0.25
) -> np.ndarray:
    """Yi et al. 2014, problem (3) or (5): fixed point continuation on the whole matrix.

    `n_steps` accelerated steps at each penalty, restarted where momentum points uphill; every
    one with a singular value decomposition of all columns.
    """
    largest = weights.max()
    known = np.where(weights > 0, observed, 0.0)
    level, z = np.linalg.norm(weights * known, 2) * decrease, np.zeros_like(known)
    while True:
        level = level if level > penalty * (1 + 1e-9) else penalty
        point, momentum = z, 1.0
        for _ in range(n_steps):
            u, s, vt = np.linalg.svd(
                point - weights * (point - known) / largest, full_matrices=False
            )
            new = (u * np.maximum(s - level / largest, 0.0)) @ vt
            following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            if np.sum((point - new) * (new - z)) > 0:
                following, point = 1.0, new
            else:
                point = new + (momentum - 1) / following * (new - z)
            z, momentum = new, following
        if level == penalty:
            return z
        level *= decrease


def measure_completion(
    z: np.ndarray, observed: np.ndarray, weights: np.ndarray, penalty: float
) -> float:
    """The objective of problems (3) and (5)."""
    errors = np.where(weights > 0, observed - z, 0.0)
    return float(
        penalty * np.linalg.svd(z, compute_uv=False).sum() + (weights * errors**2).sum() / 2
    )
