"""What must hold of a world after a crash: what readers see, what may lie about, what is equal.

Two ends of a command are equal where every file is but for identifiers, times and what covers them;
a state is seen by the doors that readers have, so that half a release is no release.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import fsspec
import numpy as np
import pyarrow.parquet as pq
from numcodecs import blosc, zstd

from privpipe.command.run_command import purge_command, status_command
from privpipe.errors import PrivpipeError, StoreError
from privpipe.store.access.generation_log import read_newest
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.growing_collection import read_partitions
from privpipe.store.keyring.account import Account
from privpipe.store.keyring.keys import list_keys, list_unreadable
from privpipe.store.releases.incremental_release import check_part, part_url, read_incremental
from privpipe.store.releases.published import check_release
from tests.simulation.commands import Command, Kind, World, forget_process

__all__ = ["View", "canonical", "find_left", "find_raw", "look", "purge_all", "status_all"]

View = dict[str, str]
"""What a reader finds, by place."""

_IDENTIFIER = re.compile(rb"(?<![0-9a-f.])[0-9a-f]{8,64}(?![0-9a-f])")
_TIME = re.compile(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z| UTC)?")
_SECONDS = re.compile(rb'"(seconds|wall|cpu|elapsed)[a-z_]*": [0-9.e-]+')
_TOKEN = re.compile(r"(?<![0-9a-f])[0-9a-f]{8,64}(?![0-9a-f])")
_SAID = re.compile(rb'"(?:state|n_records)": [^\n]*')
TEXTS = (".json", ".html", ".md", ".toml", ".svg", ".yaml")
_UNFINISHED = re.compile(r"\.partial$|/\.[^/]*\.json\.[0-9a-f]{16}$|/\.[^/]*\.new$")
"""What a kill in the middle of a write leaves beside the object: no key, nothing that is read."""


def canonical(tree: Mapping[str, bytes], command: Command) -> Counter[tuple[str, bytes]]:
    """Files by a path without identifiers, and a digest of what is not identifier or time.

    Unfinished files are nobody's; that they hold no record is asked elsewhere.
    """
    found: Counter[tuple[str, bytes]] = Counter()
    for path, content in tree.items():
        is_unfinished = _UNFINISHED.search(path) and not _is_shown(path, command)
        if is_unfinished or any(one in path for one in command.free):
            continue
        text = _strip(content) if path.endswith(TEXTS) else content
        if "erasures/" in path:  # a certificate says in another order what was removed before
            text = b"".join(sorted(set(_SAID.findall(text))))
        if any(one in path for one in command.opaque):
            text = b""
        found[_TOKEN.sub("#", path), hashlib.sha256(text).digest()] += 1
    return found


def find_left(tree: Mapping[str, bytes], command: Command) -> Counter[str]:
    """Files of the places themselves and of their workspaces, by path without identifiers."""
    places = tuple(command.places)
    return Counter(
        _TOKEN.sub("#", path)
        for path in tree
        if path.lstrip(".").startswith(places)
        and command.places.get(path.partition("/")[0]) not in ("keys", "account", "figure")
    )


def _is_shown(path: str, command: Command) -> bool:
    """Whether it is in what was shown by one step, where nothing unfinished may be."""
    return command.places.get(path.partition("/")[0]) in ("collection", "release", "table")


@lru_cache(maxsize=100_000)
def _strip(content: bytes) -> bytes:
    return _SECONDS.sub(b"S", _TIME.sub(b"T", _IDENTIFIER.sub(b"#", content)))


class RawValues:
    """Values of sources, looked for as bytes in files and in compressed chunks.

    Parameters
    ----------
    values
        Of records, float64: none occurs by chance.
    """

    def __init__(self, values: Iterable[np.ndarray]) -> None:
        words = [one.astype("<f8").view(np.uint64).ravel() for one in values]
        self._words = np.unique(np.concatenate(words)) if words else np.empty(0, np.uint64)
        self._known: dict[bytes, bool] = {}

    def are_in(self, content: bytes) -> bool:
        """Whether any of them is."""
        if content not in self._known:
            self._known[content] = any(map(self._search, _unpack(content)))
        return self._known[content]

    def _search(self, content: bytes) -> bool:
        if not len(self._words):
            return False
        for shift in range(min(8, len(content))):
            words = np.frombuffer(content, np.uint64, (len(content) - shift) // 8, shift)
            at = self._words.searchsorted(words).clip(max=len(self._words) - 1)
            if (self._words[at] == words).any():
                return True
        return False


def _unpack(content: bytes) -> Iterator[bytes]:
    """A file as it is, and what is in it where it is a chunk that Blosc or Zstandard packed."""
    yield content
    n_packed = int.from_bytes(content[12:16], "little")  # of Blosc; a checksum may follow it
    if content.startswith(b"\x02") and 16 <= n_packed <= len(content):
        with suppress(RuntimeError, ValueError):
            yield bytes(blosc.decompress(content[:n_packed]))
    if content.startswith(b"\x28\xb5\x2f\xfd"):
        for packed in (content[:-4], content):
            with suppress(RuntimeError, ValueError):
                yield bytes(zstd.decompress(packed))


def find_raw(tree: Mapping[str, bytes], raw: RawValues) -> Counter[str]:
    """Files that hold a raw value, by their path without identifiers."""
    return Counter(_TOKEN.sub("#", path) for path, content in tree.items() if raw.are_in(content))


def look(world: World, command: Command) -> View:
    """What readers find; an error that is none of ours is raised."""
    forget_process()
    return {place: _read(world.at(place), kind, world) for place, kind in command.places.items()}


def _read(url: str, kind: Kind, world: World) -> str:
    try:
        found = _READERS[kind](url)
    except PrivpipeError as error:
        return f"refused: {error.code}"
    return hashlib.sha256(repr(found).encode()).hexdigest()


def _read_collection(url: str) -> object:
    collection = open_collection(url)
    names = [one.name for one in collection.schema_of_records.variables]
    read = [
        collection.read(name, 0, collection.n_records).tobytes() for name in ("features", *names)
    ]
    return collection.n_records, [hashlib.sha256(one).hexdigest() for one in read]


def _read_growing(url: str) -> object:
    return [
        (one.name, one.content, one.time, _read_collection(one.url(url)))
        for one in read_partitions(url)
    ]


def _read_release(url: str) -> object:
    return check_release(url, verify=True)["receipts_sha256"]


def _read_parts(url: str) -> object:
    found = read_incremental(url)
    if found is None:
        return None
    state = found[1]
    for part in state.parts:
        check_part(url, part)
    parts = [(one.n_records, _read_release(part_url(url, one.id))) for one in state.parts]
    return len(state.withdrawn), parts


def _read_table(url: str) -> object:
    system, path = fsspec.core.url_to_fs(url)
    places = [path] if path.endswith(".parquet") and system.exists(path) else []
    is_whole = system.exists(f"{path}/_SUCCESS")
    if os.path.isdir(url):
        assert is_whole, "a folder of tables is seen before it is whole"
    if is_whole:  # in a bucket there is nothing to see before
        places = sorted(system.glob(f"{path}/*.parquet"))
    return [pq.read_table(io.BytesIO(system.cat_file(one))).to_pydict() for one in places]


def _read_figure(url: str) -> object:
    found = Path(url, "mean.json")
    return json.loads(found.read_text())["cells"] if found.exists() else None


def _read_keys(url: str) -> object:
    del url
    assert not list_unreadable(), "a key is half there"
    return [(one.binding.source, one.forgotten is None) for one in list_keys()]


def _read_account(url: str) -> object:
    return [(one.partition, one.epsilon, one.n_charges) for one in Account(url).read_all()]


_READERS = {
    "collection": _read_collection,
    "growing": _read_growing,
    "release": _read_release,
    "parts": _read_parts,
    "table": _read_table,
    "figure": _read_figure,
    "keys": _read_keys,
    "account": _read_account,
}


def purge_all(world: World, command: Command) -> None:
    """`purge` of all places that have a workspace."""
    forget_process()
    for place, kind in command.places.items():
        if kind not in ("keys", "account"):
            try:
                purge_command(world.at(place))
            except StoreError as error:  # it says so of a place where nothing is
                if error.code != "not-found":
                    raise


def status_all(world: World, command: Command) -> list[str]:
    """What `status` says that is not so, of each place."""
    forget_process()
    lies = []
    for place, kind in command.places.items():
        if kind in ("keys", "account", "table", "figure"):
            continue
        url = world.at(place)
        try:
            said = status_command(url)
        except PrivpipeError:
            if kind in ("release", "parts"):
                raise
            continue  # another kind of place, which it says
        if kind == "release" and said["published"] != (_read(url, kind, world)[:7] != "refused"):
            lies.append(f"{place}: published {said['published']}")
        if kind == "parts" and said["published"] != (read_newest(url, "release") is not None):
            lies.append(f"{place}: published {said['published']}")
        if said["running"]:
            lies.append(f"{place}: running")
        if said["run"] is None and said["stage"] is not None:
            lies.append(f"{place}: a stage without a run")
    return lies
