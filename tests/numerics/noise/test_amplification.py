"""Amplification by shuffling, against laws that are enumerated and the closed form of its paper."""

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from privpipe.numerics.noise import amplification
from privpipe.numerics.noise.amplification import amplify_by_shuffling


def shuffle_law(rows: NDArray[np.float64]) -> Counter[tuple[int, ...]]:
    """Law of the counts of each symbol, of independent draws by these rows; exact."""
    found = Counter({(0,) * rows.shape[1]: 1.0})
    for row in rows:
        more: Counter[tuple[int, ...]] = Counter()
        for (counts, mass), (symbol, chance) in product(found.items(), enumerate(row)):
            one = list(counts)
            one[symbol] += 1
            more[tuple(one)] += mass * float(chance)  # type: ignore[assignment]
        found = more  # type: ignore[assignment]
    return found  # type: ignore[return-value]


def measure_true(mechanism: NDArray[np.float64], others: list[int], central: float) -> float:
    """Largest divergence between releases whose first record differs, of all pairs of values."""
    k = len(mechanism)
    laws = [shuffle_law(mechanism[[x, *others]]) for x in range(k)]
    return max(
        sum(max(0.0, mass - math.exp(central) * b[place]) for place, mass in a.items())
        for a in laws
        for b in laws
    )


def respond(k: int, epsilon: float) -> NDArray[np.float64]:
    """k-ary randomised response."""
    odds = np.ones((k, k)) + (math.exp(epsilon) - 1) * np.eye(k)
    return odds / odds.sum(axis=1)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("delta", [0.1, 0.01, 1e-4])
def test_amplified__is_never_below_the_true_loss(k: int, epsilon: float, delta: float) -> None:
    """Of any others, at any size: the release is as hard to tell apart as is said."""
    for n in (2, 5, 9):
        central = amplify_by_shuffling(epsilon, n, delta)
        assert central <= epsilon + 1e-9
        for others in ([0] * (n - 1), [k - 1] * (n - 1), [i % k for i in range(n - 1)]):
            assert measure_true(respond(k, epsilon), others, central) <= delta * (1 + 1e-9)


@pytest.mark.parametrize(("epsilon", "central"), [(1.0, 0.0), (1.0, 0.2), (3.0, 1.1), (0.2, 0.1)])
def test_divergence__is_that_of_the_pair_of_the_theorem(epsilon: float, central: float) -> None:
    """Counts of both kinds of clones, enumerated: to rounding, as no count is pooled."""
    n, laws = 30, (Counter[tuple[int, int]](), Counter[tuple[int, int]]())
    kept = math.exp(epsilon) / (math.exp(epsilon) + 1)
    for clones in range(n):
        for one in range(clones + 1):
            mass = stats.binom.pmf(clones, n - 1, 2 / (math.exp(epsilon) + 1))
            mass *= stats.binom.pmf(one, clones, 0.5)
            for law, chance in zip(laws, (kept, 1 - kept), strict=True):
                law[one + 1, clones - one] += mass * chance
                law[one, clones - one + 1] += mass * (1 - chance)
    p, q = laws
    true = sum(max(0.0, mass - math.exp(central) * q[place]) for place, mass in p.items())
    found = amplification._measure_divergence(central, epsilon, n)
    assert found == pytest.approx(true, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 5.0])
@pytest.mark.parametrize(
    "n_records", [10_000, 1_000_000, pytest.param(10**9, marks=pytest.mark.slow)]
)
def test_amplified__is_within_the_closed_form(epsilon: float, n_records: int) -> None:
    """Theorem 3.2 of the paper, where its condition holds."""
    delta = n_records**-1.5
    if epsilon > math.log(n_records / (8 * math.log(2 / delta)) - 1):
        pytest.skip("the closed form promises nothing there")
    root = 4 * math.sqrt(2 * math.log(4 / delta)) / math.sqrt((math.exp(epsilon) + 1) * n_records)
    closed = math.log1p((math.exp(epsilon) - 1) * (root + 4 / n_records))
    central = amplify_by_shuffling(epsilon, n_records, delta)
    assert 0.05 * closed < central < closed


def test_amplified__loses_little_by_summing_over_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    coarse = amplify_by_shuffling(3.0, 20_000, 1e-8)
    monkeypatch.setattr(amplification, "MOST_COUNTS", 10**6)
    fine = amplify_by_shuffling(3.0, 20_000, 1e-8)
    assert fine <= coarse <= 1.02 * fine


def test_amplified__is_the_own_loss_where_nothing_hides() -> None:
    """One record, or a draw that says nearly all."""
    assert amplify_by_shuffling(1.0, 1, 1e-6) == 1.0
    assert amplify_by_shuffling(25.0, 1000, 1e-6) == pytest.approx(25.0, abs=0.01)
    assert amplify_by_shuffling(800.0, 10**6, 1e-9) == 800.0


@pytest.mark.parametrize("epsilon", [20.0, 25.0, 28.0])
def test_amplified__is_the_true_loss_of_two_records_that_hide_next_to_nothing(
    epsilon: float,
) -> None:
    """The true one to 60 digits; what is left of 1 by a difference made it too small by 1e-5."""
    truth = epsilon - 0.0100503359
    assert truth <= amplify_by_shuffling(epsilon, 2, 0.01) <= truth + 1e-8


def test_amplified__pays_for_the_delta_of_each_draw() -> None:
    """As much as its theorem says; where that is all, the draw's own loss is what is said."""
    pure = amplify_by_shuffling(1.0, 10**4, 1e-6)
    assert amplify_by_shuffling(1.0, 10**4, 1e-6, draw_delta=2.0**-100) == pytest.approx(pure)
    half = 0.5e-6 / (1.5 * (math.e + 1) * 10**4)
    assert amplify_by_shuffling(1.0, 10**4, 1e-6, draw_delta=half) == pytest.approx(
        amplify_by_shuffling(1.0, 10**4, 0.5e-6)
    )
    assert amplify_by_shuffling(1.0, 10**4, 1e-6, draw_delta=1e-9) == 1.0


def test_amplified__falls_with_records_and_rises_with_epsilon() -> None:
    by_size = [amplify_by_shuffling(2.0, n, 1e-6) for n in (100, 10**4, 10**6)]
    assert by_size == sorted(by_size, reverse=True)
    by_epsilon = [amplify_by_shuffling(e, 10**4, 1e-6) for e in (0.5, 1.0, 4.0)]
    assert by_epsilon == sorted(by_epsilon)
    # Of small epsilons about epsilon times the normal quantile by the root of the number.
    assert by_epsilon[0] < 0.5 * stats.norm.isf(1e-6) / math.sqrt(10**4) * 1.5
