"""Places by URL: what is measured of an object, in pieces of a file or whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import google_crc32c
import pytest
from zarr.abc.store import Store
from zarr.storage import MemoryStore

from privpipe.errors import OptionError
from privpipe.store.access.location import explain_unreachable, local_path
from privpipe.store.access.objects import PIECE, list_names, measure_bytes, open_store, write_bytes


def stores(folder: Path) -> list[Store]:
    return [open_store(str(folder / "store")), MemoryStore()]


@pytest.mark.parametrize("length", [0, 1, PIECE, 2 * PIECE + 3])
def test_measure_bytes__is_of_all_bytes_in_any_store(tmp_path: Path, length: int) -> None:
    content = bytes(i % 251 for i in range(length))
    for store in stores(tmp_path):
        write_bytes(store, "a/c/0", content)
        turned = content[-4:] + content[:-4]
        assert measure_bytes(store, "a/c/0") == (length, google_crc32c.value(turned))


def test_measure_bytes__tells_chunks_apart_that_end_with_their_own_checksum(tmp_path: Path) -> None:
    for store in stores(tmp_path):
        found = set()
        for chunk in range(20):
            content = bytes((i * i + chunk) % 251 for i in range(100))
            own = google_crc32c.value(content).to_bytes(4, "little")
            write_bytes(store, f"a/c/{chunk}", content + own)
            found.add(measure_bytes(store, f"a/c/{chunk}"))
        assert len(found) == 20


def test_measure_bytes__finds_nothing_where_there_is_no_object(tmp_path: Path) -> None:
    for store in stores(tmp_path):
        write_bytes(store, "a/c/0", b"1")
        assert measure_bytes(store, "a/c/1") is None
        assert measure_bytes(store, "a/c") is None
        assert measure_bytes(store, "a/c/0/0") is None


@pytest.mark.parametrize(
    ("place", "number", "code"),
    [
        ("/data/account", errno.ENOSPC, "disk-full"),
        ("/data/account", errno.EACCES, "refused"),
        ("s3://bucket/account", errno.EACCES, "unreachable"),
    ],
)
def test_explain_unreachable__knows_disks(place: str, number: int, code: str) -> None:
    """A full disk was said to need another host, name or credentials."""
    assert explain_unreachable(place, OSError(number, "x")).code == code


def test_list_names__of_links_in_a_circle_finds_nothing(tmp_path: Path) -> None:
    """They ended an erasure, which went through all places of earlier exports."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for place in "a", "a/within", "none", "file/within":
        (tmp_path / "file").touch()
        assert list_names(str(tmp_path / place)) == []
    assert list_names(str(tmp_path)) == ["a", "b", "file"]


def test_list_names__says_what_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> list[str]:
        raise PermissionError(errno.EACCES, "x")

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(PermissionError):
        list_names("/data")


def test_local_path__in_a_folder_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert local_path("/data/r.zarr") == "/data/r.zarr"
    with pytest.raises(OptionError, match="works in is gone"):
        local_path("r.zarr")
