"""Choices by the record itself: shares, independence of order and of the rest."""

from __future__ import annotations

import numpy as np

from privpipe.numerics.record_hash import choose_mask, choose_share

X = np.random.default_rng(0).normal(size=(20_000, 3))


def test_choose_share__chooses_the_share() -> None:
    for share in (0.0, 0.1, 0.5, 1.0):
        # Binomial: 6 standard deviations fail by chance once in 5e8 tables of seeds.
        assert abs(choose_share(X, share).mean() - share) <= 6 * np.sqrt(share * (1 - share) / 2e4)


def test_choose_share__looks_at_one_record_at_a_time() -> None:
    order = np.random.default_rng(1).permutation(len(X))
    np.testing.assert_array_equal(choose_share(X, 0.3)[order], choose_share(X[order], 0.3))
    assert choose_share(np.array([[0.0, 1.0]]), 0.5) == choose_share(np.array([[-0.0, 1.0]]), 0.5)


def test_choose_share__differs_with_seed_and_order_of_values() -> None:
    a, b = choose_share(X, 0.5), choose_share(X, 0.5, seed=1)
    assert 0.45 < (a == b).mean() < 0.55
    c = choose_share(X[:, ::-1], 0.5)
    assert 0.45 < (a == c).mean() < 0.55


def test_choose_mask__entries_are_like_coins() -> None:
    mask = choose_mask(X, 3, 0.2, seed=5)
    assert abs(mask.mean() - 0.2) < 6 * np.sqrt(0.16 / mask.size)
    assert np.abs(np.corrcoef(mask.T) - np.eye(3)).max() < 6 / np.sqrt(len(X))
    equal = choose_mask(np.zeros((1, 2)), 64, 0.5)
    assert 8 < equal.sum() < 56  # equal values of a record are not all erased together
