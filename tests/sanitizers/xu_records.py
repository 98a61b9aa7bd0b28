"""Records for the tests of null-space cleaning: every branch of a formula has data of its own."""

from __future__ import annotations

import numpy as np

from privpipe.records.memory import Records


def make_features(n_records=240, seed=3):
    """Seven features of different means and scales, none of them dependent."""
    rng = np.random.default_rng(seed)
    scale = np.array([1, 5, 0.1, 1, 2, 1, 30.0])
    return rng.normal(size=(n_records, 7)) * scale + [0, 3, -2, 0, 1, 10, -40]


def make_labels(x, seed=4):
    """Two desired and two confidential columns, of different means, told by different features."""
    noise = np.random.default_rng(seed).normal(size=(len(x), 4))
    desired = np.column_stack([x[:, 0] + 0.2 * x[:, 1], x[:, 3] - x[:, 4] + 50])
    secret = np.column_stack([x[:, 0] - x[:, 5] - 7, x[:, 4] + 0.05 * x[:, 6]])
    return desired + 0.1 * noise[:, :2], secret + 0.1 * noise[:, 2:]


def make_records(n_records=240, n_shards=4, **changes):
    x = make_features(n_records)
    desired, secret = make_labels(x)
    return Records(x, **{"desired": desired, "confidential": secret, **changes}, n_shards=n_shards)


def make_deficient(n_records=240):
    """The same with a constant feature and a feature that is the sum of two others."""
    x = make_features(n_records)
    desired, secret = make_labels(x)
    wide = np.column_stack([x, np.full(len(x), 7.0), x[:, 0] + x[:, 1]])
    return Records(wide, desired=desired, confidential=secret, n_shards=3)
