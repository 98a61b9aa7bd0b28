"""`privpipe deploy` at a real server: what became due meanwhile is started."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter

from privpipe.command import deploy_command, gaps_command
from privpipe.pipeline.operations import health
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
      - {{ cron: "30 * * * *", timezone: UTC, active: true }}
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
def deployments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(tmp_path / "account"))
    monkeypatch.setattr(deploy_command, "datetime", Later)
    monkeypatch.setattr(Later, "readings", 0)
    Path("prefect.yaml").write_text(PREFECT.format(config=configure(tmp_path)))


def test_deploy__starts_what_became_due_and_waits_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server is asked is answered here; one at work is asked below."""
    waiting: list[datetime] = []
    for name in ("_make_pool", "_make_queue", "_deploy"):
        monkeypatch.setattr(deploy_command, name, lambda *_: None)
    monkeypatch.setattr(deploy_command.prefect_server, "prepare_prefect", lambda: None)
    monkeypatch.setattr(deploy_command.prefect_server, "check_server", lambda: "http://x/api")
    monkeypatch.setattr(deploy_command, "list_waiting", lambda _: dict.fromkeys(waiting, ""))
    monkeypatch.setattr(deploy_command, "start_runs", lambda _, due: waiting.extend(due))
    begun = datetime.now(UTC)
    deploy_command.deploy_command("prefect.yaml")
    assert len(waiting) == len(set(waiting)) == 3
    assert all(time < begun and (time.minute, time.second) == (30, 0) for time in waiting)
    due = waiting[:]
    Later.readings = 0  # and once more: they wait, so that none is started twice
    deploy_command.deploy_command("prefect.yaml")
    assert waiting == due
    del waiting[1]  # of which the server has lost the run
    Later.readings = 0
    deploy_command.deploy_command("prefect.yaml")
    assert sorted(waiting) == due


@pytest.mark.slow
def test_deploy__starts_what_became_due_meanwhile_once(
    prefect_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", prefect_url)
    begun = datetime.now(UTC)
    deploy_command.deploy_command("prefect.yaml")
    due = list_started()
    assert len(due) == len(set(due)) == 3
    assert all(time < begun and (time.minute, time.second) == (30, 0) for time in due)
    Later.readings = 0  # and once more: they wait, so that none is started twice
    # However many wait: the server names so many at once, and a second `--fill` filled the rest.
    monkeypatch.setattr(gaps_command, "PAGE", 2)
    deploy_command.deploy_command("prefect.yaml")
    assert list_started() == due
    assert {*due} <= gaps_command.list_waiting("hourly").keys()
    # One of the server that the file does not name any more runs on, and was not mentioned.
    Path("prefect.yaml").write_text(Path("prefect.yaml").read_text().replace("hourly", "daily"))
    found = list(health.check_deployed("prefect.yaml", "automations.yaml"))
    assert [("daily" in one.detail, one.state) for one in found] == [
        (True, "fails"),
        (False, "warns"),
    ]
    assert found[1].detail.startswith("hourly runs on")
