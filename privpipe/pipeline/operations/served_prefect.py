"""What the process of a run's own Prefect server does: serve on a socket that it was handed.

Run as a file, ``served_prefect.py create_app FD FOLDER``: it imports nothing of privpipe. The
socket was bound by the run before anything else was started, so no one else can listen there; the
certificate in FOLDER is one that only the run knows how to check.
"""

import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType


def main(application: str, number: str, folder: str) -> None:
    """Serve until the run that started it says so, or is gone.

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
    import uvicorn

    run = os.getppid()

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if os.getppid() != run:
                super().handle_exit(sig, frame)

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
    server = Server(config)
    signal.signal(signal.SIGUSR1, lambda *_: setattr(server, "should_exit", True))
    server.run(sockets=[socket.socket(fileno=int(number))])


if __name__ == "__main__":
    main(*sys.argv[1:])
