"""Erasure where nothing can be renamed: in memory and in a bucket, every object is read."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest

from privpipe.command.inspect_command import export_command
from privpipe.flows.release_flow import release_collection
from privpipe.pipeline.runs.watch import Watch
from privpipe.store.access.location import create_bytes
from privpipe.store.access.objects import list_keys, open_store, read_bytes, write_bytes
from privpipe.store.access.workspace import purge_workspace
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.growing_collection import (
    append_partition,
    open_whole_collection,
    read_partitions,
)
from privpipe.store.collections.ingest import ingest
from tests.operations.increments import day, release
from tests.operations.test_erase import INGEST, configure, erase, search, write_records
from tests.store.serial_run import make_options, run_serially, serial_flows, write_small_collection


def fetch(place: str, folder: Path) -> dict[str, set[str]]:
    """Everything of a place as files, searched."""
    store = open_store(place, read_only=True)
    for key in list_keys(store):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(read_bytes(store, key) or b"")
    return search(folder)


def test_list_keys__does_not_hide_what_was_made_since(place: str) -> None:
    """A client of buckets keeps listings; whoever lists, and then reads by name, has to see."""
    store = open_store(place)
    write_bytes(store, "generations/1", b"one")
    assert list_keys(store) == ["generations/1"]
    assert create_bytes(f"{place}/generations/2", b"two")
    assert read_bytes(open_store(place, read_only=True), "generations/2") == b"two"
    assert list_keys(store) == ["generations/1", "generations/2"]


@pytest.mark.parametrize(
    "place", ["memory", pytest.param("s3", marks=pytest.mark.slow)], indirect=True
)
def test_purge__of_a_run_in_a_bucket_leaves_none_of_its_arrays(place: str) -> None:
    """What was cleaned before a kill stood at the public place, and stayed there."""
    write_small_collection(f"{place}/records.zarr", n_records=60)
    with serial_flows():
        options = make_options(f"{place}/records.zarr", f"{place}/release.zarr")
        release_collection(options, Watch(), until="clean")
    assert purge_workspace(f"{place}/release.zarr")
    assert not list_keys(open_store(f"{place}/release.zarr", read_only=True))


@pytest.fixture
def released(place: str) -> str:
    """Where whole runs are made; in a bucket they take a minute, so only where one is named."""
    if place.startswith("s3:") and "PRIVPIPE_TEST_S3" not in os.environ:
        pytest.skip("PRIVPIPE_TEST_S3 is not set")
    return place


@pytest.mark.slow
@pytest.mark.parametrize("growing", [False, True])
def test_erase__of_records_alone_in_a_bucket_leaves_no_byte(
    place: str, growing: bool, tmp_path: Path
) -> None:
    """All that a collection stores: also what was replaced, and the tables of names."""
    url = f"{place}/w.zarr"
    for number, seed in enumerate((1, 2) if growing else (1,)):
        source = write_records(tmp_path / "g.npz", seed, with_her=True)
        if growing:
            append_partition(source, url, "one", day(number), INGEST, replacing=True)
        else:
            ingest(source, url, INGEST)
    assert fetch(place, tmp_path / "before")
    erase(url)
    assert fetch(place, tmp_path / "after") == {}
    assert open_whole_collection(url).n_records == 44


@pytest.mark.slow
def test_erase__of_a_whole_collection_in_a_bucket_leaves_no_byte(
    released: str, tmp_path: Path
) -> None:
    """Made in one piece: released, exported, and cleaned by a run that was stopped."""
    ingest(write_records(tmp_path / "a.npz", 1, n=90, with_her=True), f"{released}/w.zarr", INGEST)
    with serial_flows():
        run_serially(configure(tmp_path, "w", "good", place=released))
        release_collection(configure(tmp_path, "w", "kept", place=released), Watch(), until="audit")
    export_command(f"{released}/good.zarr", f"{released}/out.parquet", verify=False)
    before = fetch(released, tmp_path / "before")
    for name in ("w.zarr", "good.zarr", ".kept.zarr.privpipe"):
        assert any(name in found for found in before), name
    certificate = erase(f"{released}/w.zarr")
    assert fetch(released, tmp_path / "after") == {}
    assert open_collection(f"{released}/w.zarr").n_records == 89
    assert {one["place"].rpartition("/")[2] for one in certificate["removed"]} >= {
        "good.zarr",
        "good.model.zarr",
        "kept.zarr",
        "out.parquet",
    }
    file_system, path = fsspec.core.url_to_fs(f"{released}/out.parquet")
    file_system.invalidate_cache()
    assert not file_system.exists(path)


@pytest.mark.slow
def test_erase__of_a_growing_collection_in_a_bucket_leaves_no_byte(
    released: str, tmp_path: Path
) -> None:
    """With a replacedd partition, and parts."""
    ingest(write_records(tmp_path / "t.npz", 9, n=200), f"{released}/t.zarr", INGEST)
    given = {"training": f'[training]\npath = "{released}/t.zarr"', "incremental": "true"}
    options = configure(tmp_path, "g", "parts", place=released, include='["serial"]', **given)
    for number, seed in enumerate((1, 2)):
        source = write_records(tmp_path / "g.npz", seed, with_her=True)
        append_partition(source, f"{released}/g.zarr", "one", day(number), INGEST, replacing=True)
        assert release(options) == "published"
    assert any("parts.zarr/parts" in name for name in fetch(released, tmp_path / "before"))
    erase(f"{released}/g.zarr")
    assert fetch(released, tmp_path / "after") == {}
    assert [one.n_records for one in read_partitions(f"{released}/g.zarr")] == [44]
    assert release(options) == "published"
