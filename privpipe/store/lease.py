"""A lease: who may write where nothing can be locked, for a bounded time.

An object made only if it is absent names its holder and when it expires; the holder renews it
from a thread. A holder that dies stops renewing, and after the lease has expired the next one may
take its place, so a kill never needs a hand.
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
from privpipe.store.location import join, shown

__all__ = ["LEASE_SECONDS", "hold_lease"]

LEASE_SECONDS = 120.0


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
    url = join(work_url, "lease.json")
    holder = secrets.token_hex(8)
    _take(url, holder, seconds)
    stop, lost = threading.Event(), threading.Event()

    def renew() -> None:
        while not stop.wait(seconds / 4):
            found = _read(url)
            if found is None or found.holder != holder:
                lost.set()
                return
            _write(url, _Lease(holder, time.time() + seconds))

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
        found = _read(url)
        if found is not None and found.holder == holder:
            _delete(url)


def _take(url: str, holder: str, seconds: float) -> None:
    found = _read(url)
    if found is not None and found.expires < time.time():
        _delete(url)
        found = None
    if found is None and _create(url, _Lease(holder, time.time() + seconds)):
        return
    raise StoreError(
        f"Another run holds {shown(url)}.",
        remedy=f"Wait for it; the lease of a run that died expires after {seconds:.0f} s.",
        code="busy",
    )


def _read(url: str) -> _Lease | None:
    file_system, path = fsspec.core.url_to_fs(url)
    file_system.invalidate_cache()
    try:
        return _Lease(**json.loads(file_system.cat_file(path)))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _create(url: str, lease: _Lease) -> bool:
    """Put if absent: the store itself decides who was first."""
    file_system, path = fsspec.core.url_to_fs(url)
    try:
        file_system.pipe_file(path, json.dumps(asdict(lease)).encode(), mode="create")
    except FileExistsError:
        return False
    return True


def _write(url: str, lease: _Lease) -> None:
    file_system, path = fsspec.core.url_to_fs(url)
    file_system.pipe_file(path, json.dumps(asdict(lease)).encode())


def _delete(url: str) -> None:
    file_system, path = fsspec.core.url_to_fs(url)
    try:
        file_system.rm_file(path)
    except FileNotFoundError:
        return
