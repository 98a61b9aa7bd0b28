"""The private workspace of a release: its lock, its state, and what a resumed run finds there.

One writer at a time: on a file system an flock that dies with its process, elsewhere a lease
that expires. The state is one small document, replaced whole; receipts are in the ledger.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from privpipe.errors import FormatError, StoreError
from privpipe.store.lease import LEASES, hold_lease
from privpipe.store.location import (
    delete_tree,
    local_path,
    open_store,
    read_bytes,
    shown,
    write_bytes,
)

__all__ = [
    "RunState",
    "hold_workspace",
    "is_held",
    "read_state",
    "remove_workspace",
    "workspace_url",
    "write_state",
]

STATE = "state.json"
LOCK = "lock"


@dataclass(frozen=True)
class RunState:
    """What a run has decided and done so far; enough to go on with it.

    Parameters
    ----------
    run_id
        8 hexadecimal digits.
    options_sha256
        Digest of the configuration; another one is refused.
    source_digest, source_fingerprint
        The collection: its content by header, and its files as they were at the start.
    training_fingerprint
        The training collection's files.
    started
        UTC.
    stage
        The stage reached: "check", "train", "clean", "audit" or "publish".
    model_digest
        The fitted map, once there is one.
    n_chunks
        Chunks of the release, once planned.
    """

    run_id: str
    options_sha256: str
    source_digest: str
    source_fingerprint: str
    training_fingerprint: str
    started: str
    stage: str = "check"
    model_digest: str | None = None
    n_chunks: int | None = None


def workspace_url(url: str) -> str:
    """The private workspace of a release: a hidden neighbour.

    >>> workspace_url("s3://bucket/release.zarr")
    's3://bucket/.release.zarr.privpipe'
    """
    path = local_path(url)
    parent, _, name = (path if path is not None else url.rstrip("/")).rpartition("/")
    return f"{parent}/.{name}.privpipe"


@contextmanager
def hold_workspace(url: str) -> Iterator[None]:
    """Own the workspace of a release, making it when there is none.

    Raises
    ------
    StoreError
        If another run owns it, or it cannot be made.
    """
    path = local_path(workspace_url(url))
    if path is None:
        with hold_lease(workspace_url(url)):
            yield
        return
    mask = os.umask(0o077)  # all that this process writes meanwhile is its owner's alone
    _make_private(path)
    lock = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if not _take(lock, os.path.join(path, LOCK)):
            raise StoreError(
                f"Another run is writing the release {shown(url)}.",
                remedy="Wait for it: `privpipe status` shows how far it is.",
                code="busy",
            )
        yield
    finally:
        os.close(lock)
        os.umask(mask)


def is_held(url: str) -> bool:
    """Whether a run owns the workspace at this moment (on a file system)."""
    path = local_path(workspace_url(url))
    if path is None or not os.path.exists(os.path.join(path, LOCK)):
        return False
    lock = os.open(os.path.join(path, LOCK), os.O_RDWR)
    try:
        return not _take(lock, os.path.join(path, LOCK))
    finally:
        os.close(lock)


def read_state(url: str) -> RunState | None:
    """State of the run that a workspace belongs to; None where there is none.

    Raises
    ------
    FormatError
        If it is damaged.
    """
    content = read_bytes(open_store(workspace_url(url), read_only=True), STATE)
    if content is None:
        return None
    try:
        return RunState(**json.loads(content))
    except (ValueError, TypeError):
        raise FormatError(
            f"The state of the interrupted run of {shown(url)} is damaged.",
            remedy="Remove it with `privpipe purge`, then run again.",
        ) from None


def write_state(url: str, state: RunState) -> None:
    """Replace the state, whole."""
    write_bytes(open_store(workspace_url(url)), STATE, json.dumps(asdict(state)).encode())


def remove_workspace(url: str) -> None:
    """Remove the workspace of a release with all that is in it but the lease of its owner."""
    path = local_path(workspace_url(url))
    if path is None:
        delete_tree(open_store(workspace_url(url)), keep=f"{LEASES}/")
    else:
        shutil.rmtree(path, ignore_errors=True)


def _make_private(path: str) -> None:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            os.mkdir(path, mode=0o700)
        except FileExistsError:
            os.chmod(path, 0o700)
        return
    except OSError as error:
        problem = error.strerror
    raise StoreError(f"{path} cannot be made ({problem}).", remedy="Check your rights.")


def _take(lock: int, path: str) -> bool:
    """Take the lock without waiting; a lock on a file that is gone does not count."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        return os.fstat(lock).st_ino == os.stat(path).st_ino
    except FileNotFoundError:
        return False
