"""Prefect's server that does not start or answer is blamed by name, with the way out."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PREFECT_API_URL", "http://127.0.0.1:1/api", "that PREFECT_API_URL names"),
        ("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "1", "did not start within 1 s"),
    ],
)
def test_run__blames_prefect_for_its_server(tmp_path, configure, name, value, expected):
    config = configure()
    home = {"PREFECT_HOME": str(tmp_path / "home"), "PREFECT_CLIENT_MAX_RETRIES": "0"}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", "from privpipe.command import main; main()", "run", str(config)],
        env={**environment, **home, name: value},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 5, done.stderr
    assert "error[prefect]" in done.stderr
    assert expected in done.stderr
    assert "PREFECT_API_URL" in done.stderr
    assert not (tmp_path / "o.zarr").exists()


RUN = """
import os, signal, sys, time
from privpipe.pipeline.operations import prefect_server as ours
ours.prepare_prefect()
import httpx, psutil, ssl
_, url, authority, _ = ours.serve(240)
[server] = [one for one in psutil.Process().children() if ours.is_server(one)]
def ask():
    with httpx.Client(verify=ssl.create_default_context(cafile=authority), trust_env=False) as c:
        return c.get(f"{url}/health", timeout=60).status_code
for number in (signal.SIGTERM, signal.SIGINT):  # as a signal to the whole group
    server.send_signal(number)
time.sleep(1)
print(ask())
if sys.argv[1] == "killed":
    server.kill()
    server.wait()
    time.sleep(1)
    begun = time.monotonic()
    try:
        ask()
    except httpx.ConnectError:
        print("refused", time.monotonic() - begun < 5)
ours.end_servers()
print("ended", not server.is_running())
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["alive", "killed"])
def test_server__outlives_a_signal_to_the_group_and_refuses_when_it_is_dead(tmp_path, how):
    """Or a run waits for it at each of its last messages: half an hour, when systemd stops it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", RUN, how],
        env=environment | {"PREFECT_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    expected = ["200", *["refused True"] * (how == "killed"), "ended True"]
    assert done.stdout.splitlines() == expected, done.stderr
