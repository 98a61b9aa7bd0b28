"""The server that a run starts for itself: nobody else's, and gone when the run is."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from privpipe.pipeline.operations.prefect_server import LARGEST_BYTES, drop_database, is_server
from privpipe.store.access.workspace import workspace_url
from tests.flows.digits_runs import RUN, own_prefect, write_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="package", autouse=True)
def prefect_home() -> None:
    """No server for this process: those of the runs are looked at."""


class Running:
    """`privpipe run` as a process of its own with a Prefect of its own."""

    def __init__(
        self, folder: Path, source: Path, database: Path, cluster: str = "workers = 1"
    ) -> None:
        self.home = folder / "prefect"
        self.work = Path(workspace_url(str(folder / "release.zarr")))
        config = folder / "run.toml"
        audit = 'adversaries = ["least_squares"]'
        write_config(
            config, str(source), str(folder / "release.zarr"), audit=audit, cluster=cluster
        )
        self.process = subprocess.Popen(
            [*RUN, str(config)],
            env=own_prefect(str(self.home), database),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def servers(self) -> list[psutil.Process]:
        found = []
        for child in self.family():
            try:
                found += [child] if is_server(child) else []
            except psutil.Error:
                continue
        return found

    def wait_until(self, reached: Callable[[], object]) -> None:
        deadline = time.monotonic() + 150
        while not reached():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)


FILL = """
import sys
from privpipe.pipeline.operations.prefect_server import prepare_prefect
prepare_prefect()
from privpipe.pipeline.operations.prefect_server import ephemeral_server
with ephemeral_server():
    from prefect import flow, task
    from prefect.artifacts import create_markdown_artifact
    @task
    def step(): return 1
    @flow
    def run():
        step()
        create_markdown_artifact("text", key="privpipe-summary")
    for _ in range(int(sys.argv[1])):
        run()
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that two real flow runs were written to."""
    home = tmp_path_factory.mktemp("filled")
    fill(own_prefect(str(home)), 2)
    return home


def fill(environment: dict[str, str], n_runs: int) -> None:
    subprocess.run(
        [sys.executable, "-c", FILL, str(n_runs)],
        env=environment,
        check=True,
        timeout=200,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture
def running(
    source: Path, tmp_path: Path, filled: Path, request: pytest.FixtureRequest
) -> Iterator[Running]:
    """With a cluster of one worker, or what the parameter says."""
    cluster = getattr(request, "param", "workers = 1")
    run = Running(tmp_path, source, filled / "prefect.db", cluster)
    family: list[psutil.Process] = []
    try:
        yield run
    finally:
        if run.process.poll() is None:
            family = run.family()
            run.process.kill()
        for process in family:
            try:
                process.kill()
            except psutil.Error:
                continue
        run.process.communicate()


@pytest.mark.parametrize(
    ("name", "moment"), [("SIGTERM", "clean"), ("SIGHUP", "server"), ("SIGINT", "clean")]
)
def test_run__ended_by_a_signal_leaves_no_process(running: Running, name: str, moment: str) -> None:
    """While chunks are cleaned, and at the very moment at which the server is started."""
    at_work = (
        running.servers if moment == "server" else lambda: list(running.work.glob("ledger/*.json"))
    )
    running.wait_until(at_work)
    family = running.family()
    assert running.servers()
    running.process.send_signal(getattr(signal, name))
    if name != "SIGINT":  # impatient supervisors
        time.sleep(0.2)
        running.process.send_signal(getattr(signal, name))
    _, error = running.process.communicate(timeout=90)
    assert running.process.returncode == 130, error.decode()
    assert b"interrupted" in error
    assert b"Traceback" not in error
    assert not psutil.wait_procs(family, timeout=10)[1]


@pytest.mark.parametrize("running", ["workers = 0"], indirect=True)
def test_run__that_is_killed_leaves_no_server(running: Running) -> None:
    """Its server starts with the command, and ends with it where nothing can be tidied up."""
    running.wait_until(running.servers)
    family = running.family()
    running.process.kill()
    left = psutil.wait_procs(family, timeout=30)[1]
    for process in left:
        process.kill()
    assert not left


ANYBODY = ssl.create_default_context()
"""Takes any certificate, as a stranger does."""
ANYBODY.check_hostname, ANYBODY.verify_mode = False, ssl.CERT_NONE


def ask(url: str, method: str, **headers: str) -> int:
    body = b"{}" if method != "GET" else None
    headers |= {"Content-Type": "application/json"}
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30, context=ANYBODY) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code


@pytest.mark.parametrize("running", ["workers = 0"], indirect=True)
def test_run__its_server_answers_nobody_else(running: Running) -> None:
    """As another user of this machine: every route of Prefect's own list, without a password."""
    from prefect.server.api.server import create_app

    running.wait_until(lambda: list(running.work.glob("ledger/*.json")))
    os.kill(running.process.pid, signal.SIGSTOP)
    [server] = running.servers()
    doors = {c.laddr for c in server.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert {host for host, _ in doors} == {"127.0.0.1"}
    [(_, port)] = doors
    root = f"https://127.0.0.1:{port}"
    [api] = [m for m in create_app(ephemeral=True).routes if getattr(m, "path", "") == "/api"]
    routes = [
        (path.removeprefix("/api"), method.upper())
        for path, methods in api.app.openapi()["paths"].items()  # type: ignore[attr-defined]
        for method in methods
        if not path.endswith(("/health", "/ready"))
    ]
    assert len(routes) > 100
    for path, method in [*routes[::7], ("/flow_runs/filter", "POST"), ("/flow_runs/", "POST")]:
        assert ask(f"{root}/api{path}", method) == 401, (path, method)
    wrong = {"Authorization": "Basic cHJpdnBpcGU6eA=="}
    assert ask(f"{root}/api/flow_runs/filter", "POST", **wrong) == 401
    right = server.environ()["PREFECT_SERVER_API_AUTH_STRING"]
    assert right not in " ".join(
        [*server.cmdline(), *psutil.Process(running.process.pid).cmdline()]
    )
    os.kill(running.process.pid, signal.SIGCONT)
    _, error = running.process.communicate(timeout=200)
    assert running.process.returncode == 0, error.decode()
    assert right.encode() not in error
    with closing(sqlite3.connect(running.home / "prefect.db")) as database:
        states = database.execute("SELECT name, state_type FROM task_run").fetchall()
    assert {name.rpartition("-")[0] for name, _ in states} >= {"train", "clean", "publish"}
    assert {state for _, state in states} == {"COMPLETED"}


def count(home: Path, table: str) -> int:
    with closing(sqlite3.connect(home / "prefect.db")) as database:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def grow(home: Path) -> None:
    """Make the database large, though not on disk."""
    os.truncate(home / "prefect.db", (home / "prefect.db").stat().st_size + LARGEST_BYTES)


def test_drop_database__removes_what_is_too_large(filled: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(filled, tmp_path / "home"))
    drop_database(home)
    assert count(home, "flow_run") == 2
    grow(home)
    drop_database(home)
    assert not list(home.glob("prefect.db*"))


def test_run__drops_the_database_of_privpipe_s_own_home_only(filled: Path, tmp_path: Path) -> None:
    own = tmp_path / "data" / "privpipe" / "prefect"
    shutil.copytree(filled, own)
    shutil.copytree(filled, tmp_path / "mine")
    environment = own_prefect("unused") | {"XDG_DATA_HOME": str(tmp_path / "data")}
    del environment["PREFECT_HOME"]
    grow(own)
    grow(tmp_path / "mine")
    fill(environment, 1)
    assert count(own, "flow_run") == 1
    # That it would be dropped is decided before there is a server: here there is to be none.
    mine = {"PREFECT_HOME": str(tmp_path / "mine"), "PREFECT_SERVER_EPHEMERAL_ENABLED": "false"}
    fill(environment | mine, 0)
    assert (tmp_path / "mine" / "prefect.db").stat().st_size > LARGEST_BYTES
