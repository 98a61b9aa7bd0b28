"""Everything of ours below some roots: stores by their headers, workspaces and exports by name.

Nothing is believed but where it stands; what lies within a store or a workspace is not looked at.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from privpipe.errors import PrivpipeError
from privpipe.store.access.location import join, local_path
from privpipe.store.access.objects import list_keys, open_store, read_bytes
from privpipe.store.arrays.layout import ROOT_DOCUMENT

WORKSPACE = re.compile(r"\.(?P<name>.+?)\.privpipe(\.removed-[0-9a-f]+)?")
GENERATIONS = "generations"


@dataclass(frozen=True)
class FoundPlace:
    """Something of ours.

    Parameters
    ----------
    kind
        What it is; of a workspace the place is that which it belongs to.
    place
    header
        What it says of itself.
    """

    kind: Literal["collection", "release", "model", "generations", "workspace", "export"]
    place: str
    header: Mapping[str, Any] = field(default_factory=dict, repr=False)


def find_ours(root: str) -> Iterator[FoundPlace]:
    """What of ours is below a root, in the order of its names."""
    for folder, folders, names in _walk(root):
        for name in sorted(folders):
            if (match := WORKSPACE.fullmatch(name)) is not None:
                folders.remove(name)
                yield FoundPlace("workspace", join(folder, match["name"]))
        folders.sort()
        if ROOT_DOCUMENT in names:
            header = read_attributes(folder)
            kind = header.get("format")
            if kind in ("collection", "release", "model", GENERATIONS):
                folders[:] = ["parts"] if kind == GENERATIONS and "parts" in folders else []
                yield FoundPlace(kind, folder, header)
        for name in sorted(names):
            if name.endswith(".parquet") and (about := read_export(join(folder, name))):
                yield FoundPlace("export", join(folder, name), about)


def list_siblings(place: str) -> list[str]:
    """Names of what stands beside a place."""
    parent = place.rstrip("/").rpartition("/")[0]
    path = local_path(parent)
    if path is not None:
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(os.listdir(path))
        return []
    file_system, remote = fsspec.core.url_to_fs(parent)
    file_system.invalidate_cache()
    with suppress(FileNotFoundError):
        listed = file_system.ls(remote, detail=False)
        return sorted({str(one).rstrip("/").rpartition("/")[2] for one in listed})
    return []


def owner_of(place: str) -> str:
    """The incremental release that a part belongs to; the place itself of anything else."""
    above, folder, _ = ("", *place.rstrip("/").rsplit("/", 2))[-3:]
    return above if folder == "parts" and above else place


def _walk(root: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk`, of any place; folders may be taken out of what is still to come."""
    path = local_path(root)
    if path is not None:
        yield from os.walk(path)
        return
    folders, names = dict[str, set[str]](), dict[str, list[str]]()
    for key in list_keys(open_store(root, read_only=True)):
        above, _, name = key.rpartition("/")
        names.setdefault(above, []).append(name)
        while above:
            higher, _, folder = above.rpartition("/")
            folders.setdefault(higher, set()).add(folder)
            above = higher
    waiting = [""]
    while waiting:
        at = waiting.pop()
        here = sorted(folders.get(at, ()))
        yield join(root, *filter(None, [at])), here, names.get(at, [])
        waiting += [f"{at}/{name}".lstrip("/") for name in here]


def read_attributes(place: str) -> dict[str, Any]:
    """What a store of ours says of itself, unchecked; nothing of anything else."""
    with suppress(ValueError, KeyError, TypeError, OSError, PrivpipeError):
        content = read_bytes(open_store(place, read_only=True), ROOT_DOCUMENT) or b""
        return dict(json.loads(content)["attributes"]["privpipe"])
    return {}


def read_export(place: str) -> dict[str, Any]:
    """The header of the release that a Parquet file was made of; nothing of anybody else's."""
    with (
        suppress(OSError, ValueError, KeyError, TypeError, pa.ArrowException),
        fsspec.open(place, "rb") as file,
    ):
        about = pq.read_schema(file).metadata or {}
        return dict(json.loads(about[b"privpipe"]))
    return {}
