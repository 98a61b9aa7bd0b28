"""The ledger of promised releases: of a hundred nights with accidents no gap is silent."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from privpipe.command import deploy_command as command
from privpipe.command.deploy_command import gaps_command
from privpipe.errors import (
    ClusterError,
    FormatError,
    GateError,
    GuaranteeError,
    OptionError,
    StoreError,
)
from privpipe.pipeline.operations.deployment_file import Deployment
from privpipe.pipeline.operations.promised_releases import (
    Promised,
    judge_promises,
    list_due,
    note_promises,
    note_waived,
    read_ledger,
)
from privpipe.pipeline.runs.configuration_file import fill_time
from privpipe.pipeline.runs.watch import Watch, write_failure
from privpipe.store.access.workspace import hold_workspace
from privpipe.store.arrays.layout import root_document
from privpipe.store.collections.growing_collection import append_partition
from privpipe.store.keyring.account_chain import append_link, read_chain
from tests.cluster.workers.test_monitoring import read_gauges
from tests.operations.increments import CONFIGURATION, INGEST, append, day

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


@pytest.fixture
def midway(nightly: Deployment) -> Deployment:
    """The same, due half a day from now: whatever hour it is, none has just become due."""
    hour = (datetime.now(UTC).hour + 12) % 24
    return dataclasses.replace(nightly, schedules=((f"0 {hour} * * *", "UTC", True),))


def have(accident: str, url: str, choose: random.Random) -> None:
    """What a night leaves behind."""
    if accident in ("made", "made at last"):
        if accident == "made at last":
            write_failure(url, Watch(), ClusterError("It died.", code="crashes"))
        Path(url).mkdir()
        (Path(url) / "zarr.json").write_bytes(root_document({"kind": "release"}))
    elif accident == "gate":
        write_failure(url, Watch(), GateError("It leaks.", code="leaks"))
    elif accident == "error":
        write_failure(url, Watch(), StoreError("It is full.", code="disk-full"))
    elif accident == "crashed":
        write_failure(url, Watch(), ClusterError("It died.", code="crashes"))
    elif accident == "met another":
        write_failure(url, Watch(), StoreError("Another writes.", code="busy"))
    elif accident == "promise":
        write_failure(url, Watch(), GuaranteeError("The budget is consumed.", code="budget"))
    elif accident == "cancelled":
        write_failure(url, Watch(), KeyboardInterrupt())
    elif accident in ("killed", "killed, and its run deleted at the server"):
        with hold_workspace(url):  # the lock goes with the process, the folder stays
            pass
    elif accident == "damaged":
        write_failure(url, Watch(), StoreError("x", code="x"))
        [results] = Path(url).parent.glob(f"{Path(url).stem}*report/run_results.json")
        results.write_text(results.read_text()[: choose.randrange(40)])
    else:
        assert accident in ("server down", "its run deleted at the server", "late")


OUTCOMES = {
    "made": ("made", ""),
    "gate": ("refused", "leaks: It leaks."),
    "error": ("failed", "disk-full: It is full."),
    "made at last": ("made", ""),
    "crashed": ("failed", "crashes: It died."),
    "met another": ("failed", "busy: Another writes."),
    "promise": ("refused", "budget: The budget is consumed."),
    "late": ("waiting", "Late"),
    "cancelled": ("missing", "the last run ended as: interrupted"),
    "killed": ("missing", "a run began and its process died"),
    "killed, and its run deleted at the server": ("missing", "a run began and its process died"),
    "damaged": ("missing", "no run has begun"),
    "server down": ("missing", "no run has begun"),
    "its run deleted at the server": ("missing", "no run has begun"),
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
    assert set(played) == set(OUTCOMES)  # each kind is among the hundred
    for accident, (time, _) in zip(played, due, strict=True):
        have(accident, fill_time(f"{tmp_path}/night-{{logical_time}}.zarr", time), choose)
    # A run that ended or was deleted is not among what the server lists, and one killed is.
    late = {time: "Late" for (time, _), one in zip(due, played, strict=True) if one == "late"}
    found = list(judge_promises(due, late, now))
    assert found == [
        Promised(time, *OUTCOMES[accident]) for accident, (time, _) in zip(played, due, strict=True)
    ]
    # What waits at the server is no gap, and neither is what has just become due.
    waiting = {time: "Late" for time, _ in due}
    kinds = {one.outcome for one in judge_promises(due, waiting, now)}
    assert kinds == {"made", "waiting"}
    later = {"now": lambda zone: now}
    monkeypatch.setattr("privpipe.command.deploy_command.datetime", type("", (datetime,), later))
    monkeypatch.setenv("PRIVPIPE_METRICS_FILE", str(tmp_path / "gaps.prom"))
    with pytest.raises(ClusterError, match="promised releases of release are not there") as said:
        gaps_command("release", "2026-03-01T00:00:00Z", False)
    assert said.value.code == "gaps"
    gauges = read_gauges((tmp_path / "gaps.prom").read_text())
    # No server answers there: what waits at it is missing, and never silent.
    counts = Counter(OUTCOMES[one][0] if one != "late" else "missing" for one in played)
    for kind in ("made", "refused", "failed", "missing"):
        assert gauges["privpipe_promised_releases", kind] == counts[kind]


def test_gaps__of_a_place_that_all_nights_share_are_not_hidden_by_the_first_release(
    nightly: Deployment, tmp_path: Path
) -> None:
    config = Path(nightly.config)
    config.write_text(config.read_text().replace("night-{logical_time}", "people"))
    note_promises([nightly], BEGIN)
    now = BEGIN + timedelta(days=5)
    due, url = list_due("release", None, now), f"{tmp_path}/people.zarr"
    have("made", url, random.Random(0))
    assert [one.outcome for one in judge_promises(due, {}, now)] == ["made"]
    # The records have changed since, and a release is never replaced.
    write_failure(url, Watch(), StoreError("It is there.", code="exists"))
    [found] = judge_promises(due, {}, now)
    assert (found.time, found.outcome) == (due[-1][0], "failed")


def test_gaps__of_an_earlier_configuration_outlast_a_change_to_an_incremental_one(
    nightly: Deployment, tmp_path: Path, batches: list[Path]
) -> None:
    note_promises([nightly], BEGIN)
    append_partition(str(batches[0]), f"{tmp_path}/growing.zarr", "a", day(1), INGEST)
    growing = tmp_path / "incremental.toml"
    growing.write_text(CONFIGURATION.format(folder=tmp_path, budget=0.05, drift=5.0))
    other = Deployment(**{**vars(nightly), "config": str(growing)})
    note_promises([other], BEGIN + timedelta(days=3))
    now = BEGIN + timedelta(days=600)
    found = list(judge_promises(list_due("release", None, now), {}, now))
    assert [one.outcome for one in found] == ["missing"] * 4
    assert found == sorted(found, key=lambda one: one.time)


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
    paused = dataclasses.replace(nightly, schedules=())
    note_promises([paused], BEGIN + timedelta(days=4))
    due = [time for time, _ in list_due("release", None, BEGIN + timedelta(days=9))]
    assert len(due) == 3 + 24
    assert due[3] == BEGIN + timedelta(days=3, minutes=30)
    since = BEGIN + timedelta(days=3, hours=12)
    assert len(list_due("release", since, BEGIN + timedelta(days=9))) == 12
    assert [len(one["schedules"]) for one in read_ledger("release")] == [1, 1, 0]


def test_promises__are_links_of_the_accounts_chain(nightly: Deployment, tmp_path: Path) -> None:
    note_promises([nightly], BEGIN)
    url = str(tmp_path / "account")
    append_link(url, "refusal", {"run": "0badcafe"})
    other = Deployment(**{**vars(nightly), "name": "other"})
    note_promises([other], BEGIN)
    gap = Promised(BEGIN, "missing", "no run has begun")
    note_waived("release", [gap], BEGIN)
    links = read_chain(url).links
    assert [one.kind for one in links] == ["promise", "refusal", "promise", "promise"]
    assert (len(read_ledger("release", "waived")), read_ledger("other", "waived")) == (1, [])
    # One character, and neither the promises nor the account are believed.
    link = tmp_path / "account" / ".chain" / "00000000.json"
    sound = link.read_text()
    link.write_text(sound.replace("0 2 * * *", "0 2 1 * *"))
    for read in (lambda: list_due("release", None, BEGIN), lambda: read_chain(url)):
        with pytest.raises(FormatError, match=r"not as its chain says"):
            read()
    link.write_text(sound)
    assert len(read_ledger("release")) == 1


def test_gaps__of_a_name_that_is_deployed_no_more_say_so_and_end_when_asked(
    midway: Deployment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    deployed: list[str] = ["release"]
    monkeypatch.setattr(command, "find_deployments", lambda _: deployed)
    monkeypatch.setattr(command, "list_waiting", lambda _: {})
    monkeypatch.setattr(command.prefect_server, "prepare_prefect", lambda: None)
    with pytest.raises(OptionError, match="Nothing is promised"):
        gaps_command("release", "", False, end=True)
    note_promises([midway], datetime.now(UTC) - timedelta(days=3))
    with pytest.raises(ClusterError) as found:
        gaps_command("release", "", False)
    assert found.value.remedy.startswith("`privpipe gaps release --fill`")
    # While it runs under its name, no gap of it may become silent.
    with pytest.raises(ClusterError, match="has the deployment 'release'") as found:
        gaps_command("release", "", False, end=True)
    assert (found.value.code, len(read_ledger("release"))) == ("deployed", 1)
    deployed.clear()
    with pytest.raises(ClusterError) as found:
        gaps_command("release", "", False)
    assert "`privpipe gaps release --end` ends its promise" in found.value.remedy
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    capsys.readouterr()
    gaps_command("release", later, False)  # no gap, and the name is gone all the same
    assert "gaps release --end" in capsys.readouterr().out
    for _ in range(2):  # the second time there is nothing to end
        gaps_command("release", "", False, end=True)
    assert [len(one["schedules"]) for one in read_ledger("release")] == [1, 0]
    # What was missed before is a gap, and nothing is promised from there on.
    now = datetime.now(UTC)
    assert list_due("release", None, now) == list_due("release", None, now + timedelta(days=100))
    with pytest.raises(ClusterError) as found:
        gaps_command("release", "", False)
    assert "`privpipe run CONFIG --time TIME` makes each of them" in found.value.remedy
    assert "`privpipe gaps release --waive` notes" in found.value.remedy
    with pytest.raises(ClusterError, match="0 deployments 'release'") as found:
        command.start_runs("release", [now])
    assert "privpipe run CONFIG --time TIME" in found.value.remedy
    deployed[:] = ["one", "other"]
    with pytest.raises(ClusterError, match="2 deployments 'release'") as found:
        command.start_runs("release", [now])
    assert "prefect deployment delete" in found.value.remedy


def test_gaps__that_will_never_be_made_are_waived_listed_and_noted(
    midway: Deployment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What a deployment that is gone had missed before its end was a gap for ever."""
    monkeypatch.setattr(command, "find_deployments", lambda _: [])
    monkeypatch.setattr(command, "list_waiting", lambda _: {})
    monkeypatch.setattr(command.prefect_server, "prepare_prefect", lambda: None)
    monkeypatch.setenv("PRIVPIPE_METRICS_FILE", str(tmp_path / "gaps.prom"))
    note_promises([midway], datetime.now(UTC) - timedelta(days=4))
    due = [time for time, _ in list_due("release", None, datetime.now(UTC))]
    have("gate", fill_time(f"{tmp_path}/night-{{logical_time}}.zarr", due[0]), random.Random(0))
    have("made", fill_time(f"{tmp_path}/night-{{logical_time}}.zarr", due[1]), random.Random(0))
    with pytest.raises(OptionError, match="three calls"):
        gaps_command("release", "", False, end=True, waive=True)
    gaps_command("release", "", False, end=True)
    with pytest.raises(ClusterError, match="3 of 4 promised releases"):
        gaps_command("release", "", False)
    capsys.readouterr()
    gaps_command("release", due[2].isoformat(), False, waive=True)
    assert capsys.readouterr().out.count("waived   20") == 2
    with pytest.raises(ClusterError, match="1 of 4 promised releases"):  # none before that time
        gaps_command("release", "", False)
    gaps_command("release", "", False, waive=True)
    noted = [(one["time"], one["outcome"]) for one in read_ledger("release", "waived")]
    kinds = zip(due[2:] + due[:1], ("missing", "missing", "refused"), strict=True)
    assert noted == [(time.isoformat(), kind) for time, kind in kinds]
    capsys.readouterr()
    assert {one["outcome"] for one in gaps_command("release", "", False)["promised"]} == {
        "made",
        "waived",
    }
    assert capsys.readouterr().out == "promised 4: 1 made, 3 waived\n"
    gauges = read_gauges((tmp_path / "gaps.prom").read_text())
    assert [gauges["privpipe_promised_releases", kind] for kind in ("waived", "missing")] == [3, 0]
    # A promise that begins anew loses none of that; what is made after all counts as made.
    note_promises([midway], datetime.now(UTC))
    have("made", fill_time(f"{tmp_path}/night-{{logical_time}}.zarr", due[3]), random.Random(0))
    found = gaps_command("release", "", False)["promised"]
    assert [one["outcome"] for one in found] == ["waived", "made", "waived", "made"]


def test_gaps__of_a_configuration_that_is_gone_are_missing_and_can_be_waived(
    midway: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of a deployment goes with it: `gaps` ended by it, whatever was given."""
    started = list[object]()
    monkeypatch.setattr(command, "find_deployments", lambda _: [])
    monkeypatch.setattr(command, "list_waiting", lambda _: {})
    monkeypatch.setattr(command, "start_runs", lambda _, due: started.extend(due) or [])
    monkeypatch.setattr(command.prefect_server, "prepare_prefect", lambda: None)
    note_promises([midway], datetime.now(UTC) - timedelta(days=2))
    Path(midway.config).unlink()
    found = gaps_command("release", "", True)["promised"]
    assert [one["reason"] for one in found] == ["its configuration is gone"] * 2
    assert not started  # each run would end by the same
    gaps_command("release", "", False, waive=True)
    gaps_command("release", "", False)


def test_gaps__of_a_partition_that_came_later_are_not_waived_with_those_of_its_time(
    nightly: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing said that a partition was not released whose time another had been waived at."""
    monkeypatch.setattr(command, "find_deployments", lambda _: [])
    monkeypatch.setattr(command, "list_waiting", lambda _: {})
    monkeypatch.setattr(command.prefect_server, "prepare_prefect", lambda: None)
    Path(nightly.config).write_text(CONFIGURATION.format(folder=tmp_path, budget=0.05, drift=5.0))
    note_promises([nightly], BEGIN)
    rows = np.random.default_rng(4).normal(size=(6, 40, 3))
    append(tmp_path, "a", rows[0], 1)
    gaps_command("release", "", False, waive=True)
    for name, number, is_new in (("b", 1, False), ("a", 2, True)):  # beside it, and in its place
        append(tmp_path, name, rows[number], 1, replacing=is_new)
        with pytest.raises(ClusterError, match="1 of"):
            gaps_command("release", "", False)
        gaps_command("release", "", False, waive=True)
    assert len({one["part"] for one in read_ledger("release", "waived")}) == 3
