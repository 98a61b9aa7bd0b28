"""Statistics over shards on workers: any chunking, any number of workers, same result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from distributed import Client, get_task_stream, get_worker

from privpipe.cluster.executors import dask_executor
from privpipe.cluster.executors.dask_executor import DaskExecutor, spread_evenly
from privpipe.cluster.executors.executor import Executor, ShardSum
from privpipe.cluster.passes import reduce
from privpipe.cluster.passes.reduce import ShardedCollection, load_shards
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.errors import InputError
from privpipe.numerics.moments import CoMoments
from privpipe.protocols import Shard, Sums
from privpipe.records.memory import Records, add_in_tree
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.chain import fit_standardised
from privpipe.sanitizers.minimax.linear_minimax import MinimaxOptions
from privpipe.sanitizers.null_space.algorithms import fit_null_space_cleaner
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.models import digest_map
from tests.standard import CONFIDENTIAL, DESIRED, make_standard, write_standard


def moments_of(shard: Shard) -> CoMoments:
    return CoMoments.of(shard.features)


def gradient_of(shard: Shard, parameters: np.ndarray, *, offset: float) -> Sums:
    residual = shard.features @ parameters - shard.desired[:, 0] - offset
    return float(residual @ residual), shard.features.T @ residual


@dataclass(frozen=True)
class Order:
    """A statistic that tells in which order it was merged."""

    first_records: tuple[int, ...]

    @classmethod
    def of(cls, shard: Shard) -> Order:
        return cls((shard.first_record,))

    def merge(self, other: Order) -> Order:
        return Order(self.first_records + other.first_records)


def fails(shard: Shard) -> CoMoments:
    raise RuntimeError(f"a secret of a record: {shard.features[0, 0]}")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("reduce") / "standard.zarr")
    write_standard(path, 1500, chunk_rows=16)
    return path


def test_reduce__equals_one_pass_in_memory(client: Client, url: str) -> None:
    x, _ = make_standard(1500)
    sharded = ShardedCollection(open_collection(url), DaskExecutor(client, "00000001"))
    merged, whole = sharded.reduce(moments_of), CoMoments.of(x)
    assert merged.count == whole.count
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-13)
    np.testing.assert_allclose(merged.scatter, whole.scatter, rtol=1e-12, atol=1e-9)


@pytest.mark.slow
def test_reduce__merges_in_the_order_of_chunks(client: Client, tmp_path: Path) -> None:
    """Of 81 tasks: two full levels of the tree and one left over."""
    path = str(tmp_path / "long.zarr")
    write_standard(path, 1290, chunk_rows=2)
    sharded = ShardedCollection(open_collection(path), DaskExecutor(client, "00000009"))
    assert sharded.reduce(Order.of).first_records == tuple(range(0, 1290, 2))


@pytest.mark.slow
def test_reduce__is_bitwise_the_same_for_one_worker_and_two(client: Client, url: str) -> None:
    both = ShardedCollection(open_collection(url), DaskExecutor(client, "00000002")).reduce(
        moments_of
    )
    with connect(ClusterOptions(workers=1, dashboard="127.0.0.1:0")) as single:
        one = ShardedCollection(open_collection(url), DaskExecutor(single, "00000003")).reduce(
            moments_of
        )
    assert np.array_equal(both.scatter, one.scatter)
    assert np.array_equal(both.mean, one.mean)


def test_reduce__hides_the_text_of_foreign_errors(client: Client, url: str) -> None:
    sharded = ShardedCollection(open_collection(url), DaskExecutor(client, "00000005"))
    with pytest.raises(Exception, match=r"RuntimeError at test_reduce\.py") as caught:
        sharded.reduce(fails)
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None


def test_fit__on_workers_equals_fit_in_memory(client: Client, url: str) -> None:
    x, variables = make_standard(1500)
    targets = np.column_stack([variables[name] for name in DESIRED])
    opened = open_collection(url, desired=DESIRED, confidential=CONFIDENTIAL)
    far = fit_null_space_cleaner(
        ShardedCollection(opened, DaskExecutor(client, "00000006")), utility_budget=0.5, ridge=1e-6
    )
    near = fit_null_space_cleaner(Records(x, desired=targets), utility_budget=0.5, ridge=1e-6)
    np.testing.assert_allclose(far.predictor, near.predictor, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(far.apply(x), near.apply(x), rtol=1e-6, atol=1e-8)


def test_fit__reports_errors_of_workers_as_they_are(client: Client, tmp_path: Path) -> None:
    url = str(tmp_path / "nan.zarr")
    write_standard(url, 64, cells={(3, 2): np.nan})
    opened = open_collection(url, desired=DESIRED)
    with pytest.raises(InputError, match="1 of 64 training records"):
        fit_null_space_cleaner(
            ShardedCollection(opened, DaskExecutor(client, "00000007")), utility_budget=0.5
        )


def test_oracle__sums_over_resident_shards_as_in_memory(client: Client, url: str) -> None:
    x, variables = make_standard(1500)
    opened = open_collection(url, desired=["height"])
    far = ShardedCollection(opened, DaskExecutor(client, "00000008")).oracle(
        gradient_of, offset=2.0
    )
    near = Records(x, desired=variables["height"]).oracle(gradient_of, offset=2.0)
    for step in range(3):
        at = np.linspace(-step, step, x.shape[1])
        value, gradient = far(at)
        expected, slope = near(at)
        assert value == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-6)


def test_oracle__keys_carry_the_function_and_the_run(client: Client, url: str) -> None:
    opened = open_collection(url, desired=["height"])
    ask = ShardedCollection(opened, DaskExecutor(client, "0000000a")).oracle(
        gradient_of, offset=0.0
    )
    ask(np.zeros(9))
    prefixes = client.run_on_scheduler(lambda dask_scheduler: set(dask_scheduler.task_prefixes))
    assert {"load_shards", "gradient_of"} <= prefixes


def count_where(shard: Shard, workers: list[str]) -> Sums:
    """Worker side: one for the worker that is asked."""
    del shard
    return 0.0, np.array([get_worker().address == worker for worker in workers], float)


@pytest.mark.parametrize("stolen", [False, True])
def test_oracle__asks_every_worker_for_as_many_shards(
    client: Client, url: str, stolen: bool
) -> None:
    """The slowest worker ends a round: whoever loaded what, nobody answers for another's share."""
    collection = open_collection(url, desired=["height"])
    tasks = [list(chunks) for chunks in collection.plan.tasks()]
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    planned = spread_evenly(workers, len(tasks))
    with pytest.MonkeyPatch.context() as patched:
        if stolen:  # what happens where the other worker is busy
            loaded_by = [workers[0]] * (len(tasks) - 1) + [workers[1]]
            patched.setattr(dask_executor, "spread_evenly", lambda *_: loaded_by)
        oracle = DaskExecutor(client, f"5e5e000{stolen:d}").oracle(
            ShardSum(load_shards, (collection,), tasks, count_where, {})
        )
    assert isinstance(oracle, dask_executor.ResidentOracle)
    oracle.places = planned
    for _ in range(2):
        _, chunks = oracle(workers)
        assert sum(chunks) == collection.plan.n_chunks
        assert max(chunks) <= math.ceil(len(tasks) / 2) * max(map(len, tasks))


def test_collection__answers_alike_without_workers(url: str) -> None:
    x, _ = make_standard(1500)
    merged = open_collection(url).reduce(moments_of)
    np.testing.assert_allclose(merged.scatter, CoMoments.of(x).scatter, rtol=1e-12, atol=1e-9)
    value = open_collection(url, desired=["height"]).oracle(partial(gradient_of, offset=0.0))
    assert value(np.zeros(9))[0] > 0


def test_reduce__gives_every_worker_a_share_of_a_small_collection(
    client: Client, tmp_path: Path
) -> None:
    """Six chunks are six tasks, one and a half dozen sixteen; both workers have some."""
    for n_chunks, n_tasks in ((6, 6), (18, 18), (40, 20)):
        url = str(tmp_path / f"{n_chunks}.zarr")
        write_standard(url, 10 * n_chunks, chunk_rows=10)
        run = f"5a5a{n_chunks:04d}"
        shards = ShardedCollection(open_collection(url), DaskExecutor(client, run))
        with get_task_stream(client) as stream:
            shards.reduce(moments_of)
        done = {
            (one["key"], one["worker"])
            for one in stream.data
            if one["key"].startswith(f"sum_moments-{run}")
        }
        assert len({key for key, _ in done}) == n_tasks
        assert len({worker for _, worker in done}) == 2


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 100])
def test_add_in_tree__has_the_same_bits_whoever_holds_which_task(n: int) -> None:
    """Added as they come a worker's sums had other bits where it held other blocks."""
    rng = np.random.default_rng(n)
    values = rng.standard_normal(n) * 10.0 ** rng.uniform(-9, 9, n)
    leaves = [((0, at), (value,)) for at, value in enumerate(values)]
    totals = set()
    for n_workers in (1, 2, 5):
        for holder in (np.sort(rng.integers(0, n_workers, n)), rng.integers(0, n_workers, n)):
            sent = [
                add_in_tree([leaves[at] for at in np.flatnonzero(holder == worker)], n)
                for worker in range(n_workers)
            ]
            if (np.diff(holder) >= 0).all():  # neighbours: two branches a level at most
                assert max(map(len, sent)) <= 2 * int(n).bit_length()
            ((_, total),) = add_in_tree([one for branches in sent for one in branches], n)
            totals.add(total)
    assert len(totals) == 1


def _count_tasks(client: Client, collection: Collection) -> tuple[str, int, int]:
    """A filter of five starts: its bytes, how many problems were tasks, and how many rounds."""
    shards: Any = ShardedCollection(collection, DaskExecutor(client, "00000042"))
    options = MinimaxOptions(starts=5, max_iterations=4)
    with get_task_stream(client) as stream:
        fitted = fit_standardised(METHODS["minimax"], shards, options)
    keys = [str(one["key"]) for one in stream.data]
    apart = sum(key.startswith("solve_apart") for key in keys)
    rounds = sum("sum_over_shard" in key or "ask_changed" in key for key in keys)
    return digest_map(fitted), apart, rounds


def test_spread__makes_each_start_a_task_with_the_bits_of_rounds(
    client: Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five descents, four that are judged, and the one that resumes; as here, and in rounds."""
    roles: dict[str, Any] = {"desired": DESIRED, "confidential": CONFIDENTIAL}
    collection = open_collection(url, **roles)
    fitted, apart, rounds = _count_tasks(client, collection)
    assert (apart, rounds) == (10, 0)
    monkeypatch.setattr(reduce, "find_room", lambda _: 0)  # no worker has room for all records
    in_rounds, none, several = _count_tasks(client, collection)
    assert none == 0
    assert several > 50
    here = fit_standardised(
        METHODS["minimax"],
        cast(Any, ShardedCollection(collection, Executor())),
        MinimaxOptions(starts=5, max_iterations=4),
    )
    assert fitted == in_rounds == digest_map(here)


def test_spread__of_many_records_engages_all_workers(
    client: Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last descent is one, and its rounds are of two workers; several are tasks."""
    monkeypatch.setattr(reduce, "LITTLE", 0)
    roles: dict[str, Any] = {"desired": DESIRED, "confidential": CONFIDENTIAL}
    _, apart, rounds = _count_tasks(client, open_collection(url, **roles))
    assert apart == 9
    assert rounds > 5


def test_solve_apart__answers_in_the_order_of_the_problems(client: Client) -> None:
    for executor in (Executor(), DaskExecutor(client, "00000043")):
        assert executor.solve_apart(pow, range(9), shared=(2,)) == [
            1,
            2,
            4,
            8,
            16,
            32,
            64,
            128,
            256,
        ]
