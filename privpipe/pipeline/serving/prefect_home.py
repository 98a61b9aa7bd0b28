"""Settings that Prefect must find before it is imported: private, silent, patient.

Called by the command before any flow is loaded; whoever has set a variable keeps it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from platformdirs import user_data_path

from privpipe.errors import ClusterError, PrivpipeError

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


REAPERS = ("systemd", "init")
"""Who inherits the processes of the dead, beside the first process."""


def prepare_prefect() -> None:
    """Set what is not set yet; Prefect's home becomes a private folder of privpipe's own.

    The in-process servers of killed runs, which nobody would ever end, are ended.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if "PREFECT_HOME" not in os.environ:
        home = own_home()
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
    try:
        yield
        return
    except PrivpipeError:
        raise
    except Exception as error:
        if not _is_prefects(error):
            raise
        problem = type(error).__name__
    patience = os.environ.get("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS")
    raise ClusterError(
        f"The Prefect server that PREFECT_API_URL names does not answer as it should ({problem})."
        if url
        else f"Prefect's own server did not start within {patience} s ({problem}): the machine is "
        "slow or busy.",
        remedy="Start that server, or unset PREFECT_API_URL."
        if url
        else "Run again; or raise PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS; or start "
        "`prefect server start` once and set PREFECT_API_URL to it.",
        code="prefect",
    )


def _is_prefects(error: BaseException) -> bool:
    """Whether an error began in Prefect, or in what it talks to its server with."""
    traceback = error.__traceback__
    name = ""
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__", ""))
        traceback = traceback.tb_next
    return name.partition(".")[0] in ("prefect", "httpx", "httpcore", "anyio")


def own_home() -> Path:
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
                own = environment.get("PREFECT__SERVER_EPHEMERAL") == "1"
                if own and environment.get("PREFECT_HOME") == home:
                    yield process


def is_server(process: psutil.Process) -> bool:
    """Whether a process serves Prefect's API."""
    return "prefect.server.api.server:create_app" in process.cmdline()


def _is_alone(process: psutil.Process) -> bool:
    parent = process.parent()
    return parent is None or parent.pid == 1 or parent.name() in REAPERS
