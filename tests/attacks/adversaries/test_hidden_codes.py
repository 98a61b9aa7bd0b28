"""Codes that adversaries do not stumble on are found, and noise holds none."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from privpipe.attacks.adversaries import covert_channels, parities, parity_counts
from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.auxiliary import Auxiliary, describe_surroundings
from privpipe.attacks.adversaries.covert_channels import find_codes, fit_bit_reader
from privpipe.attacks.adversaries.parities import measure_digits
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.adversaries.problem import Problem
from privpipe.attacks.threats.inference import plan_attacks, run_attack
from privpipe.protocols import FloatArray, IntArray
from tests.attacks.adversaries import planted_codes
from tests.attacks.adversaries.planted_codes import Plant, nothing, shells

N, WIDTH, ADVANTAGE = 6000, 6, 0.4


def draw(plant: Plant, seed: int) -> tuple[FloatArray, IntArray]:
    found = planted_codes.draw(plant, seed, N, WIDTH, ADVANTAGE)
    return found.x, found.truth


def pose(x: FloatArray, truth: IntArray) -> Problem:
    y = truth.astype(np.float64)
    return Problem(x[:3600], y[:3600], x[3600:4400], y[3600:4400], n_classes=2)


CODES = [name for name in planted_codes.IN_VALUES if name not in ("shells", "product_of_four")]


@pytest.mark.parametrize("plant", CODES)
def test_fit_bit_reader__finds_codes_that_tell_no_value(plant: str) -> None:
    x, truth = draw(planted_codes.IN_VALUES[plant], 3)
    decision = fit_bit_reader(pose(x, truth)).decide(x[4400:])
    hits = float((decision.argmax(axis=1) == truth[4400:]).mean())
    assert hits > 0.5 + ADVANTAGE / 4  # of .7 by who knows the code; .5 by chance, .013 its error


def test_find_codes__of_noise_hardly_one_holds_on_other_records() -> None:
    problems = [pose(*draw(nothing, seed)) for seed in range(6)]
    found = [find_codes(one, measure_digits(one.x_train)) for one in problems]
    # Some forty candidates each, of which .0013 pass by chance: .3 of all on average.
    assert sum(map(len, found)) <= 3


@pytest.mark.parametrize("unit", [5e-324, 1e-310, 1e-300, 1e200])
def test_find_combs__of_values_in_any_unit_are_numbers(unit: float) -> None:
    """Of predictions that are 0 but for the last bits a run warned of what are no numbers."""
    rng = np.random.default_rng(0)
    x, truth = unit * rng.integers(0, 3, (4000, 2)), rng.integers(0, 2, 4000)
    for read in covert_channels.find_combs(x, np.eye(2)[truth] - 0.5):
        assert np.isfinite(read(x)).all()


def test_prepare_evidence__shows_shells_to_the_reader_of_bits() -> None:
    x, truth = draw(shells, 4)
    assert _attack(x, truth, "bits") > ADVANTAGE / 2


def test_fit_surroundings_reader__finds_what_stands_in_the_next_row() -> None:
    x, truth = draw(nothing, 5)
    x[1:, 0] = np.abs(x[1:, 0]) * (2 * truth[:-1] - 1)
    assert _attack(x, truth, "surroundings", position=np.arange(N)) > 0.9
    mixed = np.random.default_rng(0).permutation(N)
    assert _attack(x[mixed], truth[mixed], "surroundings", position=mixed) > 0.9


def test_fit_surroundings_reader__finds_which_row_of_eight_is_withheld() -> None:
    x, truth = draw(nothing, 6)
    first = np.arange(0, N, 8)
    x[first + 4 * truth[first + 1] + 2 * truth[first + 2] + truth[first + 3]] = np.nan
    assert _attack(x, truth, "surroundings", position=np.arange(N)) > 0.25  # three rows of eight


def test_fit_surroundings_reader__finds_values_that_two_records_share() -> None:
    x, truth = draw(nothing, 7)
    twins = np.flatnonzero(truth)[: truth.sum() // 2 * 2]
    x[twins[::2], 4] = x[twins[1::2], 4]
    assert _attack(x, truth, "surroundings") > 0.9


def test_describe_surroundings__of_few_rows_is_what_it_is_of_all() -> None:
    rng = np.random.default_rng(4)
    table = rng.integers(0, 4, (500, 3)).astype(np.float32)
    table[rng.random(500) < 0.1] = np.nan
    rows = rng.permutation(500)[:20]
    for position in (None, np.arange(500) + 7, rng.permutation(1000)[:500]):
        whole = describe_surroundings(table, position)
        assert np.array_equal(
            describe_surroundings(table, position, rows), whole[rows], equal_nan=True
        )


def test_sum_by_digit__is_the_sum_over_words_with_the_digit() -> None:
    random = np.random.default_rng(1)
    words, weights = random.integers(-(2**62), 2**62, 70), random.normal(size=(70, 2))
    expected = [weights[(words >> digit) & 1 == 1].sum(axis=0) for digit in range(64)]
    assert np.allclose(covert_channels.sum_by_digit(words, weights), expected)


@pytest.mark.parametrize("factors", [1, 2, 3, 4])
def test_scan__finds_the_products_of_largest_chi_square(
    factors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All products, one by one: within strata, the expected ones of a class and their variance."""
    monkeypatch.setattr(parity_counts, "COUNTED", 10)
    random = np.random.default_rng(2)
    classes, strata = random.integers(0, 2, 500), random.integers(0, 2, 500)
    bits = [random.integers(0, 2, (500, 7)) for _ in range(2)]
    cells = parities._Cells.of(classes, strata)
    words = np.stack([cells.pack(one) for one in bits])
    varies = random.random((2, 7)) < 0.8
    sizes = {}
    for group, chosen in product(range(2), combinations(range(7), factors)):
        if varies[group, list(chosen)].all():
            odd = bits[group][:, list(chosen)].sum(axis=1) % 2
            excess, variance = 0.0, 0.0
            for stratum in range(2):
                one, is_class = odd[strata == stratum], classes[strata == stratum] == 1
                excess += one[is_class].sum() - one.sum() * is_class.mean()
                variance += one.var() * is_class.var() * len(one) ** 2 / (len(one) - 1)
            sizes[group, chosen] = excess**2 / variance
    largest = sorted(sizes, key=lambda key: -sizes[key])[: parities.MOST_PARITIES]
    assert parities._scan(cells, words, varies, factors) == largest


def test_count_ones__is_the_same_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.random.default_rng(3).integers(0, 2**64, (2, 6, 9), np.uint64)
    [sets] = parity_counts.list_products(6, 3, 2)
    assert sets.tolist() == [list(one) for one in combinations(range(6), 3)]
    compiled = parity_counts.count_ones(words, sets, np.array([0, 1, 5]))
    monkeypatch.setattr(parity_counts, "can_compile", lambda: False)
    assert np.array_equal(parity_counts.count_ones(words, sets, np.array([0, 1, 5])), compiled)


def _attack(x: FloatArray, truth: IntArray, source: str, **auxiliary: IntArray) -> float:
    """Lower limit of the advantage of who reads a source."""
    options = AttackOptions(adversaries=("least_squares",))
    evidence = prepare_evidence(x, truth, auxiliary=Auxiliary(**auxiliary), options=options)
    [attack] = [one for one in plan_attacks(evidence, options) if one.source == source]
    scores = run_attack(evidence, attack, options).scores
    return max(score.advantage_lower for score in scores if score.name == "accuracy")


@pytest.mark.parametrize("n_columns", [1, 2, 3])
def test_find_parities__of_fewer_columns_than_factors_are_those_of_fewer(n_columns: int) -> None:
    rng = np.random.default_rng(0)
    x, classes = rng.normal(size=(200, n_columns)), rng.integers(0, 2, 200)
    found = list(parities.find_parities(x, classes, np.zeros(200, int), measure_digits(x), 5))
    assert found
    assert all(read(x).shape == (200, 1) for read in found)
