"""What is tried is what is trained: rounds of boosting, and features of a kernel."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from privpipe.attacks.adversaries.estimators import LEAVES, train_boosting
from privpipe.attacks.adversaries.problem import Problem
from privpipe.attacks.adversaries.ridges import find_features, measure_kernel


def make_problem(n_classes: int | None) -> Problem:
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 4))
    y = x[:, 0] ** 2 + 0.3 * random.normal(size=300)
    if n_classes is not None:
        y = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes)).astype(float)
    return Problem(x[:200], y[:200], x[200:], y[200:], n_classes)


@pytest.mark.parametrize("n_classes", [None, 2, 3])
def test_boosting__tried_at_a_round_is_trained_for_so_many(n_classes: int | None) -> None:
    problem = make_problem(n_classes)
    tried = list(train_boosting(problem, None))
    assert len(tried) > len(LEAVES)  # the round of least loss is not the last one
    for one in tried:
        (again,) = train_boosting(problem, one.choice)
        np.testing.assert_allclose(again.decide(problem.x_tune), one.decide(problem.x_tune))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_kernel__features_multiply_to_the_kernel_on_what_landmarks_span(dtype: type) -> None:
    random = np.random.default_rng(1)
    landmarks = random.normal(size=(40, 3)).astype(dtype)
    landmarks[1] = landmarks[0]  # equal landmarks are no obstacle
    x = landmarks[5:30]
    found = find_features(landmarks, 0.7)(x)
    assert found.shape == (25, 40)
    tolerance = 1e-6 if dtype is np.float64 else 1e-3
    np.testing.assert_allclose(found @ found.T, rbf_kernel(x, gamma=0.7), atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_kernel__is_the_textbook_one_far_from_the_origin_too(
    dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privpipe.attacks.adversaries.ridges.KERNEL_ROWS", 7)
    random = np.random.default_rng(1)
    x, y = (100 + random.normal(size=(n, 3)).astype(dtype) for n in (9, 20))
    found = measure_kernel(x, y, 0.7)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, rbf_kernel(x, y, gamma=0.7), rtol=1e-5, atol=1e-10)
