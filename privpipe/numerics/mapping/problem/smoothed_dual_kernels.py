"""Kernels of the smoothed dual: one pass over the pairs each, columns in order."""

from __future__ import annotations

from typing import Any

import numpy as np

from privpipe.numerics.compiler import njit


@njit(cache=True, nogil=True)
def smooth_minimum(
    pointers: Any,
    symbols: Any,
    distances: Any,
    posterior: Any,
    mass: Any,
    g: Any,
    lam: Any,
    tau: Any,
    cost: Any,
    weights: Any,
) -> Any:
    """Softmin weights (joint masses) of all pairs; returns sum_j p_j softmin_j."""
    total = 0.0
    m = g.shape[1]
    for j in range(len(pointers) - 1):
        first, last = pointers[j], pointers[j + 1]
        low = np.inf
        for k in range(first, last):
            i = symbols[k]
            c = lam * distances[k]
            for a in range(m):
                if posterior[j, a] != 0.0:
                    c += posterior[j, a] * g[i, a]
            cost[k] = c
            low = min(low, c)
        z = 0.0
        for k in range(first, last):
            w = np.exp((low - cost[k]) / tau)
            weights[k] = w
            z += w
        scale = mass[j] / z
        for k in range(first, last):
            weights[k] *= scale
        total += mass[j] * (low - tau * np.log(z))
    return total


@njit(cache=True, nogil=True)
def sum_slopes(
    pointers: Any,
    symbols: Any,
    distances: Any,
    posterior: Any,
    mass: Any,
    r: Any,
    weights: Any,
    tau: Any,
    anchor: Any,
    grad: Any,
    blocks: Any,
    q: Any,
) -> Any:
    """Gradient for the logits, the Hessian's diagonal blocks; spent distortion, its variance."""
    m = grad.shape[1]
    grad[:] = 0.0
    blocks[:] = 0.0
    q[:] = anchor
    spent, spread = 0.0, 0.0
    mean = np.empty(m)
    for j in range(len(pointers) - 1):
        mean[:] = 0.0
        mean_d = 0.0
        for k in range(pointers[j], pointers[j + 1]):
            mean_d += weights[k] * distances[k]
        mean_d /= mass[j]
        spent += mean_d * mass[j]
        for k in range(pointers[j], pointers[j + 1]):
            i, y = symbols[k], weights[k]
            q[i] += y
            spread += y * (distances[k] - mean_d) ** 2
            left = y * (1.0 - y / mass[j]) / tau
            for a in range(m):
                e = posterior[j, a] - r[i, a]
                grad[i, a] += y * e
                for b in range(a + 1):
                    blocks[i, a, b] += left * e * (posterior[j, b] - r[i, b])
    for i in range(len(q)):
        for a in range(m):
            for b in range(a + 1):
                blocks[i, a, b] += q[i] * ((r[i, a] if a == b else 0.0) - r[i, a] * r[i, b])
                blocks[i, b, a] = blocks[i, a, b]
    return spent, spread / tau


@njit(cache=True, nogil=True)
def multiply_curvature(
    pointers: Any,
    symbols: Any,
    distances: Any,
    posterior: Any,
    mass: Any,
    r: Any,
    weights: Any,
    q: Any,
    tau: Any,
    dt: Any,
    dl: Any,
    out: Any,
) -> Any:
    """Minus the Hessian times (dt, dl): fills out, returns the multiplier's part."""
    m = dt.shape[1]
    level = np.empty(len(q))
    for i in range(len(q)):
        s = 0.0
        for a in range(m):
            s += r[i, a] * dt[i, a]
        level[i] = s
        for a in range(m):
            out[i, a] = q[i] * r[i, a] * (dt[i, a] - s)
    part = 0.0
    for j in range(len(pointers) - 1):
        mean = 0.0
        for k in range(pointers[j], pointers[j + 1]):
            i = symbols[k]
            v = dl * distances[k] - level[i]
            for a in range(m):
                v += posterior[j, a] * dt[i, a]
            mean += weights[k] * v
        mean /= mass[j]
        for k in range(pointers[j], pointers[j + 1]):
            i = symbols[k]
            v = dl * distances[k] - level[i] - mean
            for a in range(m):
                v += posterior[j, a] * dt[i, a]
            v *= weights[k] / tau
            part += v * distances[k]
            for a in range(m):
                out[i, a] += v * (posterior[j, a] - r[i, a])
    return part
