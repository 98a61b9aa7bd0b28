"""Scores against scikit-learn, weighted and unweighted, and what an advantage means."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from privpipe.attacks.statistics.intervals import Confidence, Interval
from privpipe.attacks.statistics.roc import GRID, average_areas, sample_curve
from privpipe.attacks.statistics.scores import (
    Score,
    balance_confusion,
    count_confusion,
    harmonise_confusion,
    measure_advantage,
    measure_class_scores,
    measure_number_scores,
)

AUC = 3  # of the scores of classes


@pytest.fixture
def guesses() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(4)
    truth = random.choice(3, 300, p=[0.6, 0.3, 0.1])
    decision = np.round(random.normal(size=(300, 3)) + 1.2 * np.eye(3)[truth], 1)  # with ties
    return truth, decision, random.integers(0, 4, (5, 300)).astype(float)


def test_count_confusion__agrees_with_sklearn(guesses) -> None:
    truth, decision, _ = guesses
    said = decision.argmax(axis=1)
    counts = count_confusion(truth, said, 3)
    np.testing.assert_array_equal(counts, metrics.confusion_matrix(truth, said))
    assert balance_confusion(counts) == pytest.approx(metrics.balanced_accuracy_score(truth, said))
    f1 = metrics.f1_score(truth, said, average="macro")
    assert harmonise_confusion(counts) == pytest.approx(f1)


def _weigh_area(truth: np.ndarray, decision: np.ndarray, weights: np.ndarray) -> float:
    areas = [
        metrics.roc_auc_score(truth == k, decision[:, k], sample_weight=weights) for k in range(3)
    ]
    return float(np.mean(areas))


def test_average_areas__of_one_cell_is_the_area_and_its_influence_the_slope(guesses) -> None:
    """What one more of a record would change, found by weighing it more; with ties. Of a sample of
    n records of a class it is larger by the square root of n / (n - 1)."""
    truth, decision, _ = guesses
    area, influence = average_areas(truth, decision, np.zeros(300, int))
    assert area == pytest.approx(_weigh_area(truth, decision, np.ones(300)))
    for row in range(0, 300, 25):
        more = _weigh_area(truth, decision, np.ones(300) + 1e-4 * (np.arange(300) == row))
        assert influence[row] == pytest.approx((more - area) / 1e-4, rel=0.01, abs=1e-6)
    assert abs(influence.sum()) < 1e-12


def test_average_areas__compares_no_records_of_different_cells() -> None:
    """Cells whose rankings are apart, as of two adversaries, and of different shares."""
    random = np.random.default_rng(3)
    truth = np.r_[random.integers(0, 2, 200), random.random(200) < 0.1].astype(int)
    value = random.normal(size=400)
    cells = np.arange(400) // 200
    apart = value + 100 * cells
    found = [average_areas(truth, np.column_stack([-one, one]), cells)[0] for one in (value, apart)]
    assert found[0] == found[1]
    assert np.isnan(average_areas(truth, np.column_stack([-value, value]), truth)[0])


def test_measure_class_scores__states_estimates_and_baselines(guesses) -> None:
    truth, decision, _ = guesses
    scores = {s.name: s for s in measure_class_scores(truth, (decision, decision), 0)}
    said = decision.argmax(axis=1)
    assert scores["accuracy"].interval.estimate == pytest.approx(np.mean(said == truth))
    assert scores["accuracy"].baseline == pytest.approx(np.mean(truth == 0))
    assert scores["balanced_accuracy"].baseline == pytest.approx(1 / 3)
    assert scores["auc"].baseline == 0.5
    assert scores["accuracy"].interval.method == "wilson"
    grouped = measure_class_scores(
        truth, (decision, decision), 0, Confidence(groups=np.arange(300) // 10)
    )
    assert [s.interval.method for s in grouped] == [
        "grouped_wilson",
        *["grouped_influence"] * 3,
        *["grouped_ranks"] * 2,
    ]


def test_measure_number_scores__equals_sklearn() -> None:
    random = np.random.default_rng(5)
    truth = random.normal(3, 2, 200)
    said = truth + random.normal(size=200)
    r2, rmse, *_ = measure_number_scores(truth, (said, said), float(truth.mean()))
    assert r2.interval.estimate == pytest.approx(metrics.r2_score(truth, said))
    assert rmse.interval.estimate == pytest.approx(metrics.root_mean_squared_error(truth, said))
    assert rmse.baseline == pytest.approx(truth.std())
    assert rmse.advantage == pytest.approx(r2.advantage)


def test_measure_advantage__runs_from_guessing_to_knowing() -> None:
    assert measure_advantage("accuracy", 0.95, 0.95) == 0
    assert measure_advantage("auc", 1.0, 0.5) == 1
    assert measure_advantage("r2", -0.1, 0.0) == pytest.approx(-0.1)
    assert measure_advantage("accuracy", 1.0, 1.0) == 0


def test_score__has_the_advantages_of_its_limits() -> None:
    inverted = Score("auc", Interval(0.1, 0.05, 0.2, 0.95, "bootstrap"), 0.5)
    assert inverted.advantage == pytest.approx(-0.8)
    assert inverted.advantage_lower == pytest.approx(-0.9)
    assert inverted.advantage_upper == pytest.approx(-0.6)
    error = Score("rmse", Interval(1.0, 0.5, 2.0, 0.95, "bootstrap"), 2.0)
    assert (error.advantage_lower, error.advantage_upper) == pytest.approx((0.0, 1 - 1 / 16))
    low = Score("accuracy", Interval(0.1, 0.05, 0.2, 0.95, "wilson"), 0.5)
    assert low.advantage_upper < 0


def test_sample_curve__rises_to_one_over_the_rates_of_its_grid() -> None:
    random = np.random.default_rng(6)
    positive = random.integers(0, 2, 300)
    value = np.round(random.normal(size=300) + positive, 1)
    found = sample_curve(positive, np.column_stack([-value, value]), "classes")
    false, true, _ = metrics.roc_curve(positive, value, drop_intermediate=False)
    expected = [true[false <= rate + 1e-12].max() for rate in GRID]
    assert found == pytest.approx(expected)
    assert found[-1] == 1.0


@pytest.mark.parametrize("n_groups", [5, 6, 8, 12])
def test_measure_class_scores__few_groups_in_order_by_chance_tell_nothing(n_groups: int) -> None:
    """One in ten draws of 2 and 3 groups is in order, and was in every bootstrap replicate."""
    rng = np.random.default_rng(n_groups)
    groups = np.repeat(np.arange(n_groups), 3)
    n_in_order = 0
    for _ in range(60):
        classes = rng.permutation(np.arange(n_groups) % 2)
        said = np.repeat(rng.normal(size=n_groups), 3) + 0.01 * rng.normal(size=3 * n_groups)
        found = measure_class_scores(
            classes[groups],
            (np.column_stack([-said, said]),) * 2,
            0,
            Confidence(0.999, groups=groups),
        )
        n_in_order += found[AUC].interval.estimate == 1.0
        assert all(score.advantage_lower <= 0 for score in found)
    assert n_in_order or n_groups > 6


def test_measure_class_scores__many_groups_in_order_are_no_chance() -> None:
    classes = np.arange(200) % 2
    found = measure_class_scores(
        np.repeat(classes, 3),
        (np.repeat(np.eye(2)[classes], 3, axis=0),) * 2,
        0,
        Confidence(0.999, groups=np.repeat(np.arange(200), 3)),
    )
    auc = found[AUC].interval
    assert 0.9 < auc.lower < auc.upper == 1.0
    # Groups that hold both classes: each record shows by itself, and the spread decides.
    mixed = measure_class_scores(
        np.tile([0, 1], 30),
        (np.tile(np.eye(2), (30, 1)),) * 2,
        0,
        Confidence(groups=np.arange(60) // 20),
    )
    assert mixed[AUC].interval.lower > 0.8


@pytest.mark.parametrize("law", ["lognormal", pytest.param("pareto", marks=pytest.mark.slow)])
def test_measure_number_scores__of_heavy_tails_claims_no_more_than_its_level(law: str) -> None:
    """Exactly at the limit: as if the variance were known, .038 and .035 were claimed at .005."""
    random, runs, claimed = np.random.default_rng(7), 400, 0
    draw = {
        "lognormal": lambda n: np.exp(1.5 * random.normal(size=n)) - np.exp(1.125),
        "pareto": lambda n: random.pareto(2.5, size=n) - 1 / 1.5,
    }[law]
    noise = 3 * draw(4_000_000).std()
    for _ in range(runs):
        truth = draw(1000)
        said = (truth + noise * random.normal(size=1000)) / 10  # the best slope: .1 is explained
        claimed += (
            measure_number_scores(truth, (said, said), 0.0, Confidence(0.99))[0].gain_lower > 0.1
        )
    assert claimed <= 0.005 * runs + 3 * np.sqrt(runs * 0.005), claimed
