"""LEACE against its dense formula, its optimality, and an adversary that did learn before."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.linalg

from privpipe.errors import InputError, LeftOutWarning, PrivacyWarning
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
        # A contrast of 1e-6 may be erased by itself, also from two directions.
        assert eraser.left.shape[1] in ((2, 4) if near == 1e-6 else (2,))


def test_fit__needs_confidential_variables_and_records():
    x = make_features()
    with pytest.raises(InputError, match="no confidential variable"):
        fit_leace_eraser(Records(x))
    with pytest.raises(InputError, match="1 complete training records are too few"):
        fit_leace_eraser(Records(x[:1], confidential=x[:1, 0]))
    with (
        pytest.warns(LeftOutWarning),
        pytest.raises(InputError, match="0 complete training records are too few"),
    ):
        fit_leace_eraser(Records(x[:3], confidential=np.full(3, np.nan)))


def test_fit__erases_nothing_where_nothing_covaries():
    x = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    eraser = fit_leace_eraser(Records(x, confidential=np.array([1.0, -1.0, -1.0, 1.0])))
    assert eraser.left.shape == (2, 0)
    np.testing.assert_array_equal(eraser.apply(x), x)


def make_spans(size: float, offset: float = 0.0, within: float = 0.1):
    """Begin and end of something, whose duration tells the class, beside a feature that does."""
    rng = np.random.default_rng(0)
    z = rng.integers(0, 2, 2000)
    begin = offset + rng.normal(size=2000)
    end = begin + size * (z + within * rng.normal(size=2000))
    return np.column_stack([begin, end, rng.normal(size=2000) + z]), z


def correlate(values, z):
    """Correlation in extended precision; 0 of a constant."""
    wide = values.astype(np.longdouble) - values.astype(np.longdouble).mean()
    spread = np.sqrt((wide * wide).mean())
    return float(abs((wide * (z - z.mean())).mean())) / float(spread or 1) / z.std()


@pytest.mark.parametrize(
    ("size", "most"), [(1e-6, 1e-6), (1e-8, 1e-6), (1e-10, 1e-5), (1e-12, 1e-3), (1e-13, 0.05)]
)
def test_eraser__leaves_no_contrast_between_columns_that_are_nearly_equal(size, most):
    """Co-moments see 1e-7 of the spread; the promise is of every linear predictor."""
    x, z = make_spans(size)
    assert correlate(x[:, 1] - x[:, 0], z) > 0.9
    eraser = fit_leace_eraser(Records(x, confidential=z.astype(str), n_shards=3))
    released = eraser.apply(x)
    assert correlate(released[:, 1] - released[:, 0], z) < most
    assert max(correlate(column, z) for column in released.T) < 1e-8
    if size < 1e-7:  # large columns move as if the contrast were not there
        alone = fit_leace_eraser(Records(x[:, [0, 2]], confidential=z.astype(str), n_shards=3))
        np.testing.assert_allclose(released[:, [0, 2]], alone.apply(x[:, [0, 2]]), atol=1e-7)


def test_eraser__of_contrasts_of_several_sizes_beside_dependent_columns():
    """A contrast of 1e-12 beside one of 1e-8, shares that add up to one, copies, a constant."""
    rng = np.random.default_rng(1)
    z, noise = rng.integers(0, 3, 3000), rng.normal(size=(3000, 4))
    x = noise[:, :1] + np.column_stack(
        [np.zeros(3000), 1e-8 * (noise[:, 1] + (z == 0)), 1e-12 * (noise[:, 2] + (z == 1))]
    )
    more = [np.eye(4)[rng.integers(0, 4, 3000)], x[:, :1], np.full((3000, 1), 7.0), noise[:, 3:]]
    x = np.hstack([x, *more])
    eraser = fit_leace_eraser(Records(x, confidential=np.array(list("abc"))[z], n_shards=3))
    released = eraser.apply(x)
    for k in range(3):
        assert correlate(x[:, 1] - x[:, 0], z == 0) > 0.3
        assert correlate(released[:, 1] - released[:, 0], z == k) < 1e-4
        assert correlate(released[:, 2] - released[:, 0], z == k) < 1e-2
    # What depended on one another still does, to rounding.
    for weights in ([0, 0, 0, 1, 1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, -1, 0, 0]):
        assert np.ptp(released @ np.array(weights)) < 1e-13
    assert (released[:, 8] == 7.0).all()


def test_eraser__keeps_of_a_small_contrast_what_the_class_does_not_need():
    """It is not projected out: begin and end of something hold its duration."""
    x, z = make_spans(1e-8, within=3.0)
    released = fit_leace_eraser(Records(x, confidential=z.astype(str))).apply(x)
    before, after = (of[:, 1] - of[:, 0] for of in (x, released))
    assert np.corrcoef(before, after)[0, 1] > 0.9
    assert correlate(after, z) < 1e-6 < 0.1 < correlate(before, z)


def test_eraser__of_nearly_equal_columns_does_not_depend_on_shards_or_new_records():
    x, z = make_spans(1e-8, within=1.0)
    fitted = [fit_leace_eraser(Records(x, confidential=z.astype(str), n_shards=n)) for n in (1, 7)]
    one, seven = (eraser.apply(x) for eraser in fitted)
    np.testing.assert_allclose(one, seven, rtol=0, atol=1e-12)
    # Records whose columns are not nearly equal: the contrast moves itself, nothing else.
    apart = x + np.array([0.0, 1.0, 0.0])
    moved = fitted[0].apply(apart) - one
    assert np.abs(moved).max() < 2


def count_passes(x, z):
    """Passes that the fit takes."""
    records, asked = Records(x, confidential=z.astype(str)), []

    class Counted:
        n_records, schema = records.n_records, records.schema

        def reduce(self, ask):
            asked.append(ask)
            return records.reduce(ask)

    fit_leace_eraser(Counted())
    assert all(pickle.loads(pickle.dumps(ask)) for ask in asked)  # workers get them
    return len(asked)


def test_fit__takes_a_second_pass_only_where_features_are_dependent_or_nearly():
    x, z = make_spans(0.1)
    assert count_passes(x, z) == 1
    assert count_passes(np.column_stack([x, np.full(len(x), 3.0)]), z) == 1
    assert count_passes(np.column_stack([x, x[:, 0]]), z) == 2
    assert count_passes(make_spans(1e-9)[0], z) == 2


def test_fit__says_of_which_features_next_to_nothing_is_left():
    """A copy of the class was released as a constant whose last digits told it."""
    x, z = make_spans(0.1)
    x = np.column_stack([x, 3.3 * z + 5])
    with pytest.warns(PrivacyWarning, match="leaves next to nothing of feature_3, and"):
        fit_leace_eraser(Records(x, confidential=z.astype(str)))


@pytest.mark.parametrize("scale", [1e-140, 1e-163, 1e-300])
def test_eraser__erases_columns_whose_squares_are_below_float64(scale):
    """A column of 1e-163 was taken for a constant, and released as it is."""
    x, z = make_spans(0.1)
    x = np.column_stack([x, scale * (z + 0.3 * np.random.default_rng(5).normal(size=len(z)))])
    released = fit_leace_eraser(Records(x, confidential=z.astype(str))).apply(x)
    assert np.ptp(released[:, -1]) < 1e-12 * np.ptp(x[:, -1])


def test_fit__refuses_columns_whose_squares_are_beyond_float64():
    x, z = make_spans(0.1)
    with pytest.raises(InputError, match="Squares of a column are beyond float64"):
        fit_leace_eraser(Records(1e155 * x, confidential=z.astype(str)))
