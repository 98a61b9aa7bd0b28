"""What scheduler and workers keep of tasks that are gone: nothing, however many there were."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from dask.utils import key_split
from distributed import Client

from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.workers import dashboard
from privpipe.cluster.workers.processes import MOST_NAMES, NoSpans, trim_names


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
