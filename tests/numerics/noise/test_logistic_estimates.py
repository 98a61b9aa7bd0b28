"""Logistic regression on noisy features: without bias, with intervals that hold what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privpipe.errors import InputError
from privpipe.numerics.noise.logistic_estimates import _score, _tabulate, estimate_logistic
from privpipe.numerics.noise.mechanism import plan_mechanism
from privpipe.numerics.random.streams import KeyedStream
from tests.numerics.noise.test_estimates import check_share, cover

SLOPES, LEVEL = np.array([4.0, -3.0]), -0.3


def expit(odds: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(odds)))


def draw(rng: Any, n: int, law: str) -> np.ndarray:
    """Two features within the unit ball, of deviation about .25, and a category."""
    x = {
        "normal": lambda: rng.normal(size=(n, 2)) * 0.25,
        "skew": lambda: rng.exponential(size=(n, 2)) * 0.2,
        "binary": lambda: (rng.random((n, 2)) < 0.3) * 0.55,
        "uniform": lambda: rng.uniform(-0.45, 0.45, (n, 2)),
        "two humps": lambda: rng.choice([-0.3, 0.3], (n, 2)) + 0.1 * rng.normal(size=(n, 2)),
        "long tails": lambda: rng.standard_t(3, (n, 2)) * 0.15,
        "correlated": lambda: rng.normal(size=(n, 2)) @ [[0.2, 0.12], [0.12, 0.2]],
        "one rare": lambda: np.column_stack(
            [rng.normal(size=n) * 0.25, (rng.random(n) < 0.1) * 0.69]
        ),
    }[law]()
    x = np.clip(x, -0.7, 0.7)
    return np.column_stack([x, rng.random(n) < expit(x @ SLOPES + LEVEL)])


LAWS = (
    "normal", "skew", "binary", "uniform", "two humps", "long tails", "correlated", "one rare",
)  # fmt: skip


def make_noisy(law: str, k: int, n: int, noise: Any, epsilon: float) -> tuple[Any, np.ndarray]:
    rows = draw(np.random.default_rng(k), n, law)
    mechanism = plan_mechanism(epsilon, 2, "l2", noise)
    stream = KeyedStream(k.to_bytes(32), partition="p", first_record=0, n_records=n)
    rows[:, :2] = mechanism.release(rows[:, :2].copy(), stream) / mechanism.factor
    return rows, np.full(2, (mechanism.spread / mechanism.factor) ** 2)


@pytest.mark.parametrize("noise", ["knorm", "discrete"])
@pytest.mark.parametrize(
    ("law", "n_draws"),
    [("skew", 40), *(pytest.param(law, 1000, marks=pytest.mark.slow) for law in LAWS)],
)
def test_estimates__of_noisy_records_cover(law: str, n_draws: int, noise: Any) -> None:
    hits, values = [], []
    for k in range(n_draws):
        rows, variances = make_noisy(law, k, 6_000, noise, 16.0)

        def blocks(rows: np.ndarray = rows) -> list[np.ndarray]:
            return [rows[:2000], rows[2000:]]

        try:
            found = estimate_logistic(blocks, ["a", "b", "y"], variances, joint=noise == "knorm")
        except InputError:  # too noisy a draw: it is refused, and no limits are shown
            continue
        hits.append(cover(found, np.array([*SLOPES, LEVEL])))
        values.append([one.value for one in found])
    assert len(hits) >= 0.98 * n_draws
    check_share(np.array(hits), len(hits))
    spread = np.std(values, axis=0) / np.sqrt(n_draws)
    bias = np.mean(values, axis=0) - [*SLOPES, LEVEL]
    # Of the second order; of noisy features as they are slopes are half of it.
    assert np.all(np.abs(bias) < 4 * spread + 0.05 * np.abs([*SLOPES, LEVEL]))


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_score__of_noisy_features_has_the_mean_of_that_of_the_records(
    joint: bool, width: int
) -> None:
    """By many draws of the noise for single records: the definition of a corrected score."""
    rng = np.random.default_rng(width)
    n, spread = 400_000, 0.3
    slopes = rng.normal(size=width) * 1.5
    if joint:
        scale = spread / np.sqrt(width + 1)
        ways = rng.normal(size=(n, width))
        ways /= np.linalg.norm(ways, axis=1, keepdims=True)
        noise = ways * rng.gamma(width, scale, n)[:, None]
    else:
        noise = rng.laplace(scale=spread / np.sqrt(2), size=(n, width))
    point = np.append(slopes, 0.4)
    table = _tabulate(slopes, np.full(width, spread**2), joint)
    for x in rng.normal(size=(3, width)):
        noisy = np.column_stack([x + noise, np.ones(n)])
        found = _score(noisy, point, table)
        wanted = np.append(x, 1.0) * (expit(x @ slopes + 0.4) - 1)
        assert np.all(np.abs(found.mean(axis=0) - wanted) < 4.5 * found.std(axis=0) / np.sqrt(n))
    # Without noise it is the plain one.
    plain = _score(noisy, point, _tabulate(slopes, np.zeros(width), joint))
    expected = (
        np.column_stack([x + noise, np.ones(n)]) * (expit((x + noise) @ slopes + 0.4) - 1)[:, None]
    )
    np.testing.assert_allclose(plain, expected, atol=2e-5)


def test_estimates__have_no_bias_in_a_million_records() -> None:
    rows, variances = make_noisy("normal", 3, 1_000_000, "knorm", 12.0)
    found = estimate_logistic(lambda: [rows], ["a", "b", "y"], variances, joint=True)
    truth = [*SLOPES, LEVEL]
    for one, value in zip(found, truth, strict=True):
        assert one.error < 0.03
        assert abs(one.value - value) < 3.5 * one.error
    # As they are, slopes of noisy features are not even near.
    naive = estimate_logistic(lambda: [rows], ["a", "b", "y"], 0 * variances, joint=True)
    assert naive[0].value < 0.6 * SLOPES[0]


def test_estimates__that_noise_leaves_open_are_seldom_shown_and_wrong() -> None:
    n_draws, shown, wrong = 60, 0, 0
    for k in range(n_draws):
        rows, variances = make_noisy("normal", k, 4_000, "knorm", 5.0)
        try:
            found = estimate_logistic(lambda r=rows: [r], ["a", "b", "y"], variances, joint=True)  # type: ignore[misc]
        except InputError:
            continue
        shown += 1
        wrong += not cover(found, np.array([*SLOPES, LEVEL]))[0]
    assert shown < n_draws
    assert wrong <= 0.05 * n_draws + 3 * np.sqrt(0.05 * 0.95 * n_draws)


def test_limits__are_wider_where_noise_leaves_the_curvature_open() -> None:
    """A slope divides by it: an interval of the error alone would be too short."""
    rows, variances = make_noisy("normal", 1, 4_000, "knorm", 8.0)
    plain, heavy = (
        estimate_logistic(lambda: [rows], ["a", "b", "y"], v, joint=True)
        for v in (0 * variances, variances)
    )
    for one, other in zip(plain[:2], heavy[:2], strict=True):
        assert 0 < 10 * one.growth < other.growth
        low, high = other.find_limits(0.95)
        assert high - low > 1.01 * 2 * 1.96 * other.error


def test_estimates__of_one_category_are_refused() -> None:
    rows, variances = make_noisy("normal", 0, 500, "knorm", 12.0)
    rows[:, 2] = 1.0
    with pytest.raises(InputError, match="one category"):
        estimate_logistic(lambda: [rows], ["a", "b", "y"], variances, joint=True)
