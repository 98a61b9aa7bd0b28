"""Limits on the worst case hold in rationals, at the least information that any mapping has."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from privpipe import solve_privacy_mapping
from privpipe.errors import ConvergenceError, OptionError
from privpipe.numerics.mapping.worst_case import measure_worst_cases
from privpipe.sanitizers.mapping.solving.constrained import solve_constrained_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping
from tests.laws_of_records import make_grid


def draw_counts(seed: int, n_private: int = 2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 40, (n_private, 12)) + 1


def find_odds(counts: np.ndarray, mapping: SparseMapping) -> Fraction:
    """Largest posterior odds over prior odds, in rationals, of the probabilities as stored."""
    given = [[Fraction(0)] * mapping.n_symbols for _ in counts]
    for j in range(mapping.n_symbols):
        pairs = range(mapping.pointers[j], mapping.pointers[j + 1])
        shares = [Fraction(float(mapping.probabilities[p])) for p in pairs]
        total = sum(shares)
        for p, share in zip(pairs, shares, strict=True):
            for a, row in enumerate(counts):
                cell = Fraction(int(row[j]), int(row.sum())) * share / total
                given[a][mapping.released[p]] += cell
    columns = [column for column in zip(*given, strict=True) if max(column) > 0]
    return max(max(column) / min(column) for column in columns)


@pytest.mark.parametrize(("n_private", "odds"), [(2, 1.75), (2, 2.0), (3, 2.8)])
def test_solve_constrained_mapping__odds_hold_in_rationals(n_private: int, odds: float) -> None:
    counts, codes = draw_counts(n_private, n_private), make_grid(4, 3)
    joint = counts / counts.sum()
    free = solve_privacy_mapping(joint, codes, distortion_budget=0.15, gap=1e-6)
    assert (
        measure_worst_cases(joint, free.mapping)["posterior_odds"] > odds
    )  # else nothing is asked
    mapping = solve_constrained_mapping(
        joint, codes, distortion_budget=0.15, max_posterior_odds=odds
    )
    assert find_odds(counts, mapping) <= Fraction(odds)
    assert mapping.distortion <= 0.15
    assert mapping.gap <= 1e-4
    assert mapping.information >= free.lower_bound


def test_solve_constrained_mapping__leakage_is_kept_and_loose_limits_ask_nothing() -> None:
    counts, codes = draw_counts(5), make_grid(4, 3)
    joint = counts / counts.sum()
    free = solve_privacy_mapping(joint, codes, distortion_budget=0.3, gap=1e-6)
    leakage = measure_worst_cases(joint, free.mapping)["maximal_leakage"]
    tight = solve_constrained_mapping(
        joint, codes, distortion_budget=0.5, max_leakage=0.5 * leakage
    )
    assert measure_worst_cases(joint, tight.mapping)["maximal_leakage"] <= 0.5 * leakage
    assert tight.gap <= 1e-4
    loose = solve_constrained_mapping(joint, codes, distortion_budget=0.3, max_leakage=10.0)
    assert abs(loose.information - free.information) <= 2e-4
    assert abs(loose.lower_bound - free.lower_bound) <= 2e-4


def test_solve_constrained_mapping__refuses_what_is_no_option_and_keeps_its_time() -> None:
    joint, codes = draw_counts(3) / draw_counts(3).sum(), make_grid(4, 3)
    with pytest.raises(OptionError, match="distortion_budget is nan"):
        solve_constrained_mapping(joint, codes, distortion_budget=np.nan, max_leakage=0.1)
    with pytest.raises(OptionError, match="max_leakage is 0"):
        solve_constrained_mapping(joint, codes, distortion_budget=0.1, max_leakage=0.0)
    with pytest.raises(ConvergenceError, match="max_seconds"):
        solve_constrained_mapping(
            joint, codes, distortion_budget=0.5, max_leakage=0.1, max_seconds=1e-6
        )


def test_solve_constrained_mapping__says_the_budget_that_limits_need() -> None:
    counts, codes = draw_counts(7), make_grid(4, 3)
    joint = counts / counts.sum()
    with pytest.raises(OptionError, match="keeps the worst-case limits") as error:
        solve_constrained_mapping(joint, codes, distortion_budget=0.01, max_posterior_odds=1.2)
    budget = float(str(error.value.remedy).split("distortion_budget to ")[1].split(" ")[0])
    mapping = solve_constrained_mapping(
        joint, codes, distortion_budget=budget, max_posterior_odds=1.2
    )
    assert mapping.distortion <= budget
    assert find_odds(counts, mapping) <= Fraction(1.2)
    with pytest.raises(OptionError, match="max_posterior_odds is 1"):
        solve_constrained_mapping(joint, codes, distortion_budget=1.0, max_posterior_odds=1)


@pytest.mark.parametrize("limits", [{"max_posterior_odds": 2.0}, {"max_leakage": 0.1}])
def test_solve_constrained__ends_in_the_same_bits_when_it_is_solved_again(
    limits: dict[str, float],
) -> None:
    joint = np.random.default_rng(8).dirichlet(np.ones(16)).reshape(2, 8)
    given = {"distortion_budget": 0.4, "gap": 1e-5, **limits}
    one, other = (solve_constrained_mapping(joint, np.arange(8), **given) for _ in "ab")  # type: ignore[arg-type]
    np.testing.assert_array_equal(one.probabilities, other.probabilities)
    np.testing.assert_array_equal(one.released, other.released)
    assert one.lower_bound == other.lower_bound
