"""What the process of a run's own Prefect server does: serve on a socket that it was handed.

Run as a file, ``served_prefect.py create_app FD FOLDER``: it imports nothing of privpipe. The
socket was bound by the run before anything else was started, so no one else can listen there. The
certificate in FOLDER is one that only the run knows how to check.
"""

import gc
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any


def main(application: str, number: str, folder: str) -> None:
    """Serve until standard input ends: its other end is the run's, and closed when that ends.

    A signal to the whole group (Ctrl-C, ``timeout``, systemd) reaches server and run alike. Were
    the server the first to end, the run would wait for it at each last message, half an hour.

    Parameters
    ----------
    application
        ``module:factory`` of Prefect's API.
    number
        File descriptor of a listening socket.
    folder
        Holds the certificate and its key, which are read once.
    """
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    gc.set_threshold(200_000, 20, 100)  # next to nothing of what imports make is garbage
    started: list[Any] = []
    threading.Thread(target=_end_with_the_run, args=(started,), daemon=True).start()
    from prefect.settings import get_current_settings

    if get_current_settings().api.url:  # a profile's: the run uses that one
        return
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """Nothing: the run decides."""

    place = Path(folder)
    config = uvicorn.Config(
        application,
        factory=True,
        log_level="error",
        lifespan="on",
        ssl_certfile=place / "scheduler.pem",
        ssl_keyfile=str(place / "scheduler.key"),
    )
    # Of its true family: uvicorn's own --fd calls it a Unix socket, and asyncio then leaves Nagle's
    # algorithm on, which delays each small answer by 40 ms.
    started.append(server := Server(config))
    server.run(sockets=[socket.socket(fileno=int(number))])


def _end_with_the_run(started: list[Any]) -> None:
    """Wait for the end of the run; a server that serves ends in order."""
    sys.stdin.buffer.read()
    for server in started:
        server.should_exit = True
    if not started:
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # all is written: what is left would take Python apart, for a second
