"""Noise belongs to a record: released bytes are the same however the collection is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr

from privpipe.cluster.executors.executor import LocalExecutor
from privpipe.cluster.passes.cleaning_pass import CleaningJob, clean_collection
from privpipe.protocols import FloatArray, RecordMap
from privpipe.sanitizers.composed.chain import Chain
from privpipe.sanitizers.null_space.laplace import LaplaceMechanism
from privpipe.store.arrays.layout import FEATURES, ArrayPlan
from privpipe.store.collections.collection import open_collection
from privpipe.store.keyring.partition_keys import make_partition_keys
from privpipe.store.models.artifacts import write_model
from privpipe.store.releases.release import ReleasePlan, prepare_release
from tests.store.keyring.test_partition_keys import CONTENT, OPTIONS, write

NOISE = LaplaceMechanism.from_predictor(np.eye(3)[:, :2], utility_budget=0.1)
MAPS: dict[str, Callable[[], RecordMap]] = {
    "laplace": lambda: NOISE,
    "chain": lambda: Chain((NOISE, NOISE), replace(NOISE.guarantee, number=0.2)),
}
STORED = {
    "chunks": (("monday", "tuesday"), 11),
    "small chunks": (("monday", "tuesday"), 5),
    "one chunk": (("monday", "tuesday"), 100),
    "another order": (("tuesday", "monday"), 11),
    "one more before": (("wednesday", "monday", "tuesday"), 7),
}


def release(
    folder: Path, noise: RecordMap, days: Sequence[str], chunk_rows: int
) -> dict[str, FloatArray]:
    """Released features by partition, of a run of its own."""
    folder.mkdir()
    partitions = write(folder / "records.zarr", days, chunk_rows)
    n = sum(part.n_records for part in partitions)
    arrays = (ArrayPlan(FEATURES, (n, 3), min(chunk_rows, n), "float64"),)
    run = f"{len(list(folder.parent.iterdir())):08x}"
    plan = ReleasePlan(run, str(folder / "release.zarr"), arrays)
    prepare_release(plan)
    digest = write_model(noise, str(folder / "model.zarr"))
    keys = make_partition_keys(partitions, digest, OPTIONS, run=run)
    collection = open_collection(str(folder / "records.zarr"))
    job = CleaningJob(collection, plan, str(folder / "model.zarr"), digest, keys=keys)
    clean_collection(LocalExecutor(), job, lambda _: None)
    released = np.asarray(zarr.open_array(plan.data_url, path=FEATURES, mode="r")[...])
    return {
        part.name: released[part.first_record : part.first_record + part.n_records]
        for part in partitions
    }


@pytest.mark.parametrize("kind", sorted(MAPS))
def test_release__has_the_noise_of_each_record(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    found = {name: release(tmp_path / name, MAPS[kind](), *how) for name, how in STORED.items()}
    first = found["chunks"]
    noise = np.concatenate([first[day] - CONTENT[day] for day in first])[:, :2]
    assert len(np.unique(noise)) == noise.size  # no word is drawn for two records
    for name, days in found.items():
        for day, expected in first.items():
            np.testing.assert_array_equal(days[day], expected, err_msg=f"{name}: {day}")
