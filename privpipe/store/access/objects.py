"""Places by URL: one small interface over Zarr's store objects, local and remote.

Everything privpipe reads or writes as Zarr goes through a store opened here, never through file
system paths. So a bucket works wherever a folder does. The few things only a file system has (a
rename, a private folder) go by the path that `local_path` gives.
"""

import errno
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import fsspec
import google_crc32c
import numcodecs.blosc
import numpy as np
import zarr
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.common import concurrent_map
from zarr.core.sync import collect_aiterator, sync
from zarr.storage import FsspecStore, LocalStore, StorePath

from privpipe.errors import FormatError, OptionError, StoreError, printable
from privpipe.protocols import AnyArray
from privpipe.store.access import bounds, location


def keep_file(path: str, content: bytes, *, replacing: bool) -> bool:
    """Write a file whole, in one step, so that a power cut after it leaves it there.

    Parameters
    ----------
    path
        Its folder is made when missing, for its owner alone.
    content
    replacing
        Whether a file that is there is replaced; else it stays.

    Returns
    -------
    made
        False where there was one that stays.
    """
    folder, name = os.path.split(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    # Such a name is never a key, and never published; a killed writer leaves it behind.
    work = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.partial")
    try:
        with open(work, "xb") as file:
            file.write(content)
            # Before it is named: else a power cut may leave the name with torn content.
            file.flush()
            os.fsync(file.fileno())
        if replacing:
            os.rename(work, path)
        else:
            os.link(work, path)  # unlike a rename, it fails where the name is taken
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(work)
    flush(folder)
    return True


Progress = Callable[[int], None] | None
"""Called with a number of files or objects that came since the last call."""


def flush_tree(path: str, progress: Progress = None) -> None:
    """Flush every file and folder below a path; needed once, before it is shown.

    Parameters
    ----------
    path
        The folder, or the one file.
    progress
        Called, on this thread, with the number of files flushed since the last call.
    """
    folders = [folder for folder, _, _ in os.walk(path)] or [path]
    # Files before folders: a name may survive only when its content has.
    files = list(_walk_files(path))
    # A flush waits for the disk, which takes several at once.
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(flush, files):
            if progress is not None:
                progress(1)
    # From the innermost: a folder holds its names once it is flushed itself.
    for folder in reversed(folders):
        flush(folder)


def flush(path: str) -> None:
    """Flush a file, or a folder, so that names in it survive."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


TRAILER = 4
"""Bytes of the checksum with which Zarr's codec ends a chunk."""

PIECE = 2**18
"""Bytes of a file read at once to checksum it: they stay in the cache."""


MOST_AT_ONCE = 32
"""Small objects that are requested at the same time."""

INSIDE = re.compile(r"(?!\.{1,2}$)[\w.-]+")
"""A name of a folder, which leads neither up nor down."""

UNFINISHED = ".partial"
"""How Zarr's local store names a file before the rename that makes it an object."""


def join_inside(url: str, *names: str) -> str:
    """URL of a folder inside a place, by names that a document of that place says.

    Raises
    ------
    FormatError
        If a name leads elsewhere.
    StoreError
        If one of the folders is a link.

    >>> join_inside("s3://bucket/a", "parts", "b")
    's3://bucket/a/parts/b'
    """
    for name in names:
        if not INSIDE.fullmatch(name):
            raise FormatError(
                f"{location.shown(url)} names {printable(name, keep='')!r} as something inside it.",
                remedy="Somebody changed it: get it again from where it came.",
                code="damaged",
            )
    if (path := location.local_path(url)) is not None:
        check_plain(Path(path), "/".join(names))
    return location.join(url, *names)


def open_store(url: str, *, read_only: bool = False) -> Store:
    """Open the Zarr store of a place, without checking that anything is there.

    A store opened to be written makes its folder at the first call: open it
    `read_only` unless it shall exist.
    """
    # Before any array is opened: Zarr looks up codecs for the whole process.
    bounds.use_bounded_codecs()
    path = location.local_path(url)
    if path is not None:
        return PlainFiles(path, read_only=read_only)
    if "::" in url:  # within another place nothing is written
        problem = f"{location.shown(url)} names a place within another, by ::."
        remedy = "Give the place itself, such as s3://bucket/name.zarr."
        raise OptionError(problem, remedy=remedy, code="place")
    try:
        return FsspecStore.from_url(url, read_only=read_only)
    except Exception as error:  # many kinds, depending on the file system
        refused = location.explain_unreachable(url, error)
    raise refused


Listener = Callable[[int, int], None]
"""Hears how many more of how many are done."""


def unheard(more: int, total: int) -> None:
    """Where no one listens."""


SMALL_BYTES = 2**16
"""Of a file that is read at once, without a thread."""


class PlainFiles(LocalStore):
    """Regular files of a folder: below it no link is followed, and no pipe or device opened.

    A stranger's release may hold a link to a file of the reader's, which an export would copy. Or
    it holds a pipe, at which the export would wait for ever. The folder itself may be reached by a
    link.
    """

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """The object of a key; StoreError where it is no regular file."""
        size = check_plain(self.root, key)
        if size is None or size > SMALL_BYTES or byte_range is not None:
            return await super().get(key, prototype, byte_range)
        try:  # the way to a thread and back takes longer than reading a small file
            content = (self.root / key).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(content)


PUT_THERE = (
    "Somebody put it there: get the data again from where it came, or put the file itself there."
)


def check_plain(root: Path, key: str, remedy: str = PUT_THERE) -> int | None:
    """Raise StoreError if what a key leads to below a folder is a link, a pipe or a device.

    Returns its size; None where there is nothing.
    """
    # Every folder on the way, too, and by lstat: a link among them leads out just as well.
    place, size = str(root), 0
    for name in key.split("/"):
        place = f"{place}/{name}"
        try:
            found = os.lstat(place)
        except OSError:  # nothing there: for who opens it to say
            return None
        mode, size = found.st_mode, found.st_size
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            what = "a link" if stat.S_ISLNK(mode) else "no regular file"
            problem = f"{location.shown(place)} is {what}; it is not read."
            raise StoreError(problem, remedy=remedy, code="link")
    return size


def read_bytes(store: Store, key: str) -> bytes | None:
    """The object of a key, or None where there is none (or no store at all)."""
    return sync(get(store, key))


async def get(store: Store, key: str) -> bytes | None:
    """`read_bytes` for who awaits it."""
    with suppress(FileNotFoundError):
        found = await store.get(key, default_buffer_prototype())
        return None if found is None else found.to_bytes()
    return None


def read_many(store: Store, keys: Sequence[str]) -> dict[str, bytes]:
    """The objects of some keys, requested at once; one that is not there is empty."""
    found = sync(concurrent_map([(store, key) for key in keys], get, MOST_AT_ONCE))
    return {key: content or b"" for key, content in zip(keys, found, strict=True)}


def read_all(store: Store, prefix: str = "") -> dict[str, bytes]:
    """The objects of all keys below a prefix."""
    return read_many(store, list_keys(store, prefix))


def measure_bytes(store: Store, key: str) -> tuple[int, int] | None:
    """Length and checksum of the object of a key, read back; None where there is none.

    The checksum is the CRC-32C of the bytes with the last four taken first. A chunk ends with its
    own CRC-32C, and the CRC-32C of anything followed by its own is one and the same number. A file
    is read in pieces: holding it whole costs twice the time of reading it.
    """
    # An object of a bucket comes whole anyway.
    if not isinstance(store, LocalStore):
        content = read_bytes(store, key)
        return None if content is None else measure_content(content)
    check_plain(store.root, key)
    try:
        with open(store.root / key, "rb", buffering=0) as file:
            length = file.seek(0, os.SEEK_END)
            # The trailer first: see the docstring. Then the rest, in pieces that stay in the cache.
            rest = file.seek(max(length - TRAILER, 0))
            crc = google_crc32c.value(file.read())
            file.seek(0)
            while rest and (piece := file.read(min(rest, PIECE))):
                rest -= len(piece)
                crc = google_crc32c.extend(crc, piece)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
    return length, crc


def measure_content(content: bytes) -> tuple[int, int]:
    """Length and checksum, as `measure_bytes` of what is stored."""
    return len(content), google_crc32c.value(content[-TRAILER:] + content[:-TRAILER])


def write_bytes(store: Store, key: str, value: bytes) -> None:
    """Write an object whole: on a file system a temporary file and a rename."""
    sync(StorePath(store, key).set(default_buffer_prototype().buffer.from_bytes(value)))


def write_all(store: Store, contents: Mapping[str, bytes]) -> None:
    """Write objects in their order."""
    for key, content in contents.items():
        write_bytes(store, key, content)


def keep_bytes(url: str, key: str, value: bytes) -> None:
    """`write_bytes` of what a power cut must not take back, as an object of a bucket never is."""
    path = location.local_path(url)
    if path is None:
        write_bytes(open_store(url), key, value)
    else:
        # Written, flushed, named, its folder flushed: another step relies on it.
        keep_file(os.path.join(path, key), value, replacing=True)


def create_object(url: str, value: bytes) -> bool:
    """Make an object unless there is one; whether it is there now, and is this one.

    Whole in one step: a kill leaves no half.
    """
    path = location.local_path(url)
    if path is None:
        return location.create_bytes(url, value)
    # A link, not a rename: it fails where the name is taken, so that nothing is ever replaced.
    return keep_file(path, value, replacing=False)


def list_keys(store: Store, prefix: str = "", *, unfinished: bool = False) -> list[str]:
    """Keys below a prefix, sorted; empty where there is nothing.

    What a killed process left of an unfinished write (see `drop_unfinished`) is no key, unless
    `unfinished`.
    """
    # s3fs lists an emptied folder as an object of its own, by its whole path.
    folder = str(getattr(store, "path", ""))
    forget_listings(store)
    try:
        found = sorted({*collect_aiterator(store.list_prefix(prefix))} - {folder})
    except FileNotFoundError:
        return []
    finally:
        forget_listings(store)
    return [key for key in found if unfinished or not key.endswith(UNFINISHED)]


def list_names(url: str) -> list[str]:
    """Names of what is in a folder, folders too, sorted; empty where there is none.

    Links in a circle lead to none.
    """
    path = location.local_path(url)
    try:
        if path is not None:
            return sorted(os.listdir(path))
        file_system, remote = fsspec.core.url_to_fs(url)
        file_system.invalidate_cache()  # another may have made something since
        listed = file_system.ls(remote, detail=False)
        return sorted({str(one).rstrip("/").rpartition("/")[2] for one in listed})
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        if not is_missing and error.errno != errno.ELOOP:
            raise
    return []


def forget_listings(store: Store) -> None:
    """List anew next time: what a client of buckets listed once it believes for ever.

    An object that another made meanwhile would be missing, even when it is read by its name.
    """
    if isinstance(store, FsspecStore):
        store.fs.invalidate_cache()


def list_empty_folders(url: str) -> list[str]:
    """Folders of a local place that hold nothing, by their path below it, sorted.

    They are no keys, and a rename would make them visible all the same; a bucket has none.
    """
    path = location.local_path(url)
    walked = os.walk(path) if path is not None else ()
    return sorted(os.path.relpath(here, path) for here, below, names in walked if not below + names)


def measure_files(path: str) -> int:
    """Bytes of all files below a folder of the file system; 0 where there is none."""
    return sum(os.lstat(file).st_size for file in _walk_files(path))


def _walk_files(path: str) -> Iterator[str]:
    return (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)


NOT_FOLLOWED = "Nothing was followed. Remove it, or `privpipe purge`, then run again."


def check_no_links(url: str, *, skip: Collection[str] = (), remedy: str = NOT_FOLLOWED) -> None:
    """Raise StoreError if anything below a local folder is neither a folder nor a plain file.

    What a link leads to is not private, not ours, or not what was proved.

    Parameters
    ----------
    url
        The folder; remote places have no links.
    skip
        Folders directly below it that are not looked into.
    remedy
        Of the error.
    """
    path = location.local_path(url)
    for folder, folders, names in os.walk(path) if path is not None else ():
        for name in (*folders, *names):
            check_plain(Path(folder), name, remedy)
        # Scratch of workers is theirs: they make and remove files in it while this looks.
        if folder == path:
            folders[:] = [name for name in folders if name not in skip]


def drop_unfinished(url: str) -> None:
    """Remove the temporary files that killed processes left of unfinished writes.

    Whoever else is writing fails. Remote stores have none: an object is there whole or not at all.
    """
    path = location.local_path(url)
    for file in _walk_files(path) if path is not None else ():
        if file.endswith(UNFINISHED):
            with suppress(FileNotFoundError):  # its writer lives, and has named it meanwhile
                os.unlink(file)


def delete_tree(store: Store, *, keep: str | None = None) -> None:
    """Delete everything in a store, but for keys that begin with `keep`."""
    delete_keys(store, [k for k in list_keys(store) if keep is None or not k.startswith(keep)])


def delete_keys(store: Store, keys: Iterable[str]) -> None:
    """Delete some objects of a store, in this order on a file system."""
    # Of files one after the other: a kill leaves those of the end, not any.
    limit = 1 if isinstance(store, LocalStore) else MOST_AT_ONCE

    async def delete(key: str) -> None:
        if not isinstance(store, FsspecStore):
            return await store.delete(key)
        # Not by the store, which takes names with * ? [ for patterns and deletes what fits.
        with suppress(FileNotFoundError):
            await store.fs._rm_file(f"{store.path}/{key}")

    sync(concurrent_map([(key,) for key in keys], delete, limit))


def delete_place(url: str) -> None:
    """Delete the objects of a remote place, or the one object it is; roots first, so that no one
    opens half of it.
    """
    store = open_store(url)
    keys = list_keys(store)
    if not keys:
        # No key below it: the place may be a single object, as a Parquet file is.
        location.delete_object(url)
    for key in sorted(keys, key=lambda k: (k.rpartition("/")[2] != "zarr.json", k.count("/"))):
        delete_keys(store, [key])


def remove_tree(url: str) -> None:
    """Remove a place with all that is in it, folders included; nothing where there is nothing.

    Of a link the link itself: what it leads to is not in the place. What is removed does not come
    back with a power cut: records are, too.
    """
    path = location.local_path(url)
    if path is None:
        delete_tree(open_store(url))
        return
    with suppress(FileNotFoundError):
        # rmtree refuses a link; what it leads to is not in the place.
        if os.path.islink(path):
            os.unlink(path)
        else:
            shutil.rmtree(path)
        flush(os.path.dirname(path))


def use_one_thread() -> None:
    """Leave parallel work to the workers: Zarr and Blosc keep to one thread each."""
    # A worker has a task per thread; pools of Zarr and Blosc would multiply them.
    zarr.config.set({"threading.max_workers": 1, "async.concurrency": 4})
    numcodecs.blosc.set_nthreads(1)


def write_file(url: str, content: str | bytes) -> None:
    """Write a file, making its folder; an existing one is replaced in one step."""
    data = content.encode() if isinstance(content, str) else content
    path = location.local_path(url)
    if path is None:
        with fsspec.open(url, "wb") as file:
            file.write(data)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    keep_file(path, data, replacing=True)


MOST_TO_ONE = 1000
"""Decoded bytes for each that is stored: Zstandard makes some 300 of counts that repeat."""

SLACK = 2**20


def read_whole(store: Store, name: str, *, most: float = math.inf) -> AnyArray:
    """Read an array of a store whole.

    Parameters
    ----------
    store, name
        Where it is.
    most
        Numbers that it may have, where something else that is stored says so.

    Raises
    ------
    FormatError
        If it declares more than is stored of it.
    """
    array = zarr.open_array(store, path=name, mode="r")
    n_stored = sum(sync(store.getsize(key)) for key in list_keys(store, f"{name}/c"))
    # Chunks of zeros alone are not stored, hence the factor; SLACK is for arrays of a few numbers.
    if array.nbytes > MOST_TO_ONE * n_stored + SLACK:
        raise _unbounded(name, f"declares {array.nbytes:,} bytes and stores {n_stored:,}")
    if array.size > most:
        raise _unbounded(name, f"declares {array.size:,} numbers, of which {most:,} can be meant")
    return np.asarray(array[...])


def _unbounded(name: str, problem: str) -> FormatError:
    remedy = "It is damaged, or made to fill the memory: get it again from where it came."
    return FormatError(f"The array {name!r} {problem}.", remedy=remedy, code="unbounded")
