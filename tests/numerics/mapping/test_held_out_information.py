"""A divergence is bounded by that of the records' own posteriors, whatever law and reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats
from scipy.special import gammaln

from privpipe.numerics.mapping import held_out_information
from privpipe.numerics.mapping.held_out_information import (
    Reference,
    _bound_divergence,
    _exceed,
    bound_held_out_information,
    expect_held_out_bound,
    make_reference,
)
from privpipe.protocols import FloatArray
from tests.numerics.mapping.test_bounds import measure

DRAWS = 100
TILTS = np.geomspace(1e-4, 0.999, 50)


def draw_problem(rng: np.random.Generator, n_private: int, n: int) -> tuple[FloatArray, Reference]:
    """A law, and a reference of another one, by a mapping that mixes or does not."""
    law = rng.dirichlet(np.full(n_private * n, rng.choice([0.3, 1.0, 3.0]))).reshape(n_private, n)
    law = np.maximum(law, 1e-6) / np.maximum(law, 1e-6).sum()
    mixing = rng.choice([0.0, 0.6])
    mapping = sp.csc_array((1 - mixing) * np.eye(n) + mixing * rng.dirichlet(np.ones(n), n).T)
    prior = rng.dirichlet(np.ones(n_private)).clip(1e-3)
    prior /= prior.sum()
    posteriors = np.repeat(prior[:, None], n, axis=1)
    if rng.random() < 0.6:
        posteriors = np.maximum(rng.dirichlet(np.ones(n_private), n).T, 1e-4)
        posteriors /= posteriors.sum(axis=0)
    return law, Reference(mapping, prior, posteriors)


def test_exceed__is_never_below_and_its_quotient_is_largest_at_the_end() -> None:
    """The step of the proof that makes rho: the quotient grows with u."""
    z = np.geomspace(1e-9, 30.0, 4001)
    long = z.astype(np.longdouble)
    assert (_exceed(z) >= (np.expm1(-long) + long) * (1 - 1e-9)).all()
    u = np.concatenate([-np.geomspace(1e-3, 8.0, 500)[::-1], np.geomspace(1e-3, 12.0, 500)])
    for tilt in (0.01, 0.3, 0.9):
        quotient = (np.expm1(-tilt * u) + tilt * u) / (np.expm1(-u) + u)
        assert (np.diff(quotient) > -1e-9).all()


def test_divergence__its_moments_are_those_of_the_proof() -> None:
    """``E exp(-tilt d) <= 1 - (tilt - rho) K``, exactly summed over laws and references."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        law, reference = draw_problem(rng, int(rng.integers(2, 4)), int(rng.integers(1, 6)))
        released = reference.mapping @ law.T
        true = (released / released.sum(axis=1, keepdims=True)).T
        d = (reference.mapping.T @ np.log(true / reference.posteriors).T).T
        divergence = float((law * d).sum())
        assert divergence == pytest.approx(reference.measure(released.T), abs=1e-12)
        highest = -np.log(reference.posteriors.min())
        assert d.max() <= highest + 1e-12
        assert (law * np.exp(-d)).sum() <= 1 + 1e-12
        for tilt in TILTS:
            rho = _exceed(tilt * highest) / _exceed(highest)
            moment = float((law * np.exp(-tilt * d)).sum())
            assert moment <= 1 - (tilt - rho) * divergence + 1e-9


def test_divergence__no_posteriors_explain_records_as_well_as_their_own() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        law, reference = draw_problem(rng, 2, 4)
        table = rng.multinomial(20, law.ravel()).reshape(law.shape) / 20
        released = reference.mapping @ law.T
        true = (released / released.sum(axis=1, keepdims=True)).T
        d = (reference.mapping.T @ np.log(true / reference.posteriors).T).T
        own = reference.measure(np.asarray((reference.mapping @ table.T).T))
        assert own >= (table * d).sum() - 1e-12
        assert own >= 0 or not np.isclose(reference.posteriors.sum(axis=0), 1).all()


def test_bound_divergence__is_what_the_best_tilt_refutes() -> None:
    """Chernoff's bound at the divergence bounded is the chance, no less and not much more."""
    reference = Reference(sp.csc_array(np.eye(2)), np.array([0.8, 0.2]), np.array([[0.7], [0.3]]))
    highest = -np.log(0.3)
    for measured, n, miss in ((0.0, 50, 0.1), (0.03, 400, 0.05), (0.5, 10_000, 0.5)):
        bound = _bound_divergence(reference, measured, n, miss)
        rho = _exceed(TILTS * highest) / _exceed(np.array(highest))
        with np.errstate(invalid="ignore"):
            chance = n * (np.log(1 - (TILTS - rho) * bound) + TILTS * measured)
        assert np.nanmin(chance) == pytest.approx(np.log(miss), rel=0.02)


@pytest.mark.parametrize(("n", "miss"), [(12, 0.5), (12, 0.05), (20, 0.9)])
def test_bound_divergence__misses_no_more_than_it_says_exactly(n: int, miss: float) -> None:
    """The chance is summed over every table of so many records: it is no simulation."""
    cells = [
        (a, b, c, n - a - b - c)
        for a in range(n + 1)
        for b in range(n + 1 - a)
        for c in range(n + 1 - a - b)
    ]
    tables = np.array(cells, float)
    ways = gammaln(n + 1) - gammaln(tables + 1).sum(axis=1)
    rng, often = np.random.default_rng(2), []
    for _ in range(12):
        law, reference = draw_problem(rng, 2, 2)
        truth = reference.measure(np.asarray((reference.mapping @ law.T).T))
        chances = np.exp(ways + (tables * np.log(law.ravel())).sum(axis=1))
        for table, chance in zip(tables, chances, strict=True):
            released = np.asarray((reference.mapping @ (table.reshape(2, 2) / n).T).T)
            bound = _bound_divergence(reference, reference.measure(released), n, miss)
            often.append(chance * (bound < truth))
    often = np.array(often).reshape(12, -1).sum(axis=1)
    assert often.max() <= miss
    if miss == 0.9:
        assert often.max() >= 0.2, "and is no triviality"


def test_bound__holds_where_the_reference_is_of_another_law() -> None:
    """An opponent fits on one law, and others have records of rare cells that it never saw."""
    rng, n = np.random.default_rng(1), 3_000
    n_symbols, miss = 30, 0.1
    mapping = sp.csc_array(0.6 * np.eye(n_symbols) + 0.4 / n_symbols)
    mass = 1 / np.arange(1, n_symbols + 1) ** 1.5
    mild = np.stack([np.full(n_symbols, 0.7), np.full(n_symbols, 0.3)]) * mass / mass.sum()
    # Rare symbols give everything away, and the fitted law says that they give nothing.
    sharp = mild.copy()
    sharp[:, 8:] = np.stack([np.zeros(n_symbols - 8), mild[:, 8:].sum(axis=0)])
    truth = measure(np.asarray((mapping @ sharp.T).T))
    reference = make_reference(mild, mapping, mild.sum(axis=1), n, n)
    found = [
        bound_held_out_information(
            reference, rng.multinomial(n, sharp.ravel()).reshape(sharp.shape), miss
        )
        for _ in range(DRAWS)
    ]
    assert (np.array(found) < truth).sum() <= stats.binom.ppf(0.9999, DRAWS, miss)
    assert np.median(found) < 2 * truth + 0.02  # and is no triviality


def test_expect__of_one_private_value_nothing_is_revealed() -> None:
    """Values of `by` may have one alone, where 0 was divided by 0."""
    joint, mapping = np.full((1, 3), 1 / 3), sp.csc_array(np.eye(3))
    assert 0 <= expect_held_out_bound(joint, mapping, np.ones(1), 100, 100) < 0.2
    reference = make_reference(joint, mapping, np.ones(1), 100, 100)
    assert bound_held_out_information(reference, 100 * joint, 0.05) == 0.0


def test_bound__its_parts_share_the_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[float] = []

    def spend(*given: Any) -> float:
        spent.append(given[-1])
        return 0.0

    monkeypatch.setattr(held_out_information, "bound_mean", spend)
    monkeypatch.setattr(held_out_information, "_bound_divergence", spend)
    rng = np.random.default_rng(3)
    for _ in range(20):
        law, reference = draw_problem(rng, 2, 3)
        spent.clear()
        bound_held_out_information(reference, 100 * law, 0.1)
        assert len(spent) == (1 if reference.is_prior else 2)
        assert sum(spent) == pytest.approx(0.1)


def test_make_reference__is_the_prior_for_few_records_and_the_posteriors_for_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where much is told and all alike, the mean has no variance: it is worth its chance."""
    law, mapping = np.eye(4) / 4, sp.csc_array(0.7 * np.eye(4) + 0.075)
    found = [make_reference(law, mapping, law.sum(axis=1), n, n) for n in (4, 100_000)]
    assert [one.is_prior for one in found] == [True, False]
    truth = measure(np.asarray((mapping @ law.T).T))
    table = 25_000 * np.eye(4)
    bound = bound_held_out_information(found[1], table, 0.05)
    assert truth < bound < 1.002 * truth
    # By the prior alone the same records say much less.
    monkeypatch.setattr(held_out_information, "_SHRUNK", (np.inf,))
    prior = make_reference(law, mapping, law.sum(axis=1), 100_000, 100_000)
    assert bound_held_out_information(prior, table, 0.05) > 1.01 * truth
