"""Records for tests of minimax filters: labels in some directions, traps in others."""

from __future__ import annotations

import numpy as np

from privpipe.protocols import FloatArray
from privpipe.records.memory import GrowingRecords, Records


def join_parts(parts: list[Records]) -> GrowingRecords:
    """Partitions as they came, one after the other."""
    grown = GrowingRecords(parts[0])
    for part in parts[1:]:
        grown.append(part)
    return grown


def draw_labelled(
    n_records: int = 400, *, n_private: int = 3, seed: int = 0
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Features (n, 9), a target of 2 classes, a private variable of `n_private` classes.

    The target moves features 0 and 1, the private variable 1, 2 and 3; feature 7 is constant and
    feature 8 repeats feature 0, so every covariance is singular; means are far from zero.
    """
    rng = np.random.default_rng(seed)
    target = rng.integers(0, 2, n_records)
    private = rng.integers(0, n_private, n_records)
    x = rng.normal(size=(n_records, 9))
    x[:, 0] += 2.0 * target
    x[:, 1] += 1.5 * target + 1.5 * private
    x[:, 2] += 2.0 * (private == 1)
    x[:, 3] -= 2.0 * (private == 0)
    x += np.linspace(-3.0, 5.0, 9)
    x[:, 7] = 4.0
    x[:, 8] = x[:, 0]
    return x, target.astype(float), private.astype(float)
