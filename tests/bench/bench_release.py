"""What the safety of a release costs: resuming after a kill, receipts and checksums.

``python -m tests.bench.bench_release``. Everything runs in one process, without a cluster whose
start would be counted; ratios are of times measured in one run.
"""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path
from statistics import median

import pytest

from flows.demo import N_ORIGINALS, write_digits
from flows.options import RunOptions
from privpipe.store import blocks
from privpipe.store.blocks import Receipt, measure_object, read_block
from privpipe.store.collection import open_collection
from privpipe.store.layout import FEATURES, ArrayPlan
from privpipe.store.location import open_store
from privpipe.store.release import ReleasePlan, find_damaged, prepare_release, record_receipts
from tests.store.serial_run import run_serially, serial_flows

Row = tuple[str, float, str, str, float, float]


class StoppedError(BaseException):
    """The run has reached its half time; like a kill, nothing on the way handles it."""


def run(small: bool) -> list[Row]:
    """Rows of name, value, unit, reference, reference value, ratio."""
    with tempfile.TemporaryDirectory(prefix="bench-release-") as folder:
        source = str(Path(folder) / "digits.zarr")
        with pytest.MonkeyPatch.context() as patch:
            if small:
                patch.setattr("flows.demo.plan_chunk_rows", lambda *_: 512)
            write_digits(source, N_ORIGINALS * (4 if small else 600))
        return [
            *_measure_receipts(source, folder, 3 if small else 15),
            *_measure_resume(source, folder),
        ]


def _measure_resume(source: str, folder: str) -> list[Row]:
    """A whole run, one stopped at half of its time, and the run that goes on with it."""
    with serial_flows():
        _timed(_options(source, f"{folder}/warm.zarr"))
        whole = _timed(_options(source, f"{folder}/whole.zarr"))
        # A small run may be over before its half time, when the machine was busy at first.
        for share in (0.5, 0.25, 0.1, 0.02):
            options = _options(source, f"{folder}/resumed-{share}.zarr")
            if _stop_after(share * whole, options):
                break
        resumed = _timed(options)
    name = f"resume after a kill at {share:.0%} of the time"
    return [(name, resumed, "s", "full run", whole, resumed / whole)]


def _stop_after(seconds: float, options: RunOptions) -> bool:
    """Begin a run and stop it, wherever it is by then; whether it was stopped."""

    def stop(*_: object) -> None:
        raise StoppedError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        run_serially(options)
    except StoppedError:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return False


def _measure_receipts(source: str, folder: str, rounds: int) -> list[Row]:
    """Per chunk: copying it, making and keeping its receipt, proving it before publishing."""
    collection = open_collection(source)
    start, stop = collection.plan.rows(0)
    array = ArrayPlan(
        FEATURES,
        (collection.n_records, collection.schema.n_features),
        collection.plan.chunk_rows,
        collection.schema_of_records.dtype,
    )
    plan = ReleasePlan("0" * 8, f"{folder}/copy.zarr", (array,))
    prepare_release(plan)
    store = open_store(plan.data_url)
    copying, receipts, proving = [], [], []
    for _ in range(rounds):
        begun = time.perf_counter()
        values = read_block(source, FEATURES, start, stop, collection.digest)
        blocks._write_rows(plan.data_url, FEATURES, 0, values, plan.run)
        copied = time.perf_counter()
        stored = measure_object(store, array, 0)
        measured = time.perf_counter()
        task = [
            Receipt(plan.run, c, stop, (stored,), 0.0) for c in range(plan.chunks.chunks_per_task)
        ]
        recording = time.perf_counter()
        record_receipts(plan, task)
        recorded = time.perf_counter()
        assert not find_damaged(plan, task[:1])
        proved = time.perf_counter()
        copying.append(copied - begun)
        receipts.append(measured - copied + (recorded - recording) / len(task))
        proving.append(proved - recorded)
    copy = median(copying)
    return [
        (name, median(found), "s", "copying the chunk", copy, median(found) / copy)
        for name, found in (
            ("receipt and checksum", receipts),
            ("proof before publishing", proving),
        )
    ]


def _timed(options: RunOptions) -> float:
    begun = time.perf_counter()
    run_serially(options)
    return time.perf_counter() - begun


def _options(source: str, release: str) -> RunOptions:
    return RunOptions(
        collection={"path": source, "desired": ["zero"], "confidential": ["digit"]},
        method={"name": "null_space", "utility_budget": 0.01, "ridge": 0.01},
        release={"path": release},
        audit={"holdout": 0.5, "group": "original", "adversaries": []},
    )


if __name__ == "__main__":
    for name, value, unit, reference, reference_value, ratio in run(small=False):
        print(f"{name:34s} {value:9.4f} {unit}   {reference} {reference_value:9.4f}   {ratio:.3f}")
