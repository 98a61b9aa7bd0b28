"""Prices by sets of attributes are those of the search over all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.numerics.mapping.pricing.mask_pricing import MaskPricing, suits_masks
from privpipe.numerics.mapping.pricing.pair_pricing import PricingQuestion, price_in_memory
from privpipe.numerics.mapping.problem.mutual_information import normalise_potentials
from privpipe.numerics.mapping.problem.programme import Duals, MappingProblem
from privpipe.sanitizers.mapping.alphabet import prepare_alphabet


def draw_problem(seed: int, n: int, sizes: tuple[int, ...], ties: bool) -> MappingProblem:
    rng = np.random.default_rng(seed)
    codes = np.unique(np.stack([rng.integers(0, k, n) for k in sizes], axis=1), axis=0)
    counts = rng.integers(0, 4 if ties else 1000, (2, len(codes)))
    counts[0, counts.sum(axis=0) == 0] = seed % 2  # some symbols have no records
    return prepare_alphabet(counts / counts.sum(), codes, "hamming", 0.4).problem


@pytest.mark.parametrize("sizes", [(2,) * 7, (3, 2, 2, 2, 3, 2, 2, 2, 4)])
def test_mask_pricing__of_many_attributes_finds_what_lies_far(sizes: tuple[int, ...]) -> None:
    far = 0
    for seed in range(8):
        problem = draw_problem(seed, 400, sizes, ties=False)
        rng = np.random.default_rng(seed)
        posterior = rng.dirichlet([0.5, 0.5], problem.n_symbols)
        potentials = normalise_potentials(np.log(posterior / problem.prior), problem.prior)
        multiplier = float(rng.choice([0.0, 0.02, 0.1, 0.4]))
        levels = rng.normal(size=problem.n_columns) * 0.1
        question = PricingQuestion(
            Duals(potentials, multiplier), top=4, partners=True, levels=levels
        )
        ours, all_pairs = MaskPricing()(problem, question), price_in_memory(problem, question)
        np.testing.assert_allclose(ours.values, all_pairs.values, rtol=0, atol=1e-13)
        away = problem.distance.pairs(ours.best[:, 0], np.arange(problem.n_columns))
        far += int((away >= 4).sum())
        np.testing.assert_allclose(ours.slack, all_pairs.slack, rtol=0, atol=1e-12)
    assert far > 100


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("sizes", [(7,), (4, 5, 3), (6, 3, 2, 4, 2)])
def test_mask_pricing__prices_and_partners_are_those_of_all_pairs(
    sizes: tuple[int, ...], ties: bool
) -> None:
    for seed in range(6):
        problem = draw_problem(seed, 300, sizes, ties)
        assert suits_masks(problem)
        rng = np.random.default_rng(100 + seed)
        posterior = rng.dirichlet([0.5, 0.5], problem.n_symbols)
        if ties:
            posterior = np.round(posterior, 1) + 0.01
        potentials = normalise_potentials(np.log(posterior / problem.prior), problem.prior)
        duals = Duals(potentials, float(rng.choice([0.0, 0.05, 0.4, 3.0])))
        levels = None if seed % 2 else rng.normal(size=problem.n_columns) * 0.1
        question = PricingQuestion(duals, top=4, partners=True, levels=levels)
        ours, all_pairs = MaskPricing()(problem, question), price_in_memory(problem, question)
        np.testing.assert_allclose(ours.values, all_pairs.values, rtol=0, atol=1e-13)
        if levels is not None:  # else levels are the values themselves, equal to rounding
            np.testing.assert_allclose(ours.slack, all_pairs.slack, rtol=0, atol=1e-12)
        named = np.asarray(ours.best[:, 0])
        cost = problem.distance.pairs(named, np.arange(problem.n_columns)) * duals.multiplier
        cost += (problem.posterior * potentials[named]).sum(axis=1)
        np.testing.assert_allclose(cost, all_pairs.values, rtol=0, atol=1e-12)


def test_suits_masks__two_private_values_and_hamming_only() -> None:
    joint = np.full((3, 4), 1 / 12)
    assert not suits_masks(prepare_alphabet(joint, np.arange(4), "hamming", 0.1).problem)
    joint = np.full((2, 4), 1 / 8)
    assert not suits_masks(prepare_alphabet(joint, np.arange(4), "squared", 0.1).problem)
