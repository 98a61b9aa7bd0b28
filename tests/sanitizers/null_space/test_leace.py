"""LEACE against its dense formula, its optimality, and an adversary that did learn before."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

from privpipe.errors import InputError
from privpipe.records.memory import Records
from privpipe.sanitizers.null_space.leace import fit_leace_eraser
from tests.sanitizers.xu_records import make_deficient, make_features, make_labels, make_records


def test_eraser__is_the_published_formula():
    x = make_features()
    _, secret = make_labels(x)
    covariance = np.cov(x.T, bias=True)
    root = scipy.linalg.sqrtm(covariance).real
    w = np.linalg.inv(root)
    cross = (x - x.mean(axis=0)).T @ (secret - secret.mean(axis=0)) / len(x)
    u = np.linalg.svd(w @ cross, full_matrices=False)[0]
    projection = np.eye(7) - root @ u @ u.T @ w
    expected = (x - x.mean(axis=0)) @ projection.T + x.mean(axis=0)
    eraser = fit_leace_eraser(make_records())
    np.testing.assert_allclose(eraser.apply(x), expected, atol=1e-9 * np.abs(x).max())


@pytest.mark.parametrize("make", [make_records, make_deficient])
def test_eraser__leaves_no_covariance_and_is_idempotent(make):
    records = make()
    x = np.concatenate([shard.features for shard in records.shards()])
    _, secret = make_labels(x[:, :7])
    eraser = fit_leace_eraser(records)
    released = eraser.apply(x)
    left = (released - released.mean(axis=0)).T @ (secret - secret.mean(axis=0)) / len(x)
    sizes = np.outer(x.std(axis=0) + 1e-9, secret.std(axis=0))
    assert np.abs(left / sizes).max() < 1e-10
    np.testing.assert_allclose(eraser.apply(released), released, atol=1e-9 * np.abs(x).max())
    np.testing.assert_allclose(released.mean(axis=0), x.mean(axis=0), rtol=1e-9, atol=1e-9)
    assert np.linalg.matrix_rank(eraser.left) == 2


def test_eraser__changes_records_less_than_any_other_projection_that_erases():
    x = make_features()
    _, secret = make_labels(x)
    eraser = fit_leace_eraser(make_records())
    changed = ((eraser.apply(x) - x) ** 2).mean(axis=0)
    centred = x - x.mean(axis=0)
    cross = centred.T @ (secret - secret.mean(axis=0))
    rng = np.random.default_rng(0)
    for _ in range(30):
        right = eraser.right + 0.3 * np.abs(eraser.right).max() * rng.normal(size=(7, 2))
        other = cross @ np.linalg.solve(right.T @ cross, right.T)
        assert np.abs((np.eye(7) - other) @ cross).max() < 1e-6 * np.abs(cross).max()
        # Least squares in every feature at once, not only in their sum.
        assert (((centred @ other.T) ** 2).mean(axis=0) >= changed * (1 - 1e-9)).all()


def test_adversary__succeeds_before_and_fails_after():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 6))
    z = np.array(["no", "yes"])[(x[:, 0] + x[:, 3] + 0.3 * rng.normal(size=4000) > 0).astype(int)]
    eraser = fit_leace_eraser(Records(x[:2000], confidential=z[:2000], n_shards=3))

    def hit_rate(features):
        rows = np.column_stack([features, np.ones(len(features))])
        truth = z == "yes"
        fitted = np.linalg.lstsq(rows[:2000], truth[:2000].astype(float), rcond=1e-10)[0]
        return ((rows[2000:] @ fitted > 0.5) == truth[2000:]).mean()

    assert hit_rate(x) > 0.9
    assert hit_rate(eraser.apply(x)) < 0.55


@pytest.mark.parametrize("near", [0.0, 1e-6, 1e-4])
@pytest.mark.parametrize("n_features", [4, 9, 40])
def test_eraser__of_three_classes_has_rank_two_on_every_processor(n_features, near):
    """The three columns of the classes add up to zero: a third direction is rounding."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(1000, n_features)) * np.exp(2 * rng.normal(size=n_features))
        x[:, -1] = x[:, 0] + near * rng.normal(size=1000)
        z = np.digitize(x[:, 0] + x[:, 1] + 0.3 * rng.normal(size=1000), [-0.5, 0.5])
        eraser = fit_leace_eraser(Records(x, confidential=np.array(list("abc"))[z], n_shards=4))
        assert eraser.left.shape[1] == 2


def test_fit__needs_confidential_variables_and_records():
    x = make_features()
    with pytest.raises(InputError, match="no confidential variable"):
        fit_leace_eraser(Records(x))
    with pytest.raises(InputError, match="1 complete training records are too few"):
        fit_leace_eraser(Records(x[:1], confidential=x[:1, 0]))


def test_fit__erases_nothing_where_nothing_covaries():
    x = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    eraser = fit_leace_eraser(Records(x, confidential=np.array([1.0, -1.0, -1.0, 1.0])))
    assert eraser.left.shape == (2, 0)
    np.testing.assert_array_equal(eraser.apply(x), x)
