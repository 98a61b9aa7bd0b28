"""A real flow against a real Prefect server process, not the in-process one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.digits_runs import own_prefect
from tests.flows.test_pipeline import configure
from tests.standard import write_standard

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def server(tmp_path: Path, prefect_home: Path) -> Iterator[str]:
    """The API address of a Prefect server process."""
    port = free_port()
    environment = own_prefect(str(tmp_path / "server"), prefect_home) | {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    log = open(tmp_path / "server.log", "wb")
    process = subprocess.Popen(
        [
            sys.executable,
            *"-m prefect server start --no-ui --host 127.0.0.1 --port".split(),
            str(port),
        ],
        env=environment,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        _wait(f"http://127.0.0.1:{port}/api/health", process)
        yield f"http://127.0.0.1:{port}/api"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(240):
        assert process.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError("the server did not answer within two minutes")


def test_run__records_its_stages_on_a_server(server: str, tmp_path: Path) -> None:
    write_standard(str(tmp_path / "records.zarr"), 300, chunk_rows=40)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    config = configure(tmp_path)
    environment |= {"PREFECT_API_URL": server, "PREFECT_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", "from privpipe.command import main; main()", "run", config],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "release.zarr" / "zarr.json").exists()
    names = _names_of(server, "task_runs")
    assert {name.rpartition("-")[0] for name in names} == {
        "train",
        "clean",
        "audit",
        "gate",
        "publish",
    }


def _names_of(server: str, what: str) -> set[str]:
    import json

    request = urllib.request.Request(
        f"{server}/{what}/filter", data=b"{}", headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return {item["name"] for item in json.load(answer)}
