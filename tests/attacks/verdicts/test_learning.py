"""Labels that mean nothing, and labels that are too few, make nothing safe."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.threats.inference import measure_attacks
from privpipe.attacks.threats.paired_training import choose_strongest, measure_curve
from privpipe.attacks.threats.verdicts.outcomes import Attack, Decision
from privpipe.attacks.threats.verdicts.safeguards import LearningCurve, expect_gain, hold_to_curve

QUICK = AttackOptions(
    adversaries=("naive_bayes",), max_advantage=0.3, max_exposed=0.2, decides=("accuracy", "auc")
)


def _draw(n_records: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Raw records that tell a secret, noise released in their place, and the secret."""
    random = np.random.default_rng(seed)
    secret = random.integers(0, 2, n_records)
    raw = random.normal(size=(n_records, 3)) + 1.5 * secret[:, None]
    return raw, random.normal(size=(n_records, 3)), secret


def test_measure_attacks__permuted_labels_are_not_safe() -> None:
    """A wrong join: the release is the raw records, and no adversary learns of it."""
    raw, noise, secret = _draw(4000, 0)
    assert measure_attacks(raw, secret, raw=raw, options=QUICK).verdict == "leaks"
    honest = measure_attacks(noise, secret, raw=raw, options=QUICK)
    assert honest.verdict == "safe"
    assert "Raw records reveal it by an advantage of at least" in honest.reason
    permuted = np.random.default_rng(1).permutation(secret)
    wrong = measure_attacks(raw, permuted, raw=raw, options=QUICK)
    assert wrong.verdict == "unproven"
    assert "labels that mean nothing" in wrong.reason
    named = replace(QUICK, uninformative=("confidential",))
    said = measure_attacks(raw, permuted, raw=raw, options=named)
    assert said.verdict == "safe"
    assert "The operator says that raw records do not reveal it" in said.reason
    other = replace(QUICK, uninformative=("another",))
    assert measure_attacks(raw, permuted, raw=raw, options=other).verdict == "unproven"


@pytest.mark.slow
def test_measure_attacks__labels_of_nothing_pass_the_control_in_at_most_one_of_twenty() -> None:
    safe = 0
    for seed in range(20):
        raw, _, secret = _draw(2000, seed)
        permuted = np.random.default_rng(seed).permutation(secret)
        options = replace(QUICK, max_advantage=1.0, max_exposed=1.0)
        safe += measure_attacks(raw, permuted, raw=raw, options=options).verdict == "safe"
    assert safe <= 0.05 * 20


@given(st.floats(0.26, 0.99), st.floats(0.1, 0.9), st.floats(0.01, 0.9))
def test_expect_gain__finds_the_end_of_a_power_law(power: float, end: float, size: float) -> None:
    n = np.array([2500, 5000, 10_000])
    found = expect_gain(n.tolist(), (end - size * (n / 2500.0) ** -power).tolist(), 10**5)
    assert found == pytest.approx(end - size * 40**-power, abs=0.03 * size)


def test_expect_gain__is_no_less_than_what_was_gained() -> None:
    assert expect_gain([1, 2, 4], [0.3, 0.2, 0.1], 10**6) == pytest.approx(0.2, abs=0.1)
    assert expect_gain([1, 2, 4], [0.1, 0.1, 0.1], 10**6) == pytest.approx(0.1)
    assert expect_gain([1, 2, 4], [0.1, 0.12, 0.14], 4) >= 0.14


def _prepare(x: np.ndarray, secret: np.ndarray, options: AttackOptions) -> Evidence:
    return prepare_evidence(x, secret, options=options)


def test_measure_curve__of_noise_rises_in_at_most_one_of_twenty() -> None:
    attack = Attack("confidential", "classes", "released", "naive_bayes")
    rises = 0
    for seed in range(20):
        _, noise, secret = _draw(1200, seed)
        curve = measure_curve(_prepare(noise, secret, QUICK), attack, QUICK, 10**6, 1)
        assert curve.is_known
        assert curve.n_labels[0] < 0.3 * curve.n_labels[-1]
        rises += curve.rise_lower > 0
    assert rises <= 0.05 * 20


def test_measure_curve__finds_what_more_labels_would_tell() -> None:
    """A leak that neighbours find slowly: within the limit here, beyond it with all labels."""
    options = replace(QUICK, adversaries=("nearest_neighbours",))
    random = np.random.default_rng(4)
    x = random.uniform(-1, 1, size=(9000, 2))
    cells = np.floor(14 * (x + 1) / 2).astype(int)
    secret = random.integers(0, 2, (14, 14))[cells[:, 0], cells[:, 1]]
    wrong = random.random(9000) < 0.25
    secret = np.where(wrong, 1 - secret, secret)
    report = measure_attacks(x, secret, options=options)
    attack = choose_strongest(report.outcomes, "confidential", options)
    assert attack is not None
    curve = measure_curve(_prepare(x, secret, options), attack, options, 10**6, 1)
    assert curve.gains[0] < min(curve.gains[1:])
    assert curve.rise_lower > 0
    limit = curve.gains[-1] + 0.01
    assert replace(curve, allowed=limit).rises_too_far
    assert not replace(curve, allowed=1.0).rises_too_far


SAFE = Decision("v", "safe", "'v' is safe: x.")
KNOWN = LearningCurve(
    "v", "released", "a", "auc", (100, 200, 400), (0.05, 0.07, 0.08), 0.01, 10**6, 0.12, 0.1
)


@pytest.mark.parametrize(
    ("curve", "verdict"),
    [
        (KNOWN, "unproven"),
        (replace(KNOWN, allowed=0.13), "safe"),
        (replace(KNOWN, rise_lower=-0.01), "safe"),
        (replace(KNOWN, rise_lower=math.nan), "unproven"),
        (replace(KNOWN, expected=math.nan), "unproven"),
        (LearningCurve("v", reason="MemoryError"), "unproven"),
        (replace(KNOWN, target="w"), "safe"),
    ],
)
def test_hold_to_curves__a_curve_that_is_unknown_or_rises_too_far_is_not_safe(
    curve: LearningCurve, verdict: str
) -> None:
    found = hold_to_curve(SAFE, [curve])
    assert found.verdict == verdict
    assert ("is unproven" in found.reason) == (verdict == "unproven")
    if curve is KNOWN:
        assert found.n_labels == 400
        assert found.gain_slope == pytest.approx(0.015)
        assert "100, 200, 400 labels" in found.reason
