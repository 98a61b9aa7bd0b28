"""The utility audit: every record above its budget is counted, withheld ones are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from privpipe import NullSpaceCleaner, Records, fit_null_space_cleaner
from privpipe.attacks.utility import UtilityLosses, measure_losses
from privpipe.capabilities import UtilityPromise
from privpipe.protocols import FloatArray, Shard
from tests.standard import make_standard

X = make_standard(1500, 6)[0]


@pytest.fixture(scope="module")
def cleaner() -> NullSpaceCleaner:
    x, v = make_standard(1500, 5)
    targets = np.column_stack([v["height"], v["late"]])
    return fit_null_space_cleaner(Records(x, desired=targets), utility_budget=0.05, ridge=1e-6)


def losses_of(released: FloatArray, promise: UtilityPromise) -> UtilityLosses:
    return measure_losses(Shard(X, released=released), promise=promise)


def test_measure_losses__finds_what_cleaning_spent(cleaner: NullSpaceCleaner) -> None:
    found = losses_of(cleaner.apply(X), UtilityPromise(cleaner.predictor, 0.05))
    assert found.n_records == 1500
    assert found.n_above == 0
    assert found.largest == pytest.approx(0.05, rel=1e-3)
    assert found.n_at_budget > 1000


def test_measure_losses__of_the_raw_records_is_nothing(cleaner: NullSpaceCleaner) -> None:
    found = losses_of(X, UtilityPromise(cleaner.predictor, 0.05))
    assert (found.total, found.largest, found.n_at_budget) == (0.0, 0.0, 0)


def test_measure_losses__counts_what_is_above(cleaner: NullSpaceCleaner) -> None:
    promise = UtilityPromise(cleaner.predictor, 0.05)
    assert losses_of(replace(cleaner, utility_budget=0.06).apply(X), promise).n_above > 1000
    one = cleaner.apply(X)
    one[7] += 1.0
    assert losses_of(one, promise).n_above == 1


def test_measure_losses__leaves_out_withheld_and_imputed_records() -> None:
    released = X.copy()
    released[3] = np.nan
    raw = X.copy()
    raw[5, 0] = np.inf
    predictor = np.ones((X.shape[1], 1))
    found = measure_losses(Shard(raw, released=released), promise=UtilityPromise(predictor, 1.0))
    assert found.n_records == 1498
    assert np.isfinite(found.total)


def test_measure_losses__appends_the_ones_that_released_records_have() -> None:
    released = np.hstack([X, np.full((len(X), 1), 3.0)])
    predictor = np.zeros((X.shape[1] + 1, 1))
    predictor[-1] = 1.0
    found = losses_of(released, UtilityPromise(predictor, 1.0))
    assert (found.largest, found.n_above) == (4.0, len(X))


def test_losses__merge_to_those_of_the_whole(cleaner: NullSpaceCleaner) -> None:
    promise, released = UtilityPromise(cleaner.predictor, 0.05), cleaner.apply(X)
    parts = [
        measure_losses(Shard(X[i::3], released=released[i::3]), promise=promise) for i in range(3)
    ]
    merged, whole = parts[0].merge(parts[1]).merge(parts[2]), losses_of(released, promise)
    assert merged.total == pytest.approx(whole.total, rel=1e-12)
    assert replace(merged, total=0.0) == replace(whole, total=0.0)


def test_losses__of_both_parts_are_above_when_merged() -> None:
    one, other = UtilityLosses(3, 1.0, 0.5, 1, 1), UtilityLosses(4, 2.0, 0.9, 3, 2)
    assert one.merge(other) == other.merge(one) == UtilityLosses(7, 3.0, 0.9, 4, 3)


def test_measure_losses__counts_at_the_budget_and_above_it_to_the_digit() -> None:
    """Losses of 1 - 2e-3, 1 - 5e-4, 1 and 1 + 2**-40 for a budget of 1."""
    change = np.array([[1 - 1e-3], [1 - 2.5e-4], [1.0], [1 + 2.0**-41]])
    shard = Shard(np.zeros((4, 1)), released=change)
    found = measure_losses(shard, promise=UtilityPromise(np.ones((1, 1)), 1.0))
    assert (found.n_at_budget, found.n_above) == (3, 1)


def test_losses__are_described_per_record() -> None:
    assert UtilityLosses(8, 4.0, 0.9, 6, 2).describe(0.75) == {
        "n_records": 8,
        "budget": 0.75,
        "mean": 0.5,
        "largest": 0.9,
        "share_at_budget": 0.75,
        "n_above_budget": 2,
    }
    assert UtilityLosses(0, 0.0, 0.0, 0, 0).describe(1.0)["mean"] == 0.0
