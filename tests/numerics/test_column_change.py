"""What changed per column: the same numbers as NumPy has of the whole, whatever the chunks."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.numerics.column_change import ColumnChange


@pytest.mark.parametrize("cuts", [(), (1,), (100, 101, 350)])
def test_column_change__is_numpy_s_of_the_whole(cuts: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    before = rng.normal(size=(500, 4)) + 1e6
    after = before + rng.normal(size=(500, 4)) * [0, 1, 5, 0]
    after[:, 3] = 2.0
    parts = zip(np.split(before, cuts), np.split(after, cuts), strict=True)
    total = ColumnChange.of(np.empty((0, 4)), np.empty((0, 4)))
    for x, y in parts:
        total = total.merge(ColumnChange.of(x, y))
    for j in range(3):
        expected = np.corrcoef(before[:, j], after[:, j])[0, 1]
        assert total.correlation[j] == pytest.approx(expected, abs=1e-9)
    assert np.isnan(total.correlation[3])
    np.testing.assert_allclose(total.spread, after.std(axis=0) / before.std(axis=0), atol=1e-9)
    step = (after.mean(axis=0) - before.mean(axis=0)) / before.std(axis=0)
    np.testing.assert_allclose(total.shift, step, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(total.share_same, [1, 0, 0, 0])


def test_column_change__leaves_incomplete_records_out() -> None:
    before, after = np.array([[1.0], [2.0], [3.0]]), np.array([[1.0], [np.nan], [4.0]])
    total = ColumnChange.of(before, after)
    assert total.n_records == 2
    assert total.share_same[0] == 0.5
