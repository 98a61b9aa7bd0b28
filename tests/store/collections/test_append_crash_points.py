"""An append that is killed at any change of the storage, and what its owner then does.

The same command again gives the collection that an undisturbed one gives; `purge` leaves no record
that no generation names; and a place that held nothing holds nothing again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from privpipe.command.run_command import purge_command
from privpipe.errors import OptionError, StoreError
from privpipe.store.access.generation_log import read_newest
from privpipe.store.collections.growing_collection import (
    append_partition,
    purge_collection,
    read_partitions,
)
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.sources.reading.source import SourceLayout
from tests.store.test_crash_points import CrashingStorage, KilledError

OPTIONS = IngestOptions(
    layout=SourceLayout(features=("x",), labels=("sign",)), categorical=("sign",)
)
What = Literal["first", "second", "replacing", "same"]
WHATS: tuple[What, ...] = ("first", "second", "replacing", "same")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two batches of a few records."""
    folder, rng = tmp_path_factory.mktemp("sources"), np.random.default_rng(0)
    found = []
    for name in ("monday", "tuesday"):
        x = rng.normal(size=(6, 2))
        np.savez(folder / f"{name}.npz", x=x, sign=(x[:, 0] > 0).astype("int8"))
        found.append(str(folder / f"{name}.npz"))
    return found


def append(what: What, sources: list[str], url: str) -> bool:
    """The command under test."""
    source = sources[0 if what in ("first", "same") else 1]
    name = "tuesday" if what == "second" else "monday"
    day = "2026-11-01T00:00:00+00:00"
    return append_partition(source, url, name, day, OPTIONS, replacing=what == "replacing")[1]


def prepare(what: What, sources: list[str], folder: Path) -> str:
    """What stood there before."""
    url = str(folder / "growing.zarr")
    if what != "first":
        append("first", sources, url)
    return url


def list_named(url: str) -> list[str]:
    """Contents of the partitions that hold."""
    return [one.content for one in read_partitions(url)]


def list_stray(folder: Path) -> list[str]:
    """Files below a folder, but for those of partitions that hold and of generations."""
    url = str(folder / "growing.zarr")
    holds = read_newest(url, "collection")
    kept = ["generations/", "zarr.json"]
    kept += [] if holds is None else [f"{one.place}/" for one in read_partitions(url)]
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    known = tuple(f"growing.zarr/{one}" for one in kept)
    return [file for file in files if not file.startswith(known)]


@contextmanager
def dying(storage: CrashingStorage) -> Iterator[None]:
    """Also where a generation is made, and folders are."""
    with storage(), pytest.MonkeyPatch.context() as patch:
        for name in ("link", "mkdir"):
            patch.setattr(os, name, storage.guard(getattr(os, name)))
        yield


@pytest.mark.slow
@pytest.mark.parametrize("what", WHATS)
@pytest.mark.parametrize("how", ["lost", "torn"])
def test_append__killed_anywhere_is_repeated_or_purged(
    what: What, how: Literal["lost", "torn"], sources: list[str], tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    whole = prepare(what, sources, tmp_path / "whole")
    storage = CrashingStorage(tmp_path / "whole")
    with dying(storage):
        append(what, sources, whole)
    expected = list_named(whole)
    assert storage.changes > (2 if what == "same" else 5)
    for number in range(storage.changes):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        url = prepare(what, sources, folder)
        before = [] if what == "first" else list_named(url)
        with (
            dying(CrashingStorage(folder, dies_at=number, how=how)),
            suppress(KilledError, StoreError),
        ):
            append(what, sources, url)
        if number % 2 == 0:
            for _ in range(2):  # of a first append nothing is left, which is said
                with suppress(StoreError):
                    purge_command(url)
            assert not list_stray(folder), number
            held = list_named(url) if read_newest(url, "collection") else []
            assert held in (before, expected), number
        append(what, sources, url)
        assert list_named(url) == expected, number
        purge_command(url)
        assert not list_stray(folder), number


def test_append__what_stands_already_or_is_refused_leaves_nothing(
    sources: list[str], tmp_path: Path
) -> None:
    url = prepare("second", sources, tmp_path)
    assert not append("same", sources, url)
    with pytest.raises(Exception, match="holds other records under the name"):
        append_partition(sources[1], url, "monday", "2026-11-01T00:00:00+00:00", OPTIONS)
    assert not list_stray(tmp_path)
    assert len(list((tmp_path / "growing.zarr" / "partitions").iterdir())) == 1
    assert append("replacing", sources, url)
    assert list_stray(tmp_path)  # whoever reads the generation before may go on
    assert purge_collection(url)
    assert not list_stray(tmp_path)
    assert not purge_collection(url)


def test_append__another_folder_is_nobodys_collection(sources: list[str], tmp_path: Path) -> None:
    other = tmp_path / "growing.zarr"
    (other / "partitions").mkdir(parents=True)
    (other / "letters.txt").write_text("mine")
    with pytest.raises(OptionError, match="is no growing collection of privpipe"):
        append("first", sources, str(other))
    ingest(sources[0], tmp_path / "whole.zarr", OPTIONS)
    with pytest.raises(OptionError, match="was made in one piece"):
        append("first", sources, str(tmp_path / "whole.zarr"))
    assert not purge_collection(str(other))
    assert (other / "letters.txt").exists()
