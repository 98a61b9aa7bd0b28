"""Noise belongs to a record: released bytes are the same however the collection is stored.

And whoever works: one process, or several workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from distributed import Client

from flows.reproduce.laplace import LaplaceMechanism
from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.cleaning_pass import CleaningJob, clean_collection
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.protocols import FloatArray, RecordMap
from privpipe.records.memory import Records
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.chain import Chain
from privpipe.sanitizers.options import make_options
from privpipe.store.arrays.layout import FEATURES, ArrayPlan
from privpipe.store.collections.collection import open_collection
from privpipe.store.keyring.keys import make_partition_keys
from privpipe.store.models import write_model
from privpipe.store.releases.release_writing import ReleasePlan, prepare_release
from tests.store.keyring.test_partition_keys import CONTENT, OPTIONS, write

NOISE = LaplaceMechanism.from_predictor(np.eye(3)[:, :2], utility_budget=0.1)
MAPS: dict[str, Callable[[], RecordMap]] = {
    "laplace": lambda: NOISE,
    "chain": lambda: Chain((NOISE, NOISE), replace(NOISE.guarantee, number=0.2)),
}
NOISY = {
    "discrete, alone": {"noise": "discrete"},
    "signs, behind a filter": {"noise": "privunit", "filter": {"name": "pca", "n_filtered": 2}},
    "certified, behind a filter": {"filter": {"name": "pca", "n_filtered": 2}},
    "certified, behind a filter of one's own kind": {
        "filter": {"name": "minimax_neural", "n_hidden": [3, 2], "max_iterations": 1}
    },
    "before a filter": {
        "filter": {"name": "pca", "n_filtered": 2},
        "order": "noise_then_filter",
        "noise": "discrete",
    },
}
"""Options of noisy filters: what each record goes through differs, its bytes may not."""

STORED = {
    "chunks": (("monday", "tuesday"), 11),
    "small chunks": (("monday", "tuesday"), 5),
    "one chunk": (("monday", "tuesday"), 100),
    "another order": (("tuesday", "monday"), 11),
    "one more before": (("wednesday", "monday", "tuesday"), 7),
}


def release(
    folder: Path,
    noise: RecordMap,
    days: Sequence[str],
    chunk_rows: int,
    executor: Executor | None = None,
) -> dict[str, FloatArray]:
    """Released features by partition, of a run of its own."""
    folder.mkdir()
    partitions = write(folder / "records.zarr", days, chunk_rows)
    n = sum(part.n_records for part in partitions)
    width = noise.n_features_out
    arrays = (ArrayPlan(FEATURES, (n, width), min(chunk_rows, n), "float64"),)
    run = f"{len(list(folder.parent.iterdir())):08x}"
    plan = ReleasePlan(run, str(folder / "release.zarr"), arrays)
    prepare_release(plan)
    digest = write_model(noise, str(folder / "model.zarr"))
    keys = make_partition_keys(partitions, digest, OPTIONS, run=run)
    collection = open_collection(str(folder / "records.zarr"))
    job = CleaningJob(collection, plan, str(folder / "model.zarr"), digest, keys=keys)
    clean_collection(executor or Executor(), job, lambda _: None)
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


def fit_noisy(**given: object) -> RecordMap:
    """A noisy filter of other records of the same features."""
    x = np.random.default_rng(5).normal(size=(80, 3))
    public = Records(x, desired=x[:, 0] > 0, confidential=x[:, 1] > 0, public=True)
    method = METHODS["noisy"]
    return method.fit(public, make_options(method.options, {"name": "noisy", **given}, "noisy"))


@pytest.mark.parametrize("kind", NOISY)
def test_noisy_release__has_the_bytes_of_each_record(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four chunkings, and partitions in another order or with one more before them."""
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    noisy = fit_noisy(epsilon=1.0, **NOISY[kind])
    stored = STORED | {"other chunks": (("monday", "tuesday"), 17)}
    found = {name: release(tmp_path / name, noisy, *how) for name, how in stored.items()}
    first = found["chunks"]
    assert len(np.unique(np.concatenate([*first.values()]), axis=0)) == 42  # nobody has another's
    for name, days in found.items():
        for day, expected in first.items():
            assert days[day].tobytes() == expected.tobytes(), (name, day)


N_WORKERS = (1, 3) if os.environ.get("PRIVPIPE_FULL_PROOFS") else ()
"""Clusters of their own; that of all tests of this room has two workers."""


@pytest.mark.slow
def test_noisy_release__is_the_same_whoever_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    noisy = fit_noisy(epsilon=1.0, filter={"name": "pca", "n_filtered": 2})
    how = STORED["small chunks"]
    here = release(tmp_path / "here", noisy, *how)
    found = [release(tmp_path / "two", noisy, *how, DaskExecutor(client))]
    for n in N_WORKERS:
        with connect(ClusterOptions(workers=n, dashboard="127.0.0.1:0")) as own:
            found.append(release(tmp_path / str(n), noisy, *how, DaskExecutor(own)))
    for days in found:
        for day, expected in here.items():
            assert days[day].tobytes() == expected.tobytes()
