"""What was written survives a power cut: files and folders flushed to the disk."""

import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress


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
            file.flush()
            # Before it is named: else a power cut may leave the name with torn content.
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
    flush_folder(folder)
    return True


def flush_tree(path: str, progress: Callable[[int], None] | None = None) -> None:
    """Flush every file and folder below a path; needed once, before it is shown.

    Parameters
    ----------
    path
        The folder, or the one file.
    progress
        Called, on this thread, with the number of files flushed since the last call.
    """
    if os.path.isfile(path):
        _flush(path)
        return
    folders = [folder for folder, _, _ in os.walk(path)]
    # Files before folders: a name may survive only when its content has.
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    # A flush waits for the disk, which takes several at once.
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(_flush, files):
            if progress is not None:
                progress(1)
    # From the innermost: a folder holds its names once it is flushed itself.
    for folder in reversed(folders):
        flush_folder(folder)


def flush_folder(path: str) -> None:
    """Flush a folder, so that names in it survive."""
    _flush(path)


def _flush(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
