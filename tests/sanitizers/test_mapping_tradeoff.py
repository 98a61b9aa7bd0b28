"""Baselines on the mapping's interface, the trade-off curve, the least distortion."""

from __future__ import annotations

import numpy as np
import pytest

from flows.reproduce.exponential import fit_exponential_mechanism, keep_symbols
from privpipe import solve_privacy_mapping
from privpipe.errors import InputError, OptionError
from privpipe.numerics.mapping.problem.programme import measure_information
from tests.sanitizers.mapping.solving.test_solve import check, profiles, random_joint


def test_fit_exponential_mechanism__spends_the_budget_and_keeps_its_epsilon() -> None:
    joint, codes = random_joint(2, 30, 31), profiles(30, 32)
    mechanism = fit_exponential_mechanism(joint, codes, distortion_budget=0.4)
    assert mechanism.distortion == pytest.approx(0.4, rel=1e-9)
    check(mechanism, joint, codes, "hamming")
    dense = mechanism.mapping.toarray()
    worst = np.log(dense.max(axis=1) / dense.min(axis=1)).max()
    assert mechanism.guarantee.kind == "local_dp"
    assert mechanism.guarantee.number is not None
    assert worst <= mechanism.guarantee.number
    assert mechanism.information <= mechanism.guarantee.number


def test_fit_exponential_mechanism__uniform_beyond_the_largest_distortion() -> None:
    joint, codes = random_joint(2, 12, 33), profiles(12, 34)
    mechanism = fit_exponential_mechanism(joint, codes, distortion_budget=10.0)
    np.testing.assert_allclose(mechanism.mapping.toarray(), 1 / 12)
    assert mechanism.information <= 1e-12


def test_fit_exponential_mechanism__says_what_is_wrong() -> None:
    with pytest.raises(OptionError, match="distortion_budget is 0"):
        fit_exponential_mechanism([[0.5, 0.5]], [[0], [1]], distortion_budget=0.0)
    with pytest.raises(InputError, match="not sparse"):
        fit_exponential_mechanism(
            np.full((1, 5000), 1 / 5000), np.arange(5000), distortion_budget=1.0
        )


def test_keep_symbols__is_the_identity() -> None:
    joint, codes = random_joint(2, 12, 35), profiles(12, 36)
    kept = keep_symbols(joint, codes)
    assert (kept.mapping.toarray() == np.eye(12)).all()
    assert kept.information == pytest.approx(measure_information(joint.T))


def test_solve_privacy_mapping__falls_convexly_below_the_exponential_mechanism() -> None:
    joint, codes = random_joint(2, 40, 37), profiles(40, 38)
    budgets = [0.5, 0.02, 0.1, 0.2, 0.35]
    curve = [
        solve_privacy_mapping(joint, codes, distortion_budget=one, gap=1e-8) for one in budgets
    ]
    assert [m.distortion_budget for m in curve] == budgets
    order = np.argsort(budgets)
    x, f = np.array(budgets)[order], np.array([curve[k].information for k in order])
    assert all(m.gap <= 1e-8 for m in curve)
    slopes = np.diff(f) / np.diff(x)
    assert (slopes <= 0).all()
    assert (np.diff(slopes) >= -1e-6).all()
    for budget, mapping in zip(budgets, curve, strict=True):
        check(mapping, joint, codes, "hamming")
        mechanism = fit_exponential_mechanism(joint, codes, distortion_budget=budget)
        assert mapping.information < mechanism.information
