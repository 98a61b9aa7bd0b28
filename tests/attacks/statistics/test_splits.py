"""Splits: disjoint, complete, stratified, and never through a group."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from privpipe.attacks.statistics.splits import RecordSplit, draw_rows, draw_split
from privpipe.errors import InputError


def check_partition(split: RecordSplit, rows: np.ndarray) -> None:
    joined = np.concatenate([split.train, split.tune, split.test])
    np.testing.assert_array_equal(np.sort(joined), rows)


@settings(deadline=None)  # shared machines are slow now and then
@given(n=st.integers(20, 300), n_classes=st.integers(1, 4), seed=st.integers(0, 99))
def test_draw_split__divides_every_class_in_the_shares(n: int, n_classes: int, seed: int) -> None:
    classes = np.random.default_rng(seed).integers(0, n_classes, n)
    assume(np.unique(classes, return_counts=True)[1].min() >= 4)  # fewer are refused, rightly
    rows = np.arange(1000, 1000 + n)
    split = draw_split(rows, classes=classes, seed=seed)
    check_partition(split, rows)
    for k in range(n_classes):
        size = np.count_nonzero(classes == k)
        assert abs(np.count_nonzero(classes[split.test - 1000] == k) - 0.3 * size) <= 1
        assert abs(np.count_nonzero(classes[split.train - 1000] == k) - 0.5 * size) <= 1


@settings(deadline=None)  # shared machines are slow now and then
@given(n_groups=st.integers(12, 40), seed=st.integers(0, 99))
def test_draw_split__keeps_groups_whole(n_groups: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_groups), random.integers(1, 9, n_groups))
    classes = random.integers(0, 2, len(groups))
    split = draw_split(np.arange(len(groups)), classes=classes, groups=groups, seed=seed)
    check_partition(split, np.arange(len(groups)))
    parts = [set(groups[part]) for part in (split.train, split.tune, split.test)]
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert set(classes[split.train]) == set(classes[split.test]) == {0, 1}


def test_draw_split__depends_on_its_seed_alone() -> None:
    first, again, other = (draw_split(np.arange(50), seed=seed).test for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_draw_split__refuses() -> None:
    with pytest.raises(InputError, match="2 records"):
        draw_split(np.arange(2), seed=0)
    with pytest.raises(InputError, match="every class in both train"):
        # The second class lives in one group: no split by group holds it on both sides.
        draw_split(np.arange(40), classes=np.arange(40) // 36, groups=np.arange(40) // 4, seed=0)


def test_draw_rows__keeps_shares_and_every_class() -> None:
    classes = np.repeat([0, 1, 2], [700, 299, 1])
    drawn = draw_rows(np.arange(1000), classes, 100, seed=3)
    assert len(np.unique(drawn)) == 100
    assert np.bincount(classes[drawn])[2] == 1
    assert abs(np.bincount(classes[drawn])[0] - 70) <= 1
    np.testing.assert_array_equal(draw_rows(np.arange(9), None, 9, seed=0), np.arange(9))
    assert len(draw_rows(np.arange(9), None, 4, seed=0)) == 4
