"""Settings that Prefect must find before it is imported: private, silent, patient.

Called by the command before any flow is loaded; whoever has set a variable keeps it.
"""

from __future__ import annotations

import os
from contextlib import suppress

import psutil
from platformdirs import user_data_path

__all__ = ["prepare_prefect"]

SETTINGS = {
    # The in-process server needs up to a minute on a small or busy machine; 20 s is the default.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
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
        home = user_data_path("privpipe") / "prefect"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ["PREFECT_HOME"] = str(home)
    end_orphans(os.environ["PREFECT_HOME"])


def end_orphans(home: str) -> None:
    """End Prefect's servers that a flow started for itself in this home and did not survive."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # others' processes are not ours to look at
            if process.uids().real == os.getuid() and _is_orphan(process, home):
                process.terminate()


def _is_orphan(process: psutil.Process, home: str) -> bool:
    if "prefect.server.api.server:create_app" not in process.cmdline():
        return False
    environment = process.environ()
    if environment.get("PREFECT__SERVER_EPHEMERAL") != "1":
        return False
    parent = process.parent()
    alone = parent is None or parent.pid == 1 or parent.name() in REAPERS
    return alone and environment.get("PREFECT_HOME") == home
