"""Estimates from noisy numbers: their intervals hold what they say, as often as they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.optimize as so
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


SQUARE = float(st.chi2.ppf(0.95, 1))

LAWS: dict[str, Callable[[Any, int], np.ndarray]] = {
    "normal": lambda rng, n: rng.normal(size=(n, 1)),
    "skew": lambda rng, n: rng.exponential(size=(n, 1)),
    "binary": lambda rng, n: 2.0 * (rng.random((n, 1)) < 0.3),
    "nearly dependent": lambda rng, n: rng.normal(size=(n, 2)) @ np.array([[1, 0.85], [0, 0.53]]),
    "one weak": lambda rng, n: rng.normal(size=(n, 2)) * [2.0, 0.7],
    "five": lambda rng, n: np.column_stack(
        [rng.normal(size=(n, 2)), rng.exponential(size=(n, 2)), 2.0 * (rng.random(n) < 0.2)]
    ),
}
TRUTH = np.array([0.8, -0.5, 0.5, -0.5, 1.0])


def draw_noisy(
    rng: Any, law: str, n: int, spread: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Noisy features and the response, variances of their noise, and slopes with the intercept."""
    x = LAWS[law](rng, n)
    d, slopes = x.shape[1], TRUTH[: x.shape[1]]
    response = x @ slopes + 1.0 + 0.7 * rng.normal(size=n)
    # As that of knorm: a direction, and a radius of the gamma law.
    way = rng.normal(size=(n, d))
    length = rng.gamma(d, spread / np.sqrt(d + 1), size=n) / np.linalg.norm(way, axis=1)
    rows = np.column_stack([x + way * length[:, None], response])
    return rows, np.append(np.full(d, spread**2), 0.0), np.append(slopes, 1.0)


def sum_noisy(
    rng: Any, law: str, n: int, spread: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Noisy sums of products of features, 1 and the response, their deviations, and the truth."""
    x = LAWS[law](rng, n)
    d, slopes = x.shape[1], TRUTH[: x.shape[1]]
    rows = np.column_stack([x, np.ones(n), x @ slopes + 1.0 + 0.7 * rng.normal(size=n)])
    deviations = np.full((d + 2, d + 2), spread * n) * (1 + (np.sqrt(2) - 1) * np.eye(d + 2))
    noise = np.triu(rng.normal(size=(d + 2, d + 2)) * deviations)
    return rows.T @ rows + noise + np.triu(noise, 1).T, deviations, np.append(slopes, 1.0)


def estimate_drawn(
    law: str, n: int, spread: float, seed: int, of_sums: bool
) -> tuple[list[Estimate] | None, np.ndarray]:
    """A regression of one draw, None where it is refused, and the truth."""
    rng = np.random.default_rng([7, seed])
    given, noise, truth = (sum_noisy if of_sums else draw_noisy)(rng, law, n, spread)
    names, d = list("abcdefg")[: len(truth)], len(truth) - 1
    try:
        if of_sums:
            return estimate_moment_regression(given, noise, names[:d], d, d + 1), truth
        return estimate_regression(lambda: [given], names, noise), truth
    except InputError:
        return None, truth


def check_shown(law: str, n: int, spread: float, n_draws: int, of_sums: bool = False) -> float:
    """What is shown and wrong is at most .05 of all draws; the share that is shown."""
    wrong, n_shown = np.zeros(1), 0
    for seed in range(n_draws):
        found, truth = estimate_drawn(law, n, spread, seed, of_sums)
        if found is not None:
            wrong, n_shown = wrong + ~cover(found, truth), n_shown + 1
    assert wrong.max() <= st.binom.ppf(1 - 1e-4, n_draws, 0.05), wrong
    if n_shown > 0.3 * n_draws:
        assert 1 - wrong.max() / n_shown > 0.9
    return n_shown / n_draws


@pytest.mark.parametrize(
    ("law", "n", "spread", "shown"),
    [("skew", 1_000, 2.8, (0.25, 0.5)), ("binary", 4_000, 3.4, (0.3, 0.8))],
)
def test_regression__near_its_refusal_is_seldom_shown_and_wrong(
    law: str, n: int, spread: float, shown: tuple[float, float]
) -> None:
    """Intervals of value and error held .20 and .55 of the slopes that they were shown for."""
    low, high = shown
    assert low < check_shown(law, n, spread, 300) < high


def test_regression__of_sums_near_its_refusal_is_seldom_shown_and_wrong() -> None:
    assert 0.3 < check_shown("nearly dependent", 4_000, 0.05, 300, of_sums=True) < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("n", "of_sums"), [(1_000, False), (4_000, False), (4_000, True)])
def test_regression__is_seldom_shown_and_wrong_whatever_the_noise(
    law: str, n: int, of_sums: bool
) -> None:
    spreads = [0.01, 0.05, 0.1, 0.2, 0.4] if of_sums else [0.3, 1.0, 1.5, 2.0, 2.8, 4.0, 8.0]
    shown = [check_shown(law, n, spread, 600, of_sums) for spread in spreads]
    assert shown[0] == 1.0
    assert shown[-1] < 0.2


def test_limits__of_one_slope_are_where_the_score_is_rejected() -> None:
    """Fieller's: the mean of scores is its own error times the quantile at both ends."""
    n, spread = 4_000, 2.0
    rows, noise, _ = draw_noisy(np.random.default_rng(0), "skew", n, spread)
    slope = estimate_regression(lambda: [rows[:999], rows[999:]], ["a", "y"], noise)[0]
    z, y = (rows - rows.mean(axis=0)).T
    for level in (0.5, 0.95):
        low, high = slope.find_limits(level)
        assert low < slope.value < high
        for end in (low, high):
            scores = z * (y - z * end) + noise[0] * end
            reach = abs(scores.mean()) * np.sqrt(n) / scores.std()
            quantile = st.t.ppf(0.5 + level / 2, n - 2) * np.sqrt(n / (n - 2))
            assert reach == pytest.approx(quantile, rel=1e-9)


def test_limits__of_an_intercept_are_those_at_the_slope_that_fits_best() -> None:
    """The slope is free: scores of both are compared with their covariance, at each slope."""
    n = 4_000
    rows, noise, _ = draw_noisy(np.random.default_rng(1), "normal", n, 2.1)
    found = estimate_regression(lambda: [rows], ["a", "y"], noise)
    z, y = rows.T

    def measure(slope: float, intercept: float) -> float:
        rest = y - z * slope - intercept
        scores = np.column_stack([(z - z.mean()) * rest + noise[0] * slope, rest])
        mean = scores.mean(axis=0)
        return float(n * mean @ np.linalg.solve(np.cov(scores.T, bias=True), mean))

    def profile(end: float) -> float:
        best = so.minimize_scalar(measure, args=(end,), bracket=(found[0].value, 0.9))
        return float(best.fun)

    assert [profile(end) for end in found[1].find_limits(0.95)] == pytest.approx(
        [SQUARE] * 2, rel=0.05
    )
    # Without what the slope adds they are narrower by more than that.
    narrow = replace(found[1], spill=0.0).find_limits(0.95)
    assert all(profile(end) < 0.95 * SQUARE for end in narrow)


def test_limits__of_noisy_sums_follow_the_covariance_of_their_scores() -> None:
    """Lean, growth and spill are the derivatives of the variance of each coefficient."""
    rng, q = np.random.default_rng(2), 3
    moments, deviations, _ = sum_noisy(rng, "five", 500, 0.02)
    moments, deviations = moments[2:, 2:], deviations[2:, 2:] * rng.uniform(1, 2, size=(5, 5))
    deviations = (deviations + deviations.T) / 2
    found = estimate_moment_regression(moments, deviations, ["a", "b", "c"], q, q + 1)
    values, inverse = np.array([one.value for one in found]), np.linalg.inv(moments[:4, :4])
    places = [(i, j) for i in range(5) for j in range(i + 1)]

    def vary(at: np.ndarray) -> np.ndarray:
        contrast = np.append(at, -1.0)
        total = contrast @ moments @ contrast / moments[q, q] * moments[:4, :4]
        for i, j in places:  # each entry of the noise by itself
            moved = np.zeros(5)
            moved[i] += contrast[j]
            moved[j] += contrast[i] * (i != j)
            total = total + deviations[i, j] ** 2 * np.outer(moved, moved)[:4, :4]
        return inverse @ total @ inverse

    errors = vary(values)
    for j, one in enumerate(found):
        line = errors[j] / errors[j, j]
        ahead, behind = (vary(values + sign * line)[j, j] for sign in (1, -1))
        slope = [(vary(values + e) - vary(values - e))[j, j] / 4 for e in np.eye(4)]
        lean = (ahead - behind) / 4
        assert one.error**2 == pytest.approx(errors[j, j])
        assert one.lean == pytest.approx(lean)
        assert one.growth == pytest.approx((ahead + behind) / 2 - errors[j, j])
        assert one.spill == pytest.approx(slope @ errors @ slope / errors[j, j] - lean**2)


@pytest.mark.parametrize("n", [4, 12])
def test_estimates__of_few_records_cover_and_have_no_bias(n: int) -> None:
    """Of 4 records .81 of means at 95 % were held, and covariances were too small by noise/3."""
    rng, noise = np.random.default_rng(n), np.array([9.0, 9.0])
    hits, values = [], []
    for _ in range(1500):
        rows = rng.normal(size=(n, 2)) * np.sqrt(10.0)
        means = estimate_means(lambda rows=rows: [rows], ["a", "b"])
        both = estimate_covariances(lambda rows=rows: [rows], ["a", "b"], noise)
        hits.append([*cover(means, np.zeros(2)), *cover(both[1:2], np.zeros(1))])
        values.append(both[0].value)
    shares = np.mean(hits, axis=0)
    assert np.all(shares[:2] > 0.93)
    assert shares[2] > 0.88
    assert abs(np.mean(values) - 1.0) < 4 * np.std(values) / np.sqrt(len(values)) < 1.1


def test_limits__of_a_variance_are_longer_above() -> None:
    """Of 30 records they held .89: the error was that of the variance found, not of the true."""
    rng, hits = np.random.default_rng(0), []
    for _ in range(3000):
        rows = rng.normal(size=(30, 1)) * np.sqrt(3.0)
        [one] = estimate_covariances(lambda rows=rows: [rows], ["a"], np.array([2.0]))
        low, high = one.find_limits(0.95)
        hits.append(low <= 1.0 <= high)
        assert high - one.value > one.value - low
    assert np.mean(hits) > 0.905


def test_limits__without_an_end_are_refused_at_their_level() -> None:
    one = Estimate("x", 1.0, 0.5, growth=0.2)
    low, high = one.find_limits(0.95)
    assert (low - 1, high - 1) == pytest.approx((-2.0366, 2.0366), rel=1e-3)
    with pytest.raises(InputError, match=r"at level 0\.99 nothing is determined") as refused:
        one.find_limits(0.99)
    assert refused.value.code == "not-determined"
    assert "above level 0.95, a lower one" in refused.value.remedy


def test_limits__are_those_of_other_units() -> None:
    one = Estimate("x", 1.0, 0.5, 0.1, 0.1, 0.05)
    moved = one.convert(3.0, -2.0)
    expected = [3.0 * end - 2.0 for end in one.find_limits(0.9)]
    assert moved.find_limits(0.9) == pytest.approx(expected)
    assert (moved.name, moved.value, moved.error) == ("x", 1.0, 1.5)


def test_regression__of_a_response_that_never_varies_is_exact() -> None:
    rows, noise, _ = draw_noisy(np.random.default_rng(3), "one weak", 1_000, 0.5)
    rows[:, 2] = 4.0
    found = estimate_regression(lambda: [rows], ["a", "b", "y"], noise)
    assert [one.find_limits(0.95) for one in found] == [(0.0, 0.0), (0.0, 0.0), (4.0, 4.0)]


def test_regression__of_features_that_are_copies_or_vary_less_than_the_noise_is_refused() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=1_000)
    rows = np.column_stack([x, x, x + rng.normal(size=1_000)])
    with pytest.raises(InputError, match="hardly vary"):
        estimate_regression(lambda: [rows], ["a", "b", "y"], np.zeros(3))
    # By many errors, so that limits would have an end: of a variance below zero.
    with pytest.raises(InputError, match="hardly vary"):
        estimate_regression(lambda: [rows[:, 1:]], ["a", "y"], np.array([9.0, 0.0]))


@pytest.mark.parametrize(("n", "least"), [(30, 0.91), (200, 0.935)])
def test_covariances__of_skewed_records_cover(n: int, least: float) -> None:
    """Squares of exponential numbers have a skewness of 6: Student's limits held .88 and .92."""
    rng, hits, plain = np.random.default_rng(0), [], []
    for _ in range(3_000):
        rows = rng.exponential(size=(n, 1))
        [one] = estimate_covariances(lambda rows=rows: [rows], ["a"], np.zeros(1))  # type: ignore[misc]
        for found, held in ((one, hits), (replace(one, skew=0.0, excess=0.0), plain)):
            low, high = found.find_limits(0.95)
            held.append(low <= 1 <= high)
        # A change of units changes no probability.
        assert one.convert(-3.0).find_limits(0.9)[0] == pytest.approx(-3 * one.find_limits(0.9)[1])
    assert least < np.mean(hits) < 0.965
    assert np.mean(plain) < np.mean(hits) - 0.015


def test_covariances__of_what_does_not_vary_have_no_tails() -> None:
    """The square of the deviation of a fair coin is one number: what is left of it is rounding."""
    rows = np.tile([[0.1], [0.7]], (500, 1))
    [one] = estimate_covariances(lambda: [rows], ["a"], np.zeros(1))
    assert one.find_limits(0.95) == pytest.approx((0.09, 0.09), rel=0.01)
