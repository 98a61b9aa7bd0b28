"""The process of Prefect's server: on a socket of ours, behind a certificate that is made for it.

Prefect would draw a free port, name it on a command line and believe whoever answers there: another
user of the machine who is faster gets the password and answers for the server. Here the run binds
the socket itself and hands it over; until the server has proved its certificate, nothing is sent.
Started without importing Prefect's server, a third of the processor time before the first record.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from privpipe.cluster.workers.certificates import make_certificates
from privpipe.errors import ClusterError

PAUSE = 0.1
"""Seconds between two looks at whether the server answers."""

ENDING = 5.0
"""Seconds that a server has to end by itself."""

DAYS = 3650
"""For which its certificate holds: longer than any run."""


@dataclass(frozen=True)
class Served:
    """A server that answers.

    Parameters
    ----------
    url
        Of its API.
    authority
        File of the authority of its certificate: the one thing that its clients trust.
    folder
        Holds that file.
    listener
        The socket, kept: should the server die, no one else can listen there while the run lives.
    process
        Of the server.
    """

    url: str
    authority: str
    folder: TemporaryDirectory[str]
    listener: socket.socket
    process: subprocess.Popen[bytes]

    def close(self) -> None:
        """End the server, and let go of its socket and certificate."""
        self.process.terminate()
        try:
            self.process.wait(ENDING)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.listener.close()
        self.folder.cleanup()


def serve(patience: float) -> Served:
    """Start a server on loopback and wait until it answers.

    Parameters
    ----------
    patience
        Seconds.

    Raises
    ------
    ClusterError
        If it does not.
    """
    deadline = time.monotonic() + patience
    listener = socket.create_server(("127.0.0.1", 0), reuse_port=False)
    folder = TemporaryDirectory(prefix="privpipe-server-")
    place = Path(folder.name)
    make_certificates(place, days=DAYS)
    url = f"https://127.0.0.1:{listener.getsockname()[1]}/api"
    process = _start(listener, place)
    if _wait(process, url, place / "authority.pem", deadline):
        for key in place.glob("*.key"):  # read by the server; the authority signs no more
            key.unlink()
        return Served(url, str(place / "authority.pem"), folder, listener, process)
    ended = process.poll()
    raise ClusterError(
        f"Prefect's own server did not start within {patience:g} s: the machine is slow or busy."
        if ended is None
        else f"Prefect's own server ended with code {ended} when it started.",
        remedy="Run again; or raise PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS; or start "
        "`prefect server start` once and set PREFECT_API_URL to it.",
        code="prefect",
    )


def _start(listener: socket.socket, folder: Path) -> subprocess.Popen[bytes]:
    """The process, which inherits the socket."""
    from prefect.settings import get_current_settings

    marks = {
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
    }
    settings = get_current_settings().to_environment_variables(exclude_unset=True)
    number = listener.fileno()
    # -P: no file of the folder that a run is started from is imported in a library's place.
    command = [sys.executable, "-P", str(Path(__file__).with_name("served_prefect.py"))]
    command += ["prefect.server.api.server:create_app", str(number), str(folder)]
    return subprocess.Popen(command, env={**os.environ, **marks, **settings}, pass_fds=[number])


def _wait(process: subprocess.Popen[bytes], url: str, authority: Path, deadline: float) -> bool:
    """Whether a server that has our certificate answers in time, and has not ended."""
    import httpx

    proved = ssl.create_default_context(cafile=authority)
    with httpx.Client(verify=proved, trust_env=False) as client:
        while process.poll() is None and (left := deadline - time.monotonic()) > 0:
            try:
                if client.get(f"{url}/health", timeout=left).status_code == httpx.codes.OK:
                    return True
            except httpx.TransportError:
                pass
            time.sleep(PAUSE)
    return False
