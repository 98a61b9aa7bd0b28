"""The process of Prefect's server: started as Prefect starts its own, without being imported here.

Prefect imports its whole server into the flow's process to start another that serves: a third of
the processor time before the first record. What is started is the same, and so are its marks.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from privpipe.errors import ClusterError

__all__ = ["serve"]

PORTS = range(8000, 9000)
"""Of Prefect's own servers."""

PORTS_TRIED = 10
STARTS_TRIED = 3
"""A server that ends at once may have lost its port to another."""

PAUSE = 0.1
"""Seconds between two looks at whether the server answers."""


def serve(patience: float) -> str:
    """Start a server on loopback and wait until it answers.

    Parameters
    ----------
    patience
        Seconds.

    Returns
    -------
    url
        At which it answers.

    Raises
    ------
    ClusterError
        If it does not, or every port is taken.
    """
    deadline = time.monotonic() + patience
    for _ in range(STARTS_TRIED):
        process, url = _start()
        if _wait(process, url, deadline):
            return url
        if process.poll() is None:
            break
    raise ClusterError(
        f"Prefect's own server did not start within {patience:g} s: the machine is slow or busy."
        if process.poll() is None
        else f"Prefect's own server ended with code {process.poll()} when it started.",
        remedy="Run again; or raise PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS; or start "
        "`prefect server start` once and set PREFECT_API_URL to it.",
        code="prefect",
    )


def _start() -> tuple[subprocess.Popen[bytes], str]:
    """The process, and the URL at which it will answer."""
    import prefect
    from prefect.settings import get_current_settings

    port = _find_port()
    marks = {
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
    }
    settings = get_current_settings().to_environment_variables(exclude_unset=True)
    command = [sys.executable, "-m", "uvicorn"]
    command += ["--app-dir", str(Path(prefect.__file__).parent.parent)]
    command += ["--factory", "prefect.server.api.server:create_app"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--log-level", "error", "--lifespan", "on"]
    process = subprocess.Popen(command, env={**os.environ, **marks, **settings})
    return process, f"http://127.0.0.1:{port}/api"


def _wait(process: subprocess.Popen[bytes], url: str, deadline: float) -> bool:
    """Whether a server answers in time, and has not ended."""
    import httpx

    with httpx.Client() as client:
        while process.poll() is None and (left := deadline - time.monotonic()) > 0:
            try:
                if client.get(f"{url}/health", timeout=left).status_code == httpx.codes.OK:
                    return True
            except httpx.TransportError:
                pass
            time.sleep(PAUSE)
    return False


def _find_port() -> int:
    """A free port, drawn, so that two runs that start together seldom want the same."""
    for _ in range(PORTS_TRIED):
        port = random.choice(PORTS)
        with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ClusterError(
        f"Every port tried from {PORTS.start} to {PORTS.stop - 1} is taken.",
        remedy="Run again, or start `prefect server start` and set PREFECT_API_URL to it.",
        code="prefect",
    )
