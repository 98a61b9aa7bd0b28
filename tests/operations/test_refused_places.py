"""Servers, certificates and times that are refused before any work, each with the way out."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from privpipe.cluster.workers.certificates import PARTS, make_certificates, read_certificate
from privpipe.cluster.workers.connection import (
    ClusterOptions,
    connect,
    describe_difference,
    list_shaping_versions,
)
from privpipe.cluster.workers.processes import write_configuration
from privpipe.command.deploy_command import doctor_command
from privpipe.errors import ClusterError, GateError, OptionError, PrivpipeError, StoreError
from privpipe.flows import deployments
from privpipe.pipeline.operations import health
from privpipe.pipeline.operations.health import Finding, _judge_worker, check_certificates
from privpipe.pipeline.operations.prefect_server import check_server
from privpipe.pipeline.runs.configuration_file import fill_time, read_time
from privpipe.pipeline.stages.increment_check import TimeSpan
from tests.operations.increments import CONFIGURATION


@pytest.mark.parametrize(
    "settings",
    [
        {"PREFECT_API_URL": "http://10.0.0.5:4200/api"},
        {"PREFECT_API_URL": "http://prefect.example/api", "PREFECT_API_AUTH_STRING": "a:b"},
        {"PREFECT_API_URL": "https://prefect.example/api"},
        {"PREFECT_API_URL": "http://127.0.0.1.example/api"},
        {"PREFECT_API_URL": "http://0.0.0.0:4200/api"},
    ],
)
def test_server__beyond_this_machine_needs_tls_and_a_password(settings: dict[str, str]) -> None:
    with pytest.raises(OptionError) as refused:
        check_server(settings)
    assert refused.value.code == "open-server"


@pytest.mark.parametrize(
    "settings",
    [
        {"PREFECT_API_URL": "http://127.0.0.1:4200/api"},
        {"PREFECT_API_URL": "http://[::1]:4200/api"},
        {"PREFECT_API_URL": "https://prefect.example/api", "PREFECT_API_AUTH_STRING": "a:b"},
    ],
)
def test_server__that_is_trusted_is_taken(settings: dict[str, str]) -> None:
    assert check_server(settings) == settings["PREFECT_API_URL"]


@pytest.mark.parametrize(
    "text",
    [
        *("2026-11-22", "2026-11-22T06:00:00", "soon", ""),
        *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"),  # UTC is off the calendar
    ],
)
def test_logical_time__without_an_offset_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        read_time(text)


def test_logical_time__is_one_moment_however_it_is_written() -> None:
    berlin, utc = (read_time(t) for t in ("2026-11-22T07:00:00+01:00", "2026-11-22T06:00:00Z"))
    place = "s3://b/{logical_time}.zarr"
    assert fill_time(place, berlin) == fill_time(place, utc) == "s3://b/20261122T060000Z.zarr"
    with pytest.raises(OptionError, match="no logical time"):
        fill_time(place, None)
    with pytest.raises(OptionError, match="ends before it begins"):
        TimeSpan(berlin + timedelta(1), utc)


def fail(error: PrivpipeError, times: int) -> tuple[list[float], list[PrivpipeError]]:
    """Pauses taken, and what came out, when work fails so many times."""
    pauses, left = list[float](), [error] * times

    def work() -> str:
        if left:
            raise left.pop()
        return "done"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deployments, "PAUSES", (1, 2))
        patch.setattr(deployments.time, "sleep", pauses.append)
        try:
            deployments.retry_passing(work, lambda line: None)
        except PrivpipeError as out:
            return pauses, [out]
    return pauses, []


@pytest.mark.parametrize(
    ("error", "times", "pauses", "ends_well"),
    [
        (ClusterError("x", code="scheduler-lost"), 2, [1, 2], True),
        (StoreError("x", code="unreachable"), 3, [1, 2], False),
        (StoreError("x", code="disk-full"), 1, [], False),
        (StoreError("x", code="busy"), 1, [1], True),
        (GateError("x", code="leaks"), 1, [], False),
        (GateError("x", code="task-lost"), 1, [], False),
    ],
)
def test_retry__only_what_may_pass(
    error: PrivpipeError, times: int, pauses: list[float], ends_well: bool
) -> None:
    taken, out = fail(error, times)
    assert taken == pauses
    assert (out == []) == ends_well


def test_retry__waits_out_an_hour_of_something_away_and_no_failing_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept = list[float]()
    monkeypatch.setattr(deployments.time, "sleep", slept.append)

    def work(code: str, until: float) -> str:
        if sum(slept) < until:
            raise ClusterError("x", code=code)
        return "done"

    assert deployments.retry_passing(lambda: work("scheduler-lost", 3600.0), str) == "done"
    slept.clear()
    with pytest.raises(ClusterError):
        deployments.retry_passing(lambda: work("task-failed", 3600.0), str)
    assert slept == [10.0, 60.0, 300.0]


def test_certificates__are_private_signed_and_renewed(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    made = make_certificates(folder, ("scheduler.example", "10.1.2.3"), days=30)
    assert all(one.ours and one.private for one in made)
    assert {"scheduler.example", "10.1.2.3", "localhost"} <= set(made[0].hosts)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    with pytest.raises(OptionError, match="already"):
        make_certificates(folder)
    authority = (folder / "authority.pem").read_bytes()
    renewed = make_certificates(folder, days=60, renew=True)
    assert (folder / "authority.pem").read_bytes() == authority
    assert renewed[0].hosts == made[0].hosts
    assert renewed[0].expires > made[0].expires
    with pytest.raises(OptionError):
        make_certificates(tmp_path / "others", days=0)
    with pytest.raises(OptionError, match="is no folder"):  # was "a fault of privpipe"
        make_certificates(folder / "authority.pem")


def test_certificates__doctor_tells_expired_foreign_and_open_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dask

    ours, foreign = tmp_path / "ours", tmp_path / "foreign"
    make_certificates(ours, days=40)
    make_certificates(foreign)

    def look() -> list[str]:
        with dask.config.set({"distributed.comm.tls.ca-file": str(ours / "authority.pem")}):
            return [finding.state for finding in check_certificates()]

    assert look() == ["ok"] * len(PARTS)
    (ours / "worker.pem").write_bytes((foreign / "worker.pem").read_bytes())
    (ours / "client.key").chmod(0o640)
    assert look() == ["ok", "fails", "fails"]
    state = read_certificate(ours, "scheduler")
    assert state.days_left(datetime.now(UTC) + timedelta(41)) < 0
    make_certificates(ours, days=5, renew=True)
    assert look() == ["warns"] * len(PARTS)


def test_versions__of_another_worker_are_named() -> None:
    ours = list_shaping_versions()
    assert describe_difference(ours, dict(ours)) == ""
    theirs = {**ours, "numpy": "1.0"}
    del theirs["zarr"]
    said = describe_difference(ours, theirs)
    assert "numpy 1.0 instead of" in said
    assert "zarr missing instead of" in said


def test_preload__refuses_a_worker_without_its_environment(tmp_path: Path) -> None:
    """In a process of its own: the umask and the limit of core dumps are the process's."""
    make_certificates(tmp_path)
    path = write_configuration(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    program = (
        "import os, resource, sys\n"
        "from privpipe.cluster.workers.processes import prepare_process\n"
        "from privpipe.cluster.workers.processes import WORKER_ENVIRONMENT\n"
        "prepare_process(is_worker=False)\n"
        "assert os.umask(0) == 0o077 and resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)\n"
        "os.environ.update(WORKER_ENVIRONMENT)\n"
        "prepare_process(is_worker=True)\n"
        "os.environ['MALLOC_TRIM_THRESHOLD_'] = '65536'\n"
        "try: prepare_process(is_worker=True)\n"
        "except Exception as error: print(error.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "worker-environment\n"


def test_connect__by_an_expired_or_foreign_certificate_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, without asking the scheduler."""
    import dask

    from privpipe.cluster.workers import certificates

    ours, foreign = tmp_path / "ours", tmp_path / "foreign"
    make_certificates(foreign)

    class Earlier(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) - timedelta(days=100)

    with monkeypatch.context() as patch:
        patch.setattr(certificates, "datetime", Earlier)
        make_certificates(ours, days=90)
    options = ClusterOptions(address="tls://127.0.0.1:1", wait_seconds=1)

    def refuse() -> PrivpipeError:
        settings = {"distributed.comm.tls.client.cert": str(ours / "client.pem")}
        with dask.config.set(settings), pytest.raises(ClusterError) as told, connect(options):
            pass
        return told.value

    assert refuse().code == "certificate"
    assert "expired on" in refuse().message
    assert "--renew" in refuse().remedy
    make_certificates(ours, renew=True)
    assert refuse().code == "unreachable"
    for name in ("client.pem", "client.key"):
        (ours / name).write_bytes((foreign / name).read_bytes())
    assert "another authority" in refuse().message


def test_doctor__judges_what_a_worker_tells() -> None:
    """Clock, umask, core dumps, disk and storage: each wrong one is named, with the worker."""
    sound = {"time": 1e9, "umask": 0o077, "cores": 0, "free": 2**40, "reads": True, "writes": True}
    assert [found.state for found in _judge_worker("tls://w", sound, 1e9 + 5)] == ["ok"]
    for name, value, said in (
        ("time", 1e9 + 45, "clock 45 s away"),
        ("umask", 0o022, "umask 022"),
        ("cores", -1, "core dumps"),
        ("free", 2**20, "GiB free"),
        ("reads", False, "cannot read"),
        ("writes", False, "cannot write"),
    ):
        (found,) = _judge_worker("tls://w", {**sound, name: value}, 1e9)
        assert (found.state, "tls://w" in found.detail) == ("fails", True)
        assert said in found.detail
        assert found.remedy


def test_doctor__says_ready_only_where_nothing_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(
        CONFIGURATION.format(folder=tmp_path, budget=0.05, drift=5.0)
    )
    asked: list[health.Check] = []

    def tell(states: str) -> Callable[..., list[Finding]]:
        found = [Finding(state, "it", "as seen", "Mend it.") for state in states.split()]
        return lambda checks: asked.append(checks["deployments"]) or found

    for states, says in (("ok", "is ready"), ("ok warns", "would run; 1 of"), ("warns fails", "")):
        monkeypatch.setattr(health, "run_checks", tell(states))
        with suppress(ClusterError):
            doctor_command(str(tmp_path / "run.toml"), str(tmp_path / "nothing.yaml"))
            assert says
        said = capsys.readouterr().out
        assert says in said
        assert ("is ready" in said) == (states == "ok")
    # Without the file of deployments nobody has looked whether a schedule fires.
    assert [one.state for check in asked for one in check()] == ["warns"] * 3
