"""The generalisation bound against the deviations it bounds, in simulation."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize as so

from privpipe.numerics.logistic import make_class_basis, measure_softmax
from privpipe.numerics.minimax.objective import bound_generalisation_gap


@pytest.mark.parametrize("k", [2, 4])
def test_bound_generalisation_gap__holds_where_the_best_head_is_sought(k: int) -> None:
    """Labels are coins: every gain of a fitted head on 40 records is lost on new ones."""
    rng = np.random.default_rng(k)
    norm, n, width = 2.0, 40, 6
    basis = make_class_basis(k)
    gaps = []
    for _ in range(40):
        x = rng.normal(size=(n, width))
        x /= np.linalg.norm(x, axis=1)[:, None]
        y = rng.integers(0, k, n)

        def loss(v: np.ndarray, x: np.ndarray = x, y: np.ndarray = y) -> float:
            head = v.reshape(width, -1) * min(1.0, norm / max(np.linalg.norm(v), 1e-12))
            losses, _, _ = measure_softmax(x @ head, y, basis)
            return float(losses.mean())

        v = so.minimize(loss, 0.1 * rng.normal(size=width * (k - 1)), method="Powell").x
        head = v.reshape(width, -1) * min(1.0, norm / np.linalg.norm(v))
        fresh = rng.normal(size=(4000, width))
        fresh /= np.linalg.norm(fresh, axis=1)[:, None]
        new = measure_softmax(fresh @ head, rng.integers(0, k, 4000), basis)[0].mean()
        gaps.append(new - loss(v))
    bound = bound_generalisation_gap(
        np.ones(1), np.full(1, norm), np.array([k - 1]), radius=1.0, n_records=n
    )
    mean, error = np.mean(gaps), np.std(gaps) / np.sqrt(len(gaps))
    assert mean > 4 * error  # there is something to bound
    assert mean + 4 * error < bound
    assert bound < (5 if k == 2 else 12) * mean * np.sqrt(k)  # and it is no idle number


def test_bound_generalisation_gap__falls_with_the_root_of_the_records() -> None:
    arguments = (np.array([10.0, -1.0]), np.array([3.0, 2.0]), np.array([1, 4]), 2.0)
    assert bound_generalisation_gap(*arguments, 400) == pytest.approx(
        10 * bound_generalisation_gap(*arguments, 40_000)
    )


def test_bound_generalisation_gap__is_what_a_hand_computes() -> None:
    """Two tasks, of one score and of four: complexities .08485 and .32, weighed 2 and 3, twice."""
    bound = bound_generalisation_gap(
        np.array([2.0, -3.0]), np.array([1.5, 2.0]), np.array([1, 4]), radius=2.0, n_records=2500
    )
    by_hand = 2 * (2 * (1.41421 * 1.5 * 2 / 50) + 3 * (1.41421 * 2.82843 * 2 * 2 / 50))
    assert bound == pytest.approx(by_hand, rel=1e-4)
    assert bound == pytest.approx(2.2594, rel=1e-4)
