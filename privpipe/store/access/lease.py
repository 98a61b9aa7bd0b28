"""A lease: who may write where nothing can be locked, for a bounded time.

Leases of one workspace are numbered objects, each made only if it is absent. The store itself
decides who holds number n + 1, and it may be taken only when number n has expired. Nothing is
deleted to take a lease, so two who find the same one expired cannot both win. The holder renews its
object from a thread; a holder that dies stops renewing, so a kill never needs a hand.
"""

import ctypes
import json
import math
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import fsspec

from privpipe.errors import StoreError
from privpipe.store.access.location import create_bytes, delete_object, join, shown

# Renewed four times in it: a store that is away for half a minute costs no run its lease.
LEASE_SECONDS = 120.0
MOST_SKEW = LEASE_SECONDS / 4
"""Seconds that the clock of a holder may be away from the store's."""
LEASES = "lease"
"""Folder of the leases within a workspace."""


@contextmanager
def hold_lease(work_url: str, *, seconds: float = LEASE_SECONDS) -> Iterator[None]:
    """Hold the lease of a workspace for as long as the block runs.

    Raises
    ------
    StoreError
        If another holder's lease has not expired, this one was lost while it was held, or the
        store lets two make the same one.
    """
    holder = secrets.token_hex(8)
    try:
        number = _take(work_url, holder, seconds)
    except FileNotFoundError:  # a store makes folders, and no buckets
        problem = f"The bucket of {shown(work_url)} does not exist."
        remedy = "Check its name, or make it first."
        raise StoreError(problem, remedy=remedy, code="not-found") from None
    expires = time.time() + seconds
    stop, lost, caller = threading.Event(), threading.Event(), threading.current_thread()

    def renew() -> None:
        nonlocal number, expires
        while not stop.wait(seconds / 4):
            # A store that does not answer now may do so before the lease runs out; if not, whoever
            # takes the next one is seen as soon as it does.
            with suppress(Exception):
                until = time.time() + seconds
                following = _place(work_url, number + 1)
                if _newest(work_url) != number:
                    lost.set()
                elif time.time() < expires:
                    file_system, path = fsspec.core.url_to_fs(_place(work_url, number))
                    file_system.pipe_file(path, _make_lease(holder, seconds))
                # One that ran out, as of a machine that was suspended, is taken as others take it.
                elif create_bytes(following, _make_lease(holder, seconds)):
                    number += 1
                else:
                    lost.set()
                expires = until
            if lost.is_set():
                # The work is another's now: it ends here as by Ctrl-C, and no later.
                if not stop.is_set():
                    _raise_in(caller, KeyboardInterrupt)
                return

    thread = threading.Thread(target=renew, name="privpipe-lease", daemon=True)
    thread.start()
    try:
        try:
            yield
        finally:
            # What the thread raises comes here at the latest: it is its last act.
            stop.set()
            thread.join()
    except BaseException:
        # What fails while another works may fail for that.
        with suppress(Exception):
            if _newest(work_url) != number:
                lost.set()
        if not lost.is_set():
            raise
    finally:
        with suppress(Exception):  # what was done is done; the lease ends by itself
            _give_back(work_url, number)
    if lost.is_set():
        problem = f"The lease on {shown(work_url)} was lost to another run."
        raise StoreError(problem, remedy="Let the other run finish.", code="busy")


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    """Raise an error in a thread that is at work."""
    # By no signal: a shell's background process ignores that of Ctrl-C, and works in any thread.
    # What was raised is never taken back, by an error of NULL: CPython 3.11 then looks for it for
    # ever, and hangs at the first call under a profiler.
    given = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(*given)


def _take(work_url: str, holder: str, seconds: float) -> int:
    number = _newest(work_url)
    if number is None or _has_expired(_place(work_url, number)):
        # Never a number again, and no deletion: of two who find it expired one makes this object.
        following = 0 if number is None else number + 1
        if create_bytes(_place(work_url, following), _make_lease(holder, seconds)):
            # At once and before any work: a careless store would let two write at the same time.
            check_enforced(_place(work_url, following), _make_lease(secrets.token_hex(8), seconds))
            _check_clock(work_url, following)
            return following
    remedy = f"Wait for it; the lease of a run that died expires after {seconds:.0f} s."
    raise StoreError(f"Another run holds {shown(work_url)}.", remedy=remedy, code="busy")


def check_enforced(url: str, rival: bytes) -> None:
    """Raise StoreError if the store lets somebody else make the object that we just made.

    Parameters
    ----------
    url
        Of the object; it is removed if the store does.
    rival
        What another would write.
    """
    if not create_bytes(url, rival):
        return
    delete_object(url)
    raise StoreError(
        f"The store of {shown(os.path.dirname(url))} ignores conditions: it replaced an object "
        "that was to be written only if there was none. Two runs could write over one another.",
        remedy="Use a store that enforces If-None-Match, as S3 does, or a file system.",
        code="conditions-ignored",
    )


def _check_clock(work_url: str, number: int) -> None:
    """Raise StoreError if this clock and the store's differ by what a lease cannot bear."""
    file_system, path = fsspec.core.url_to_fs(_place(work_url, number))
    file_system.invalidate_cache()
    try:
        skew = abs(file_system.modified(path).timestamp() - time.time())
    except (AttributeError, FileNotFoundError, KeyError, NotImplementedError):
        return  # a store that does not say when
    # A quarter: with the renewals, no clock within it ends a lease that is alive.
    if skew <= MOST_SKEW:
        return
    delete_object(_place(work_url, number))
    raise StoreError(
        f"The clock of this machine is {skew:.0f} s away from that of the store of "
        f"{shown(work_url)}. Others would take its leases too early, or too late.",
        remedy=f"Set the clocks (NTP); they must agree within {MOST_SKEW:.0f} s.",
        code="clock-skew",
    )


def find_left(work_url: str) -> float:
    """Seconds until the lease of a workspace ends; less than 0 where no one holds it."""
    number = _newest(work_url)
    return -math.inf if number is None else _left(_place(work_url, number))


def _give_back(work_url: str, number: int) -> None:
    """Remove the leases, unless another run may have found ours expired and counted on from it."""
    # Whoever counted on from ours must not find the numbers begin anew.
    if _newest(work_url) == number and not _has_expired(_place(work_url, number)):
        for older in _numbers(work_url):
            delete_object(_place(work_url, older))


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
    # Of a listing, not of a counter: what is there is all that two runs share.
    stems = [name.rpartition("/")[2].removesuffix(".json") for name in found]
    return sorted(int(stem) for stem in stems if stem.isdigit())


def _place(work_url: str, number: int) -> str:
    return join(work_url, LEASES, f"{number:08d}.json")


def _has_expired(url: str) -> bool:
    """Whether a lease has run out; one given back this moment has not, one unreadable has."""
    return _left(url) < 0


def _left(url: str) -> float:
    """Seconds until a lease ends, less than 0 of one that has, and of one unreadable."""
    file_system, path = fsspec.core.url_to_fs(url)
    try:
        return float(json.loads(file_system.cat_file(path))["expires"]) - time.time()
    except FileNotFoundError:  # given back this moment
        return math.inf
    except (ValueError, TypeError, KeyError):
        return -math.inf


def _make_lease(holder: str, seconds: float) -> bytes:
    return json.dumps({"holder": holder, "expires": time.time() + seconds}).encode()
