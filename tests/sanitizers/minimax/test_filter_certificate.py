"""Certificates: who reads the release finds no more, and what is dead gets none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privpipe import MinimaxOptions, Records, fit_minimax_filter
from privpipe.errors import GuaranteeError, OptionError
from privpipe.numerics.minimax.dependence import PartialCovariance, remove_noise
from privpipe.numerics.minimax.lifts import NystroemFeatures
from privpipe.sanitizers.minimax import filter_certificate
from privpipe.sanitizers.minimax.filter_certificate import certify_filter
from privpipe.sanitizers.minimax.linear_filter import LinearFilter


def draw(n: int, seed: int, n_shards: int = 1) -> Records:
    """A target along the first feature, a private variable along the second, whatever is else."""
    x = np.random.default_rng(seed).normal(size=(n, 4))
    return Records(
        x, desired=(x[:, 0] > 0).astype(str), confidential=(x[:, 1] > 0).astype(str),
        n_shards=n_shards,
    )  # fmt: skip


def project(*columns: int) -> LinearFilter:
    return LinearFilter("rand", np.eye(4)[:, list(columns)], np.zeros(len(columns)))


def test_certificate__of_a_filter_is_low_and_of_raw_features_high() -> None:
    fitted = fit_minimax_filter(draw(1500, 0), MinimaxOptions(max_iterations=50))
    filtered = certify_filter(fitted, draw(1500, 1))
    raw = certify_filter(project(0, 1, 2), draw(1500, 1))
    assert filtered.correlation_limit < 0.45 < 0.75 < raw.correlation
    assert filtered.hsic_limit < raw.hsic / 3
    assert filtered.target_correlation > 0.75
    assert filtered.correlation <= filtered.correlation_limit <= 1


def test_certificate__bounds_an_adversary_that_the_filter_was_not_trained_against() -> None:
    """The private variable is the sign of a product: no linear adversary finds it."""
    x = np.random.default_rng(5).normal(size=(4000, 3))
    records = Records(
        x, desired=(x[:, 2] > 0).astype(str), confidential=(x[:, 0] * x[:, 1] > 0).astype(str)
    )
    shown = certify_filter(LinearFilter("rand", np.eye(3), np.zeros(3)), records)
    assert shown.correlation_limit > 0.6


def test_certificate__sees_an_output_of_any_scale() -> None:
    """At a thousandth of the largest output a copy of the private variable was certified at .07."""
    one = certify_filter(project(0, 1), draw(1500, 1))
    small = LinearFilter("rand", project(0, 1).weights * [1, 1e-4], np.zeros(2))
    assert certify_filter(small, draw(1500, 1)).correlation_limit > one.correlation_limit - 0.05


def test_certificate__takes_more_landmarks_where_they_surely_show_more() -> None:
    """One for 40 records spans little of a chequered field: the limit was .46 of .80."""
    random = np.random.default_rng(3)
    x = random.normal(size=(2000, 2))
    hidden = (np.sin(4 * x[:, 0]) * np.sin(4 * x[:, 1]) > 0) ^ (random.random(2000) < 0.1)
    chequered = Records(x, desired=x[:, 0] > 0, confidential=hidden)
    nothing = Records(x, desired=x[:, 0] > 0, confidential=random.random(2000) < 0.5)
    filtered = LinearFilter("rand", np.eye(2), np.zeros(2))
    many, few = (certify_filter(filtered, one) for one in (chequered, nothing))
    assert (many.n_landmarks, few.n_landmarks) == (100, 50)
    assert many.correlation_limit > 0.6
    assert few.correlation_limit < 0.2


def test_certificate__of_a_weak_target_is_not_refused_for_the_noise_of_more_landmarks() -> None:
    random = np.random.default_rng(2)
    x = random.normal(size=(800, 3))
    weak = random.logistic(size=800) < 0.8 * x[:, 0]
    records = Records(x, desired=weak, confidential=x[:, 1] > 0)
    shown = certify_filter(LinearFilter("rand", np.eye(3), np.zeros(3)), records)
    # In part only, so that it counts as one of the fewest, whose limit is .896.
    assert shown.n_landmarks == 20
    assert shown.correlation_limit > 0.93


@pytest.mark.parametrize("confidence", [95, 1.0, 0.0, float("nan")])
def test_certificate__is_of_a_confidence_between_0_and_1(confidence: float) -> None:
    with pytest.raises(OptionError, match="confidence is"):
        certify_filter(project(0), draw(60, 1), confidence=confidence)


@pytest.mark.parametrize("n_shards", [2, 7])
def test_certificate__is_the_same_for_any_sharding(n_shards: int) -> None:
    one, many = (certify_filter(project(0, 1), draw(800, 1, k)) for k in (1, n_shards))
    assert many.correlation_limit == pytest.approx(one.correlation_limit, rel=1e-9)
    assert many.hsic_limit == pytest.approx(one.hsic_limit, rel=1e-9)


def test_certificate__is_refused_to_dead_filters_by_name() -> None:
    constant = LinearFilter("rand", np.zeros((4, 2)), np.ones(2))
    with pytest.raises(GuaranteeError, match=r"dead: its outputs are constant.*tradeoff") as caught:
        certify_filter(constant, draw(600, 1))
    assert caught.value.code == "filter_dead"
    with pytest.raises(GuaranteeError, match="dead: its outputs say nothing of the target"):
        certify_filter(project(2, 3), draw(600, 1))


def test_certificate__is_refused_to_filters_that_have_not_converged() -> None:
    fitted = fit_minimax_filter(draw(600, 0), MinimaxOptions(max_iterations=1))
    with pytest.raises(GuaranteeError, match="not converged: its last iteration still") as caught:
        certify_filter(fitted, draw(600, 1))
    assert caught.value.code == "filter_not_converged"
    none = fit_minimax_filter(draw(600, 0), MinimaxOptions(max_iterations=0))
    with pytest.raises(GuaranteeError, match="not converged"):
        certify_filter(none, draw(600, 1))
    with pytest.raises(GuaranteeError, match="an inner problem was not solved"):
        certify_filter(replace(fitted, stopped="inner"), draw(600, 1))


@pytest.mark.parametrize(
    ("strength", "n"),
    [*(pytest.param(k, 970, marks=pytest.mark.slow) for k in (0.3, 1.0)), (0.6, 300)],
)
def test_certificate__misses_as_seldom_as_it_says_though_all_records_place_its_landmarks(
    strength: float, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The truth is that of the same landmarks, in 20,000 records of the law."""
    placed: list[NystroemFeatures] = []

    def place(*given: Any) -> NystroemFeatures:
        placed.append(NystroemFeatures(*given))
        return placed[-1]

    def draw_law(n: int, random: np.random.Generator) -> tuple[Any, Any, Any]:
        x = random.normal(size=(n, 3))
        noise = random.logistic(size=n) * np.where(x[:, 0] > 0, 3.0, 1.0)
        return x, x[:, 0] > 0, noise < strength * x[:, 1]

    monkeypatch.setattr(filter_certificate, "NystroemFeatures", place)
    random = np.random.default_rng(7)
    x, target, private = draw_law(20_000, random)
    sides = [np.ones(len(x)), target], [private, ~private]
    given, right = (np.column_stack(side).astype(float) for side in sides)
    found = []
    for seed in range(40):
        few, desired, confidential = draw_law(n, random)
        placed.clear()
        shown = certify_filter(
            LinearFilter("rand", np.eye(3), np.zeros(3)),
            Records(few, desired=desired, confidential=confidential),
            seed=seed,
        )
        truths = []
        for lift in (one for one in placed if one.n_features == shown.n_landmarks):
            rows = np.column_stack([given, lift.map(x)[0], right])
            of = PartialCovariance.of(rows.T @ rows, len(x), 2, lift.n_features)
            truths.append(remove_noise(of.correlate()[0][0], lift.n_features / len(x), 0.0))
        assert len(truths) in [filter_certificate.DRAWS // k for k in filter_certificate.TIMES]
        assert shown.n_records == n
        found.append((float(np.mean(truths)), shown.correlation, shown.correlation_limit))
    truth, without_quantile, limit = np.array(found).T
    # Of 40 at least 34 with probability .997 where the rate is .95.
    assert (limit >= truth).sum() >= 34
    # A limit that is always one would cover, too; without a quantile half of the draws miss.
    assert np.mean(limit) <= 2.1 * np.mean(truth)
    assert (without_quantile < truth).sum() >= 8
