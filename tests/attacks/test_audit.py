"""The first audit: it sees a leak when there is one, and its sums do not depend on shards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privpipe import NullSpaceCleaner, Records, fit_null_space_cleaner
from privpipe.attacks.linear import find_coordinates, fit_linear_attack
from privpipe.attacks.rounds import audit_release
from privpipe.numerics.moments import CoMoments
from privpipe.protocols import FloatArray, Shard
from tests.standard import make_standard


class Paired(Records):
    """Records in memory with their released counterparts."""

    def __init__(self, features: FloatArray, released: FloatArray, **options: Any) -> None:
        super().__init__(features, **options)
        self._released = released

    def shards(self) -> Any:
        start = 0
        for shard in super().shards():
            stop = start + shard.n_records
            yield replace(shard, released=self._released[start:stop])
            start = stop


def audit(release: Any, n_shards: int = 1, seed: int = 5) -> dict[str, Any]:
    parts = []
    for part in range(3):
        x, v = make_standard(1500, seed + part)
        parts.append(
            Paired(
                x,
                release(x),
                desired=np.column_stack([v["height"], v["late"]]),
                confidential=v["income"],
                n_shards=n_shards,
            )
        )
    return audit_release(*parts, n_released=9, unit_roundoff=2.0**-53)


@pytest.fixture(scope="module")
def cleaner() -> NullSpaceCleaner:
    x, v = make_standard(1500, 5)
    targets = np.column_stack([v["height"], v["late"]])
    return fit_null_space_cleaner(Records(x, desired=targets), utility_budget=0.05, ridge=1e-6)


def test_audit__finds_nothing_in_cleaned_records(cleaner: NullSpaceCleaner) -> None:
    found = audit(cleaner.apply)
    assert found["confidential"]["confidential_0"]["raw"]["r2"] > 0.95
    assert found["confidential"]["confidential_0"]["released, attack retrained"]["r2"] < 0.1
    assert found["desired"]["desired_0"]["released"]["r2"] > 0.9


def test_audit__catches_an_identity_release(cleaner: NullSpaceCleaner) -> None:
    found = audit(lambda x: x)
    assert found["confidential"]["confidential_0"]["released, attack retrained"]["r2"] > 0.95


def test_audit__catches_a_wrong_sign(cleaner: NullSpaceCleaner) -> None:
    found = audit(lambda x: 2 * x - cleaner.apply(x))
    assert found["confidential"]["confidential_0"]["released, attack retrained"]["r2"] > 0.9


def test_audit__does_not_depend_on_shards(cleaner: NullSpaceCleaner) -> None:
    one, many = audit(cleaner.apply), audit(cleaner.apply, n_shards=11)
    for view, figures in one["desired"]["desired_1"].items():
        assert figures == pytest.approx(many["desired"]["desired_1"][view], rel=1e-9)
    assert one["privacy"]["released"]["e_privacy"] == pytest.approx(
        many["privacy"]["released"]["e_privacy"], rel=1e-9
    )


def test_find_coordinates__sees_the_rank_through_rounding(cleaner: NullSpaceCleaner) -> None:
    x, _ = make_standard(1500, 5)
    for dtype, unit in ((np.float64, 2.0**-53), (np.float32, 2.0**-24)):
        released = cleaner.apply(x.astype(dtype)).astype(np.float64)
        assert find_coordinates(CoMoments.of(released), 9, unit).shape == (9, 2)


def test_fit_linear_attack__survives_a_constant_release() -> None:
    rows = np.column_stack([np.full((50, 3), 2.5), np.arange(50.0)])
    attack = fit_linear_attack(CoMoments.of(rows), 3, 2.0**-53)
    assert np.array_equal(attack.coefficients, np.zeros((3, 1)))
    assert attack.intercept[0] == pytest.approx(24.5)


def test_shard__counts_its_records() -> None:
    assert Shard(np.zeros((4, 2))).n_records == 4
