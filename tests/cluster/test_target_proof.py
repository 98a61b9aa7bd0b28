"""Released rows are held to what the model makes of their target prediction, bit by bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows.reproduce.printed_cleaner import PrintedCleaner
from privpipe.capabilities import FollowsTarget
from privpipe.cluster.passes.evidence_sample import read_targets
from privpipe.cluster.passes.loaded_map import StoredMap
from privpipe.errors import GuaranteeError, PrivacyWarning
from privpipe.protocols import Shard
from privpipe.sanitizers.null_space.algorithms import NullSpaceCleaner, TargetedCleaner
from privpipe.sanitizers.null_space.linear_cleaner import FactoredCleaner
from privpipe.store.models import digest_map, write_model

RANDOM = np.random.default_rng(7)
DESIRED, SECRET = RANDOM.normal(size=(12, 3)), RANDOM.normal(size=(12, 2))


def make_cleaners(budget: float) -> list[NullSpaceCleaner | TargetedCleaner]:
    withhold = {"utility_budget": budget, "on_unrepresentable": "withhold"}
    spread = np.cov(RANDOM.normal(size=(12, 50)))
    return [
        NullSpaceCleaner.from_predictor(DESIRED, centre=SECRET[:, 0], **withhold),
        NullSpaceCleaner.from_predictor(
            DESIRED, representative="likely", covariance=spread, rule="kkt", **withhold
        ),
        NullSpaceCleaner.from_predictor(DESIRED, augmented=True, **withhold),
        TargetedCleaner.from_predictors(DESIRED, SECRET, variant="simultaneous", **withhold),
    ]


@pytest.mark.parametrize("budget", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_release_target__makes_every_released_row_of_the_prediction_alone(
    budget: float, dtype: type[np.floating]
) -> None:
    for cleaner in make_cleaners(budget):
        size = 10.0 ** RANDOM.uniform(-3, 4, size=(300, 1))
        x = (size * RANDOM.normal(size=(300, cleaner.n_features_in))).astype(dtype)
        values = cleaner.predict_target(x)
        assert values.shape == (300, 3)
        assert cleaner.release_target(values, dtype).tobytes() == cleaner.apply(x).tobytes()
        factored = FactoredCleaner.of(cleaner, dtype)
        lifted = factored.reconstruct(factored.apply(x))
        assert factored.release_target(values, dtype).tobytes() == lifted.tobytes()


def test_follows_target__is_not_said_of_the_printed_form() -> None:
    with pytest.warns(PrivacyWarning, match="printed form"):
        printed = PrintedCleaner.from_predictors(DESIRED, SECRET, utility_budget=0.01)
    assert not isinstance(printed, FollowsTarget)
    assert all(isinstance(one, FollowsTarget) for one in make_cleaners(0.01))


@pytest.fixture
def released(tmp_path: Path) -> tuple[Shard, StoredMap]:
    cleaner = NullSpaceCleaner.from_predictor(DESIRED, utility_budget=0.01)
    url = str(tmp_path / "model.zarr")
    write_model(cleaner, url)
    x = RANDOM.normal(size=(40, 12))
    made = cleaner.apply(x)
    made[3], x[3] = np.nan, np.nan
    return Shard(x, released=made), StoredMap(url, digest_map(cleaner))


def test_read_targets__stands_for_the_rows_that_are_held_to_it(
    released: tuple[Shard, StoredMap],
) -> None:
    found = read_targets(*released)
    assert found.shape == (40, 3)
    assert np.flatnonzero(np.isnan(found).any(axis=1)).tolist() == [3]


def test_read_targets__ends_the_run_over_a_single_bit(released: tuple[Shard, StoredMap]) -> None:
    shard, model = released
    shard.released.view(np.uint64)[[5, 7], 2] ^= 1  # what a secret in the last digit would be
    with pytest.raises(GuaranteeError, match="2 of 39 released rows") as caught:
        read_targets(shard, model)
    assert caught.value.code == "not-of-target"
