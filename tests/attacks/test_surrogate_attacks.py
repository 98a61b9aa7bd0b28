"""Attacks on signed sums: each succeeds on an unsafe setting and fails on an allowed one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.attack_table import Sample, run_kind
from privpipe.attacks.kinds.recovery import RecoveryReport, find_frame
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
