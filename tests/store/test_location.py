"""Places by URL: what is measured of an object, in pieces of a file or whole."""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import pytest
from zarr.abc.store import Store
from zarr.storage import MemoryStore

from privpipe.store.location import PIECE, measure_bytes, open_store, write_bytes


def stores(folder: Path) -> list[Store]:
    return [open_store(str(folder / "store")), MemoryStore()]


@pytest.mark.parametrize("length", [0, 1, PIECE, 2 * PIECE + 3])
def test_measure_bytes__is_of_all_bytes_in_any_store(tmp_path: Path, length: int) -> None:
    content = bytes(i % 251 for i in range(length))
    for store in stores(tmp_path):
        write_bytes(store, "a/c/0", content)
        assert measure_bytes(store, "a/c/0") == (length, google_crc32c.value(content))


def test_measure_bytes__finds_nothing_where_there_is_no_object(tmp_path: Path) -> None:
    for store in stores(tmp_path):
        write_bytes(store, "a/c/0", b"1")
        assert measure_bytes(store, "a/c/1") is None
        assert measure_bytes(store, "a/c") is None
        assert measure_bytes(store, "a/c/0/0") is None
