"""Differences of groups, shares and inverted mappings: their intervals hold what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats as st

from privpipe.errors import InputError, LeftOutWarning
from privpipe.numerics.noise.estimates import Estimate, estimate_correlations
from privpipe.numerics.noise.group_estimates import (
    estimate_differences,
    estimate_raw_shares,
    estimate_shares,
)
from privpipe.numerics.noise.mechanism import plan_mechanism
from privpipe.numerics.random.streams import KeyedStream
from tests.numerics.noise.test_estimates import LAWS, check_share, cover, draw, draw_noisy

CODES = np.array([(a, b) for a in range(3) for b in range(4)])
VALUES = np.array(
    [CODES[:, 0] == k for k in range(3)] + [CODES[:, 1] == k for k in range(4)], float
)
NAMES = [f"a{k}" for k in range(3)] + [f"b{k}" for k in range(4)]
SKEWED = 0.6 ** np.arange(12) / np.sum(0.6 ** np.arange(12))


def draw_grouped(rng: Any, n: int, law: str) -> tuple[np.ndarray, np.ndarray]:
    """Two features, and a group that depends on them: the last has one in twelve."""
    rows = draw(rng, n, law)
    above = rows[:, 2] + 0.1 * rng.normal(size=n) > 0.25
    return rows[:, :2], above + 1.0 * (rng.random(n) < 0.1)


@pytest.mark.parametrize("noise", ["knorm", "privunit"])
@pytest.mark.parametrize(
    ("law", "n_draws"), [("skew", 60), *[pytest.param(law, 1000, marks=pytest.mark.slow) for law in
    ("normal", "skew", "binary")]],
)  # fmt: skip
def test_differences__of_groups_cover(law: str, n_draws: int, noise: Any) -> None:
    n, mechanism, hits = 2_000, plan_mechanism(6.0, 2, "l2", noise), []
    factor = 1.0 if noise == "privunit" else 1 / (mechanism.lattice.inner * mechanism.grid)
    x, group = draw_grouped(np.random.default_rng(99), 2_000_000, law)
    a, b, c = (x[group == k].mean(axis=0) for k in range(3))
    for k in range(n_draws):
        x, group = draw_grouped(np.random.default_rng(k), n, law)
        stream = KeyedStream(k.to_bytes(32), partition="p", first_record=0, n_records=n)
        rows = np.column_stack([mechanism.release(x, stream) * factor, group])
        blocks = [rows[:900], rows[900:]]
        found = estimate_differences(lambda blocks=blocks: blocks, ["u", "v"], ["a", "b", "c"])  # type: ignore[misc]
        hits.append(cover(found, np.concatenate([b - a, c - a, c - b])))
    check_share(np.array(hits), n_draws)
    assert [one.name for one in found[:3]] == ["u: b - a", "v: b - a", "u: c - a"]


def test_differences__are_those_of_welch_and_small_groups_are_left_out() -> None:
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=(90, 1)), np.repeat([-1, 0, 1, 2], [10, 25, 46, 9])])
    with pytest.warns(LeftOutWarning, match="left out: c"):
        [one] = estimate_differences(lambda: [rows[:30], rows[30:]], ["x"], ["a", "b", "c"])
    a, b = (rows[rows[:, 1] == k, 0] for k in (0, 1))
    expected = st.ttest_ind(b, a, equal_var=False)
    assert one.value == pytest.approx(b.mean() - a.mean())
    assert one.freedom == pytest.approx(expected.df)
    assert one.find_limits(0.9) == pytest.approx(tuple(expected.confidence_interval(0.9)))
    with pytest.raises(InputError, match="too few"):
        estimate_differences(lambda: [rows[:40]], ["x"], ["a", "b", "c"])


def test_shares__have_the_limits_of_wilson() -> None:
    found = estimate_shares(np.array([0.0, 3.0, 37.0]), ["a", "b", "c"])
    for one, n in zip(found, (0, 3, 37), strict=True):
        expected = st.binomtest(n, 40).proportion_ci(0.95, "wilson")
        assert one.find_limits(0.95) == pytest.approx((expected.low, expected.high))
    with pytest.raises(InputError, match="too few"):
        estimate_shares(np.array([0.0, 1.0]), ["a", "b"])


def make_exponential(epsilon: float) -> np.ndarray:
    """The exponential mechanism of the Hamming distance."""
    mapping = np.exp(-epsilon / 2 * (CODES[:, None] != CODES[None]).sum(axis=2))
    return mapping / mapping.sum(axis=0)


def make_merged() -> np.ndarray:
    """b0 and b1 are released alike, and all else is mixed; of 12 singular values 3 are 0."""
    mapping = np.zeros((12, 12))
    of_b = np.array([[0.5, 0.5, 0.2, 0], [0.5, 0.5, 0, 0], [0, 0, 0.7, 0.1], [0, 0, 0.1, 0.9]])
    for a in range(3):
        for b in range(4):
            for share, other in ((0.8, a), (0.2, (a + 1) % 3)):
                mapping[4 * other : 4 * other + 4, 4 * a + b] += share * of_b[:, b]
    return mapping


def estimate_drawn(mapping: np.ndarray, law: np.ndarray, n: int, seed: int) -> list[Estimate]:
    counts = np.random.default_rng([seed, n]).multinomial(n, mapping @ law).astype(float)
    return estimate_raw_shares(counts, mapping, VALUES, NAMES)


@pytest.mark.parametrize("law", [np.full(12, 1 / 12), SKEWED], ids=["even", "skewed"])
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
@pytest.mark.parametrize("n", [200, pytest.param(5_000, marks=pytest.mark.slow)])
def test_shares__of_raw_values_cover_and_have_no_bias(
    law: np.ndarray, epsilon: float, n: int
) -> None:
    mapping, truth = make_exponential(epsilon), VALUES @ law
    drawn = [estimate_drawn(mapping, law, n, seed) for seed in range(600)]
    check_share(np.array([cover(one, truth) for one in drawn]), 600)
    off = np.array([[one.value for one in found] for found in drawn]) - truth
    assert np.all(np.abs(off.mean(axis=0)) < 4 * off.std(axis=0) / np.sqrt(600))
    assert drawn[0][0].condition == pytest.approx(np.linalg.cond(mapping))


def test_shares__that_a_mapping_does_not_determine_are_left_out_by_name() -> None:
    mapping, truth = make_merged(), VALUES @ SKEWED
    at = [0, 1, 2, 5, 6]
    with pytest.warns(LeftOutWarning, match="left out: b0, b1"):
        drawn = [estimate_drawn(mapping, SKEWED, 300, seed) for seed in range(400)]
    assert [one.name for one in drawn[0]] == [NAMES[k] for k in at]
    check_share(np.array([cover(one, truth[at]) for one in drawn]), 400)
    assert drawn[0][0].condition < 10
    with pytest.raises(InputError, match="no share is determined") as refused:
        estimate_raw_shares(np.full(12, 9.0), np.full((12, 12), 1 / 12), VALUES, NAMES)
    assert refused.value.code == "not-determined"


def test_shares__that_rest_on_few_records_are_left_out() -> None:
    """Released as itself once in 200: of a thousand records intervals held .58."""
    mapping = np.eye(12)
    mapping[4:6, 4] = 0.005, 0.995
    with pytest.warns(LeftOutWarning, match="left out: b0, b1"):
        found = estimate_drawn(mapping, np.full(12, 1 / 12), 1_000, 0)
    assert len(found) == 5
    assert len(estimate_drawn(mapping, np.full(12, 1 / 12), 50_000, 0)) == 7


@pytest.mark.parametrize(("law", "spread"), [("nearly dependent", 0.5), ("five", 1.0)])
@pytest.mark.parametrize("n_draws", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_correlations__of_noisy_records_cover(law: str, spread: float, n_draws: int) -> None:
    big = LAWS[law](np.random.default_rng(5), 1_000_000)
    d = big.shape[1]
    truth, hits = np.corrcoef(big.T)[np.triu_indices(d, 1)], []
    for seed in range(n_draws):
        rows, noise, _ = draw_noisy(np.random.default_rng([3, seed]), law, 2_000, spread)
        blocks = [rows[:700, :d], rows[700:, :d]]
        found = estimate_correlations(lambda blocks=blocks: blocks, list("abcde")[:d], noise[:d])  # type: ignore[misc]
        hits.append(cover(found, truth))
    check_share(np.array(hits), n_draws)


def test_correlations__where_noise_hides_the_spread_are_left_out_or_seldom_wrong() -> None:
    big = LAWS["nearly dependent"](np.random.default_rng(5), 1_000_000)
    truth, wrong, shown = np.corrcoef(big.T)[0, 1], 0, 0
    for seed in range(300):
        rows, noise, _ = draw_noisy(np.random.default_rng(seed), "nearly dependent", 1_000, 2.6)
        try:
            [one] = estimate_correlations(lambda rows=rows: [rows[:, :2]], ["a", "b"], noise[:2])  # type: ignore[misc]
        except InputError:
            continue
        low, high = one.find_limits(0.95)
        shown, wrong = shown + 1, wrong + (not low <= truth <= high)
    assert 0.1 < shown / 300 < 0.7
    assert wrong <= st.binom.ppf(1 - 1e-4, 300, 0.05)


def test_correlations__name_what_may_vary_by_noise_alone() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(400, 3)) * [1.0, 2.0, 0.02] + rng.normal(size=(400, 3)) * 0.3
    with pytest.warns(LeftOutWarning, match="left out: c"):
        [one] = estimate_correlations(lambda: [rows], ["a", "b", "c"], np.array([0.09, 0.09, 0.09]))
    assert one.name == "a, b"


def test_correlations__without_noise_are_those_of_the_records() -> None:
    rows = LAWS["five"](np.random.default_rng(1), 500)
    found = estimate_correlations(lambda: [rows], list("abcde"), np.zeros(5))
    expected = np.corrcoef(rows.T)[np.triu_indices(5, 1)]
    np.testing.assert_allclose([one.value for one in found], expected, rtol=1e-12)
