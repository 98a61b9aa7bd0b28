"""What an audit says it would have found, it finds; what it cannot find makes "safe" unproven."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence, prepare_evidence
from privpipe.attacks.kinds.inference import measure_attacks
from privpipe.attacks.kinds.power import LEAKS, choose_planted, measure_power
from privpipe.attacks.kinds.verdicts.detection import Detection, hold_to_power, say_power
from privpipe.protocols import Column

OPTIONS = AttackOptions(
    adversaries=("logistic", "naive_bayes"), n_replicates=50, max_advantage=0.3, max_exposed=0.2
)


def make_evidence(n: int = 3000, *, leaks: bool = False) -> Evidence:
    random = np.random.default_rng(2)
    secret = (random.random(n) < 0.4).astype(np.int64)
    released = random.normal(size=(n, 4)) + (3.0 * secret[:, None] if leaks else 0.0)
    return prepare_evidence(released, secret, columns=[Column("secret", 2)], options=OPTIONS)


@pytest.mark.parametrize("leak", LEAKS)
def test_measure_power__finds_what_is_planted(leak: str) -> None:
    found = measure_power(make_evidence(), 0, leak, replace(OPTIONS, must_find=0.3))
    assert found.finds
    assert 0 < found.size <= 0.3


def test_measure_power__finds_nothing_of_nothing() -> None:
    """A leak of no record is not found: the shuffled copy tells nothing, whatever the release."""
    for leaks in (False, True):
        evidence = make_evidence(leaks=leaks)
        for leak in ("feature", "withheld", "non-linear"):
            options = replace(OPTIONS, must_find=1e-6)
            assert not measure_power(evidence, 0, leak, options).finds, (leaks, leak)


def test_measure_power__is_lost_with_records_and_with_adversaries() -> None:
    wide, narrow = make_evidence(6000), make_evidence(200)
    for leak in ("advantage", "certain"):
        many = measure_power(wide, 0, leak, OPTIONS).size
        few = measure_power(narrow, 0, leak, OPTIONS).size
        assert many < 0.3
        assert not few <= 2 * many
    linear = replace(OPTIONS, adversaries=("logistic",))
    missed = measure_power(make_evidence(), 0, "non-linear", linear)
    assert not missed.finds
    assert math.isnan(missed.size)


def test_measure_power__is_that_of_a_real_leak() -> None:
    """Of the size that was said to be found, a leak in a release is found by its audit."""
    size = measure_power(make_evidence(), 0, "certain", OPTIONS).size
    random = np.random.default_rng(9)
    secret = (random.random(3000) < 0.4).astype(np.int64)
    found = 0
    for seed in range(5):
        told = np.random.default_rng(seed).random(3000) < 1.5 * size
        released = np.random.default_rng(seed + 10).normal(size=(3000, 4))
        released[told, 0] = 9.0 * (2 * secret[told] - 1)
        report = measure_attacks(released, secret, columns=[Column("secret", 2)], options=OPTIONS)
        found += any(
            score.gain_lower > 0
            for outcome in report.outcomes
            for score in outcome.scores
            if score.name in OPTIONS.decides
        )
    assert found >= 4


def test_choose_planted__takes_the_rarest() -> None:
    random = np.random.default_rng(0)
    table = (random.random((500, 3)) < [0.5, 0.1, 0.3]).astype(float)
    columns = [Column(name, 2) for name in "abc"]
    evidence = prepare_evidence(random.normal(size=(500, 2)), table, columns=columns)
    assert choose_planted(evidence) == (1, 2)


def test_hold_to_power__takes_safe_back_and_nothing_else() -> None:
    random = np.random.default_rng(1)
    secret = random.integers(0, 2, 4000)
    report = measure_attacks(
        random.normal(size=(4000, 2)), secret, columns=[Column("secret", 2)], options=OPTIONS
    )
    assert report.verdict == "safe"
    missed = Detection("secret", "bits", math.nan, "bit_reader", False)
    blind = replace(report, power=(missed,))
    assert blind.verdict == "unproven"
    assert "would not have found a planted leak of 0.2 of the records (bits)" in blind.reason
    assert replace(report, power=(replace(missed, finds=True),)).verdict == "safe"
    leaking = replace(report.decide()[0], verdict="leaks")
    assert hold_to_power([leaking], [missed], 0.2) == (leaking,)


def test_say_power__tells_the_weakest() -> None:
    found = [
        Detection("a", "certain", 0.005, "x", True),
        Detection("b", "certain", 0.02, "x", True),
        Detection("b", "bits", math.nan, "x", False),
    ]
    assert say_power(found) == "Would have found: certain .02; and none tried of: bits."
    assert say_power(found[2:]).startswith("Would have found nothing")
