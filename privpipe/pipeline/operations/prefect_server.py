"""What Prefect is given: settings before it is imported, a server of a run's own, whom to trust.

Settings are private, silent and patient; a variable that the user has set stays. Whoever may create
a flow run on a server chooses which configuration a worker reads, and may give a worker code of
their own. So a server has a password, and beyond this machine TLS.

The server that a run starts for itself is closed to others, ended with the run, and small. Prefect
would start it as a process on loopback, without a password, and end it only when Python ends in an
orderly way. Here it ends when its run does in whatever way. Requests need a password that only this
run knows, and its database does not grow for ever.
"""

import atexit
import os
import secrets
import socket
import ssl
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import walk_tb
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

import psutil
from platformdirs import user_data_path
from rich.console import Console  # noqa: TID251 - makes none

from privpipe.cluster.workers.certificates import guard_address, is_loopback, make_certificates
from privpipe.errors import ClusterError, OptionError, PrivpipeError
from privpipe.report.console import say

SETTINGS = tomllib.loads(Path(__file__).with_name("prefect.toml").read_text("utf-8"))

NO_OWN_SERVER = (
    "Run again; or raise PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS; or start "
    "`prefect server start` once and set PREFECT_API_URL to it."
)
"""What to do where the server that a run starts for itself does not start or answer."""


def prepare_prefect() -> None:
    """Set what is not set yet; Prefect's home becomes a private folder of privpipe's own."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if "PREFECT_HOME" not in os.environ:
        home = private_home()
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ["PREFECT_HOME"] = str(home)


@contextmanager
def blaming_prefect() -> Iterator[None]:
    """Say it of Prefect when its server does not start or answer: no fault of ours.

    Raises
    ------
    ClusterError
        With the cause and the setting that decides which server is used.
    """
    url = os.environ.get("PREFECT_API_URL")  # a run sets it to its own server's
    what = "The Prefect server that PREFECT_API_URL names" if url else "Prefect's own server"
    try:
        yield
    except Exception as error:
        if isinstance(error, PrivpipeError) or not _is_prefects(error):
            raise
        problem = f"{what} does not answer as it should ({type(error).__name__})."
        remedy = "Start that server, or unset PREFECT_API_URL." if url else NO_OWN_SERVER
        raise ClusterError(problem, remedy=remedy, code="prefect") from None


def _is_prefects(error: BaseException) -> bool:
    """Whether an error began in Prefect, or in what it talks to its server with."""
    # The innermost frame decides, since Prefect also calls our code.
    *_, (frame, _) = walk_tb(error.__traceback__)
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in ("prefect", "httpx", "httpcore", "anyio")


def private_home() -> Path:
    """Prefect's home of privpipe's own, where the user names none."""
    return user_data_path("privpipe") / "prefect"


def servers_in(home: str) -> Iterator[psutil.Process]:
    """Servers that flows of this user started for themselves in a home."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # others' processes are not ours to look at
            if process.uids().real == os.getuid() and is_server(process):
                environment = process.environ()
                ours = environment.get("PREFECT__SERVER_EPHEMERAL") == "1"
                if ours and environment.get("PREFECT_HOME") == home:
                    yield process


def is_server(process: psutil.Process) -> bool:
    """Whether a process serves Prefect's API."""
    return "prefect.server.api.server:create_app" in process.cmdline()


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


class _Server(NamedTuple):
    """One that was started, and may not answer yet."""

    process: subprocess.Popen[bytes]
    url: str
    authority: Path
    password: str


_BEGUN: list[_Server] = []
"""What `begin_server` started and no flow uses yet."""


def begin_server() -> None:
    """Start a run's own server, unless the environment names one; `ephemeral_server` waits for it.

    It takes as long to start as the command needs to load what it runs and to check its options.
    """
    prepare_prefect()
    if not os.environ.get("PREFECT_API_URL"):
        _BEGUN.append(_begin())


def serve(time_limit: float) -> _Server:
    """Start a server on loopback, if none was begun, and wait until it answers.

    Parameters
    ----------
    time_limit
        Seconds.

    Returns
    -------
    server
        Its API's URL; file of the authority of its certificate, the one thing that clients trust;
        the password.

    Raises
    ------
    ClusterError
        If it does not.
    """
    deadline = time.monotonic() + time_limit
    server = _BEGUN.pop() if _BEGUN else _begin()
    if _wait(server.process, server.url, server.authority, deadline):
        for key in server.authority.parent.glob("*.key"):  # read by the server; signs no more
            key.unlink()
        return server
    ended = server.process.poll()
    raise ClusterError(
        f"Prefect's own server did not start within {time_limit:g} s: the machine is slow or busy."
        if ended is None
        else f"Prefect's own server ended with code {ended} when it started.",
        remedy=NO_OWN_SERVER,
        code="prefect",
    )


def _begin() -> _Server:
    """Start one, with a password that only this run knows, unless the user set one."""
    home = os.environ.get("PREFECT_HOME", "")
    if home == str(private_home()):
        drop_database(Path(home))
    # The server outlives the flow: Prefect sends its last messages at the end.
    atexit.register(end_servers)
    # Bound before anything is started: no one else can listen there in between.
    listener = _OPENED.enter_context(socket.create_server(("127.0.0.1", 0), reuse_port=False))
    place = Path(_OPENED.enter_context(TemporaryDirectory(prefix="privpipe-server-")))
    make_certificates(place, days=DAYS)
    fresh = f"privpipe:{secrets.token_urlsafe(32)}"
    password = os.environ.get("PREFECT_SERVER_API_AUTH_STRING", fresh)
    process = _start(listener, place, password)
    threading.Thread(target=_refuse_when_dead, args=(process, listener), daemon=True).start()
    for step in (process.wait, process.kill, partial(_end, process)):  # last in, first out
        _OPENED.callback(step)
    url = f"https://127.0.0.1:{listener.getsockname()[1]}/api"
    return _Server(process, url, place / "authority.pem", password)


def _refuse_when_dead(process: subprocess.Popen[bytes], listener: socket.socket) -> None:
    """Let requests fail at once when the server is gone, with the port still taken.

    Connections would wait in the socket's queue until each request's time is over.
    """
    process.wait()
    with suppress(OSError):  # closed, as the run has ended
        listener.shutdown(socket.SHUT_RDWR)


def _start(listener: socket.socket, folder: Path, password: str) -> subprocess.Popen[bytes]:
    """The process, which inherits the socket, and ends when its standard input does."""
    marks = {
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
        "PREFECT_SERVER_API_AUTH_STRING": password,
    }
    # -P: no file of the folder that a run is started from is imported in a library's place.
    command = [sys.executable, "-P", str(Path(__file__).with_name("served_prefect.py"))]
    command += ["prefect.server.api.server:create_app", str(listener.fileno()), str(folder)]
    given, passed = {**os.environ, **marks}, [listener.fileno()]
    return subprocess.Popen(command, env=given, pass_fds=passed, stdin=subprocess.PIPE)


def _wait(process: subprocess.Popen[bytes], url: str, authority: Path, deadline: float) -> bool:
    """Whether a server that has our certificate answers in time, and has not ended."""
    import httpx

    proved = ssl.create_default_context(cafile=authority)
    # The environment may name a proxy, which has no business between a run and its server.
    with httpx.Client(verify=proved, trust_env=False) as client:
        while process.poll() is None and (left := deadline - time.monotonic()) > 0:
            with suppress(httpx.TransportError):
                if client.get(f"{url}/health", timeout=left).status_code == httpx.codes.OK:
                    return True
            time.sleep(PAUSE)
    return False


LARGEST_BYTES = 64 * 2**20
"""Of the database, about 80 kB for each run. Receipts show progress, not Prefect."""


@contextmanager
def ephemeral_server() -> Iterator[None]:
    """Run flows: with the server that ``PREFECT_API_URL`` or a profile names, or one's own.

    A server that the run started is gone when the process is, however that ends.
    """
    with blaming_prefect():
        from prefect.context import refresh_global_settings_context
        from prefect.settings import get_current_settings

        ephemeral = get_current_settings().server.ephemeral
        if get_current_settings().api.url:
            guard_address(get_current_settings().api.url or "")
        elif ephemeral.enabled:  # else Prefect says that it has no server
            server = serve(ephemeral.startup_timeout_seconds)
            os.environ |= {
                "PREFECT_API_URL": server.url,
                "PREFECT_API_AUTH_STRING": server.password,
                "PREFECT_API_SSL_CERT_FILE": str(server.authority),
                # A setting of the user may say 1: then anyone could answer.
                "PREFECT_API_TLS_INSECURE_SKIP_VERIFY": "0",
            }
            refresh_global_settings_context()
        refuse_stored_results()
        yield


def end_servers() -> None:
    """End the servers of this process, one that is just starting included."""
    _OPENED.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Request its end, and give it time to write what it was sent."""
    assert process.stdin is not None
    process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDING)


def drop_database(home: Path, largest: int = LARGEST_BYTES) -> None:
    """Remove a database that has grown too large, Prefect makes a new one; never one in use."""
    files = [home / f"prefect.db{end}" for end in ("-wal", "-shm", "")]
    size = sum(file.stat().st_size for file in files if file.exists())
    if size > largest and not any(True for _ in servers_in(str(home))):
        for file in files:
            file.unlink(missing_ok=True)


PAUSES = (0.2, 1.0)
"""Seconds between attempts. Prefect's client has tried each request several times by then."""


def notify_prefect(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """What the function answers; None, and one line, where Prefect's server does not take it."""
    for pause in (*PAUSES, None):
        try:
            return function(*given, **named)
        except Exception as error:  # many kinds: HTTP statuses, lost connections, time-outs
            problem = type(error).__name__
        if pause is not None:
            time.sleep(pause)
    say(f"prefect  does not take {function.__name__} ({problem}); the run continues", stderr=True)
    return None


def outlive_reader() -> None:
    """From now on no console of this process ends it for want of a reader."""
    # Rich ends the process where a line cannot be written any more.
    Console.on_broken_pipe = _fall_silent  # type: ignore[assignment,method-assign]


def _fall_silent(console: Console) -> None:
    """In the place of `rich.console.Console.on_broken_pipe`: later lines go nowhere."""
    with suppress(OSError, ValueError):  # a file that is closed, or none of the system's
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, console.file.fileno())
        os.close(nowhere)


def refuse_stored_results() -> None:
    """From now on this process reads no result that Prefect names.

    For processes that run our flows alone: the command, and a deployed flow run.
    """
    # Classmethods both, and the only places where Prefect (3.8) makes an object of stored bytes.
    from prefect._internal.result_records import ResultRecord

    for name in ("deserialize", "deserialize_from_result_and_metadata"):
        if not callable(getattr(ResultRecord, name, None)):
            raise _refuse("Prefect reads stored results in another way than this version knows.")
        setattr(ResultRecord, name, classmethod(_refuse_reading))


def _refuse_reading(cls: type[Any], *args: Any, **kwargs: Any) -> NoReturn:
    raise _refuse("Prefect's server names a stored result of this run, and the run stored none.")


def _refuse(problem: str) -> ClusterError:
    remedy = "Look who answers at PREFECT_API_URL; if it is yours, install constraints.txt."
    return ClusterError(f"{problem} Nothing was read.", remedy=remedy, code="foreign-result")


def check_server(settings: Mapping[str, str] = os.environ) -> str:
    """The API's address, if work may be taken from it.

    Parameters
    ----------
    settings
        ``PREFECT_API_URL``, ``PREFECT_API_AUTH_STRING``, ``PREFECT_API_KEY``.

    Raises
    ------
    ClusterError
        If no server is named.
    OptionError
        If the server is beyond this machine, and is reached in the clear or without a password. If
        it is on this machine, reached in the clear, and another user listens there.
    """
    url = settings.get("PREFECT_API_URL", "")
    parts = urlsplit(url)
    if not parts.hostname:
        problem = "PREFECT_API_URL names no Prefect server."
        remedy = "Start one (deploy/RUNBOOK.md, first page) and set PREFECT_API_URL."
        raise ClusterError(problem, remedy=remedy, code="no-server")
    if is_loopback(parts.hostname):
        guard_address(url)
        return url
    known = settings.get("PREFECT_API_AUTH_STRING") or settings.get("PREFECT_API_KEY")
    problem = ""
    if not known:
        problem = "has no password: whoever reaches it chooses what workers run"
    elif parts.scheme != "https":
        problem = f"is reached by {parts.scheme or 'no scheme'}: the password travels in the clear"
    if problem:
        raise OptionError(
            f"The Prefect server {parts.hostname} is not on this machine and {problem}.",
            remedy="Use an https:// address, start the server with "
            "PREFECT_SERVER_API_AUTH_STRING=user:secret and set PREFECT_API_AUTH_STRING to it.",
            code="open-server",
        )
    return url
