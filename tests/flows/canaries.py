"""Canaries: values that occur nowhere by chance, and a search for them in any disguise.

Numbers are looked for as text and as the bytes of their stored forms, names as text; in files
as they are, inside base64, inside zlib, gzip and zstd streams, and inside the arrays of every
Zarr group.
"""

from __future__ import annotations

import base64
import bz2
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import zarr

__all__ = ["Canaries", "search_bytes", "search_tree"]

_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{16,}={0,2}")
_STREAMS = re.compile(rb"\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08|BZh|\x28\xb5\x2f\xfd")


HEAD = 8
"""No pattern is shorter than a word."""


class Canaries:
    """What must not be found, by the name of the column that it comes from.

    Parameters
    ----------
    numbers
        Values of numeric columns.
    names
        Category names.
    """

    def __init__(
        self, numbers: Mapping[str, np.ndarray], names: Mapping[str, tuple[str, ...]]
    ) -> None:
        self.patterns: dict[bytes, str] = {}
        for column, values in numbers.items():
            for value in values.ravel():
                for form in _forms(float(value)):
                    self.patterns[form] = column
        for column, texts in names.items():
            for text in texts:
                self.patterns[text.encode()] = column
                self.patterns[text.encode("utf-32-le")] = column  # NumPy's own strings
        self._heads: dict[bytes, list[bytes]] = {}
        for pattern in self.patterns:
            self._heads.setdefault(pattern[:HEAD], []).append(pattern)
        self._sorted = np.sort(np.frombuffer(b"".join(self._heads), np.uint64))

    def find(self, content: bytes) -> set[str]:
        """Columns of which something is in the bytes."""
        found: set[str] = set()
        for shift in range(min(HEAD, len(content))):  # all windows of 8 bytes, as numbers
            words = np.frombuffer(content, np.uint64, (len(content) - shift) // HEAD, shift)
            at = self._sorted.searchsorted(words).clip(max=len(self._sorted) - 1)
            for place in np.flatnonzero(self._sorted[at] == words) * HEAD + shift:
                heads = self._heads[content[place : place + HEAD]]
                found |= {self.patterns[p] for p in heads if content.startswith(p, place)}
        return found


def _forms(value: float) -> Iterator[bytes]:
    """A number as text to 9 digits, and as float64 and int64 in both byte orders.

    Zeros that lead are no digits: a table of seconds has one of 20,000 numbers to seven soon.
    """
    text = f"{value:.12g}"
    n_leading = len(text) - len(text.lstrip("-0."))
    yield text.encode()[: n_leading + 10]
    for kind in ("<f8", ">f8"):
        yield np.array(value, kind).tobytes()
    if value == int(value):
        for kind in ("<i8", ">i8"):
            yield np.array(int(value), kind).tobytes()


def search_bytes(canaries: Canaries, content: bytes, *, depth: int = 2) -> set[str]:
    """Columns found in the bytes themselves, or in what can be unpacked from them."""
    found = canaries.find(content)
    if depth:
        for inner in _unpack(content):
            found |= search_bytes(canaries, inner, depth=depth - 1)
    return found


def _unpack(content: bytes) -> Iterator[bytes]:
    for match in _BASE64.finditer(content):
        text = match.group().rstrip(b"=")
        for shift in range(4):  # a run may begin with letters that do not belong to it
            piece = text[shift:].translate(bytes.maketrans(b"-_", b"+/"))
            yield base64.b64decode(piece[: len(piece) // 4 * 4])
    for match in _STREAMS.finditer(content):
        yield from _inflate(content[match.start() :])


def _inflate(stream: bytes) -> Iterator[bytes]:
    if stream.startswith(b"BZh"):
        with suppress(OSError, ValueError):
            yield bz2.BZ2Decompressor().decompress(stream)
    elif stream.startswith(b"\x28\xb5\x2f\xfd"):
        from numcodecs.zstd import decompress

        with suppress(RuntimeError, ValueError):
            yield bytes(decompress(stream))
    else:
        with suppress(zlib.error):
            yield zlib.decompressobj(wbits=47).decompress(stream, 2**24)


def search_tree(canaries: Canaries, folder: Path) -> dict[str, set[str]]:
    """What was found below a folder, by file or array."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (hit := search_bytes(canaries, path.read_bytes())):
            found[str(path.relative_to(folder))] = hit
        if path.name == "zarr.json":
            with suppress(Exception):  # groups, and what a test has damaged
                values = np.asarray(zarr.open_array(path.parent, mode="r")[...])
                if hit := canaries.find(values.tobytes()):
                    found[f"array {path.parent.relative_to(folder)}"] = hit
    return found
