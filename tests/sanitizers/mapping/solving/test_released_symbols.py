"""Released symbols are charged for what they cost to be measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from privpipe.numerics.mapping.held_out_information import expect_held_out_bound
from privpipe.numerics.mapping.problem.programme import measure_information
from privpipe.sanitizers.mapping.solving.released_symbols import charge_symbols
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from privpipe.store.models import digest_map
from tests.laws_of_records import make_grid


def solve(distortion: str) -> tuple[np.ndarray, object]:
    rng, codes = np.random.default_rng(2), make_grid(5, 4, 3)
    mass = 1 / np.arange(1, len(codes) + 1) ** 1.3
    joint = rng.dirichlet([1.0, 1.0], len(codes)).T * rng.permutation(mass) / mass.sum()
    return joint, solve_privacy_mapping(joint, codes, distortion, distortion_budget=0.4, gap=1e-4)


@pytest.mark.parametrize("distortion", ["hamming", "absolute", "squared"])
def test_charge_symbols__fewer_where_records_are_few_all_where_they_are_many(
    distortion: str,
) -> None:
    joint, whole = solve(distortion)
    sizes = []
    for n in (600, 100_000_000):

        def expect(mapping: sp.csc_array, n: int = n) -> float:
            return expect_held_out_bound(joint, mapping, joint.sum(axis=1), n, n)

        found = charge_symbols(whole, joint, expect, gap=1e-4)
        sizes.append(len(np.unique(found.released)))
        assert expect(found.mapping) <= expect(whole.mapping)
        assert found.distortion <= 0.4 * (1 + 1e-12)
        np.testing.assert_allclose(found.mapping.sum(axis=0), 1.0)
        # What it says of itself is measured, and the bound for all mappings is still the old one.
        told = measure_information(np.asarray(found.mapping @ joint.T))
        assert found.information == pytest.approx(told, abs=1e-9)
        assert found.lower_bound == pytest.approx(whole.lower_bound, abs=1e-9)
    assert sizes[1] == len(np.unique(whole.released))
    assert sizes[0] < 0.7 * sizes[1]


def test_charge_symbols__without_time_the_mapping_is_as_it_was() -> None:
    joint, whole = solve("hamming")
    late = charge_symbols(whole, joint, lambda m: float(m.nnz), gap=1e-4, max_seconds=0.0)
    assert late.stopped == f"{whole.stopped}, time limit"
    short = charge_symbols(
        replace(whole, stopped="time limit"), joint, lambda m: float(m.nnz), gap=1e-4
    )
    assert short.stopped == "time limit, symbols charged"
    assert digest_map(replace(late, stopped=whole.stopped)) == digest_map(whole)
