"""The Prefect server that a run starts for itself: closed to others, ended with the run, small.

Prefect would start it as a process on loopback, without a password, and end it only when Python
ends in an orderly way. Here a signal is an orderly end, requests need a password that only this run
knows, and its database does not grow for ever.
"""

import atexit
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import psutil

from privpipe.cluster.workers.certificates import make_certificates
from privpipe.cluster.workers.listener_owner import guard_address
from privpipe.errors import ClusterError
from privpipe.pipeline.operations.prefect_setup import (
    NO_OWN_SERVER,
    is_server,
    private_home,
    refuse_stored_results,
    servers_in,
)

PAUSE = 0.1
"""Seconds between two looks at whether the server answers."""

ENDING = 5.0
"""Seconds that a server has to end by itself."""

DAYS = 3650
"""For which its certificate holds: longer than any run."""


_OPENED = ExitStack()
"""Sockets and folders of servers, until Python ends: Prefect sends its last messages at the end.

A socket stays open: should its server die, no one else can listen there while the run lives.
"""


def serve(time_limit: float) -> tuple[str, Path]:
    """Start a server on loopback and wait until it answers.

    Parameters
    ----------
    time_limit
        Seconds.

    Returns
    -------
    url, authority
        Of its API; file of the authority of its certificate, the one thing that clients trust.

    Raises
    ------
    ClusterError
        If it does not.
    """
    deadline = time.monotonic() + time_limit
    # Bound before anything is started: no one else can listen there in between.
    listener = _OPENED.enter_context(socket.create_server(("127.0.0.1", 0), reuse_port=False))
    place = Path(_OPENED.enter_context(TemporaryDirectory(prefix="privpipe-server-")))
    make_certificates(place, days=DAYS)
    url = f"https://127.0.0.1:{listener.getsockname()[1]}/api"
    process = _start(listener, place)
    # Last in, first out: by then `end_servers` has given it time to end by itself.
    _OPENED.callback(process.wait)
    _OPENED.callback(process.kill)
    authority = place / "authority.pem"
    if _wait(process, url, authority, deadline):
        for key in place.glob("*.key"):  # read by the server; the authority signs no more
            key.unlink()
        return url, authority
    ended = process.poll()
    raise ClusterError(
        f"Prefect's own server did not start within {time_limit:g} s: the machine is slow or busy."
        if ended is None
        else f"Prefect's own server ended with code {ended} when it started.",
        remedy=NO_OWN_SERVER,
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
    # The environment may name a proxy, which has no business between a run and its server.
    with httpx.Client(verify=proved, trust_env=False) as client:
        while process.poll() is None and (left := deadline - time.monotonic()) > 0:
            try:
                if client.get(f"{url}/health", timeout=left).status_code == httpx.codes.OK:
                    return True
            except httpx.TransportError:
                pass
            time.sleep(PAUSE)
    return False


LARGEST_BYTES = 64 * 2**20
"""Of the database, about 80 kB for each run. Receipts show progress, not Prefect."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: handled as Ctrl-C is, so that everything is tidied up."""


@contextmanager
def ephemeral_server() -> Iterator[None]:
    """Run flows: with the server that ``PREFECT_API_URL`` or a profile names, or one's own.

    SIGTERM and SIGHUP interrupt the run as SIGINT does. A server that the run started is gone
    when the process is; after SIGKILL, when the next run starts.
    """
    with _interrupting():
        home = os.environ.get("PREFECT_HOME", "")
        if home == str(private_home()):
            drop_database(Path(home))
        from prefect.context import refresh_global_settings_context
        from prefect.settings import get_current_settings

        if not get_current_settings().api.url:
            # Both are read when the server starts, and by each of this process's requests.
            fresh = f"privpipe:{secrets.token_urlsafe(32)}"
            password = os.environ.setdefault("PREFECT_SERVER_API_AUTH_STRING", fresh)
            os.environ["PREFECT_API_AUTH_STRING"] = password
            # The server outlives the flow: Prefect sends its last messages at the end.
            atexit.register(end_servers)
            refresh_global_settings_context()
            ephemeral = get_current_settings().server.ephemeral
            if ephemeral.enabled:  # else Prefect says that it has no server
                url, authority = serve(ephemeral.startup_timeout_seconds)
                os.environ |= {
                    "PREFECT_API_URL": url,
                    "PREFECT_API_SSL_CERT_FILE": str(authority),
                    # A setting of the user may say 1: then anyone could answer.
                    "PREFECT_API_TLS_INSECURE_SKIP_VERIFY": "0",
                }
                refresh_global_settings_context()
        else:
            guard_address(get_current_settings().api.url or "")
        refuse_stored_results()
        yield


@contextmanager
def _interrupting() -> Iterator[None]:
    """Turn the signals that end a process at once into an exception, the first time."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        if not received:
            received.append(number)
            raise Terminated(signal.Signals(number).name)

    usual = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        usual[number] = signal.getsignal(number)
        if usual[number] is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in usual.items():
            # Once the process ends, the rest of its end is not to be disturbed either.
            signal.signal(number, signal.SIG_IGN if received else handler)


def end_servers() -> None:
    """End the servers of this process, one that is just starting included."""
    with suppress(psutil.Error):
        servers = [child for child in psutil.Process().children() if is_server(child)]
        for server in servers:
            with suppress(psutil.Error):
                server.terminate()
        for server in psutil.wait_procs(servers, timeout=ENDING)[1]:
            with suppress(psutil.Error):
                server.kill()
    _OPENED.close()


def drop_database(home: Path, largest: int = LARGEST_BYTES) -> None:
    """Remove a database that has grown too large, Prefect makes a new one; never one in use."""
    files = [home / f"prefect.db{end}" for end in ("-wal", "-shm", "")]
    size = sum(file.stat().st_size for file in files if file.exists())
    if size > largest and not any(True for _ in servers_in(str(home))):
        for file in files:
            file.unlink(missing_ok=True)
