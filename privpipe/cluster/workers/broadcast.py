"""Sending small values to workers so that no killed worker takes them along.

Scattered data lives on workers only: when the last one that holds it dies, every task that
needs it is lost, and a worker that comes later never gets it. A broadcast is the result of a task,
which the scheduler runs again wherever it is missing.
"""

from __future__ import annotations

import itertools
import secrets
from typing import Any

import dask
from distributed import Client, Future

_PROCESS = secrets.token_hex(4)
_NUMBERS = itertools.count()


class Broadcast:
    """Wraps a value so that nothing prints it: it is an argument that Dask may log."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Broadcast({type(self.value).__name__})"


def send(client: Client, value: Any) -> Future[Any]:
    """Future of a picklable value, for the arguments of tasks.

    The scheduler keeps the value as long as a task that may be run again needs it; a worker
    that holds the result dies without consequence.
    """
    key = f"send_{type(value).__name__}-{_PROCESS}-{next(_NUMBERS):06d}"
    # That the value travels with the task is the point, whatever its size.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):
        return client.submit(unpack, Broadcast(value), key=key, pure=False, retries=2)


def unpack(broadcast: Broadcast) -> Any:
    """Worker side: what is inside."""
    return broadcast.value
