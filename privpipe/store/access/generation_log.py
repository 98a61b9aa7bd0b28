"""A numbered history of documents, each made only if its number is free: the newest holds.

One step makes a generation visible, on a file system and in a bucket alike. The document of number
n + 1 comes to exist, by whoever is first. The root names a generation from which readers look
forward. It may lag behind by those whose writers died before they renewed it, and it may be set
back by a writer who slept. Neither changes what readers see.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from privpipe.errors import FormatError, StoreError
from privpipe.store.access.location import join, shown
from privpipe.store.access.objects import create_object, keep_bytes, open_store, read_bytes

FORMAT = "generations"
"""Of the root: what `read_kind` says of such a place."""

FOLDER = "generations"
ROOT = "zarr.json"


@dataclass(frozen=True)
class Generation:
    """One state of a growing collection or an incremental release.

    Parameters
    ----------
    number
        From 1.
    previous
        Digest of the generation before; empty for the first.
    kind
        "collection" or "release".
    content
        What it consists of, JSON-ready.
    sealed
        Digest of the document that it was read from; empty for one that is to be written.
    """

    number: int
    previous: str
    kind: str
    content: Mapping[str, Any] = field(repr=False)
    sealed: str = field(default="", repr=False, compare=False)

    def encode(self) -> bytes:
        """The document, sealed by its digest."""
        said = {name: getattr(self, name) for name in ("number", "previous", "kind", "content")}
        body = json.dumps(said, sort_keys=True)
        return json.dumps({"sha256": _digest(body), "body": body}).encode()

    @property
    def digest(self) -> str:
        """SHA-256, hexadecimal."""
        return self.sealed or str(json.loads(self.encode())["sha256"])


def is_generational(url: str) -> bool:
    """Whether a place has a history of generations, or has begun to."""
    return _read_root(url) > 0 or _read(url, 1) is not None


def newest_kind(url: str) -> str:
    """What grows at a place: "collection", "release", or nothing that has begun to.

    Raises
    ------
    FormatError
        If it is damaged.
    """
    newest = _find_newest(url)
    return "" if newest is None else newest.kind


def read_newest(url: str, kind: str) -> Generation | None:
    """The generation that holds now; None where there is none.

    Raises
    ------
    FormatError
        If it is damaged, or of another kind.
    """
    generation = _find_newest(url)
    if generation is not None and generation.kind != kind:
        problem = f"{shown(url)} is a growing {generation.kind}, not a {kind}."
        raise FormatError(problem, remedy="Check the path.")
    return generation


def _find_newest(url: str) -> Generation | None:
    found = None
    # The root may lag, or be set back by a writer who slept: from it readers look forward.
    number = max(_read_root(url), 1)
    while (content := _read(url, number)) is not None:
        found, number = content, number + 1
    if found is None and number > 1:
        raise _damaged(url, number)
    return None if found is None else _decode(url, number - 1, found)


def read_generation(url: str, number: int) -> Generation:
    """A generation by its number; FormatError where it is missing or damaged."""
    content = _read(url, number)
    if content is None:
        raise _damaged(url, number)
    return _decode(url, number, content)


def publish_generation(
    url: str, kind: str, content: Mapping[str, Any], expected: Generation | None
) -> Generation:
    """Make the next generation, if `expected` is still the newest.

    Raises
    ------
    StoreError
        If another writer was first; nothing has changed then.
    """
    number, before = (1, "") if expected is None else (expected.number + 1, expected.digest)
    following = Generation(number, before, kind, content)
    if not create_object(join(url, _key(following.number)), following.encode()):
        problem = f"Another writer made generation {following.number} of {shown(url)} first."
        remedy = "Nothing was changed. Run again: it continues from that generation."
        raise StoreError(problem, remedy=remedy, code="generation-taken")
    # After the switch, and only to make the way shorter: readers do not depend on it.
    write_root(url, following)
    return following


def blank_older(url: str, newest: Generation) -> None:
    """Empty the content of all generations before the newest one; the chain of their digests stays.

    What they said is in no place of ours any more. A reader who begins at one of them
    continues to the newest, as always. Only who holds the place may.
    """
    write_root(url, newest)  # a writer that died may have left it behind
    for number in range(1, newest.number):
        content = _read(url, number)
        found = None if content is None else _decode(url, number, content)
        # Emptied, not deleted: from a root that lags they still lead on.
        if found is not None and found.content:
            blank = Generation(number, found.previous, found.kind, {})
            keep_bytes(url, _key(number), blank.encode())


def write_root(url: str, generation: Generation) -> None:
    """Name the generation in the root, whole; also by who finds it lagging."""
    about = {"format": FORMAT, "kind": generation.kind, "generation": generation.number}
    root = {"zarr_format": 3, "node_type": "group", "attributes": {"privpipe": about}}
    keep_bytes(url, ROOT, json.dumps(root).encode())


def _key(number: int) -> str:
    return f"{FOLDER}/{number:08d}.json"


def _read(url: str, number: int) -> bytes | None:
    return read_bytes(open_store(url, read_only=True), _key(number))


def _read_root(url: str) -> int:
    """The number that the root names; 0 without a root that does."""
    content = read_bytes(open_store(url, read_only=True), ROOT)
    with suppress(ValueError, KeyError, TypeError):
        return int(json.loads(content or b"")["attributes"]["privpipe"]["generation"])
    return 0


def _decode(url: str, number: int, document: bytes) -> Generation:
    try:
        outer = json.loads(document)
        body = json.loads(outer["body"])
        # The number too: a document that was copied to another place is none of that place.
        intact = _digest(outer["body"]) == outer["sha256"] and body["number"] == number
        found = Generation(number, body["previous"], body["kind"], body["content"], outer["sha256"])
    except (ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        raise _damaged(url, number)
    return found


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _damaged(url: str, number: int) -> FormatError:
    problem = f"Generation {number} of {shown(url)} is missing or damaged."
    remedy = "Restore it from a backup: generations are never changed once made."
    return FormatError(problem, remedy=remedy, code="generation-damaged")
