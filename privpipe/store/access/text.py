"""Reports beside a release: text and pictures by URL, each written whole."""

from __future__ import annotations

import os

import fsspec

from privpipe.store.access.durability import keep_file
from privpipe.store.access.location import local_path


def write_file(url: str, content: str | bytes) -> None:
    """Write a file, making its folder; an existing one is replaced in one step."""
    data = content.encode() if isinstance(content, str) else content
    path = local_path(url)
    if path is None:
        with fsspec.open(url, "wb") as file:
            file.write(data)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    keep_file(path, data, replacing=True)
