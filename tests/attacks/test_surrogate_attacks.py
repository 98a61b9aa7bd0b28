"""Attacks on signed sums: each succeeds on an unsafe setting and fails on an allowed one."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.attack_table import Sample, run_kind
from privpipe.attacks.kinds.membership import MembershipReport
from privpipe.attacks.kinds.recovery import RecoveryReport, find_frame
from privpipe.attacks.kinds.unsafe_control import run_control
from privpipe.attacks.kinds.verdicts.record_decisions import (
    RECORD_ATTACKS,
    share_level,
    succeeds,
)
from privpipe.errors import InputError

D = 6


def make_sample(n: int, m: int, *, outlier: float = 1.0, seed: int = 0) -> Sample:
    """Surrogates of n records with a bias feature, and all that an attack could know of them."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(2 * n, D)) * [1, 5, 1, 1, 0.1, 1] + [0, 20, 0, 0, 1, 0]
    rows = np.column_stack([rows, np.ones(2 * n)])
    rows[0, :-1] = rows[0, :-1] + (outlier - 1) * (rows[0, :-1] - [0, 20, 0, 0, 1, 0])
    members, others = rows[:n], rows[n:]
    signs = random.choice([-1.0, 1.0], (n, m)) / np.sqrt(m)
    return Sample(
        released=signs.T @ members,
        members=members,
        others=others,
        signs=signs,
        gram=members.T @ members,
    )


UNSAFE_AND_ALLOWED = {
    "known_signs": (make_sample(60, 60), make_sample(600, 90)),
    "all_but_one": (make_sample(40, 200 * 40**2), make_sample(400, 400)),
    "independent_components": (make_sample(7, 4000), make_sample(400, 2000)),
    "outlying_record": (make_sample(300, 100, outlier=30), make_sample(300, 100)),
}


@pytest.mark.parametrize("name", UNSAFE_AND_ALLOWED)
def test_attack__succeeds_on_the_unsafe_setting_and_fails_on_the_allowed_one(name: str) -> None:
    unsafe, allowed = (
        run_kind(name, sample, AttackOptions()) for sample in UNSAFE_AND_ALLOWED[name]
    )
    assert isinstance(unsafe, RecoveryReport)
    assert isinstance(allowed, RecoveryReport)
    assert unsafe.succeeded
    assert unsafe.recovered.estimate > 0.8
    assert not allowed.succeeded
    assert allowed.recovered.estimate < 0.05
    assert json.loads(unsafe.to_json())["succeeded"] is True


def test_find_frame__centres_and_standardises_in_expectation() -> None:
    sample = make_sample(1000, 9_000)
    assert sample.released is not None
    assert sample.members is not None
    inside = sample.members @ find_frame(sample.released).T
    np.testing.assert_allclose(inside[:, :-1].mean(axis=0), 0, atol=0.1)
    np.testing.assert_allclose(inside[:, :-1].std(axis=0), 1, atol=0.1)
    assert np.all(inside[:, -1] == 1)


def test_find_frame__refuses_what_cannot_be_attacked() -> None:
    with pytest.raises(InputError, match="3 surrogates of 7 features"):
        find_frame(np.ones((3, 7)))


def test_tracing__finds_nothing_of_many_records() -> None:
    found = run_kind("tracing", make_sample(5000, 1000), AttackOptions())
    assert isinstance(found, MembershipReport)
    assert found.true_positive.upper - found.false_positive.lower < 0.1


def test_tracing__needs_others_to_compare_with() -> None:
    sample = make_sample(60, 90)
    assert sample.others is not None
    with pytest.raises(InputError, match="too few to trace by"):
        run_kind("tracing", replace(sample, others=sample.others[:12]))


@pytest.mark.parametrize("kind", RECORD_ATTACKS)
def test_run_control__succeeds_on_records_that_the_attack_finds_nothing_of(kind: str) -> None:
    options = share_level(AttackOptions())
    sample = make_sample(3000, 200)
    control = json.loads(run_control(kind, sample, options).to_json())
    release = json.loads(run_kind(kind, sample, options).to_json())
    assert succeeds(control, options)
    assert not succeeds(release, options)


def test_run_control__of_records_of_classes_finds_no_copies() -> None:
    """Others are copies by nature there: membership by copies is unproven, never safe."""
    random = np.random.default_rng(3)
    rows = np.column_stack([random.random((4000, 8)) < 0.3, np.ones(4000)]).astype(float)
    sample = Sample(members=rows[:2000], others=rows[2000:])
    options = share_level(AttackOptions())
    shown = {
        kind: succeeds(json.loads(run_control(kind, sample, options).to_json()), options)
        for kind in ("tracing", "outlying_record", "membership")
    }
    assert shown == {"tracing": True, "outlying_record": True, "membership": False}
