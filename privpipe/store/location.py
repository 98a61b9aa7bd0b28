"""Places by URL: one small interface over Zarr's store objects, local and remote.

Everything privpipe reads or writes as Zarr goes through a store opened here, never through
file system paths, so that a bucket works wherever a folder does. The few things only a file
system has (a rename, a private folder) are asked for by name and answered by `local_path`.
"""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

import fsspec
import google_crc32c
import numcodecs.blosc
import zarr
from fsspec.registry import known_implementations
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, StorePath

from privpipe.errors import OptionError, StoreError

__all__ = [
    "Place",
    "as_url",
    "create_bytes",
    "delete_tree",
    "drop_unfinished",
    "explain_unreachable",
    "join",
    "list_keys",
    "local_path",
    "measure_bytes",
    "measure_files",
    "open_store",
    "read_bytes",
    "shown",
    "use_one_thread",
    "write_bytes",
]

Place = str | os.PathLike[str]
"""A local path, or an fsspec URL."""

TRAILER = 4
"""Bytes of the checksum with which Zarr's codec ends a chunk."""

PIECE = 2**18
"""Bytes of a file read at once to checksum it: they stay in the cache."""

UNFINISHED = ".partial"
"""How Zarr's local store names a file before the rename that makes it an object."""


def local_path(url: str) -> str | None:
    """Absolute path of a place on the local file system; None for a remote one.

    >>> local_path("s3://bucket/records.zarr") is None
    True
    >>> local_path("file:///data/my%20records.zarr")
    '/data/my records.zarr'
    """
    scheme = urlsplit(url).scheme
    if scheme == "file":
        return os.path.abspath(unquote(urlsplit(url).path))
    return None if len(scheme) > 1 else os.path.abspath(os.path.expanduser(url))


def as_url(place: Place) -> str:
    """A path or URL as text.

    Raises
    ------
    OptionError
        If it is something else, such as a data frame.
    """
    if isinstance(place, str | os.PathLike):
        return os.fspath(place)
    raise OptionError(
        f"A place is of type {type(place).__name__}.",
        remedy="Give a path or URL; write a frame to Parquet first, or use privpipe.Records for "
        "arrays in memory.",
        code="place",
    )


def join(url: str, *names: str) -> str:
    """URL of something inside a place.

    >>> join("s3://bucket/a/", "b", "c")
    's3://bucket/a/b/c'
    """
    return "/".join([url.rstrip("/"), *names])


def shown(url: str) -> str:
    """A URL as it may appear in messages: without user, password and query.

    >>> shown("s3://key:secret@bucket/a?token=1")
    's3://bucket/a'
    """
    if local_path(url) is not None:
        return url
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def open_store(url: str, *, read_only: bool = False) -> Store:
    """Open the Zarr store of a place, without checking that anything is there.

    A store opened to be written makes its folder when it is first asked anything: open it
    `read_only` unless it shall exist.
    """
    path = local_path(url)
    if path is not None:
        return LocalStore(path, read_only=read_only)
    try:
        return FsspecStore.from_url(url, read_only=read_only)
    except Exception as error:  # many kinds, depending on the file system
        problem = explain_unreachable(url, error)
    raise problem


def explain_unreachable(url: str, error: Exception) -> StoreError:
    """What is wrong when fsspec cannot reach a place, and which package is missing, if one is."""
    scheme = urlsplit(url).scheme
    if isinstance(error, ImportError):
        remedy = str(known_implementations.get(scheme, {}).get("err", "Install its package."))
        return StoreError(
            f"{shown(url)} needs a package that is not installed.",
            remedy=f"{remedy.rstrip('.')}.",
            code="package-missing",
        )
    if isinstance(error, ValueError) and scheme not in known_implementations:
        return StoreError(
            f"{shown(url)} has the scheme {scheme!r}, which is not known.",
            remedy="Use a local path or an fsspec URL, as s3://bucket/name.",
            code="url-scheme",
        )
    return StoreError(
        f"{shown(url)} cannot be reached ({type(error).__name__}).",
        remedy="Check host, name, credentials and your rights.",
        code="unreachable",
    )


def read_bytes(store: Store, key: str) -> bytes | None:
    """The object of a key, or None where there is none (or no store at all)."""
    try:
        found = sync(store.get(key, default_buffer_prototype()))
    except FileNotFoundError:
        return None
    return None if found is None else found.to_bytes()


def measure_bytes(store: Store, key: str) -> tuple[int, int] | None:
    """Length and checksum of the object of a key, read back; None where there is none.

    The checksum is the CRC-32C of the bytes with the last four taken first: a chunk ends with its
    own CRC-32C, and the CRC-32C of anything followed by its own is one and the same number. A file
    is read in pieces: holding it whole costs twice the time of reading it.
    """
    if not isinstance(store, LocalStore):
        content = read_bytes(store, key)
        if content is None:
            return None
        return len(content), google_crc32c.value(content[-TRAILER:] + content[:-TRAILER])
    try:
        with open(store.root / key, "rb", buffering=0) as file:
            length = file.seek(0, os.SEEK_END)
            rest = file.seek(max(length - TRAILER, 0))
            crc = google_crc32c.value(file.read())
            file.seek(0)
            while rest and (piece := file.read(min(rest, PIECE))):
                rest -= len(piece)
                crc = google_crc32c.extend(crc, piece)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
    return length, crc


def write_bytes(store: Store, key: str, value: bytes) -> None:
    """Write an object whole: on a file system a temporary file and a rename."""
    sync(StorePath(store, key).set(default_buffer_prototype().buffer.from_bytes(value)))


def create_bytes(url: str, value: bytes) -> bool:
    """Write an object of a remote place only if there is none; False if there was one.

    The store itself decides who was first (S3: ``If-None-Match``, which has to be enforced
    by the store; see DESIGN.md).
    """
    file_system, path = fsspec.core.url_to_fs(url)
    try:
        file_system.pipe_file(path, value, mode="create")
    except FileExistsError:
        return False
    except OSError as error:
        # s3fs hands on the answer to a failed precondition as an OSError without errno.
        if error.errno is None and _was_refused(error):
            return False
        raise
    return True


def _was_refused(error: OSError) -> bool:
    response = getattr(error.__cause__, "response", {})
    return response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (409, 412)


def list_keys(store: Store, prefix: str = "") -> list[str]:
    """Keys below a prefix, sorted; empty where there is nothing.

    What a killed process left of an unfinished write (see `drop_unfinished`) is no key.
    """
    # s3fs lists an emptied folder as an object of its own, by its whole path.
    folder = str(getattr(store, "path", ""))

    async def collect() -> list[str]:
        found = [key async for key in store.list_prefix(prefix)]
        return [key for key in found if key != folder and not key.endswith(UNFINISHED)]

    try:
        return sorted(sync(collect()))
    except FileNotFoundError:
        return []


def measure_files(path: str) -> int:
    """Bytes of all files below a folder of the file system; 0 where there is none."""
    return sum(
        os.lstat(os.path.join(folder, name)).st_size
        for folder, _, names in os.walk(path)
        for name in names
    )


def drop_unfinished(url: str) -> None:
    """Remove the temporary files that killed processes left of unfinished writes.

    Nobody else may be writing. Remote stores have none: an object is there whole or not at all.
    """
    path = local_path(url)
    for folder, _, names in os.walk(path) if path is not None else ():
        for name in names:
            if name.endswith(UNFINISHED):
                os.unlink(os.path.join(folder, name))


def delete_tree(store: Store, *, keep: str | None = None) -> None:
    """Delete everything in a store, but for keys that begin with `keep`."""
    for key in list_keys(store):
        if keep is None or not key.startswith(keep):
            sync(store.delete(key))


def use_one_thread() -> None:
    """Leave parallel work to the workers: Zarr and Blosc keep to one thread each."""
    zarr.config.set({"threading.max_workers": 1, "async.concurrency": 4})
    numcodecs.blosc.set_nthreads(1)
