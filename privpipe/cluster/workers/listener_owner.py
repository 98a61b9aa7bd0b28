"""Who listens at an address of this machine: checked before each connection.

Loopback is shared. While the scheduled Prefect server or a scheduler of Dask is down, another user
can listen at its port, and whoever connects gives a password away or runs what is answered. Linux
says whose a listening socket is (proc(5), /proc/net/tcp); other systems do not say, and there
nothing is checked. TLS with certificates, as in deploy/RUNBOOK.md, needs no such check.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from privpipe.errors import OptionError

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LISTENS = "0A"
TRUSTED = "PRIVPIPE_TRUSTED_UIDS"

_guarded: set[int] = set()


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def guard_address(url: str) -> None:
    """From now on this process connects to the port of a plain address of this machine only while
    its owner, root or a user of ``PRIVPIPE_TRUSTED_UIDS`` listens there.

    Parameters
    ----------
    url
        With a port. One beyond this machine, or with TLS, needs no such check.

    Raises
    ------
    OptionError
        If somebody else listens there now.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "tcp") or not is_loopback(parts.hostname or ""):
        return
    port = parts.port or 80
    check_listener(port)
    # The hook sees every connection of this process: only these ports are looked at.
    _guarded.add(port)
    _watch_connections()


@cache
def _watch_connections() -> None:
    sys.addaudithook(_look)  # once: a hook stays for the life of the process


def check_listener(port: int) -> None:
    """Refuse a port of this machine at which somebody else listens.

    Raises
    ------
    OptionError
        With the number of the user.
    """
    strangers = find_owners(port) - _trusted()
    if strangers:
        raise OptionError(
            f"Port {port} of this machine belongs to another user (uid "
            f"{', '.join(map(str, sorted(strangers)))}): whoever answers there would get the "
            "password and say what runs.",
            remedy="Start your own server there, or use https:// with a certificate (deploy/"
            f"RUNBOOK.md); if that user runs it for you, name them: {TRUSTED}=UID.",
            code="foreign-server",
        )


def find_owners(port: int) -> set[int]:
    """Users whose sockets listen at a port of any address of this machine; empty if unknown."""
    return {uid for uid, number in _list_listeners() if number == port}


def _list_listeners() -> Iterator[tuple[int, int]]:
    for table in TABLES:
        with suppress(OSError):  # no Linux, or no IPv6
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENS:
                    yield int(fields[7]), int(fields[1].rpartition(":")[2], 16)


def _trusted() -> set[int]:
    named = os.environ.get(TRUSTED, "").replace(",", " ").split()
    return {0, os.geteuid(), *(int(uid) for uid in named if uid.isdecimal())}


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: the moment before a socket connects, whichever library it belongs to."""
    if event != "socket.connect":
        return
    address = arguments[1]
    if not (isinstance(address, tuple) and len(address) >= 2 and address[1] in _guarded):
        return
    if is_loopback(str(address[0])):
        check_listener(int(address[1]))
