"""Workers that die between rounds and during them: the same answers, bit for bit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from distributed import Client

from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.pricing_rounds import ClusterPricing
from privpipe.cluster.passes.reduce import ShardedCollection
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.numerics.mapping.problem.pair_pricing import Prices, PricingQuestion, price_in_memory
from privpipe.numerics.mapping.problem.programme import MappingProblem, MatrixDistance
from privpipe.protocols import FloatArray, Shard, Sums
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from privpipe.sanitizers.minimax.linear_minimax import MinimaxOptions, fit_minimax_filter
from privpipe.store.collections.collection import open_collection
from privpipe.store.models import digest_map
from tests.cluster.test_pricing_rounds import assert_answers
from tests.numerics.test_mapping_pricing import make_problem, random_duals
from tests.sanitizers.mapping.solving.test_solve import profiles, random_joint
from tests.standard import write_standard

pytestmark = pytest.mark.slow


@pytest.fixture(params=[1, 2])
def few(request: pytest.FixtureRequest) -> Iterator[Client]:
    """One worker, or two, of its own: they are killed."""
    with connect(ClusterOptions(workers=request.param, dashboard="127.0.0.1:0")) as client:
        yield client


@pytest.fixture
def alone() -> Iterator[Client]:
    with connect(ClusterOptions(workers=1, dashboard="127.0.0.1:0")) as client:
        yield client


def processes(client: Client) -> list[int]:
    return sorted(client.run(os.getpid).values())


def kill_all(client: Client) -> None:
    """SIGKILL of every worker; their nannies start others."""
    for pid in processes(client):
        os.kill(pid, signal.SIGKILL)
        with suppress(psutil.NoSuchProcess):  # it may go at any moment
            while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)


def during(client: Client, key: str, action: Callable[[], Any]) -> Any:
    """Do something; kill the first worker that is seen working on a key."""
    killed: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set() and not killed:
            for pid, keys in client.run(_executing).values():
                if not killed and any(name.startswith(key) for name in keys):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = action()
    finally:
        done.set()
        watcher.join()
    assert killed, "no worker was seen at work"
    return result


def _executing(dask_worker: Any) -> tuple[int, list[str]]:
    return os.getpid(), [str(task.key) for task in dask_worker.state.executing]


def test_cluster_pricing__goes_on_when_all_workers_die_between_rounds(few: Client) -> None:
    """Two solves at once, so that one death of all serves both kinds of distance."""
    solves = [
        (make_problem(kind), ClusterPricing(few, run, "cluster"))
        for kind, run in (("hamming", "0badcafe"), ("matrix", "0badcafd"))
    ]
    for seed in (1, 2, 3):
        for problem, price in solves:
            question = PricingQuestion(random_duals(problem, seed), 3, True)
            assert_answers(price(problem, question), price_in_memory(problem, question))
        if seed < 3:
            kill_all(few)


class SlowMatrix(MatrixDistance):
    """Looking a block up takes a second, so that a worker can be killed meanwhile."""

    def block(self, start: int, stop: int) -> FloatArray:
        time.sleep(1.0)
        return super().block(start, stop)

    def columns_of(self, columns: Any) -> SlowMatrix:
        return SlowMatrix(self.matrix[columns])


def test_cluster_pricing__goes_on_when_the_only_worker_dies_in_a_round(alone: Client) -> None:
    plain = make_problem("matrix")
    assert isinstance(plain.distance, MatrixDistance)
    slow = SlowMatrix(plain.distance.matrix)
    problem = MappingProblem(plain.mass, plain.posterior, slow, plain.budget, plain.stay)
    price = ClusterPricing(alone, "0badcaff", "cluster")
    question = PricingQuestion(random_duals(problem, 1), 3, True)
    found = during(alone, "price_columns-0badcaff", lambda: price(problem, question))
    assert_answers(found, price_in_memory(plain, question))


def test_solve__is_the_same_mapping_though_its_only_worker_dies_each_third_round(
    alone: Client,
) -> None:
    joint, codes = random_joint(2, 48, 1), profiles(48, 2)
    price, killed = ClusterPricing(alone, "0badcb00", "cluster"), []

    def disturbed(problem: MappingProblem, question: PricingQuestion) -> Prices:
        if len(killed) < 2 and price.n_sent % 12 == 8:
            killed.append(processes(alone))
            kill_all(alone)
        return price(problem, question)

    given: dict[str, Any] = {"distortion_budget": 0.3, "gap": 1e-7}
    quiet = solve_privacy_mapping(joint, codes, **given)
    found = solve_privacy_mapping(joint, codes, price=disturbed, **given)
    assert len(killed) == 2
    assert killed[0] != killed[1]
    for name in ("pointers", "released", "probabilities", "potentials"):
        np.testing.assert_array_equal(getattr(found, name), getattr(quiet, name))
    assert found.lower_bound == quiet.lower_bound


def slow_gradient(shard: Shard, parameters: FloatArray, *, offset: FloatArray) -> Sums:
    time.sleep(0.02)
    residual = shard.features @ parameters - shard.desired[:, 0] - offset[0]
    return float(residual @ residual), shard.features.T @ residual


@pytest.mark.parametrize("share", [1.0, 1e-6], ids=["kept", "read anew"])
def test_oracle__goes_on_when_workers_die_between_rounds_and_in_one(
    few: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr("privpipe.cluster.executors.executor.SHARD_SHARE", share)
    url = str(tmp_path / "standard.zarr")
    write_standard(url, 1500, chunk_rows=16)
    shards = ShardedCollection(
        open_collection(url, desired=["height"]), DaskExecutor(few, "0badcb01")
    )
    ask = shards.oracle(slow_gradient, offset=np.array([2.0]))
    points = [np.linspace(-step, step, 9) for step in range(3)]
    quiet = [ask(point) for point in points]
    kill_all(few)
    found = [ask(points[0])]
    found.append(during(few, "slow_gradient-0badcb01", lambda: ask(points[1])))
    kill_all(few)
    found.append(ask(points[2]))
    for (value, slope), (expected, gradient) in zip(found, quiet, strict=True):
        assert value == expected
        np.testing.assert_array_equal(slope, gradient)


def test_spread__is_the_same_filter_though_a_worker_dies_in_a_start(
    few: Client, tmp_path: Path
) -> None:
    path = str(tmp_path / "standard.zarr")
    write_standard(path, 12_000, chunk_rows=1000)
    roles: dict[str, Any] = {"desired": ("height", "late"), "confidential": ("income", "party")}
    options = MinimaxOptions(starts=4, max_iterations=30, tolerance=0.0)

    def fit(executor: Executor) -> str:
        shards: Any = ShardedCollection(open_collection(path, **roles), executor)
        return digest_map(fit_minimax_filter(shards, options))

    found = during(few, "solve_apart", lambda: fit(DaskExecutor(few, "0badcb01")))
    assert found == fit(Executor())
