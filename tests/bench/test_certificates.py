"""Shuffled labels leave an adversary nothing but chance."""

import numpy as np

from tests.bench.certificates import shuffle_within


def test_shuffled_labels__keep_the_counts_of_every_target_and_nothing_else() -> None:
    target, private = np.arange(600) % 3, (np.arange(600) // 3) % 2
    private[target == 0] = 1
    mixed = shuffle_within(private, target, 0)
    for one in range(3):
        assert mixed[target == one].sum() == private[target == one].sum()
    assert 100 < (mixed != private).sum() < 300
