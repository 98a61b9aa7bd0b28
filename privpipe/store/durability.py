"""What was written survives a power cut: files and folders flushed to the disk."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

__all__ = ["flush_folder", "flush_tree"]


def flush_tree(path: str) -> None:
    """Flush every file and folder below a path; needed once, before a release is published."""
    folders = [folder for folder, _, _ in os.walk(path)]
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(_flush, files))
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
