"""Cleaning on workers: receipts, chunkings, two runs at once, bounded memory."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import zarr
from distributed import Client

from privpipe.cluster.executors.dask_executor import IN_FLIGHT_PER_THREAD, DaskExecutor
from privpipe.cluster.passes.cleaning_pass import CleaningJob, clean_collection
from privpipe.errors import FormatError
from privpipe.records.memory import Records
from privpipe.sanitizers.null_space.algorithms import NullSpaceCleaner, fit_null_space_cleaner
from privpipe.store.arrays.blocks import Receipt, check_receipts
from privpipe.store.arrays.layout import FEATURES, ArrayPlan
from privpipe.store.collections.collection import open_collection
from privpipe.store.models import write_model
from privpipe.store.releases.release_writing import ReleasePlan, prepare_release
from tests.standard import make_standard, write_standard


def fitted(n: int = 400) -> NullSpaceCleaner:
    x, variables = make_standard(n)
    return fit_null_space_cleaner(
        Records(x, desired=variables["height"]), utility_budget=0.5, ridge=1e-6
    )


def make_job(folder: Path, run: str, n_records: int, chunk_rows: int, seed: int = 0) -> CleaningJob:
    source = str(folder / f"{run}.zarr")
    schema = write_standard(source, n_records, chunk_rows=chunk_rows, seed=seed)
    plan = ReleasePlan(
        run,
        str(folder / f"{run}-release.zarr"),
        (
            ArrayPlan(FEATURES, (n_records, 9), schema.chunk_rows, "float64"),
            ArrayPlan("person", (n_records,), schema.chunk_rows, "int32"),
        ),
    )
    prepare_release(plan)
    model = str(folder / f"{run}-model.zarr")
    digest = write_model(fitted(), model)
    return CleaningJob(open_collection(source), plan, model, digest, include=("person",))


def clean(client: Client, job: CleaningJob, **options: frozenset[int]) -> list[Receipt]:
    receipts: list[Receipt] = []
    clean_collection(DaskExecutor(client, job.plan.run), job, receipts.extend, **options)
    return receipts


def read(job: CleaningJob, name: str = FEATURES) -> np.ndarray:
    return np.asarray(zarr.open_array(job.plan.data_url, path=name, mode="r")[...])


@pytest.mark.parametrize("chunk_rows", [7, 64, 1000])
def test_clean_collection__gives_the_same_for_any_chunking(
    client: Client, tmp_path: Path, chunk_rows: int
) -> None:
    job = make_job(tmp_path, f"1000{chunk_rows:04d}", 300, chunk_rows)
    receipts = clean(client, job)
    x, _ = make_standard(300)
    np.testing.assert_allclose(read(job), fitted().apply(x), rtol=1e-12, atol=1e-12)
    assert np.array_equal(read(job, "person"), np.arange(300))
    check_receipts(receipts, job.plan.arrays, job.plan.run)


def test_clean_collection__skips_what_is_done(client: Client, tmp_path: Path) -> None:
    job = make_job(tmp_path, "20000001", 300, 20)
    receipts = clean(client, job, done=frozenset(range(0, 15, 2)))
    assert sorted(receipt.chunk for receipt in receipts) == list(range(1, 15, 2))
    assert np.isnan(read(job)[:20]).all()


def test_clean_collection__two_runs_at_once_do_not_mix(client: Client, tmp_path: Path) -> None:
    jobs = [make_job(tmp_path, f"3000000{i}", 200, 10, seed=i) for i in range(2)]
    results: dict[str, list[Receipt]] = {}

    def work(job: CleaningJob) -> None:
        results[job.plan.run] = clean(client, job)

    threads = [threading.Thread(target=work, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, job in enumerate(jobs):
        assert {receipt.run for receipt in results[job.plan.run]} == {job.plan.run}
        np.testing.assert_allclose(
            read(job), fitted().apply(make_standard(200, seed)[0]), rtol=1e-12, atol=1e-12
        )


@pytest.mark.slow
def test_clean_collection__keeps_few_tasks_on_the_scheduler(client: Client, tmp_path: Path) -> None:
    job = make_job(tmp_path, "40000001", 2000, 5)
    most = 0

    def record(receipts: list[Receipt]) -> None:
        nonlocal most
        keys = client.run_on_scheduler(
            lambda dask_scheduler: [k for k in dask_scheduler.tasks if "40000001" in str(k)]
        )
        most = max(most, len(keys))

    clean_collection(DaskExecutor(client, job.plan.run), job, record)
    threads = sum(client.nthreads().values())
    assert 1 < most <= threads * IN_FLIGHT_PER_THREAD + 1


def test_clean_collection__refuses_another_model(client: Client, tmp_path: Path) -> None:
    job = make_job(tmp_path, "50000001", 100, 10)
    other = CleaningJob(job.collection, job.plan, job.model_url, "0" * 64, job.include)
    with pytest.raises(FormatError, match="not the one of this run"):
        clean(client, other)


@pytest.mark.slow
def test_clean_collection__memory_does_not_grow_with_the_collection(
    client: Client, tmp_path: Path
) -> None:
    def peak(run: str, n_records: int) -> int:
        job = make_job(tmp_path, run, n_records, 2000)
        client.run(_reset_peak)
        clean(client, job)
        return max(client.run(_read_peak).values())

    small = peak("60000001", 40_000)
    large = peak("60000002", 400_000)
    # Four chunks of allowance; ten times the records are 180 more of them.
    assert large < small + 4 * 2000 * 9 * 8 + 16 * 2**20


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _read_peak() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
