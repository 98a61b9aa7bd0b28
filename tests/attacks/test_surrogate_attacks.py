"""Attacks on signed sums: each succeeds on an unsafe setting and fails on an allowed one."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats.attack_table import RECORD_ATTACKS, Sample, run_by_name
from privpipe.attacks.threats.membership import MembershipReport
from privpipe.attacks.threats.record_decisions import share_level, succeeds
from privpipe.attacks.threats.record_recovery import RecoveryReport, find_frame, run_control
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
    responses = members @ random.normal(size=(D + 1, 2)) + random.normal(size=(n, 2))
    table = np.column_stack([members, responses])
    released = signs.T @ members
    return Sample(
        released=released,
        surrogate_responses=released @ np.linalg.lstsq(members, responses, rcond=None)[0],
        members=members,
        member_responses=responses,
        others=others,
        gram=table.T @ table,
    )


UNSAFE_AND_ALLOWED = {"independent_components": (make_sample(7, 4000), make_sample(400, 2000))}


@pytest.mark.parametrize("name", UNSAFE_AND_ALLOWED)
def test_attack__succeeds_on_the_unsafe_setting_and_fails_on_the_allowed_one(name: str) -> None:
    unsafe, allowed = (
        run_by_name(name, sample, AttackOptions()) for sample in UNSAFE_AND_ALLOWED[name]
    )
    assert isinstance(unsafe, RecoveryReport)
    assert isinstance(allowed, RecoveryReport)
    assert unsafe.succeeded
    assert unsafe.recovered.estimate > 0.8
    assert not allowed.succeeded
    assert allowed.recovered.estimate < 0.05
    assert json.loads(unsafe.to_json())["succeeded"] is True


@pytest.mark.parametrize("m", [D + 1, 30, 300, 9000])
@pytest.mark.parametrize("n_responses", [1, 2])
def test_all_but_one__rebuilds_every_record_at_any_number_of_surrogates(
    m: int, n_responses: int
) -> None:
    """(X'X) W = X'y is exact: what is left of it over all others is the record."""
    sample = keep_responses(make_sample(300, m), n_responses)
    found = run_by_name("all_but_one", sample, AttackOptions())
    assert isinstance(found, RecoveryReport)
    assert found.recovered.estimate == 1
    assert found.cosine > 1 - 1e-9
    assert found.by_chance.estimate < 0.2


def keep_responses(sample: Sample, n: int) -> Sample:
    assert sample.surrogate_responses is not None
    assert sample.member_responses is not None
    assert sample.gram is not None
    return replace(
        sample,
        surrogate_responses=sample.surrogate_responses[:, :n],
        member_responses=sample.member_responses[:, :n],
        gram=sample.gram[: D + 1 + n, : D + 1 + n],
    )


def test_all_but_one__finds_nothing_behind_coefficients_with_noise() -> None:
    """An attack that must be able to fail: noise of a few per cent hides every record."""
    sample = make_sample(300, 300)
    assert sample.surrogate_responses is not None
    noise = np.random.default_rng(8).normal(size=sample.surrogate_responses.shape)
    noisy = sample.surrogate_responses * (1 + 0.2 * noise)
    found = run_by_name("all_but_one", replace(sample, surrogate_responses=noisy), AttackOptions())
    assert isinstance(found, RecoveryReport)
    assert found.recovered.estimate < 0.2


def test_with_and_without__rebuilds_records_from_second_moments_of_many_surrogates() -> None:
    found, coarse = (
        run_by_name("with_and_without", make_sample(300, m), AttackOptions()) for m in (3000, D + 1)
    )
    assert isinstance(found, RecoveryReport)
    assert isinstance(coarse, RecoveryReport)
    assert found.recovered.estimate > 0.95
    assert found.cosine > 0.998  # in the frame of the surrogates alone .996
    assert coarse.recovered.estimate < 0.9


def test_two_releases__give_the_record_that_was_added_and_nothing_where_none_was() -> None:
    """Whoever knows no record has the one that only the later release was made of."""
    whole = make_sample(300, 3000)
    assert whole.members is not None
    assert whole.member_responses is not None
    random = np.random.default_rng(1)

    def release(n: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = whole.members[:n], whole.member_responses[:n]
        made = random.choice([-1.0, 1.0], (3000, n)) @ x / np.sqrt(3000)
        return made, made @ np.linalg.lstsq(x, y, rcond=None)[0]

    made, answered = release(300)
    later = replace(whole, released=made, surrogate_responses=answered)
    found, again, far = (
        run_by_name("two_releases", replace(later, earlier=release(n)), AttackOptions())
        for n in (299, 300, 200)
    )
    for one, hit in ((found, 1), (again, 0), (far, 0)):
        assert isinstance(one, RecoveryReport)
        assert one.recovered.estimate == hit
    assert found.cosine > 0.995  # type: ignore[union-attr]


def test_outlying_record__has_as_many_trials_as_its_limit_needs() -> None:
    options = share_level(AttackOptions(max_exposed=0.05))
    found = run_by_name("outlying_record", make_sample(2000, 100), options)
    assert isinstance(found, RecoveryReport)
    assert found.n_attacked >= 100
    assert found.recovered.upper - found.by_chance.lower <= 0.05
    single = run_by_name("outlying_record", make_sample(2000, 3000, outlier=60), options)
    assert isinstance(single, RecoveryReport)
    assert single.farthest is not None
    assert single.farthest > 0.97, "one record of many is found, and is not averaged away"
    assert succeeds(single, options)


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
    found = run_by_name("tracing", make_sample(5000, 1000), AttackOptions())
    assert isinstance(found, MembershipReport)
    assert found.true_positive.upper - found.false_positive.lower < 0.1


def test_tracing__needs_others_to_compare_with() -> None:
    sample = make_sample(60, 90)
    assert sample.others is not None
    with pytest.raises(InputError, match="too few to trace by"):
        run_by_name("tracing", replace(sample, others=sample.others[:12]))


@pytest.mark.parametrize("kind", RECORD_ATTACKS)
def test_run_control__succeeds_on_records_that_the_attack_finds_nothing_of(kind: str) -> None:
    options = share_level(AttackOptions())
    sample = make_sample(3000, 200)
    assert sample.members is not None
    assert sample.others is not None
    control = run_control(kind, sample.members, sample.others, options)
    release = run_by_name(kind, sample, options)
    assert isinstance(release, RecoveryReport | MembershipReport)
    assert succeeds(control, options)
    assert not succeeds(release, options)


def test_run_control__of_records_of_classes_finds_no_copies() -> None:
    """Others are copies by nature there: membership by copies is unproven, never safe."""
    random = np.random.default_rng(3)
    rows = np.column_stack([random.random((4000, 8)) < 0.3, np.ones(4000)]).astype(float)
    options = share_level(AttackOptions())
    shown = {
        kind: succeeds(run_control(kind, rows[:2000], rows[2000:], options), options)
        for kind in ("tracing", "outlying_record", "membership")
    }
    assert shown == {"tracing": True, "outlying_record": True, "membership": False}
