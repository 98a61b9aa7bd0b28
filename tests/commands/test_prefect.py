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
