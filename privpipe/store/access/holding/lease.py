"""A lease: who may write where nothing can be locked, for a bounded time.

Leases of one workspace are numbered objects, each made only if it is absent: the store itself
decides who holds number n + 1, and it may be asked for only when number n has expired. Nothing is
deleted to take a lease, so two who find the same one expired cannot both win. The holder renews
its object from a thread; a holder that dies stops renewing, so a kill never needs a hand.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import fsspec

from privpipe.errors import StoreError
from privpipe.store.access.location import create_bytes, join, shown

__all__ = ["LEASES", "LEASE_SECONDS", "hold_lease"]

LEASE_SECONDS = 120.0
LEASES = "lease"
"""Folder of the leases within a workspace."""


@dataclass(frozen=True)
class _Lease:
    holder: str
    expires: float


@contextmanager
def hold_lease(work_url: str, *, seconds: float = LEASE_SECONDS) -> Iterator[None]:
    """Hold the lease of a workspace for as long as the block runs.

    Raises
    ------
    StoreError
        If another holder's lease has not expired, or this one was lost while it was held.
    """
    holder = secrets.token_hex(8)
    number = _take(work_url, holder, seconds)
    stop, lost = threading.Event(), threading.Event()

    def renew() -> None:
        while not stop.wait(seconds / 4):
            if _newest(work_url) != number:
                lost.set()
                return
            _write(_place(work_url, number), _Lease(holder, time.time() + seconds))

    thread = threading.Thread(target=renew, name="privpipe-lease", daemon=True)
    thread.start()
    try:
        yield
        if lost.is_set():
            raise StoreError(
                f"The lease on {shown(work_url)} was lost to another run.",
                remedy="Let the other run finish.",
                code="busy",
            )
    finally:
        stop.set()
        thread.join()
        _give_back(work_url, number)


def _take(work_url: str, holder: str, seconds: float) -> int:
    number = _newest(work_url)
    if number is None or _has_expired(_place(work_url, number)):
        following = 0 if number is None else number + 1
        lease = _Lease(holder, time.time() + seconds)
        if create_bytes(_place(work_url, following), _encode(lease)):
            return following
    raise StoreError(
        f"Another run holds {shown(work_url)}.",
        remedy=f"Wait for it; the lease of a run that died expires after {seconds:.0f} s.",
        code="busy",
    )


def _give_back(work_url: str, number: int) -> None:
    """Remove the leases, unless another run may have found ours expired and counted on from it."""
    place = _place(work_url, number)
    if _newest(work_url) == number and not _has_expired(place):
        for older in _numbers(work_url):
            _delete(_place(work_url, older))


def _newest(work_url: str) -> int | None:
    return max(_numbers(work_url), default=None)


def _numbers(work_url: str) -> list[int]:
    """Numbers of the leases there are, in order; foreign names do not count."""
    file_system, path = fsspec.core.url_to_fs(join(work_url, LEASES))
    file_system.invalidate_cache()
    try:
        found = file_system.ls(path, detail=False)
    except FileNotFoundError:
        return []
    stems = [name.rpartition("/")[2].removesuffix(".json") for name in found]
    return sorted(int(stem) for stem in stems if stem.isdigit())


def _place(work_url: str, number: int) -> str:
    return join(work_url, LEASES, f"{number:08d}.json")


def _has_expired(url: str) -> bool:
    """Whether a lease has run out; one given back this moment has not, one unreadable has."""
    file_system, path = fsspec.core.url_to_fs(url)
    try:
        return float(json.loads(file_system.cat_file(path))["expires"]) < time.time()
    except FileNotFoundError:
        return False
    except (ValueError, TypeError, KeyError):
        return True


def _encode(lease: _Lease) -> bytes:
    return json.dumps(asdict(lease)).encode()


def _write(url: str, lease: _Lease) -> None:
    file_system, path = fsspec.core.url_to_fs(url)
    file_system.pipe_file(path, _encode(lease))


def _delete(url: str) -> None:
    file_system, path = fsspec.core.url_to_fs(url)
    try:
        file_system.rm_file(path)
    except FileNotFoundError:
        return
