"""Both executors give the same bits, in any order of finishing, whatever fails or dies."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privpipe.cluster.executors.dask_executor import DaskExecutor, align, open_executor
from privpipe.cluster.executors.executor import (
    Event,
    Executor,
    ShardSum,
    WorkerMemory,
    fold_in_tree,
)
from privpipe.cluster.workers.connection import ClusterOptions
from privpipe.errors import InputError, PrivpipeError
from privpipe.protocols import Shard, Sums

N_TASKS = 19


@dataclass(frozen=True)
class Total:
    """A sum in floating point: another shape of the tree gives other bits."""

    value: float

    def merge(self, other: Total) -> Total:
        return Total(self.value + other.value)


def sum_up(scale: float, task: range) -> Total:
    return Total(scale * 1.1**task.start / 3)


def load(scale: float, task: int) -> list[Shard]:
    return [Shard(np.full((2, 1), scale * 1.3 ** (task + i) / 7)) for i in range(2)]


def add_up(shard: Shard, parameters: float, *, power: int) -> Sums:
    return (float((parameters * shard.features**power).sum()),)


def answer(offset: int, task: int) -> int:
    if task == 3:
        raise InputError("Task 3 is refused.", remedy="Ask for another.")
    if task == 4:
        raise ValueError("a secret value")
    return offset + task


def die_once(flag: str, task: int) -> int:
    """End the whole worker process, the first time."""
    if not Path(flag).exists():
        Path(flag).touch()
        os._exit(1)
    return task


@pytest.fixture(scope="module", params=[0, 1, 2], ids=["here", "one worker", "two workers"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    options = ClusterOptions(workers=request.param, dashboard="127.0.0.1:0")
    with open_executor(options, "0a1b2c3d") as opened:
        yield opened


def test_reduce__same_bits_whoever_works(executor: Executor) -> None:
    tasks = [range(number, number + 2) for number in range(N_TASKS)]
    expected = fold_in_tree(
        (sum_up(0.1, task) for task in tasks),
        lambda parts: Total(sum((p.value for p in parts[1:]), parts[0].value)),
    )
    assert executor.reduce(sum_up, (0.1,), tasks, label="total") == expected


def test_oracle__same_bits_whoever_works_in_every_round(executor: Executor) -> None:
    ask = executor.oracle(ShardSum(load, (0.1,), range(5), add_up, {"power": 2}))
    for parameters in (1.0, 0.3):
        tasks = [[add_up(s, parameters, power=2)[0] for s in load(0.1, t)] for t in range(5)]
        expected = 0.0
        for number, (one, other) in enumerate(tasks):
            expected = one + other if number == 0 else expected + (one + other)
        assert ask(parameters) == (expected,)


@pytest.mark.parametrize(("room", "loads"), [(10**6, 5), (3 * 32, 3 + 2 * 4), (0, 5 * 4)])
def test_oracle__without_workers_reads_once_what_memory_holds(
    room: int, loads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five tasks of two shards of 16 bytes, four rounds: the same bits whatever is kept."""
    monkeypatch.setattr(Executor, "measure", lambda _: WorkerMemory(1, 1, 4 * room, 0, 1))
    seen: list[int] = []

    def count(scale: float, task: int) -> list[Shard]:
        seen.append(task)
        return load(scale, task)

    ask = Executor().oracle(ShardSum(count, (0.1,), range(5), add_up, {"power": 2}))
    found = [ask(2.0) for _ in range(4)]
    assert len(seen) == loads
    expected = sum(add_up(s, 2.0, power=2)[0] for t in range(5) for s in load(0.1, t))
    assert found == [found[0]] * 4
    assert found[0][0] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("kept", [(), (0, 3), (0, 1, 2, 3, 4)])
def test_oracle__workers_read_anew_what_they_have_no_room_for(
    executor: Executor, kept: tuple[int, ...]
) -> None:
    if not isinstance(executor, DaskExecutor):
        pytest.skip("this process measures what it has loaded")
    quiet = executor.oracle(ShardSum(load, (0.1,), range(5), add_up, {"power": 2}))
    sizes = [1 if number in kept else 1 << 60 for number in range(5)]
    ask = executor.oracle(ShardSum(load, (0.1,), range(5), add_up, {"power": 2}, sizes))
    assert [ask(2.0), ask(0.3)] == [quiet(2.0), quiet(0.3)]
    held = [number for number, block in enumerate(ask.blocks) if block is not None]
    assert held == list(kept)


def test_map_tasks__yields_every_result_and_sealed_errors(executor: Executor) -> None:
    tasks = ((f"{number:03d}", (number,)) for number in range(30))
    found = dict(executor.map_tasks(answer, tasks, shared=(100,), prefix="answer"))
    assert found.pop("003").message == "Task 3 is refused."
    foreign = found.pop("004")
    assert isinstance(foreign, PrivpipeError)
    assert "secret" not in str(foreign)
    assert found == {f"{number:03d}": 100 + number for number in range(30) if number not in (3, 4)}


def test_hold__a_value_made_where_it_is_used(executor: Executor) -> None:
    held = executor.hold(answer, 5, 0, key="hold_answer")
    found = dict(executor.map_tasks(answer, [("1", (1,))], shared=(held,), prefix="use"))
    assert found == {"1": 6}


def sleep_on(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def test_map_tasks__tells_when_nothing_moves(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On workers; what is done in this process is not waited for."""
    monkeypatch.setattr("privpipe.cluster.executors.dask_executor.REPORT_AFTER", 0.2)
    heard: list[Event] = []
    monkeypatch.setattr(executor, "listener", heard.append)
    tasks = [("1", (1.3,))]
    if isinstance(executor, DaskExecutor):  # a worker that another test ended may not be back
        executor.client.wait_for_workers(1, timeout=60)
    assert dict(executor.map_tasks(sleep_on, tasks, prefix="sleep")) == {"1": 1.3}
    stalls = [event for event in heard if event.what == "stalls"]
    assert bool(stalls) == isinstance(executor, DaskExecutor)
    for event in stalls:
        assert (event.work, event.unit) == ("sleep", "seconds")
        assert dict(event.numbers)["workers"] == executor.measure().n_workers


def test_map_tasks__gives_work_to_workers_that_join(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a first worker three tasks were under way to the end, however many joined it."""
    if not isinstance(executor, DaskExecutor):
        pytest.skip("no workers")
    monkeypatch.setattr("privpipe.cluster.executors.dask_executor.COUNT_EVERY", 0.0)
    joined = iter([1, 1, *[5] * 40, *[2] * 100])
    monkeypatch.setattr(executor.client, "nthreads", lambda: {"one": next(joined)})
    under_way, client = list[int](), executor.client
    for _ in executor.map_tasks(abs, ((f"{n:02d}", (n,)) for n in range(80)), prefix="join"):
        under_way.append(sum(str(key).startswith("join-") for key in client.futures))
    assert under_way[0] <= 3
    assert max(under_way[2:40]) >= 3 * 5 - 1
    assert under_way[65] <= 3 * 2 + 1  # and some left


@given(st.integers(1, 600))
def test_fold_in_tree__keeps_the_order(n: int) -> None:
    assert fold_in_tree(([i] for i in range(n)), lambda parts: list(chain(*parts))) == list(
        range(n)
    )


@pytest.mark.slow
def test_map_tasks__the_loss_of_the_only_worker_costs_time_alone(tmp_path: Path) -> None:
    options = ClusterOptions(workers=1, dashboard="127.0.0.1:0")
    with open_executor(options, "0a1b2c3e") as opened:
        ask = opened.oracle(ShardSum(load, (0.1,), range(5), add_up, {"power": 2}))
        before = ask(1.0)
        flag = opened.send(str(tmp_path / "died"))
        tasks = [(str(number), (number,)) for number in range(5)]
        found = dict(opened.map_tasks(die_once, tasks, shared=(flag,), prefix="die"))
        assert found == {str(number): number for number in range(5)}
        assert ask(1.0) == before


def test_align__gives_the_bits_of_arrays_at_home() -> None:
    """What crossed from another worker may lie at any address; NumPy then sums otherwise."""
    random = np.random.default_rng(0)
    x, weights = random.normal(size=(16, 9)), random.normal(size=16)
    buffer = np.zeros(x.nbytes + 4, np.uint8)
    odd = buffer[4:].view(np.float64).reshape(x.shape)
    odd[...] = x
    assert not odd.flags.aligned
    moved = align(Shard(odd, first_record=3))
    np.testing.assert_array_equal(moved.features.T @ weights, x.T @ weights)
    assert moved.first_record == 3
    assert align(odd).flags.aligned
    assert align(x) is x
    assert align("no array") == "no array"
