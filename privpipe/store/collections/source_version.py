"""Has a source changed since a run began? Its objects' names, sizes and times or tags."""

from __future__ import annotations

import hashlib
import os

import fsspec

from privpipe.store.access.location import local_path


def read_source_version(url: str) -> str:
    """SHA-256 over what the storage says of every object; no content is read.

    On a file system name, size and modification time in nanoseconds; elsewhere name, size, and
    the object's entity tag or time.
    """
    sha = hashlib.sha256()
    for line in sorted(_describe(url)):
        sha.update(f"{line}\n".encode())
    return sha.hexdigest()


def _describe(url: str) -> list[str]:
    path = local_path(url)
    if path is None:
        file_system, root = fsspec.core.url_to_fs(url)
        file_system.invalidate_cache()
        found = file_system.find(root, detail=True)
        return [
            f"{name} {info.get('size')} {info.get('ETag', info.get('LastModified', ''))}"
            for name, info in found.items()
        ]
    lines = []
    # Links are followed: a collection may keep its chunks on another disk.
    for folder, _, names in os.walk(path, followlinks=True):
        for name in names:
            status = os.stat(os.path.join(folder, name))
            inside = os.path.relpath(os.path.join(folder, name), path)
            lines.append(f"{inside} {status.st_size} {status.st_mtime_ns}")
    return lines
