"""Estimates from noisy numbers: their intervals hold what they say, as often as they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats as st

from privpipe.errors import InputError
from privpipe.numerics.noise.estimates import (
    Estimate,
    estimate_covariances,
    estimate_means,
    estimate_moment_means,
    estimate_moment_regression,
    estimate_regression,
)
from privpipe.numerics.noise.mechanism import plan_mechanism
from privpipe.numerics.random.streams import KeyedStream
from privpipe.records.memory import Records
from privpipe.sanitizers.masking.private_masking import MaskingPrivateOptions, fit_with_key

SLOPES = np.array([0.4, -0.3])


def draw(rng: Any, n: int, law: str) -> np.ndarray:
    """Two features and a response, within the unit ball: sd about .2."""
    x = {
        "normal": lambda: rng.normal(size=(n, 2)) * 0.2,
        "skew": lambda: rng.exponential(size=(n, 2)) * 0.15,
        "binary": lambda: (rng.random((n, 2)) < 0.3) * 0.5,
    }[law]()
    x = np.clip(x, -0.7, 0.7)
    return np.column_stack([x, x @ SLOPES + 0.1 + 0.1 * rng.normal(size=n)])


def find_truth(law: str) -> tuple[np.ndarray, np.ndarray]:
    """Means and covariance of the law, by many draws; their error is a tenth of an interval's."""
    big = draw(np.random.default_rng(99), 2_000_000, law)
    return big.mean(axis=0), np.cov(big.T)


def cover(found: list[Estimate], truth: np.ndarray) -> np.ndarray:
    limits = np.array([one.find_limits(0.95) for one in found])
    return (limits[:, 0] <= truth) & (truth <= limits[:, 1])


def check_share(hits: np.ndarray, n: int) -> None:
    """Within what a thousand draws at .95 give in all but one of 10,000 tests."""
    low, high = st.binom.ppf([5e-5, 1 - 5e-5], n, 0.95) / n
    shares = hits.mean(axis=0)
    assert np.all((low <= shares) & (shares <= high)), shares


@pytest.mark.parametrize("noise", ["knorm", "discrete"])
@pytest.mark.parametrize(
    ("law", "n_draws"),
    [
        ("skew", 60),
        pytest.param("normal", 1000, marks=pytest.mark.slow),
        pytest.param("binary", 1000, marks=pytest.mark.slow),
    ],
)
def test_estimates__of_noisy_records_cover(law: str, n_draws: int, noise: Any) -> None:
    n = 10_000
    means, covariance = find_truth(law)
    mechanism = plan_mechanism(12.0, 2, "l2", noise)
    factor = 1 / (mechanism.lattice.inner * mechanism.grid)
    variances = np.array([*[(factor * mechanism.spread) ** 2] * 2, 0.0])
    names = ["a", "b", "y"]
    hits, values = [], []
    for k in range(n_draws):
        rows = draw(np.random.default_rng(k), n, law)
        stream = KeyedStream(k.to_bytes(32), partition="p", first_record=0, n_records=n)
        rows[:, :2] = mechanism.release(rows[:, :2].copy(), stream) * factor

        def blocks(rows: np.ndarray = rows) -> list[np.ndarray]:
            return [rows[:2000], rows[2000:]]

        found = [
            *estimate_means(blocks, names),
            *estimate_covariances(blocks, names, variances),
            *estimate_regression(blocks, names, variances),
        ]
        truth = [*means, *covariance[np.triu_indices(3)], *SLOPES, 0.1]
        hits.append(cover(found, np.array(truth)))
        values.append([one.value for one in found])
    check_share(np.array(hits), n_draws)
    # The noise alone would shrink slopes by half: the correction is what keeps them.
    assert variances[0] > 0.5 * covariance[0, 0]
    np.testing.assert_allclose(np.mean(values, axis=0)[-3:-1], SLOPES, atol=0.05)


@pytest.mark.parametrize("n_draws", [60, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("law", ["skew", "binary"])
def test_estimates__of_means_cover_where_signs_are_drawn(law: str, n_draws: int) -> None:
    """No noise of one law is added; what is released is unbiased for every record, so means are."""
    n, (means, _) = 2_000, find_truth(law)
    mechanism, hits = plan_mechanism(6.0, 2, "l2", "privunit"), []
    for k in range(n_draws):
        rows = draw(np.random.default_rng(k), n, law)[:, :2]
        stream = KeyedStream(k.to_bytes(32), partition="p", first_record=0, n_records=n)
        blocks = [mechanism.release(rows.copy(), stream)]
        found = estimate_means(lambda blocks=blocks: blocks, ["a", "b"])  # type: ignore[misc]
        hits.append(cover(found, np.array(means[:2])))
    check_share(np.array(hits), n_draws)


@pytest.mark.parametrize("n_draws", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_estimates__of_noisy_moments_cover(n_draws: int) -> None:
    n, law = 4_000, "normal"
    means, _ = find_truth(law)
    hits = []
    for k in range(n_draws):
        rows = draw(np.random.default_rng(k), n, law)
        options = MaskingPrivateOptions(
            epsilon=2.0, delta=1e-5, n_surrogates=9, bound={"*": (-0.8, 0.8)}
        )
        records = Records(rows[:, :2], desired=rows[:, 2])
        model = fit_with_key(records, options, k.to_bytes(32))
        found = [
            *estimate_moment_means(model.moments, model.deviations, ["a", "b", "y"], 2),
            *estimate_moment_regression(model.moments, model.deviations, ["a", "b"], 2, 3),
        ]
        hits.append(cover(found, np.array([*means / 0.8, *SLOPES, 0.1 / 0.8])))
    check_share(np.array(hits), n_draws)


def test_regression__that_noise_leaves_open_is_refused() -> None:
    rng = np.random.default_rng(0)
    rows = draw(rng, 500, "normal")
    rows[:, :2] += rng.normal(size=(500, 2)) * 3
    with pytest.raises(InputError, match="hardly vary"):
        estimate_regression(lambda: [rows], ["a", "b", "y"], np.array([9.0, 9.0, 0.0]))
    with pytest.raises(InputError, match="too few"):
        estimate_means(lambda: [rows[:2]], ["a", "b", "y"])
