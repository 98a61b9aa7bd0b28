"""The private workspace of a release: its lock, its state, and what a resumed run finds there.

One writer at a time: on a file system an flock that dies with its process, elsewhere a lease
that expires. The state is one small document, replaced whole; receipts are in the ledger.
"""

import fcntl
import glob
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from urllib.parse import urlsplit

from privpipe.errors import FormatError, OptionError, StoreError
from privpipe.store.access import objects
from privpipe.store.access.lease import LEASES, find_left, hold_lease
from privpipe.store.access.location import MOST_NAME_BYTES, join, local_path, shown
from privpipe.store.access.objects import flush

STATE = "state.json"
MAKING = "making.json"
"""Says that what is at the place itself is unfinished and ours, where nothing can be renamed."""
SUCCESS = "_SUCCESS"
"""Last object of a folder of Parquet files, as Spark writes it; readers of tables skip it."""
LAST = ("zarr.json", SUCCESS)
"""What is written last of what is whole."""
LOCK = "lock"
CASE = "gate.json"
"""What a gate refused, so that it can be approved."""
SCRATCH = "dask"
"""Folder of the workers' scratch files, which are theirs; emptied at start and end."""
PART = re.compile(r"(?P<release>\w+://[^/]+/.*[^/])/parts/(?P<id>[0-9a-f]{32})")
"""A part of a release that grows, in a bucket."""
ENTRY = re.compile(r"\.?[0-9a-f]{16,32}(\..+)?")
"""Name of a partition or a part, or of what its maker left beside it."""
ERASED = "erased.zarr"
"""In the workspace of a collection made in one piece: what will take its place."""
TRIES, PAUSE = 15, 0.02
"""How often a lock is tried, and seconds between."""
REMOVED = ".removed-"
"""After the name of a workspace that is being removed."""


@dataclass(frozen=True)
class RunState:
    """What a run has decided and done so far; enough to resume it.

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
    code
        SHA-256 of each file of code that the configuration names, by its option.
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
    code: Mapping[str, str] = field(default_factory=dict)


def workspace_url(url: str) -> str:
    """The private workspace of a release: a neighbour whose name begins with a dot.

    In a bucket, where nothing has modes, that of a part is within the one of its release. Next to
    the part it would be among what readers list.

    >>> workspace_url("s3://bucket/release.zarr")
    's3://bucket/.release.zarr.privpipe'
    """
    place = local_path(url) or url.rstrip("/")
    if (part := PART.fullmatch(place)) is not None:
        return f"{_neighbour(part['release'])}/parts/{part['id']}"
    return _neighbour(place)


def list_parts_begun(url: str) -> list[str]:
    """Parts of a release whose workspaces are within its own, as they are in a bucket."""
    # On a file system they are neighbours of the parts and found there.
    keys = objects.list_keys(objects.open_store(workspace_url(url), read_only=True), "parts/")
    return sorted({key.split("/")[1] for key in keys})


def _neighbour(place: str) -> str:
    parent, _, name = place.rpartition("/")
    return f"{parent}/.{name}.privpipe"


def _removed(path: str) -> str:
    """A name for a workspace while it is removed."""
    return f"{path}{REMOVED}{secrets.token_hex(8)}"


def check_name(url: str) -> None:
    """Raise OptionError for a place whose workspace could not be made, or not removed.

    Its name is longer than the place's, and longest while it is removed. In a bucket it is beside
    the place, which has a name there, and none of its folders is without one.
    """
    path = local_path(url)
    if path is None:
        inside = urlsplit(url).path.strip("/")
        if not inside or "//" in url.partition("://")[2]:
            problem = "has a folder without a name" if inside else "is a whole bucket"
            remedy = "Give a place in a bucket, such as s3://bucket/folder/name.zarr."
            raise OptionError(f"{shown(url)} {problem}.", remedy=remedy, code="place")
        return
    n_bytes = len(os.fsencode(os.path.basename(path)))
    more = len(os.path.basename(_removed(_neighbour(path)))) - len(os.path.basename(path))
    if n_bytes + more > MOST_NAME_BYTES:
        raise OptionError(
            f"The name {shown(os.path.basename(path)[:40])}... has {n_bytes} bytes; with that of "
            f"its workspace beside it, {more} bytes more, it is above {MOST_NAME_BYTES}.",
            remedy=f"Give a name of at most {MOST_NAME_BYTES - more} bytes.",
            code="place",
        )


@contextmanager
def hold_workspace(url: str) -> Iterator[None]:
    """Own the workspace of a release, making it when there is none.

    Raises
    ------
    OptionError
        If the name of the release leaves no room for that of its workspace.
    StoreError
        If another run owns it, or it cannot be made.
    """
    check_name(url)
    path = local_path(workspace_url(url))
    if path is None:
        with hold_lease(workspace_url(url)):
            yield
        return
    busy = f"Another process is writing {shown(url)}."
    with _hold_folder(path, busy, "Wait for it: `privpipe status` shows how far a run is."):
        # Once it is held: what was put there before is found, what comes later needs our rights.
        objects.check_no_links(path, skip=(SCRATCH,))
        yield


@contextmanager
def _hold_folder(path: str, busy: str, remedy: str) -> Iterator[None]:
    """Own a folder by its lock, which the kernel takes back from a process that dies."""
    # flock rather than a file with a process number, which is stale after a kill.
    mask = os.umask(0o077)  # all that this process writes meanwhile is its owner's alone
    try:
        with os.fdopen(_lock_folder(path, StoreError(busy, remedy=remedy, code="busy")), "rb"):
            yield
    finally:
        os.umask(mask)


def _lock_folder(path: str, busy: StoreError) -> int:
    """Make a folder and take its lock; an error of ours where another has it all the time."""
    # Who looks whether it is held holds it for an instant, and who removes it may do so between
    # two of these steps: none of that is there the next time.
    for _ in range(TRIES):
        problem = busy
        try:
            _make_private(path)
            lock = _open_lock(path)
            if _take(lock, os.path.join(path, LOCK)):
                return lock
            os.close(lock)
        except StoreError as error:
            problem = error
        time.sleep(PAUSE)
    raise problem


def has_workspace(url: str) -> bool:
    """Whether a run has left anything of its workspace, however little."""
    path = local_path(workspace_url(url))
    if path is not None:
        return os.path.lexists(path) or bool(_leftovers(path))
    return bool(objects.list_keys(objects.open_store(workspace_url(url), read_only=True)))


def is_held(url: str) -> bool:
    """Whether a run owns the workspace at this moment."""
    path = local_path(workspace_url(url))
    if path is None:
        return find_left(workspace_url(url)) >= 0
    try:
        lock = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # there is none, or no lock of ours
        return False
    try:
        return not _take(lock, os.path.join(path, LOCK), fcntl.LOCK_SH)
    finally:
        os.close(lock)


def read_state(url: str) -> RunState | None:
    """State of the run that a workspace belongs to; None where there is none.

    Raises
    ------
    FormatError
        If it is damaged.
    """
    content = objects.read_bytes(objects.open_store(workspace_url(url), read_only=True), STATE)
    if content is None:
        return None
    try:
        return RunState(**json.loads(content))
    except (ValueError, TypeError):
        problem = f"The state of the interrupted run of {shown(url)} is damaged."
        remedy = "Remove it with `privpipe purge`, then run again."
        raise FormatError(problem, remedy=remedy) from None


def write_state(url: str, state: RunState) -> None:
    """Replace the state, whole."""
    objects.keep_bytes(workspace_url(url), STATE, json.dumps(asdict(state)).encode())


def remove_workspace(url: str) -> None:
    """Remove the workspace of a release with all that is in it but the lease of its owner.

    Only who holds it may. A folder is first renamed, the lock in it and held: who comes while its
    files are removed makes a new one, and loses nothing.
    """
    path = local_path(workspace_url(url))
    if path is None:
        objects.delete_tree(objects.open_store(workspace_url(url)), keep=f"{LEASES}/")
        return
    with suppress(FileNotFoundError):
        os.rename(path, _removed(path))
    # Those of earlier removals, too, that were killed.
    if left_behind := _leftovers(path):
        for left in left_behind:
            shutil.rmtree(left, ignore_errors=True)
        # Who notes next that it is gone must be right after a power cut, too.
        with suppress(FileNotFoundError):
            flush(os.path.dirname(path))


def remove_place(url: str) -> None:
    """Remove what is at a place and all of its workspace; readers open it whole or not at all.

    A folder takes the name of a workspace that is being removed: what a kill leaves is found by
    the next removal. Nothing is done, and nothing is wrong, where there is nothing.

    Raises
    ------
    StoreError
        If a run is writing there.
    """
    path = local_path(url)
    if path is not None and not os.path.lexists(path) and not has_workspace(url):
        return
    with hold_workspace(url):
        if path is None:
            objects.delete_place(url)
        elif os.path.isdir(path) and not os.path.islink(path):
            os.rename(path, _removed(str(local_path(workspace_url(url)))))
            flush(os.path.dirname(path))  # or a power cut leaves the name, and no content
        else:
            with suppress(FileNotFoundError):
                os.unlink(path)
        remove_workspace(url)


def clear_workspace(url: str, *, keep: Collection[str]) -> None:
    """Remove all in the workspace but the lock, the leases and some entries.

    Only who holds it may.
    """
    stays, path = {LOCK, SCRATCH, LEASES, *keep}, local_path(workspace_url(url))
    if path is None:
        store = objects.open_store(workspace_url(url))
        gone = [key for key in objects.list_keys(store) if key.split("/")[0] not in stays]
        objects.delete_keys(store, gone)
        return
    for entry in list(os.scandir(path)):
        if entry.name not in stays:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def purge_workspace(url: str) -> bool:
    """Remove what an interrupted run left; False if there was nothing.

    The workspace is held until it is gone. A link in its place is removed, and
    nothing that it leads to.

    Raises
    ------
    StoreError
        If a run owns it.
    """
    path = local_path(workspace_url(url))
    if not has_workspace(url):
        return False
    if path is not None and os.path.islink(path):
        os.unlink(path)
        return True
    if path is None:
        with hold_workspace(url):
            _remove_begun(url)
            remove_workspace(url)
        return True
    if os.path.islink(os.path.join(path, LOCK)):  # no one holds what is no lock
        os.unlink(os.path.join(path, LOCK))
    with _hold_folder(path, f"A run is writing {shown(url)}.", "Stop it first."):
        remove_workspace(url)
    return True


def data_url(url: str) -> str:
    """Where the arrays of a release are until it is published."""
    return join(workspace_url(url), "release")


def _remove_begun(url: str) -> None:
    """Remove what somebody wrote where nothing can be renamed, and did not end."""
    work, place = objects.open_store(workspace_url(url)), objects.open_store(url)
    if any(objects.read_bytes(place, name) is not None for name in LAST):
        return
    # By a note of ours: nothing without one is ever removed.
    if objects.read_bytes(work, MAKING) is not None:
        objects.delete_place(url)
    # Of a run what it copied alone: all else at the place is another's.
    objects.delete_keys(place, objects.list_keys(objects.open_store(data_url(url))))


def _leftovers(path: str) -> list[str]:
    """Workspaces of a release whose removal was interrupted."""
    return glob.glob(f"{glob.escape(path + REMOVED)}*")


def _make_private(path: str) -> None:
    """Make a folder of mode 0700, or take the one there is; a link is not followed."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path, mode=0o700)
        # By a descriptor: between a look and a chmod by name somebody may put a link there.
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            os.fchmod(folder, 0o700)
        finally:
            os.close(folder)
    except OSError as error:
        if not os.path.islink(path):
            problem = f"{path} cannot be made ({error.strerror})."
            raise StoreError(problem, remedy="Check your rights.") from None
        problem = f"The workspace {path} is a link; it is not followed."
        remedy = "Remove the link (`privpipe purge` does), then run again."
        raise StoreError(problem, remedy=remedy, code="link") from None


def _open_lock(path: str) -> int:
    try:
        return os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreError(
            f"The lock of the workspace {path} cannot be opened ({error.strerror}).",
            remedy="Remove it if it is a link, and check your rights.",
            code="link" if os.path.islink(os.path.join(path, LOCK)) else "lock",
        ) from None


def _take(lock: int, path: str, how: int = fcntl.LOCK_EX) -> bool:
    """Take the lock without waiting; a lock on a file that is gone does not count."""
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with suppress(FileNotFoundError):
        # It may have been removed and made anew since it was opened: a lock on that holds nothing.
        return os.fstat(lock).st_ino == os.stat(path).st_ino
    return False
