"""Only the target: what is released, that nothing else is, and what follows no record."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe import Records, fit_target_only
from privpipe.capabilities import FollowsTarget
from privpipe.errors import InputError
from privpipe.sanitizers.null_space.target_only import TargetOnlyOptions


def draw(n: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Records of three classes along two directions, and a number along a third."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6))
    kinds = np.argmax(x[:, :3] + 0.1 * rng.normal(size=(n, 3)), axis=1)
    return x, kinds


def test_apply__is_the_class_of_the_largest_prediction() -> None:
    x, kinds = draw()
    fitted = fit_target_only(Records(x, desired=np.array(["a", "b", "c"])[kinds]))
    released = fitted.apply(x)
    assert released.shape == (600, 1)
    assert set(np.unique(released)) == {0.0, 1.0, 2.0}
    assert (released[:, 0] == kinds).mean() > 0.85
    scores = x @ fitted.predictor + fitted.intercept
    np.testing.assert_array_equal(released[:, 0], scores.argmax(axis=1))
    np.testing.assert_array_equal(fitted.apply(x[3]), released[3])


def test_apply__bins_are_about_equally_frequent_and_edges_are_of_no_record() -> None:
    x, _ = draw(4000)
    y = 3.0 + x @ np.arange(6.0) + np.random.default_rng(1).normal(size=4000)
    fitted = fit_target_only(Records(x, desired=y, n_shards=3), TargetOnlyOptions(n_bins=8))
    bins = fitted.apply(x)[:, 0]
    shares = np.bincount(bins.astype(int), minlength=8) / len(bins)
    assert np.abs(shares - 1 / 8).max() < 0.02
    number = fit_target_only(Records(x, desired=y)).apply(x)[:, 0]
    assert np.corrcoef(number, y)[0, 1] > 0.95
    assert not np.isin(fitted.edges, x @ fitted.predictor + fitted.intercept).any()


def test_apply__reveals_nothing_of_a_record_beside_its_prediction() -> None:
    """Low-order digits of numbers: records that differ off the predictor are released alike."""
    x, _ = draw()
    y = x[:, 0] - x[:, 1]
    fitted = fit_target_only(Records(x, desired=y))
    assert isinstance(fitted, FollowsTarget)
    basis = np.linalg.svd(fitted.predictor.T)[2][1:]
    moved = x + np.random.default_rng(2).normal(size=(600, 5)) @ basis
    same = fitted.predict_target(x) == fitted.predict_target(moved)
    assert same.mean() > 0.99  # but where a sum lies at the boundary of a step
    rows = same[:, 0]
    assert (fitted.apply(x)[rows].tobytes()) == fitted.apply(moved)[rows].tobytes()
    made = fitted.release_target(fitted.predict_target(x), x.dtype)
    assert made.tobytes() == fitted.apply(x).tobytes()


def test_fit__is_the_same_however_records_are_cut() -> None:
    x, kinds = draw()
    one, other = (
        fit_target_only(Records(x, desired=kinds.astype(str), n_shards=n)) for n in (1, 7)
    )
    np.testing.assert_allclose(one.predictor, other.predictor, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(one.apply(x), other.apply(x))


def test_fit__without_a_target_is_refused() -> None:
    x, _ = draw()
    with pytest.raises(InputError, match="desired"):
        fit_target_only(Records(x, confidential=x[:, 0]))
