"""`privpipe deploy` at a real server: what became due is started, what is due next waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter

from privpipe.command import deploy_command
from privpipe.errors import ClusterError
from privpipe.pipeline.operations import health
from privpipe.pipeline.operations.promised_releases import list_due
from tests.flows.test_pipeline import configure

PREFECT = """
name: nights
pull: []
deployments:
  - name: hourly
    entrypoint: privpipe.flows.deployments.release
    tags: [privpipe, release]
    parameters: {{ config_path: {config} }}
    schedules:
      - {{ cron: "{minute} * * * *", timezone: UTC, active: true }}
    work_pool: {{ name: privpipe, work_queue_name: releases }}
"""


class Later(datetime):
    """A clock by which a deploy takes three hours: its first reading is that much earlier."""

    readings = 0

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        cls.readings += 1
        return datetime.now(tz) - timedelta(hours=3 if cls.readings == 1 else 0)


def list_started() -> list[datetime]:
    """Logical times of the runs that were given one, those twice that run twice."""
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            deployment_filter=DeploymentFilter.model_validate({"name": {"any_": ["hourly"]}})
        )
    given = (run.parameters.get("logical_time") for run in runs)
    return sorted(datetime.fromisoformat(time) for time in given if time)


@pytest.fixture(autouse=True)
def minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of every hour one is due half an hour from now: none becomes due within a test."""
    minute = (datetime.now(UTC).minute + 30) % 60
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(tmp_path / "account"))
    monkeypatch.setattr(deploy_command, "datetime", Later)
    monkeypatch.setattr(Later, "readings", 0)
    Path("prefect.yaml").write_text(PREFECT.format(config=configure(tmp_path), minute=minute))
    return minute


def test_deploy__starts_what_became_due_and_waits_nowhere(
    monkeypatch: pytest.MonkeyPatch, minute: int
) -> None:
    """What a server is asked is answered here; one at work is asked below."""
    waiting: list[datetime] = []
    looked, made = list[datetime](), list[tuple[str, datetime]]()

    def look(name: str, since: datetime | None, now: datetime) -> Any:
        looked.append(now)
        return list_due(name, since, now)

    monkeypatch.setattr(deploy_command.promises, "list_due", look)
    monkeypatch.setattr(deploy_command, "_make_runs", lambda *given: made.append(given))
    for name in ("_make_pool", "_make_queue", "_deploy"):
        monkeypatch.setattr(deploy_command, name, lambda *_: None)
    monkeypatch.setattr(deploy_command.prefect_server, "prepare_prefect", lambda: None)
    monkeypatch.setattr(deploy_command.prefect_server, "check_server", lambda: "http://x/api")
    monkeypatch.setattr(deploy_command, "list_waiting", lambda _: dict.fromkeys(waiting, ""))
    monkeypatch.setattr(deploy_command, "start_runs", lambda _, due: waiting.extend(due))
    begun = datetime.now(UTC)
    deploy_command.deploy_command("prefect.yaml")
    # What is due later than that is made at the server, whatever its own loop does.
    assert made == [("privpipe-release/hourly", looked[0])]
    assert len(waiting) == len(set(waiting)) == 3
    assert all(time < begun and (time.minute, time.second) == (minute, 0) for time in waiting)
    due = waiting[:]
    Later.readings = 0  # and once more: they wait, so that none is started twice
    deploy_command.deploy_command("prefect.yaml")
    assert waiting == due
    del waiting[1]  # of which the server has lost the run
    Later.readings = 0
    deploy_command.deploy_command("prefect.yaml")
    assert sorted(waiting) == due


@pytest.fixture
def rename(prefect_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Gives the deployment of the file another name; the server is that of other tests, too."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_url)
    names = ["hourly"]

    def change(name: str) -> None:
        content = Path("prefect.yaml").read_text()
        Path("prefect.yaml").write_text(content.replace(f"name: {names[-1]}", f"name: {name}"))
        names.append(name)

    yield change
    for name in names[1:]:
        remove(name)


def remove(name: str) -> None:
    """Of the server, as `prefect deployment delete` does."""
    with get_client(sync_client=True) as client:
        for found in deploy_command.find_deployments(name):
            client.delete_deployment(found.id)


def list_next(name: str) -> list[datetime]:
    """Times of runs that the schedule made at the server, those twice that run twice."""
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            deployment_filter=DeploymentFilter.model_validate({"name": {"any_": [name]}})
        )
    return sorted(run.expected_start_time for run in runs if run.auto_scheduled)


@pytest.mark.slow
def test_deploy__leaves_no_release_to_the_next_loop_of_the_server(
    rename: Callable[[str], None],
) -> None:
    """The server of these tests has no such loop: as where one is due before the next."""
    rename("next")
    for _ in range(2):  # a second deploy deletes those of the first
        Later.readings = 0
        now = datetime.now(UTC)
        deploy_command.deploy_command("prefect.yaml")
        [due] = [time for time, _ in list_due("next", now, now + timedelta(hours=1))]
        assert list_next("next").count(due) == (due > datetime.now(UTC))
        deploy_command._make_runs("privpipe-release/next", now)  # what a loop does afterwards
        assert list_next("next").count(due) == 1
    assert due in deploy_command.list_waiting("next")


@pytest.mark.slow
def test_gaps__of_a_renamed_deployment_name_the_remedy_and_end_by_it(
    rename: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old", "new"):
        rename(name)
        Later.readings = 0
        deploy_command.deploy_command("prefect.yaml")
    with pytest.raises(ClusterError, match="has the deployment 'old'") as refused:
        deploy_command.gaps_command("old", "", False, end=True)
    assert refused.value.code == "deployed"
    remove("old")
    deploy_command.gaps_command("old", "", False)
    assert "`privpipe gaps old --end` ends its promise" in capsys.readouterr().out
    ended = deploy_command.gaps_command("old", "", False, end=True)
    later = datetime.now(UTC) + timedelta(days=9)
    assert list_due("old", datetime.fromisoformat(ended["ended"]), later) == []
    assert deploy_command.find_deployments("new")


@pytest.mark.slow
def test_deploy__starts_what_became_due_meanwhile_once(
    prefect_url: str, monkeypatch: pytest.MonkeyPatch, minute: int
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", prefect_url)
    begun = datetime.now(UTC)
    deploy_command.deploy_command("prefect.yaml")
    due = list_started()
    assert len(due) == len(set(due)) == 3
    assert all(time < begun and (time.minute, time.second) == (minute, 0) for time in due)
    Later.readings = 0  # and once more: they wait, so that none is started twice
    # However many wait: the server names so many at once, and a second `--fill` filled the rest.
    monkeypatch.setattr(deploy_command, "PAGE", 2)
    deploy_command.deploy_command("prefect.yaml")
    assert list_started() == due
    assert {*due} <= deploy_command.list_waiting("hourly").keys()
    # One of the server that the file does not name any more runs on, and was not mentioned.
    Path("prefect.yaml").write_text(Path("prefect.yaml").read_text().replace("hourly", "daily"))
    found = list(health.check_deployed("prefect.yaml", "automations.yaml"))
    assert [("daily" in one.detail, one.state) for one in found] == [
        (True, "fails"),
        (False, "warns"),
    ]
    assert found[1].detail.startswith("hourly runs on")
