"""What scheduler and workers keep of tasks that are gone: nothing, however many there were."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dask.utils import key_split
from distributed import Client

from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.workers import dashboard
from privpipe.cluster.workers.processes import MOST_NAMES, NoSpans, trim_names
from privpipe.cluster.workers.progress import ShowProgress, find_stage
from privpipe.numerics.moments import CoMoments


def sum_one(task: range) -> CoMoments:
    return CoMoments.of(np.full((2, 1), float(task.start)))


def fill_names() -> None:
    for number in range(3 * MOST_NAMES):
        key_split(f"clean_chunk-0badcafe-{number:06d}")


def count_names() -> int:
    return int(key_split.cache_info().currsize)


def count_kept(dask_scheduler: Any) -> tuple[int, int, int]:
    """Spans, tasks, and whether what workers measured has come."""
    spans = dask_scheduler.extensions["spans"]
    kept = len(spans.spans) + len(spans.root_spans) + len(spans.spans_search_by_name)
    return kept, len(dask_scheduler.tasks), len(dask_scheduler.cumulative_worker_metrics)


async def beat(dask_worker: Any) -> None:
    await dask_worker.heartbeat()


def test_scheduler__keeps_no_span_and_few_names_of_tasks_that_are_gone(client: Client) -> None:
    client.run_on_scheduler(fill_names)
    client.run(fill_names)
    tasks = ((f"{number:06d}", (number,)) for number in range(40))
    found = dict(DaskExecutor(client, "0badcafe").map_tasks(abs, tasks, prefix="clean_chunk"))
    assert len(found) == 40
    client.run(beat)  # one that the scheduler refused would raise
    kept, _, measured = client.run_on_scheduler(count_kept)
    assert (kept, measured > 0) == (0, True)
    assert client.run_on_scheduler(count_names) <= MOST_NAMES
    assert max(client.run(count_names).values()) <= MOST_NAMES


def list_groups(dask_scheduler: Any) -> set[str]:
    """What Dask's bars show a line for."""
    return set(dask_scheduler.task_prefixes)


def test_scheduler__groups_tasks_by_stage_and_partition(client: Client) -> None:
    executor, before = DaskExecutor(client, "0badcafe"), client.run_on_scheduler(list_groups)
    for day in ("_day23", "_day24"):
        executor.part = day
        tasks = ((f"{number:06d}", (number,)) for number in range(3))
        assert len(dict(executor.map_tasks(abs, tasks, prefix="clean_chunk"))) == 3
        executor.reduce(sum_one, (), [range(1)] * 20, label="parts")
        executor.gather([executor.hold(abs, 1, key="prepare_evidence")], "prepare_evidence")
    work = ("clean_chunk", "sum_parts", "merge_parts", "prepare_evidence")
    made = {f"{name}_day{day}" for name in work for day in (23, 24)}
    assert client.run_on_scheduler(list_groups) - before == made
    assert find_stage("clean_chunk_day23-0badcafe-000001") == "clean"


def test_retries__of_a_partition_are_counted_as_its_runs() -> None:
    plugin = ShowProgress()
    plugin.transition("clean_chunk_day23-0badcafe-000001", "processing", "released")
    plugin.transition("sum_moments_day23-0badcafe-003-000001", "processing", "released")
    assert plugin.retried == {"0badcafe": 2}


def test_names__are_emptied_before_they_are_many() -> None:
    key_split.cache_clear()
    for number in range(3 * MOST_NAMES + 5):
        key_split(f"sum_moments-0badcafe-{number:06d}")
        trim_names()
    assert 0 < count_names() <= MOST_NAMES


def test_scheduler__of_a_fleet_and_one_without_pages_keep_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("prepare_process", "guard_pages"):
        monkeypatch.setattr(dashboard, name, lambda *_, **__: None)
    server = SimpleNamespace(extensions={"spans": object()})
    dashboard.prepare_server(server)
    assert type(server.extensions["spans"]) is NoSpans

    async def make() -> Any:
        return dashboard.PagelessScheduler(dashboard=False).extensions["spans"]

    assert type(asyncio.run(make())) is NoSpans
