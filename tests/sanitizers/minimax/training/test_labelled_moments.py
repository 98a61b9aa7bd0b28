"""One pass of moments: against numpy, over any cut and order of merging."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privpipe import Records
from privpipe.sanitizers.minimax.training import labelled_moments as labelled
from privpipe.sanitizers.minimax.training.labelled_moments import (
    LabelledMoments,
    measure_moments,
    measure_radius,
    summarise_labelled,
)

RNG = np.random.default_rng(0)
X = 1e4 + RNG.normal(size=(60, 4))
DESIRED = RNG.integers(0, 3, 60).astype(float)
NUMBER = X[:, 1] + RNG.normal(size=60)


def _check(moments: LabelledMoments) -> None:
    assert moments.count == 60
    np.testing.assert_allclose(moments.mean, X.mean(axis=0))
    np.testing.assert_allclose(moments.covariance, np.cov(X.T, bias=True), rtol=1e-9)
    classes, number = moments.labels
    np.testing.assert_array_equal(classes.values, [0, 1, 2])
    np.testing.assert_array_equal(classes.counts, np.bincount(DESIRED.astype(int)))
    for k in range(3):
        np.testing.assert_allclose(classes.means[k], X[DESIRED == k].mean(axis=0))
    assert number.mean == pytest.approx(NUMBER.mean())
    assert number.spread == pytest.approx(NUMBER.var() * 60)
    cross = (NUMBER - NUMBER.mean()) @ (X - X.mean(axis=0))
    np.testing.assert_allclose(number.cross, cross, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.randoms(use_true_random=False))
def test_summarise_labelled__does_not_depend_on_cut_or_order(n_shards: int, order: object) -> None:
    records = Records(X, desired=DESIRED, confidential=NUMBER, n_shards=n_shards)
    parts = [summarise_labelled(shard, records.schema) for shard in records.shards()]
    order.shuffle(parts)  # type: ignore[attr-defined]
    while len(parts) > 1:
        parts = [a.merge(b) for a, b in zip(parts[::2], parts[1::2], strict=False)] + (
            parts[-1:] if len(parts) % 2 else []
        )
    _check(parts[0])


def test_summarise_labelled__blocks_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelled, "BLOCK_BYTES", 0)
    x = np.vstack([X] * 10)
    records = Records(x, desired=np.tile(DESIRED, 10), confidential=np.tile(NUMBER, 10))
    moments = measure_moments(records)  # 256 rows a block
    assert moments.count == 600
    np.testing.assert_allclose(moments.covariance, np.cov(X.T, bias=True), rtol=1e-9)


def test_summarise_labelled__gives_up_classes_beyond_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(labelled, "MAX_CLASSES", 20)
    records = Records(X, desired=DESIRED, confidential=np.arange(60.0), n_shards=6)
    moments = measure_moments(records)
    assert not moments.labels[0].overflowed
    assert moments.labels[1].overflowed
    assert moments.labels[1].means.shape == (0, 4)
    assert moments.labels[1].mean == pytest.approx(29.5)


def test_measure_radius__is_of_complete_records_from_the_centre() -> None:
    number, x = NUMBER.copy(), X.copy()
    number[7], x[7] = np.nan, 1e9
    records = Records(x, desired=DESIRED, confidential=number, n_shards=4)
    centre = X.mean(axis=0)
    others = np.delete(X, 7, axis=0)
    found = measure_radius(records, centre)
    assert found == pytest.approx(np.linalg.norm(others - centre, axis=1).max(), rel=1e-9)
    assert found < 10
