"""Intervals: published values, coverage in simulation, and refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from privpipe.attacks.statistics.intervals import (
    Confidence,
    Interval,
    draw_weights,
    measure_bootstrap_interval,
    measure_exact_interval,
    measure_hits_interval,
)
from privpipe.attacks.statistics.roc import weigh_areas
from privpipe.attacks.statistics.scores import measure_class_scores, measure_number_scores
from privpipe.errors import InputError, OptionError

Draw = Callable[[np.random.Generator, int], Interval]


def coverages(
    draw: Callable[[np.random.Generator, int], tuple[Interval, ...]],
    truths: tuple[float, ...],
    n_trials: int,
) -> np.ndarray:
    random = np.random.default_rng(0)
    held = [
        [
            found.lower <= truth <= found.upper
            for found, truth in zip(draw(random, i), truths, strict=True)
        ]
        for i in range(n_trials)
    ]
    return np.mean(held, axis=0)


def coverage(draw: Draw, truth: float, n_trials: int, seed: int = 0) -> float:
    random = np.random.default_rng(seed)
    found = [draw(random, trial) for trial in range(n_trials)]
    return float(np.mean([interval.lower <= truth <= interval.upper for interval in found]))


def allowed(n_trials: int) -> float:
    """Two points of nominal, and what a sound interval misses it by in so many trials."""
    return 0.02 + 2.6 * np.sqrt(0.95 * 0.05 / n_trials)


def test_measure_hits_interval__equals_the_score_test_inverted() -> None:
    for hits, trials in ((0, 10), (3, 10), (81, 263), (10, 10)):
        ours = measure_hits_interval(np.arange(trials) < hits)
        theirs = stats.binomtest(hits, trials).proportion_ci(method="wilson")
        assert (ours.lower, ours.upper) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_measure_exact_interval__equals_scipy_and_never_covers_too_little() -> None:
    theirs = stats.binomtest(81, 263).proportion_ci(method="exact")
    ours = measure_exact_interval(81, 263)
    assert (ours.lower, ours.upper) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    for p in (0.02, 0.3, 0.5):
        chance = stats.binom.pmf(np.arange(31), 30, p)
        covers = [
            (lambda i: i.lower <= p <= i.upper)(measure_exact_interval(k, 30)) for k in range(31)
        ]
        assert chance[covers].sum() >= 0.95


@pytest.mark.parametrize(("p", "n"), [(0.1, 200), (0.5, 100), (0.9, 500)])
def test_measure_hits_interval__covers_within_two_points(p: float, n: int) -> None:
    # Exact coverage by summing over the binomial law: no simulation error.
    chance = stats.binom.pmf(np.arange(n + 1), n, p)
    covers = [
        (lambda i: i.lower <= p <= i.upper)(measure_hits_interval(np.arange(n) < k))
        for k in range(n + 1)
    ]
    assert abs(chance[covers].sum() - 0.95) < 0.02


@pytest.mark.parametrize(("n_groups", "size"), [(30, 20), (15, 40), (60, 5)])
def test_measure_hits_interval__of_groups_covers_where_the_plain_one_does_not(
    n_groups: int, size: int
) -> None:
    def draw(grouped: bool) -> Draw:
        def one(random: np.random.Generator, _: int) -> Interval:
            sizes = random.integers(size // 2, size * 3 // 2 + 1, n_groups)
            groups = np.repeat(np.arange(n_groups), sizes)
            hits = random.random(len(groups)) < random.beta(3, 2, n_groups)[groups]
            return measure_hits_interval(hits, Confidence(groups=groups if grouped else None))

        return one

    assert abs(coverage(draw(True), 0.6, 1500) - 0.95) < allowed(1500)
    assert coverage(draw(False), 0.6, 300) < 0.92


@pytest.mark.parametrize(("n", "shift", "n_groups"), [(200, 0.5, 0), (400, 1.5, 0), (300, 0.8, 30)])
def test_measure_bootstrap_interval__covers_areas(n: int, shift: float, n_groups: int) -> None:
    shared = 0.5 if n_groups else 0.0
    truth = float(stats.norm.cdf(shift / np.sqrt(2 * (1 + shared))))

    def draw(random: np.random.Generator, trial: int) -> Interval:
        positive = (random.random(n) < 0.4).astype(int)
        value = random.normal(size=n) + shift * positive
        groups = np.repeat(np.arange(n_groups), n // n_groups) if n_groups else None
        if groups is not None:
            value += random.normal(size=n_groups)[groups] * np.sqrt(shared)
        score = weigh_areas(positive, np.column_stack([np.zeros(n), value]))
        return measure_bootstrap_interval(
            score, n, Confidence(groups=groups, n_replicates=150, seed=trial), link="logit"
        )

    assert abs(coverage(draw, truth, 1500) - 0.95) < allowed(1500)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "n_groups"), [(150, 0), (400, 40)])
def test_measure_number_scores__intervals_cover(n: int, n_groups: int) -> None:
    def draw(random: np.random.Generator, trial: int) -> tuple[Interval, ...]:
        truth, error = random.normal(size=n), random.normal(size=n)
        groups = np.repeat(np.arange(n_groups), n // n_groups) if n_groups else None
        if groups is not None:
            truth = (truth + random.normal(size=n_groups)[groups]) / np.sqrt(2)
            error = (2 * error + random.normal(size=n_groups)[groups]) / np.sqrt(5)
        scores = measure_number_scores(
            truth,
            (truth + 0.7 * error,) * 2,
            0.0,
            Confidence(groups=groups, n_replicates=150, seed=trial),
        )
        return tuple(score.interval for score in scores[:2])

    found = coverages(draw, (0.51, 0.7), 1500)
    assert (np.abs(found - 0.95) < allowed(1500)).all(), found


@pytest.mark.slow
def test_measure_class_scores__balanced_accuracy_and_f1_cover() -> None:
    f1 = (2 * 0.24 / (2 * 0.24 + 0.06 + 0.14) + 2 * 0.56 / (2 * 0.56 + 0.20)) / 2

    def draw(random: np.random.Generator, trial: int) -> tuple[Interval, ...]:
        truth = (random.random(200) < 0.3).astype(int)
        said = np.where(random.random(200) < 0.8, truth, 1 - truth)
        scores = measure_class_scores(
            truth, (np.eye(2)[said],) * 2, 0, Confidence(n_replicates=150, seed=trial)
        )
        return tuple(score.interval for score in scores[:3])

    found = coverages(draw, (0.8, 0.8, f1), 1500)
    assert (np.abs(found - 0.95) < allowed(1500)).all(), found


def test_measure_bootstrap_interval__is_wider_at_higher_levels_and_holds_the_estimate() -> None:
    values = np.random.default_rng(0).normal(size=200)

    def mean(weights: np.ndarray) -> np.ndarray:
        return weights @ values / weights.sum(axis=1)

    usual, sure = (
        measure_bootstrap_interval(mean, 200, Confidence(level)) for level in (0.95, 0.999)
    )
    assert sure.lower < usual.lower < usual.estimate < usual.upper < sure.upper
    assert usual.estimate == pytest.approx(values.mean())
    assert usual.upper - usual.lower == pytest.approx(2 * 1.97 * values.std() / 200**0.5, rel=0.1)


def test_measure_bootstrap_interval__of_few_groups_is_as_wide_as_students() -> None:
    """The mean of five groups of equal size: Student's interval is exact, and the aim."""
    values = np.array([0.0, 1.0, 1.5, 3.0, 7.0])
    records, groups = np.repeat(values, 4), np.repeat(np.arange(5), 4)

    def mean(weights: np.ndarray) -> np.ndarray:
        return weights @ records / weights.sum(axis=1)

    found = measure_bootstrap_interval(mean, 20, Confidence(groups=groups, n_replicates=6000))
    low, high = stats.t.interval(0.95, 4, values.mean(), values.std(ddof=1) / 5**0.5)
    assert found.upper - found.lower == pytest.approx(high - low, rel=0.04)
    assert found.lower == pytest.approx(low, abs=0.04 * (high - low))


def test_measure_bootstrap_interval__of_a_perfect_prediction_is_one() -> None:
    """Some replicates are exact, others err by rounding: as logarithms these are far apart."""
    lost = np.where(np.arange(200) % 50 == 0, 1e-32, 0.0)

    def explain(weights: np.ndarray) -> np.ndarray:
        return np.asarray(1 - (weights @ lost > 2e-32) * 2.0**-52)

    found = measure_bootstrap_interval(explain, 200, Confidence(0.999), link="log_complement")
    assert found.lower > 1 - 1e-6
    assert found.upper <= 1.0


def test_measure_bootstrap_interval__stays_within_zero_and_one_at_the_edge() -> None:
    positive, value = np.arange(40) % 2, (np.arange(40) % 2).astype(float)
    perfect = measure_bootstrap_interval(
        weigh_areas(positive, np.column_stack([0 * value, value])), 40, link="logit"
    )
    assert perfect.estimate == perfect.upper == 1.0


def test_draw_weights__draws_whole_groups_as_often_as_there_are() -> None:
    codes = np.array([0, 0, 1, 2, 2, 2])
    blocks = list(draw_weights(6, codes, 3, 500, seed=3))
    weights = np.concatenate(blocks)
    assert weights.shape == (500, 6)
    assert (weights[:, 0] == weights[:, 1]).all()
    assert (weights[:, [0, 2, 3]].sum(axis=1) == 3).all()
    assert abs(weights.mean() - 1) < 0.1


def test_intervals__refuse_what_has_none() -> None:
    with pytest.raises(InputError, match="proportion of 0 in 0"):
        measure_hits_interval(np.zeros(0, bool))
    with pytest.raises(InputError, match="proportion of 5 in 4"):
        measure_exact_interval(5, 4)
    with pytest.raises(OptionError, match=r"level is 1\.5"):
        Confidence(1.5)
    with pytest.raises(InputError, match="2 groups, got 1"):
        measure_hits_interval(np.array([True, False]), Confidence(groups=np.array([7, 7])))
    with pytest.raises(InputError, match="3 entries for 2 records"):
        measure_hits_interval(np.array([True, False]), Confidence(groups=np.array([7, 7, 8])))
    with pytest.raises(InputError, match="2 records, got 1"):
        measure_bootstrap_interval(lambda w: w[:, 0], 1)
    with pytest.raises(OptionError, match="n_replicates is 3"):
        measure_bootstrap_interval(lambda w: w[:, 0], 9, Confidence(n_replicates=3))
