"""The ledger of promised releases: of a hundred nights with accidents no gap is silent."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from privpipe.command.gaps_command import gaps_command
from privpipe.errors import ClusterError, GateError, OptionError, StoreError
from privpipe.pipeline.operations.deployment_file import Deployment
from privpipe.pipeline.operations.promised_releases import (
    Promised,
    judge_promises,
    list_due,
    note_promises,
    read_ledger,
)
from privpipe.pipeline.runs.configuration_file import fill_time
from privpipe.pipeline.runs.watch import Watch, write_failure
from privpipe.store.access.workspace import hold_workspace
from privpipe.store.arrays.layout import root_document
from tests.cluster.workers.test_monitoring import read_gauges

CONFIG = """
[collection]
path = "records.zarr"
desired = ["y"]
confidential = ["s"]
[method]
name = "null_space"
utility_budget = 0.1
[release]
path = "{folder}/night-{{logical_time}}.zarr"
"""
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def nightly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(tmp_path / "account"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    schedules = (("0 2 * * *", "Europe/Berlin", True), ("0 9 * * *", "Europe/Berlin", False))
    return Deployment("release", "privpipe-release", "privpipe", "releases", str(config), schedules)


def have(accident: str, url: str, choose: random.Random) -> None:
    """What a night leaves behind."""
    if accident == "made":
        Path(url).mkdir()
        (Path(url) / "zarr.json").write_bytes(root_document({"kind": "release"}))
    elif accident == "gate":
        write_failure(url, Watch(), GateError("It leaks.", code="leaks"))
    elif accident == "error":
        write_failure(url, Watch(), StoreError("It is full.", code="disk-full"))
    elif accident == "cancelled":
        write_failure(url, Watch(), KeyboardInterrupt())
    elif accident == "killed":
        with hold_workspace(url):  # the lock goes with the process, the folder stays
            pass
    elif accident == "damaged":
        write_failure(url, Watch(), StoreError("x", code="x"))
        [results] = Path(url).parent.glob(f"{Path(url).stem}*report/run_results.json")
        results.write_text(results.read_text()[: choose.randrange(40)])
    else:
        assert accident == "never began"


OUTCOMES = {
    "made": ("made", ""),
    "gate": ("refused", "leaks: It leaks."),
    "error": ("failed", "disk-full: It is full."),
    "cancelled": ("missing", "the last run ended as: interrupted"),
    "killed": ("missing", "a run began and its process died"),
    "damaged": ("missing", "no run has begun"),
    "never began": ("missing", "no run has begun"),
}


def test_gaps__of_a_hundred_nights_with_accidents_none_is_silent(
    nightly: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_promises([nightly], BEGIN)
    now = BEGIN + timedelta(days=100)
    due = list_due("release", None, now)
    assert len(due) == 100
    # The clocks change on 29 March: the same hour of Berlin is another one of UTC.
    hours = [due[n][0].hour for n in (0, 27, 29, 99)]
    assert hours == [1, 1, 0, 0]
    choose = random.Random(7)
    played = [choose.choice(sorted(OUTCOMES)) for _ in due]
    for accident, (time, _) in zip(played, due, strict=True):
        have(accident, fill_time(f"{tmp_path}/night-{{logical_time}}.zarr", time), choose)
    found = list(judge_promises(due, {}, now))
    assert found == [
        Promised(time, *OUTCOMES[accident]) for accident, (time, _) in zip(played, due, strict=True)
    ]
    # What waits at the server is no gap, and neither is what has just become due.
    waiting = {time: "Late" for time, _ in due}
    kinds = {one.outcome for one in judge_promises(due, waiting, now)}
    assert kinds == {"made", "waiting"}
    later = {"now": lambda zone: now}
    monkeypatch.setattr("privpipe.command.gaps_command.datetime", type("", (datetime,), later))
    monkeypatch.setenv("PRIVPIPE_METRICS_FILE", str(tmp_path / "gaps.prom"))
    with pytest.raises(ClusterError, match="promised releases of release are not there") as said:
        gaps_command("release", "2026-03-01T00:00:00Z", False)
    assert said.value.code == "gaps"
    gauges = read_gauges((tmp_path / "gaps.prom").read_text())
    assert gauges["privpipe_promised_releases", "made"] == played.count("made")
    assert gauges["privpipe_promised_releases", "refused"] == played.count("gate")


def test_promises__last_until_another_takes_their_place(
    nightly: Deployment, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="Nothing is promised"):
        list_due("release", None, BEGIN)
    note_promises([nightly], BEGIN)
    note_promises([nightly], BEGIN + timedelta(days=2))  # the same again is no new promise
    assert len(read_ledger("release")) == 1
    hourly = Deployment(**{**vars(nightly), "schedules": (("30 * * * *", "Etc/UTC", True),)})
    note_promises([hourly], BEGIN + timedelta(days=3))
    paused = Deployment(**{**vars(nightly), "schedules": ()})
    note_promises([paused], BEGIN + timedelta(days=4))
    due = [time for time, _ in list_due("release", None, BEGIN + timedelta(days=9))]
    assert len(due) == 3 + 24
    assert due[3] == BEGIN + timedelta(days=3, minutes=30)
    since = BEGIN + timedelta(days=3, hours=12)
    assert len(list_due("release", since, BEGIN + timedelta(days=9))) == 12
    ledger = json.loads((tmp_path / "account.promises" / "release.json").read_text())
    assert [len(one["schedules"]) for one in ledger["promises"]] == [1, 1, 0]
