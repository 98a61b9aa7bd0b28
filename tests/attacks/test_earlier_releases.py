"""Releases of the same records are attacked together: who holds both joins them row by row."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.auxiliary import Auxiliary
from privpipe.attacks.threats.inference import measure_attacks
from privpipe.protocols import Column

QUICK = AttackOptions(adversaries=("logistic", "boosting"), decides=("accuracy",))


def attack(earlier: dict[str, np.ndarray], released: np.ndarray, secret: np.ndarray) -> str:
    return measure_attacks(
        released,
        secret,
        columns=[Column("secret", 2)],
        auxiliary=Auxiliary(earlier=earlier),
        options=QUICK,
    ).verdict


@pytest.mark.parametrize("n", [2000, pytest.param(4000, marks=pytest.mark.slow)])
def test_together__two_releases_that_tell_nothing_alone_tell_all(n: int) -> None:
    """The secret is whether two masks agree in size: each alone is noise."""
    random = np.random.default_rng(0)
    secret = random.integers(0, 2, n)
    mask = random.normal(size=n) * 20
    first, second = mask[:, None], (mask + secret)[:, None] + 0.1 * random.normal(size=(n, 1))
    assert attack({}, second, secret) != "leaks"
    assert attack({}, first, secret) != "leaks"
    assert attack({"null_space abc": first}, second, secret) == "leaks"


def test_together__an_unrelated_earlier_release_adds_nothing() -> None:
    random = np.random.default_rng(1)
    secret = random.integers(0, 2, 4000)
    released, other = random.normal(size=(2, 4000, 2))
    other[::7] = np.nan  # withheld then
    assert attack({"one": other}, released, secret) != "leaks"
