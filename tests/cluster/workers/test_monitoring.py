"""Gauges, page and words of a run: what a scheduler is told, counts itself, and shows."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from prometheus_client.parser import text_string_to_metric_families

from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.workers import progress
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.cluster.workers.progress import (
    GAUGES,
    WORDS,
    OneRun,
    Progress,
    RunCollector,
    write_gauges,
)

NOW = Progress(
    run="0badcafe",
    release="people.zarr",
    deployment="release",
    stage="clean",
    done=2_000.0,
    total=8_000.0,
    chunks_done=2,
    chunks_total=8,
    per_second=250.0,
    seconds_left=24.0,
    withheld=3,
    clipped=5,
    n_bytes=4_096,
    gate="none",
    privacy_loss=1.5,
)


def read_gauges(text: str) -> dict[tuple[str, str], float]:
    """Values by name and, where it has one, its word; all are of the one run."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("privpipe_"):
                labels = dict(sample.labels)
                of = {labels.pop(name, "") for name in ("deployment", "release", "run")}
                assert of <= {"release", "people.zarr", "0badcafe", ""} or "release.zarr" in of
                found[sample.name, next(iter(labels.values()), "")] = sample.value
    return found


def list_memory(gauges: dict[tuple[str, str], float]) -> list[tuple[str, float]]:
    """Workers whose memory is known, and its share."""
    memory = "privpipe_worker_memory_ratio"
    return [(word, share) for (name, word), share in gauges.items() if name == memory and share]


def fetch(client: Client, page: str) -> bytes:
    link = client.dashboard_link.removesuffix("/status")
    with urllib.request.urlopen(f"{link}/{page}", timeout=30) as answer:
        content: bytes = answer.read()
    return content


def wait_shown(client: Client, now: Progress) -> dict[str, Any]:
    """The run as the page's document has it, once the event has come."""
    for _ in range(200):
        runs = json.loads(fetch(client, "privpipe.json"))["runs"]
        if runs and (runs[0]["run"], runs[0]["done"]) == (now.run, now.done):
            return dict(runs[0])
        time.sleep(0.05)
    raise AssertionError("the scheduler was not told")


def test_gauges__of_file_and_scheduler_are_the_same_and_whole(
    client: Client, tmp_path: Path
) -> None:
    write_gauges(RunCollector(OneRun(NOW)), str(tmp_path / "driver.prom"))
    in_file = read_gauges((tmp_path / "driver.prom").read_text())
    assert {name for name, word in in_file if not word} == set(GAUGES)
    assert {name for name, word in in_file if word} == set(WORDS)
    assert in_file["privpipe_run_stage", "clean"] == in_file["privpipe_run_state", "running"] == 1
    assert in_file["privpipe_clipped_records", ""] == 5.0
    assert in_file["privpipe_privacy_loss", ""] == 1.5
    DaskExecutor(client, NOW.run).show(NOW)
    wait_shown(client, NOW)
    # A worker's memory is known from its first heartbeat on.
    deadline = time.monotonic() + 20
    while True:
        served = read_gauges(fetch(client, "metrics").decode())
        if list_memory(served) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert served.pop(("privpipe_lost_workers", "")) >= 0
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    assert {name for name, _ in list_memory(served)} == {str(one["name"]) for one in workers}
    for name, share in list_memory(served):
        assert served.pop(("privpipe_worker_memory_ratio", name)) == share < 1
    assert served.pop(("privpipe_heartbeat_age_seconds", "")) < 30
    in_file.pop(("privpipe_heartbeat_age_seconds", ""))
    assert served == in_file


def test_gauges__of_a_scheduler_that_ended_give_way_to_those_of_the_one_before(
    client: Client,
) -> None:
    DaskExecutor(client, NOW.run).show(NOW)
    wait_shown(client, NOW)
    with connect(ClusterOptions(workers=1, dashboard="127.0.0.1:0")) as other:
        assert ("privpipe_lost_workers", "") in read_gauges(fetch(other, "metrics").decode())
    served = read_gauges(fetch(client, "metrics").decode())
    assert served["privpipe_run_stage", "clean"] == 1
    assert list_memory(served)


def test_runs__two_at_once_have_series_of_their_own_and_a_dead_one_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugin = progress.ShowProgress()
    other = replace(NOW, run="1badcafe", release="others.zarr", done=1.0, n_bytes=7)
    for one in (NOW, other, NOW):
        plugin.log_event(progress.TOPIC, one.encode())
    plugin.transition("clean_chunk-1badcafe-000001", "processing", "released")
    plugin.transition("clean_chunk-1badcafe-000001", "processing", "erred")
    plugin.transition("somebody-else-000001", "processing", "erred")
    found = {run.run: run for run in plugin.list_runs()}
    assert [(one.n_bytes, one.retried, one.failed) for one in found.values()] == [
        (4_096, 0, 0),
        (7, 1, 1),
    ]
    later = time.time() + progress.SILENT_AFTER + 1
    monkeypatch.setattr(progress.time, "time", lambda: later)
    plugin.log_event(progress.TOPIC, replace(other, state="finished").encode())
    assert [run.state for run in plugin.list_runs()] == ["finished", "silent"]
    assert plugin.list_runs()[1].describe()["left"] == ""


def test_page__shows_a_run_as_a_person_asks_for_it(client: Client) -> None:
    DaskExecutor(client, NOW.run).show(NOW)
    wait_shown(client, NOW)
    menu = fetch(client, "status").decode()
    assert '<a href="individual-privpipe-runs">' in menu, "no entry in the menu of Dask's pages"
    assert b"privpipe" in fetch(client, "individual-privpipe-runs")
    page = fetch(client, "privpipe").decode()
    head, first, *_ = re.findall("<tr>(.*?)</tr>", page, flags=re.DOTALL)
    names, values = (re.findall(r"<t[hd]>(.*?)</t[hd]>", line) for line in (head, first))
    row = dict(zip(names[:-1], values[:-1], strict=True))
    assert row == {**NOW.describe(), "heard": row["heard"]}
    assert '<progress max="8000.0" value="2000.0">' in first
    assert (row["stage"], row["chunks"]) == ("clean", "2 of 8")
    assert (row["speed"], row["left"]) == ("250 records/s", "0 min 24 s")


@pytest.mark.parametrize("field", ["stage", "unit", "gate", "run", "state", "link"])
def test_words__that_a_user_wrote_become_no_label(field: str) -> None:
    secret = "SECRETmalaria is not a word"
    found = Progress.decode({**NOW.encode(), field: secret, "more": secret})
    assert secret not in json.dumps(found.encode())


def test_names__become_labels_without_their_path() -> None:
    found = Progress.decode({"release": "<b>ünsafe\n.zarr", "deployment": "a" * 99})
    assert (found.release, found.deployment) == ("_b__nsafe_.zarr", "a" * 64)


def pause(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@pytest.mark.slow
def test_scheduler__counts_what_is_tried_again_and_what_fails() -> None:
    """A worker that is killed at work, and a task that fails for good."""
    with connect(ClusterOptions(workers=1, dashboard="127.0.0.1:0")) as client:
        (process,) = client.run(os.getpid).values()
        lost = client.submit(pause, 1.0, key="clean_chunk-0badcafe-000000", retries=2)
        while not client.run_on_scheduler(is_processing):
            time.sleep(0.02)
        os.kill(process, signal.SIGKILL)
        assert lost.result() != process
        bad = client.submit(divmod, 1, 0, key="clean_chunk-0badcafe-000001", retries=2)
        assert isinstance(bad.exception(), ZeroDivisionError)
        other = client.submit(divmod, 1, 0, key="somebody-else-000001")
        assert isinstance(other.exception(), ZeroDivisionError)
        DaskExecutor(client, NOW.run).show(NOW)
        shown = wait_shown(client, NOW)
    assert (shown["retried"], shown["failed"]) == (3, 1)


def is_processing(dask_scheduler: Any) -> bool:
    return any(task.state == "processing" for task in dask_scheduler.tasks.values())
