"""Quartiles behind Laplace noise: limits hold for every law, also where shares jump."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats as st

from privpipe.errors import InputError, LeftOutWarning
from privpipe.numerics.noise.estimates import Estimate
from privpipe.numerics.noise.group_estimates import SHARES, STEPS, estimate_quantiles
from privpipe.numerics.noise.mechanism import Law, plan_mechanism
from privpipe.numerics.random.streams import KeyedStream

LAWS: dict[str, Callable[[Any, int], np.ndarray]] = {
    "normal": lambda rng, n: np.clip(0.2 * rng.normal(size=n), -1, 1),
    "ages": lambda rng, n: np.round(np.clip(rng.gamma(4, 10, n), 0, 99)) / 60 - 0.8,
    "coins": lambda rng, n: np.where(rng.random(n) < 0.5, -0.3, 0.3),
    "three": lambda rng, n: rng.choice([-0.5, 0.0, 0.5], n, p=[0.25, 0.25, 0.5]),
    "one": lambda rng, n: np.full(n, 0.1),
    "skew": lambda rng, n: np.clip(0.2 * rng.exponential(size=n), 0, 0.9) - 0.4,
}


def release(x: np.ndarray, k: int, epsilon: float, law: Law = "discrete") -> list[Estimate]:
    """Quartiles of one column of which a mechanism released noisy numbers, about 5, times 40."""
    used = plan_mechanism(epsilon, 1, "l2", law)
    stream = KeyedStream(k.to_bytes(32), partition="p", first_record=0, n_records=len(x))
    found = used.release(x[:, None].copy(), stream) * (40 / used.factor) + 5
    blocks = [found[:700], found[700:]]
    return estimate_quantiles(lambda: blocks, ["x"], used, 40 / used.factor, np.array([5.0]))


@pytest.mark.parametrize("n_draws", [40, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("law", LAWS)
def test_limits__hold_quartiles_of_every_law(law: str, n_draws: int) -> None:
    truth = np.quantile(LAWS[law](np.random.default_rng(9), 10**6), SHARES, method="inverted_cdf")
    hits, widths = [], []
    for k in range(n_draws):
        found = release(LAWS[law](np.random.default_rng(k), 4_000), k, 10.0)
        limits = (np.array([one.find_limits(0.95) for one in found]) - 5) / 40
        hits.append((limits[:, 0] <= truth) & (truth <= limits[:, 1]))
        widths.append((limits[:, 1] - limits[:, 0]) / 2)
        assert [one.name for one in found] == [f"x, {share:g}" for share in SHARES]
        for one, (low, high) in zip(found, 40 * limits + 5, strict=True):
            assert low <= one.value <= high
            assert one.error == pytest.approx((high - low) / 2 / 1.959964)
    shares = np.mean(hits, axis=0)
    assert np.all(shares >= st.binom.ppf(5e-5, n_draws, 0.95) / n_draws), shares
    # Of use: a tenth of the range where numbers lie close, and a gap where none lies.
    assert np.mean(widths) < (0.2 if law not in ("coins", "three") else 0.3)


@pytest.mark.slow
def test_limits__are_as_short_as_a_jump_allows() -> None:
    """Where half are at most -.3 and no one is near, the upper ramp misses in a fortieth."""
    missed = 0
    for k in range(1000):
        one = release(LAWS["coins"](np.random.default_rng(k), 4_000), k, 10.0)[1]
        missed += one.find_limits(0.95)[0] > 5 - 0.3 * 40
    assert 10 < missed < 45


@pytest.mark.parametrize("law", ["discrete", "knorm"])
def test_ramp__has_over_the_noise_the_mean_that_it_has_without(law: Law) -> None:
    """The curve of 10^6 equal records is the ramp itself, but for what their noise leaves."""
    [*_, one] = release(np.full(10**6, 0.1), 3, 4.0, law)
    _, ends, means, errors = one.find.args  # type: ignore[union-attr]
    step = ends[1] - ends[0]
    begin = ends[0] + step * (np.arange(len(means)) - STEPS)
    at = np.clip((5 + 0.1 * 40 - begin) / (STEPS * step), 0, 1)
    off = (means - (1 - 3 * at**2 + 2 * at**3)) / np.maximum(errors, 1e-12)
    assert np.abs(off[errors > 1e-6]).max() < 5
    assert math.sqrt(np.mean(off[errors > 1e-6] ** 2)) < 2
    # As they are, noisy numbers would be far from it.
    assert errors.max() < 0.03


def test_quartiles__that_reach_the_ends_are_left_out_by_name() -> None:
    rng = np.random.default_rng(0)
    clipped = np.clip(3 * rng.normal(size=20_000), -1, 1)  # more than a third at either end
    with pytest.warns(LeftOutWarning, match=r"x, 0.25, x, 0.75") as caught:
        [one] = release(clipped, 0, 8.0)
    assert one.name == "x, 0.5"
    assert len(caught) == 1
    with pytest.raises(InputError, match="nothing is determined"):
        release(rng.uniform(-1, 1, 2_000), 0, 0.5)
    with pytest.raises(InputError, match="99 records are too few"):
        release(np.zeros(99), 0, 8.0)
