"""What the safety of a release costs: resuming after a kill, receipts and checksums.

``python -m tests.bench.bench_release``. One resume is measured in one process, without the start
of a cluster; the other is of the stages of `privpipe run`, killed as users kill it.
Ratios are of times measured in one run, in turn.
"""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median

import pytest

from privpipe.command.demo_command import N_ORIGINALS, write_digits
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.records.schema import CHUNKS_PER_TASK
from privpipe.store.access.objects import open_store
from privpipe.store.arrays import blocks
from privpipe.store.arrays.blocks import Receipt, measure_object, read_block
from privpipe.store.arrays.layout import FEATURES, ArrayPlan
from privpipe.store.collections.collection import open_collection
from privpipe.store.releases.release_writing import (
    ReleasePlan,
    find_damaged,
    prepare_release,
    record_receipts,
)
from tests.flows.digits_runs import RUN, own_prefect, write_config
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
                patch.setattr("privpipe.command.demo_command.plan_chunk_rows", lambda *_: 512)
            write_digits(source, N_ORIGINALS * (4 if small else 1200))
        return [
            *_measure_receipts(source, folder, 3 if small else 15),
            _measure_resume(source, folder, 1 if small else 5),
            *([] if small else [_measure_killed_process(folder, 2)]),
        ]


def _measure_resume(source: str, folder: str, rounds: int) -> Row:
    """Whole runs in turn with runs that go on with one stopped at half of a whole run's time."""
    wholes, resumes = [], []
    with serial_flows():
        _timed(_options(source, f"{folder}/warm.zarr"))
        for turn in range(rounds):
            wholes.append(_timed(_options(source, f"{folder}/whole-{turn}.zarr")))
            # A small run may be over before its half time, when the machine was busy at first.
            for share in (0.5, 0.25, 0.1, 0.02):
                options = _options(source, f"{folder}/resumed-{turn}-{share}.zarr")
                if _stop_after(share * wholes[-1], options):
                    break
            resumes.append(_timed(options))
    ratio = median(r / w for r, w in zip(resumes, wholes, strict=True))
    name = f"resume after a stop at {share:.0%} of the time, one process"
    return (name, median(resumes), "s", "full run", median(wholes), ratio)


def _measure_killed_process(folder: str, rounds: int) -> Row:
    """The same of the command with its workers, its Prefect and all adversaries; by SIGKILL.

    Compared is the time in stages: the start of Prefect and of the cluster is paid by both, and
    says nothing of how much work a kill costs. A run of seconds would show the first tasks of new
    workers, hence 43 million records.
    """
    source = str(Path(folder) / "many-digits.zarr")
    write_digits(source, N_ORIGINALS * 24_000)
    wholes, resumes = [], []
    for turn in range(-1, rounds):  # the first makes Prefect's database and fills the cache
        config, release = _configure(source, Path(folder), f"command-whole-{turn}")
        whole = _run_to_its_end(config, release, folder)
        config, release = _configure(source, Path(folder), f"command-killed-{turn}")
        _kill_after(whole / 2, config, folder)
        resumed = _run_to_its_end(config, release, folder)
        if turn >= 0:
            wholes.append(whole)
            resumes.append(resumed)
    ratio = median(r / w for r, w in zip(resumes, wholes, strict=True))
    name = "stages of `privpipe run` after SIGKILL at half of them"
    return (name, median(resumes), "s", "stages undisturbed", median(wholes), ratio)


def _run_to_its_end(config: str, release: Path, folder: str) -> float:
    """Seconds in stages."""
    done = subprocess.run(
        [*RUN, config],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
        env=own_prefect(f"{folder}/prefect"),
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    results = release.with_name(f"{release.stem}.report") / "run_results.json"
    return sum(stage["seconds"] for stage in json.loads(results.read_text())["stages"])


def _kill_after(seconds: float, config: str, folder: str) -> None:
    """Kill the command so long after its cluster has started, which is where its stages begin."""
    process = subprocess.Popen(
        [*RUN, config],
        env=own_prefect(f"{folder}/prefect"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr as said:
        while not said.readline().startswith("cluster"):
            assert process.poll() is None
        time.sleep(seconds)
        process.kill()
    process.wait()  # its Prefect server is ended by the run that goes on


def _configure(source: str, folder: Path, name: str) -> tuple[str, Path]:
    config, release = folder / f"{name}.toml", folder / f"{name}.zarr"
    write_config(config, source, str(release))
    return str(config), release


def _stop_after(seconds: float, options: RunOptions) -> bool:
    """Begin a run and stop it, wherever it is by then; whether it was stopped."""
    with warnings.catch_warnings():
        # The stop may fall where Zarr has made a coroutine and not yet begun to run it.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        stopped = _run_until(seconds, options)
        gc.collect()
    return stopped


def _run_until(seconds: float, options: RunOptions) -> bool:
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
        task = [Receipt(plan.run, c, stop, (stored,), 0.0) for c in range(CHUNKS_PER_TASK)]
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
        collection={
            "path": source,
            "desired": ["zero"],
            "confidential": ["digit"],
            "subject": "original",
        },
        method={"name": "null_space", "utility_budget": 0.01, "ridge": 0.01},
        release={"path": release},
        audit={"holdout": 0.5, "adversaries": []},
        gate={"enforce": False},
    )


if __name__ == "__main__":
    for name, value, unit, reference, reference_value, ratio in run(small=False):
        print(f"{name:34s} {value:9.4f} {unit}   {reference} {reference_value:9.4f}   {ratio:.3f}")
