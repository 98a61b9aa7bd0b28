"""What is tried where a release is refused: each rung can be fitted, and the last says least."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe import Records
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.ladder import N_BINS, identify, list_ladder

X = np.random.default_rng(0).normal(size=(300, 4))
TARGETS = {
    "number": (X[:, 0], {"variant": "equalised_odds", "n_bins": N_BINS}),
    "class": (np.where(X[:, 0] > 0, "yes", "no"), {"variant": "equalised_odds"}),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_list_ladder__ends_with_equalised_odds_and_numbers_in_bins(kind: str) -> None:
    target, last = TARGETS[kind]
    secret = np.where(X[:, 1] > 0, "a", "b")
    records = Records(X, desired=target, confidential=secret)
    rungs = [method for method, _ in list_ladder(records, X)]
    assert rungs[-2:] == [{"name": "target_only"}, {"name": "target_only"} | last]
    assert len({identify(rung) for rung in rungs}) == len(rungs) == 4
    for rung in rungs:
        row = METHODS[rung["name"]]
        assert identify(vars(row.options(**rung))) == identify(rung)
        assert row.fit(records, row.options(**rung)).n_features_in == 4


def test_list_ladder__of_nothing_confidential_equalises_nothing() -> None:
    rungs = [method for method, _ in list_ladder(Records(X, desired=X[:, 0]), X)]
    assert rungs[-1] == {"name": "target_only"}
    assert list(list_ladder(Records(X, confidential=X[:, 0]), X)) == []
