"""Choices by the record itself: shares, independence of order and of the rest."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.numerics.random.record_hash import choose_share, identify_records

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


@pytest.mark.parametrize(
    "step", [1.0, 2.0**-149, 2.0**-52, 2.0**60, -1.0], ids=["1", "tiny", "ulp", "huge", "sign"]
)
def test_identify_records__tells_every_pair_of_records_apart(step: float) -> None:
    """Values that differ in few bits, at either end, in any column: the weak spots of a sum."""
    grid = np.stack(np.meshgrid(*[np.arange(17.0)] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    x = grid * step + (step == 2.0**-52)
    different = len(np.unique(x, axis=0))
    assert len(np.unique(identify_records(x))) == different
    shifted = np.hstack([np.zeros((len(x), 3)), x])  # the same values under other columns
    assert (
        len(
            np.unique(
                np.concatenate(
                    [
                        identify_records(shifted),
                        identify_records(np.hstack([x, np.zeros((len(x), 3))])),
                    ]
                )
            )
        )
        >= 2 * different - 17**2
    )


def test_identify_records__equal_values_are_equal_whatever_holds_them() -> None:
    x = np.random.default_rng(2).normal(size=(5000, 3)).astype(np.float32)
    words = identify_records(x)
    assert len(np.unique(words)) == len(x)
    np.testing.assert_array_equal(words, identify_records(np.asfortranarray(x, np.float64)))
    np.testing.assert_array_equal(words[::-7], identify_records(x[::-7]))
    assert identify_records(np.empty((0, 3))).shape == (0,)
    chances = np.bincount(words.astype(np.uint64) >> np.uint64(61), minlength=8) / len(x)
    assert np.abs(chances - 1 / 8).max() < 6 * np.sqrt(7 / 64 / len(x))
