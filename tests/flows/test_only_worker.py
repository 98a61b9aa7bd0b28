"""The only worker dies in every kind of work, and the release is the same, byte for byte.

The worker is killed when a run first tells of a kind of work, and its nanny starts another: of
every kind in the first run, of what is their own in the others.
What is done in this process, with ``workers = 0``, is what everything is compared with.
"""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client

import privpipe.flows.release_flow
from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Event, Executor
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.watch import Watch
from privpipe.report.console import PlainConsole
from privpipe.store.releases.published import check_release
from tests.flows.test_believed_source import make_old
from tests.standard import write_standard
from tests.store.serial_run import read_tree

pytestmark = pytest.mark.slow

OF_EVERY_RUN = {"prove_chunk", "sum_moments", "clean_chunk", "attack", "publish"}

RUNS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "null_space": ({"utility_budget": 0.5, "ridge": 1e-6}, set()),
    "minimax": ({"max_iterations": 2}, {"solve_apart"}),
    "minimax_neural": ({"n_hidden": [3], "max_iterations": 2}, {"ask_shards"}),
    "privacy_mapping": (
        {
            "attributes": ["party"],
            "private": ["late"],
            "distortion_budget": 0.3,
            "gap": 1e-4,
            "pricing": "cluster",
        },
        {"price_columns"},
    ),
}
"""Options, and the work that such a fit tells of beside what all runs do."""

HERE = {"minimax": {"solve_apart": "ask_shards"}}
"""What this process does instead: on a cluster a start is a task, if workers hold all records."""


class Listening(Watch):
    """Hears every event, and may do something when a kind of work first advances.

    How far sums are is told by the way, and may be told too late: they are disturbed as they begin.
    """

    def __init__(self, at_first: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(PlainConsole(file=io.StringIO()))
        self.heard: dict[str, set[str]] = {}
        self.at_first = at_first

    def hear(self, event: Event) -> None:
        super().hear(event)
        known = self.heard.setdefault(event.work, set())
        when = "begins" if event.work.startswith("sum_") else "advances"
        first = event.what == when and when not in known
        known.add(event.what)
        if first:
            self.at_first(event.work)


@contextmanager
def flows_on(client: Client | None) -> Iterator[None]:
    """The pipeline without Prefect, on a cluster that is there, or in this process."""

    def open_executor(_: Any, run: str, listener: Any) -> Any:
        here = Executor(listener) if client is None else DaskExecutor(client, run, listener)
        return nullcontext(here)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privpipe.flows.release_flow, "open_executor", open_executor)
        yield


def release(name: str, records: Path, folder: Path, client: Client | None, watch: Watch) -> None:
    """A whole run of a method; its files are below the folder."""
    options, _ = RUNS[name]
    roles = {"confidential": ["party"], "desired": ["late"]} if name != "privacy_mapping" else {}
    folder.mkdir()
    run = RunOptions(
        collection={"path": str(records), **roles},
        method={"name": name, **options},
        release={"path": str(folder / "release.zarr")},
        audit={"holdout": 0.4, "adversaries": ["least_squares"]},
        gate={"enforce": False},
        cluster={"workers": 0 if client is None else 1},
    )
    with flows_on(client):
        privpipe.flows.release_flow.release_collection(run, watch)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection without receipts, so that it has to be proved."""
    path = tmp_path_factory.mktemp("records") / "records.zarr"
    write_standard(str(path), 700, chunk_rows=50)
    make_old(path)
    return path


@pytest.fixture(scope="module")
def only() -> Iterator[Client]:
    """One worker; its nanny starts another whenever it is killed."""
    with connect(ClusterOptions(workers=1, dashboard="127.0.0.1:0")) as client:
        yield client


def kill_worker(client: Client) -> int:
    """SIGKILL of the only worker, once there is one; returns when it is gone."""
    client.wait_for_workers(1, timeout=120)
    (pid,) = client.run(os.getpid).values()
    os.kill(pid, signal.SIGKILL)
    with suppress(psutil.NoSuchProcess):  # it may go at any moment
        psutil.wait_procs([psutil.Process(pid)], timeout=30)
    return pid


@pytest.mark.parametrize("name", sorted(RUNS))
def test_run__is_the_same_though_its_only_worker_dies(
    name: str, records: Path, only: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    quiet, killed = Listening(), list[tuple[str, int]]()
    release(name, records, tmp_path / "quiet", None, quiet)
    kinds = set(quiet.heard) if name == "null_space" else RUNS[name][1]

    def kill(work: str) -> None:
        if work in kinds:
            killed.append((work, kill_worker(only)))

    disturbed = Listening(kill)
    release(name, records, tmp_path / "disturbed", only, disturbed)
    assert_same(tmp_path / "disturbed", tmp_path / "quiet")
    expected = OF_EVERY_RUN | RUNS[name][1]
    assert expected <= set(disturbed.heard)
    here = HERE.get(name, {})
    assert {here.get(work, work) for work in disturbed.heard} == set(quiet.heard)
    assert {work for work, _ in killed} == kinds
    assert len({pid for _, pid in killed}) == len(killed)
    for work in OF_EVERY_RUN:
        assert {"begins", "advances", "ends"} <= quiet.heard[work], work
        assert {"begins", "ends"} <= disturbed.heard[work], work


def assert_same(found: Path, expected: Path) -> None:
    """Release and model, every byte but those of the headers, which say when and where."""
    assert check_release(str(found / "release.zarr"), verify=True)
    for part in ("release.zarr", "release.model.zarr"):
        one, other = read_tree(found / part), read_tree(expected / part)
        assert one.keys() == other.keys()
        assert len(one) > 3
        assert {name for name in one if one[name] != other[name]} <= {"zarr.json"}
