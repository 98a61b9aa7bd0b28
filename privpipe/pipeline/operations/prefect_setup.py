"""What Prefect is given: settings before it is imported, servers that are trusted, news of a run.

Settings are private, silent and patient; a variable that the user has set stays. Whoever may create
a flow run on a server chooses which configuration a worker reads, and may give a worker code of
their own: so a server has a password, and beyond this machine TLS.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import walk_tb
from typing import Any, NoReturn
from urllib.parse import urlsplit

import psutil
from platformdirs import user_data_path
from rich.console import Console  # noqa: TID251 - makes none

from privpipe.cluster.workers.listener_owner import guard_address, is_loopback
from privpipe.errors import ClusterError, OptionError, PrivpipeError
from privpipe.report.console import say

SETTINGS = {
    # The in-process server needs minutes on a small and busy machine; 20 s is the default.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # Errors are shown once, by the command, without a traceback.
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
    "DO_NOT_TRACK": "1",
}


NO_OWN_SERVER = (
    "Run again; or raise PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS; or start "
    "`prefect server start` once and set PREFECT_API_URL to it."
)
"""What to do where the server that a run starts for itself does not start or answer."""

REAPERS = ("systemd", "init")
"""Who inherits the processes of the dead, beside the first process."""


def prepare_prefect() -> None:
    """Set what is not set yet; Prefect's home becomes a private folder of privpipe's own.

    The in-process servers of killed runs, which no one would ever end, are ended.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if "PREFECT_HOME" not in os.environ:
        home = private_home()
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ["PREFECT_HOME"] = str(home)
    end_orphans(os.environ["PREFECT_HOME"])


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
        raise ClusterError(
            f"{what} does not answer as it should ({type(error).__name__}).",
            remedy="Start that server, or unset PREFECT_API_URL." if url else NO_OWN_SERVER,
            code="prefect",
        ) from None


def _is_prefects(error: BaseException) -> bool:
    """Whether an error began in Prefect, or in what it talks to its server with."""
    # The innermost frame decides, since Prefect also calls our code.
    *_, (frame, _) = walk_tb(error.__traceback__)
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in ("prefect", "httpx", "httpcore", "anyio")


def private_home() -> Path:
    """Prefect's home of privpipe's own, where the user names none."""
    return user_data_path("privpipe") / "prefect"


def end_orphans(home: str) -> None:
    """End Prefect's servers that a flow started for itself in this home and did not survive."""
    for process in servers_in(home):
        with suppress(psutil.Error, OSError):
            if _is_alone(process):
                process.terminate()


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


def _is_alone(process: psutil.Process) -> bool:
    parent = process.parent()
    return parent is None or parent.pid == 1 or parent.name() in REAPERS


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
    return ClusterError(
        f"{problem} Nothing was read.",
        remedy="Look who answers at PREFECT_API_URL; if it is your server, install the versions of "
        "constraints.txt.",
        code="foreign-result",
    )


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
        If the server is beyond this machine, and is reached in the clear or without a password; if
        it is on this machine, reached in the clear, and another user listens there.
    """
    url = settings.get("PREFECT_API_URL", "")
    parts = urlsplit(url)
    if not parts.hostname:
        raise ClusterError(
            "PREFECT_API_URL names no Prefect server.",
            remedy="Start one (deploy/RUNBOOK.md, first page) and set PREFECT_API_URL to "
            "http://127.0.0.1:4200/api.",
            code="no-server",
        )
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
