"""What every fit says: the same variable kept and hidden, and records without a label."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from privpipe import Records
from privpipe.errors import LeftOutWarning, PrivacyWarning
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.options import make_options

MORE = {
    "null_space": {"utility_budget": 0.1},
    "null_space_targeted": {"utility_budget": 0.1},
    "pca": {"n_filtered": 1},
    "rand": {"n_filtered": 1},
    "minimax": {"max_iterations": 1},
    "minimax_neural": {"max_iterations": 1},
    "minimax_own": {
        "filter": "Convolution",
        "module": str(Path(__file__).parents[1] / "examples" / "convolution.py"),
        "settings": {"axes": 1, "width": 2, "kernels": 2},
        "max_iterations": 1,
    },
    "noisy": {
        "epsilon": 1.0,
        "threshold": 1.0,
        "centre": False,
        "allow_data_bound": True,
        "filter": {"name": "minimax", "max_iterations": 1},
    },
    "privacy_mapping": {"attributes": ("a", "b"), "private": ("s",), "distortion_budget": 0.2},
    "masking": {"n_surrogates": 20, "threshold": 2.2},
    "masking_private": {
        "epsilon": 9.0,
        "delta": 1e-3,
        "n_surrogates": 20,
        "bound": {"*": (-9.0, 9.0)},
    },
}
ROWS = [name for name in METHODS if name != "privacy_mapping"]
WITH_LABELS = [name for name in ROWS if name not in ("pca", "rand")]


def fit(name, records):
    method = METHODS[name]
    options = make_options(method.options, {"name": name, **MORE.get(name, {})}, name)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        method.fit(records, options)
    return said


def make(n=120):
    x = np.random.default_rng(5).normal(size=(n, 4))
    return x, x[:, 0] + x[:, 1] > 0, x[:, 2] > 0


@pytest.mark.parametrize("name", ROWS)
def test_fit__warns_where_desired_is_confidential(name):
    x, kept, hidden = make()
    told = [w for w in fit(name, Records(x, desired=kept, confidential=kept)) if "share" in str(w)]
    assert told
    assert all(issubclass(w.category, PrivacyWarning) for w in told)
    assert not [
        w for w in fit(name, Records(x, desired=kept, confidential=hidden)) if "share" in str(w)
    ]


@pytest.mark.parametrize("name", WITH_LABELS)
def test_fit__counts_records_without_a_label(name):
    x, kept, hidden = make()
    hidden = hidden.astype(float)
    hidden[:7] = np.nan
    kept = kept.astype(float)
    if name != "leace":
        kept[:7] = np.nan
    records = Records(
        x, desired=kept, confidential=hidden, categorical=("desired", "confidential"), n_shards=3
    )
    told = [w for w in fit(name, records) if issubclass(w.category, LeftOutWarning)]
    assert told
    assert all("7 of 120 records have no" in str(w.message) for w in told)


@pytest.mark.parametrize("n_missing", [0, 7])
def test_fit__of_a_privacy_mapping_counts_records_without_a_private_label(n_missing):
    random = np.random.default_rng(3)
    hidden = random.integers(0, 2, 120).astype(float)
    hidden[:n_missing] = np.nan
    records = Records(
        np.zeros((120, 1)),
        attributes=random.integers(0, 3, (120, 2)),
        confidential=hidden,
        categorical=("confidential",),
        n_shards=3,
    )
    told = [w for w in fit("privacy_mapping", records) if issubclass(w.category, LeftOutWarning)]
    assert len(told) == (n_missing > 0)
    assert all("7 of 120 records have no private label" in str(w.message) for w in told)
