"""Sending small values to workers so that no killed worker takes them along.

Scattered data lives on workers only: when the last one that holds it dies, every task that
needs it is lost, and a worker that comes later never gets it. A parcel is the result of a task,
which the scheduler runs again wherever it is missing.
"""

from __future__ import annotations

import itertools
import secrets
from typing import Any

from distributed import Client, Future

__all__ = ["send"]

_PROCESS = secrets.token_hex(4)
_NUMBERS = itertools.count()


class Parcel:
    """Wraps a value so that nothing prints it: it is an argument that Dask may log."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Parcel({type(self.value).__name__})"


def send(client: Client, value: Any) -> Future[Any]:
    """Future of a small picklable value, for the arguments of tasks."""
    key = f"send_{type(value).__name__}-{_PROCESS}-{next(_NUMBERS):06d}"
    return client.submit(unpack, Parcel(value), key=key, pure=False)


def unpack(parcel: Parcel) -> Any:
    """Worker side: what is inside."""
    return parcel.value
