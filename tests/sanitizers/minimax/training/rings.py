"""Records whose private class no line tells, and a Gaussian kernel does."""

from __future__ import annotations

from typing import Any

import numpy as np


def draw_rings(n: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Features (n, 6), target and private classes: one shifts, the private one is a radius."""
    rng = np.random.default_rng(seed)
    target, private = rng.integers(0, 2, n), rng.integers(0, 2, n)
    x = 0.3 * rng.standard_normal((n, 6))
    angle = rng.uniform(0, 2 * np.pi, n)
    radius = 1.0 + 2.0 * private
    x[:, 0] += radius * np.cos(angle)
    x[:, 1] += radius * np.sin(angle)
    x[:, 2] += 2.0 * target - 1.0
    return x, target, private
