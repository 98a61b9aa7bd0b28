"""Surrogates drawn on workers, one of which is killed: the bytes of this process alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import Client

from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.cleaning_pass import CleaningJob, draw_surrogates
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.sanitizers.masking.masking_model import MaskingModel
from privpipe.sanitizers.masking.surrogates import MaskingOptions, fit_masking
from privpipe.store.arrays.blocks import Receipt
from privpipe.store.arrays.layout import FEATURES, ArrayPlan
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.keyring.keys import make_partition_keys
from privpipe.store.models import digest_map, write_model
from privpipe.store.releases.release_writing import ReleasePlan, prepare_release
from tests.cluster.test_worker_loss import during
from tests.standard import write_standard

pytestmark = pytest.mark.slow

N_RECORDS = 40_000


def draw(
    executor: Executor, collection: Collection, model: MaskingModel, folder: Path, run: str
) -> list[Receipt]:
    """Draw all tiles into a place of their own; what the receipts say of the bytes."""
    url = str(folder / f"{run}.zarr")
    shape, rows = (model.n_records, model.n_features_out), model.tile_rows
    arrays = [ArrayPlan(FEATURES, shape, rows, "float64")]
    arrays += [ArrayPlan(name, shape[:1], rows, "float64") for name in model.response_names]
    plan = ReleasePlan(run, url, tuple(arrays))
    prepare_release(plan)
    write_model(model, str(folder / f"{run}.model.zarr"))
    digest = digest_map(model)
    partitions = collection.schema_of_records.partitions
    keys = make_partition_keys(partitions, digest, "0" * 64, run=run)
    job = CleaningJob(collection, plan, str(folder / f"{run}.model.zarr"), digest, keys=keys)
    found: list[Receipt] = []

    def record(receipts: Sequence[Receipt]) -> None:
        found.extend(receipts)

    draw_surrogates(executor, job, record)
    return [replace(one, run="", seconds=0.0) for one in found]


def test_draw_surrogates__on_workers_one_of_which_dies_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    write_standard(str(tmp_path / "records.zarr"), N_RECORDS, chunk_rows=2_000)
    collection = open_collection(str(tmp_path / "records.zarr"), desired="height")
    model = fit_masking(collection, MaskingOptions(n_surrogates=2_000))
    model = replace(model, tile_rows=1_024)
    expected = draw(Executor(), collection, model, tmp_path, "0000000a")
    assert len(expected) == 2
    with connect(ClusterOptions(workers=2, dashboard="127.0.0.1:0")) as client:
        executor = DaskExecutor(client)
        assert draw(executor, collection, model, tmp_path, "0000000b") == expected
        found = _draw_and_kill(client, collection, model, tmp_path)
    assert found == expected


def _draw_and_kill(
    client: Client, collection: Collection, model: MaskingModel, folder: Path
) -> list[Receipt]:
    action = lambda: draw(DaskExecutor(client), collection, model, folder, "0000000c")  # noqa: E731
    found: list[Receipt] = during(client, "sum_surrogates", action)
    return found
