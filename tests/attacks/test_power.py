"""What an audit says it would have found, it finds; what it cannot find makes "safe" unproven."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.auxiliary import Auxiliary
from privpipe.attacks.adversaries.evidence import Evidence, Target
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.threats.inference import measure_attacks, run_attack
from privpipe.attacks.threats.power import LEAKS, _plant, choose_planted, measure_power
from privpipe.attacks.threats.verdicts.outcomes import Attack
from privpipe.attacks.threats.verdicts.safeguards import Detection, hold_to_power, say_power
from privpipe.protocols import Column
from tests.bench.audit_power import try_statement

WANTED = Column("wanted", 2)
OPTIONS = AttackOptions(
    adversaries=("logistic", "naive_bayes", "least_squares"), max_advantage=0.3, max_exposed=0.2
)


def make_evidence(n: int = 3000, *, leaks: bool = False) -> Evidence:
    random = np.random.default_rng(2)
    secret = (random.random(n) < 0.4).astype(np.int64)
    released = random.normal(size=(n, 4)) + (3.0 * secret[:, None] if leaks else 0.0)
    return prepare_evidence(released, secret, columns=[Column("secret", 2)], options=OPTIONS)


@pytest.mark.parametrize("leak", LEAKS)
def test_measure_power__finds_what_is_planted(leak: str) -> None:
    found = measure_power(Target(make_evidence(), 0, replace(OPTIONS, must_find=0.3)), leak)
    assert found.finds
    assert 0 < found.size <= 0.6


def test_measure_power__finds_nothing_of_nothing() -> None:
    """A leak of no record is not found: the shuffled copy tells nothing, whatever the release."""
    for leaks in (False, True):
        evidence = make_evidence(leaks=leaks)
        for leak in ("feature", "withheld", "non-linear"):
            options = replace(OPTIONS, must_find=1e-6)
            assert not measure_power(Target(evidence, 0, options), leak).finds, (leaks, leak)


def make_numbers(n: int = 4000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A number that the target reveals a fifth of, beside noise."""
    random = np.random.default_rng(5)
    target = (random.random(n) < 0.4).astype(np.int64)
    return random.normal(size=(n, 3)), target + random.normal(size=n), target


def test_measure_power__finds_bits_that_reveal_less_than_the_target() -> None:
    """Who reads bits knows the target as well: of a number no bit says as much as a good target."""
    released, secret, target = make_numbers()
    known = {"columns": [Column("secret", None)], "desired": Auxiliary(target[:, None], (WANTED,))}
    evidence = prepare_evidence(released, secret, options=OPTIONS, **known)
    options = replace(OPTIONS, must_find=0.3, adversaries=("least_squares",))
    assert measure_power(Target(evidence, 0, options), "bits").finds


def test_measure_attacks__finds_bits_that_reveal_less_than_the_target() -> None:
    released, secret, target = make_numbers()
    above = (secret - target > 0).astype(np.uint64)
    released[:, 0] = ((released[:, 0].view(np.uint64) & ~np.uint64(1)) | above).view(np.float64)
    known = {"columns": [Column("secret", None)], "desired": Auxiliary(target[:, None], (WANTED,))}
    evidence = prepare_evidence(released, secret, options=OPTIONS, **known)
    reader = Attack("secret", "numbers", "bits", "bit_reader")
    scores = {one.name: one for one in run_attack(evidence, reader, OPTIONS).scores}
    # Of what the target leaves the sign is 2 / pi.
    share = np.var(secret - target) / np.var(secret)
    assert scores["r2"].gain == pytest.approx(share * 2 / np.pi, rel=0.15)
    assert scores["r2"].gain_lower > 0.3


def test_measure_attacks__finds_bits_of_the_number_itself_beside_a_good_target() -> None:
    """Of normal laws a reader of what the target leaves alone would find a fifth of it."""
    random = np.random.default_rng(6)
    target = random.normal(size=4000)
    secret = 0.9 * target + np.sqrt(0.19) * random.normal(size=4000)
    released = random.normal(size=(4000, 3))
    rank = (np.argsort(np.argsort(secret)) * 256 // 4000).astype(np.uint64)
    bits = (released[:, 0].view(np.uint64) & ~np.uint64(255)) | rank
    released[:, 0] = bits.view(np.float64)
    wanted = Auxiliary(target[:, None], (Column("wanted", None),))
    known = {"columns": [Column("secret", None)], "desired": wanted}
    evidence = prepare_evidence(released, secret, options=OPTIONS, **known)
    reader = Attack("secret", "numbers", "bits", "bit_reader")
    scores = {one.name: one for one in run_attack(evidence, reader, OPTIONS).scores}
    assert scores["r2"].gain > 0.15  # .19 is left by the target


def test_run_attack__of_rare_classes_is_judged_by_all_folds() -> None:
    """One fold has a record or two of a rare class, which could rank anywhere."""
    random = np.random.default_rng(3)
    for n_rare, is_first in ((120, True), (20, False)):
        secret = np.where(np.arange(12_000) < n_rare, 0, 1 + np.arange(12_000) % 3)
        evidence = prepare_evidence(
            random.normal(size=(12_000, 2)), secret, columns=[Column("secret", 4)], options=OPTIONS
        )
        attack = Attack("secret", "classes", "released", "naive_bayes")
        n_test = run_attack(evidence, attack, OPTIONS, only_first=True).n_test
        assert (n_test < 3000) == is_first


def test_measure_power__asks_all_folds_where_one_misses_what_must_be_found() -> None:
    """One fold of 14,087 workers missed .4 of a rare group, and no release of them could pass."""
    random = np.random.default_rng(2)
    secret = (random.random(12_000) < 0.08).astype(np.int64)
    released = random.integers(0, 8, size=(12_000, 1)).astype(np.float64)
    given = {"columns": [Column("secret", 2)], "options": OPTIONS}
    evidence = prepare_evidence(released, secret, **given)
    target = Target(evidence, 0, replace(OPTIONS, must_find=0.08))
    planted = _plant(target, "bits", 0.08)
    reader = Attack("secret", "classes", "bits", "bit_reader")
    scores = run_attack(planted, reader, target.options, only_first=True).scores
    assert max(one.gain_lower for one in scores if one.name == "auc") < 0
    assert measure_power(target, "bits").finds


def test_measure_power__is_lost_with_records_and_with_adversaries() -> None:
    wide, narrow = make_evidence(6000), make_evidence(200)
    for leak in ("advantage", "certain"):
        many = measure_power(Target(wide, 0, OPTIONS), leak).size
        few = measure_power(Target(narrow, 0, OPTIONS), leak).size
        assert many < 0.3
        assert not few <= 2 * many
    linear = replace(OPTIONS, adversaries=("logistic",))
    missed = measure_power(Target(make_evidence(), 0, linear), "non-linear")
    assert not missed.finds
    assert math.isnan(missed.size)


@pytest.mark.slow
@pytest.mark.parametrize("leak", LEAKS)
def test_measure_power__is_found_in_other_releases(leak: str) -> None:
    """What reports state of one release, audits of others find: sizes near what can be found.

    200 per kind and law: ``python -m tests.bench.audit_power``.
    """
    law = {"advantage": "grouped", "certain": "wanted", "feature": "number"}.get(leak, "classes")
    trials = [try_statement(leak, law, seed) for seed in (4, 5, 6, 13)]
    assert sum(one.found is not None for one in trials) >= 2
    assert sum(one.found is False for one in trials) <= 1


def test_measure_power__of_subjects_is_less_than_of_as_many_records() -> None:
    """All records of a subject tell, or none: twelve of one are no twelve of twelve."""
    random = np.random.default_rng(3)
    secret = np.repeat(random.integers(0, 2, 200), 12)
    released = random.normal(size=(2400, 3))
    given = {"columns": [Column("secret", 2)], "options": OPTIONS}
    alone = prepare_evidence(released, secret, **given)
    whole = prepare_evidence(released, secret, groups=np.arange(2400) // 12, **given)
    for leak in ("advantage", "certain"):
        single = measure_power(Target(alone, 0, OPTIONS), leak).size
        assert not measure_power(Target(whole, 0, OPTIONS), leak).size <= single, leak


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
    assert hold_to_power(leaking, [missed], 0.2, None) == leaking


def test_say_power__tells_the_weakest() -> None:
    found = [
        Detection("a", "certain", 0.005, "x", True),
        Detection("b", "certain", 0.02, "x", True),
        Detection("b", "bits", math.nan, "x", False),
    ]
    assert (
        say_power(found)
        == "Detection power (95 %): certain .02. Leaks by bits were not found at any size tried."
    )
    assert say_power(found[2:]).startswith("Detection power (95 %): none.")
