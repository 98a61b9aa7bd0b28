"""What a worker makes of chunks: withheld records hold nothing, and draws belong to the record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from flows.reproduce.laplace import LaplaceMechanism
from privpipe.cluster.passes.cleaning_pass import CleaningJob, clean_chunks
from privpipe.cluster.passes.loaded_map import release_records
from privpipe.protocols import FloatArray, RecordMap
from privpipe.records.schema import CollectionSchema, Partition, Variable
from privpipe.sanitizers.null_space.algorithms import NullSpaceCleaner
from privpipe.sanitizers.null_space.leace import LeaceEraser
from privpipe.sanitizers.null_space.linear_cleaner import FactoredCleaner
from privpipe.store.arrays.layout import FEATURES, RELEASED, ArrayPlan
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.writing import write_collection
from privpipe.store.keyring.keys import make_partition_keys
from privpipe.store.models import write_model
from privpipe.store.releases.release_writing import ReleasePlan, prepare_release

RUN, N_RECORDS, CHUNK_ROWS = "0a1b2c3d", 60, 20
PREDICTOR = np.array([[1.0], [-2.0], [0.5], [0.0]])


def make_records(dtype: str = "float64") -> FloatArray:
    """Chunk 1 has a record with a missing value, and one that is infinite throughout."""
    x = np.random.default_rng(0).normal(3, 1, (N_RECORDS, 4)).astype(dtype)
    x[27, 2], x[31] = np.nan, np.inf
    return x


def make_job(folder: Path, fitted: RecordMap, x: FloatArray, **changes: Any) -> CleaningJob:
    """Records of two partitions whose border is not one of chunks; the number as a variable."""
    schema = CollectionSchema(
        n_records=N_RECORDS,
        n_features=4,
        dtype=str(x.dtype),
        chunk_rows=CHUNK_ROWS,
        variables=(Variable("person", "int32"), Variable("size", "float64")),
        partitions=(Partition("one", 0, 26), Partition("two", 26, 34)),
    )
    numbers = np.arange(N_RECORDS)
    parts = [slice(start, start + CHUNK_ROWS) for start in range(0, N_RECORDS, CHUNK_ROWS)]
    source = str(folder / "records.zarr")
    write_collection(
        source,
        schema,
        (
            {FEATURES: x[rows], "person": numbers[rows].astype("i4"), "size": numbers[rows] / 2}
            for rows in parts
        ),
    )
    names = {"person": "int32", "size": "float64", RELEASED: "int8"}
    arrays = [ArrayPlan(name, (N_RECORDS,), CHUNK_ROWS, kind) for name, kind in names.items()]
    features = ArrayPlan(FEATURES, (N_RECORDS, fitted.n_features_out), CHUNK_ROWS, str(x.dtype))
    plan = ReleasePlan(RUN, str(folder / "release.zarr"), (features, *arrays))
    prepare_release(plan)
    model = str(folder / "model.zarr")
    job = CleaningJob(
        open_collection(source), plan, model, write_model(fitted, model), ("person", "size")
    )
    return replace(job, **changes)


def read(job: CleaningJob) -> dict[str, np.ndarray]:
    url, names = job.plan.data_url, [array.name for array in job.plan.arrays]
    return {name: np.asarray(zarr.open_array(url, path=name, mode="r")[...]) for name in names}


def make_maps() -> dict[str, RecordMap]:
    column = np.array([[1.0], [0.0], [0.0], [1.0]])
    return {
        "null_space": NullSpaceCleaner.from_predictor(PREDICTOR, utility_budget=0.1),
        "leace": LeaceEraser(np.full(4, 3.0), column / 2, column),
    }


@pytest.mark.parametrize("method", ["null_space", "leace"])
def test_clean_chunks__withhold_all_that_a_record_holds(tmp_path: Path, method: str) -> None:
    x, fitted = make_records(), make_maps()[method]
    job = make_job(tmp_path, fitted, x, nonfinite="withhold")
    receipts = clean_chunks(job, [0, 1, 2])
    lost = np.isin(np.arange(N_RECORDS), [27, 31])
    found = read(job)
    np.testing.assert_allclose(found[FEATURES][~lost], fitted.apply(x[~lost]), rtol=1e-12)
    np.testing.assert_array_equal(found["person"][~lost], np.flatnonzero(~lost))
    np.testing.assert_array_equal(found[RELEASED], ~lost)
    assert np.isnan(found[FEATURES][lost]).all()
    assert np.isnan(found["size"][lost]).all()
    assert (found["person"][lost] == -1).all()
    assert [receipt.withheld for receipt in receipts] == [0, 2, 0]
    if method == "null_space":
        assert [r.utility.n_records for r in receipts if r.utility] == [20, 18, 20]


def test_clean_chunks__withhold_what_the_map_withholds(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(3, 1, (N_RECORDS, 4)).astype(np.float32)
    x[45] = 3e38
    fitted = NullSpaceCleaner.from_predictor(PREDICTOR, utility_budget=0.1)
    job = make_job(tmp_path, replace(fitted, on_unrepresentable="withhold"), x)
    receipts = clean_chunks(job, [2])
    found = read(job)
    assert np.flatnonzero(found[RELEASED][40:] == 0).tolist() == [5]
    assert found["person"][45] == -1
    assert np.isnan(found["size"][45])
    assert receipts[0].withheld == 1


def test_clean_chunks__impute_the_values_that_are_missing(tmp_path: Path) -> None:
    x, fill = make_records(), np.array([5.0, 6.0, 7.0, 8.0])
    fitted = make_maps()["null_space"]
    job = make_job(tmp_path, fitted, x, nonfinite="impute", fill=fill)
    receipts = clean_chunks(job, [0, 1, 2])
    found, whole = read(job), np.where(np.isfinite(x), x, fill)
    np.testing.assert_allclose(found[FEATURES], fitted.apply(whole), rtol=1e-12)
    assert found[RELEASED].all()
    assert not any(receipt.withheld for receipt in receipts)


def test_clean_chunks__draw_by_partition_and_number_within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    fitted = LaplaceMechanism.from_predictor(PREDICTOR, utility_budget=1.0)
    x = make_records()
    job = make_job(tmp_path, fitted, x, nonfinite="withhold")
    parts = job.collection.schema_of_records.partitions
    keys = make_partition_keys(parts, "b" * 64, "c" * 64, run="1")
    job = replace(job, keys=keys)
    clean_chunks(job, [2])  # in any order, and again
    clean_chunks(job, [0, 1, 2])
    plain = np.where(np.isfinite(x).all(axis=1)[:, None], x, 0.0)
    expected = np.vstack(
        [
            fitted.apply(plain[:26], keys.stream(0, 26)),
            fitted.apply(plain[26:], keys.stream(26, 60)),
        ]
    )
    expected[[27, 31]] = np.nan  # and what is drawn for the others does not shift
    np.testing.assert_array_equal(read(job)[FEATURES], expected)


def test_release_records__are_records_in_any_layout() -> None:
    x = np.random.default_rng(0).normal(3, 1, (N_RECORDS, 4))
    cleaner = NullSpaceCleaner.from_predictor(PREDICTOR, utility_budget=0.1)
    dense = release_records(cleaner, x)
    factored = release_records(FactoredCleaner.of(cleaner, "float64"), x)
    np.testing.assert_allclose(factored, dense, rtol=1e-9)
