"""What is not ours is never deleted; what is gone is never read as NaN."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from privpipe import open_release
from privpipe.command.run_command import purge_command
from privpipe.errors import IncompleteReleaseError, OptionError, PrivpipeError, StoreError
from privpipe.pipeline.operations import traces
from privpipe.pipeline.operations.record_removal import end_exchange
from privpipe.store.access import location, objects
from privpipe.store.access.location import create_bytes
from privpipe.store.access.workspace import ERASED, hold_workspace, is_held, workspace_url
from privpipe.store.arrays import destination
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.growing_collection import append_partition
from privpipe.store.collections.ingest import ingest
from privpipe.store.releases import export
from privpipe.store.releases.export import export_release
from tests.operations.increments import append, configure, release
from tests.store.releases.test_export import make_release
from tests.store.serial_run import make_options, run_serially, serial_flows, write_small_collection


def keys_of(place: str) -> list[str]:
    return objects.list_keys(objects.open_store(place, read_only=True))


def write_table(folder: Path) -> str:
    np.savez(folder / "s.npz", X=np.eye(7))
    return str(folder / "s.npz")


def test_delete__takes_a_name_for_no_pattern(place: str) -> None:
    """s3fs expands * ? [ where it deletes: an erasure of q[1] deleted the collection q1."""
    for name in ("q1", "q[1]", "qq", "q*", "q?"):
        assert create_bytes(f"{place}/{name}/x", b"1")
        assert create_bytes(f"{place}/{name}/y[1]", b"1")
    for name in ("q[1]", "q*"):
        objects.delete_place(f"{place}/{name}")
    objects.delete_tree(objects.open_store(f"{place}/q?"))
    assert keys_of(place) == ["q1/x", "q1/y[1]", "qq/x", "qq/y[1]"]


@pytest.mark.parametrize("fails", [False, True])
def test_export__leaves_what_came_to_its_place_meanwhile(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    out, write = f"{bucket}/race{fails}/x.parquet", export._write_part
    make_release(str(tmp_path / "r.zarr"))

    def intrude(*args: Any) -> None:
        write(*args)
        assert create_bytes(out, b"of somebody")
        if fails:
            raise OSError(5, "failed by the test")

    monkeypatch.setattr(export, "_write_part", intrude)
    with pytest.raises(StoreError, match="failed by the test" if fails else "x.parquet exists"):
        export_release(str(tmp_path / "r.zarr"), out)
    assert (
        objects.read_bytes(objects.open_store(f"{bucket}/race{fails}", read_only=True), "x.parquet")
        == b"of somebody"
    )


@pytest.mark.parametrize("url", ["s3://", "s3:///x.parquet", "s3:b/x", "memory:///", "gs:"])
def test_places__with_a_scheme_and_no_bucket_are_no_folders_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    make_release(str(tmp_path / "r.zarr"))
    monkeypatch.chdir(tmp_path)
    for refused in (
        lambda: export_release("r.zarr", url),
        lambda: ingest(write_table(tmp_path), url),
    ):
        with pytest.raises(OptionError, match="names no bucket or host"):
            refused()
    assert {one.name for one in tmp_path.iterdir()} == {"r.zarr", "s.npz"}


def test_run__into_a_folder_of_others_is_refused_at_once_and_purge_leaves_all(
    place: str, tmp_path: Path
) -> None:
    write_small_collection(f"{tmp_path}/records.zarr", n_records=60)
    assert create_bytes(f"{place}/mine/other.zarr/zarr.json", b"{}")
    with serial_flows(), pytest.raises(StoreError, match="exists; nothing is ever overwritten"):
        run_serially(make_options(f"{tmp_path}/records.zarr", f"{place}/mine"))
    purge_command(f"{place}/mine")
    assert keys_of(f"{place}/mine") == ["other.zarr/zarr.json"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/a::b.zarr", "names a place within another, by ::"),
        ("", "is a whole bucket"),
        ("/", "is a whole bucket"),
        ("/x//a.zarr", "has a folder without a name"),
        ("//a.zarr", "has a folder without a name"),
        ("-none/a.zarr", r"The bucket of .* does not exist\. Check its name"),
    ],
)
def test_place_in_a_bucket__that_can_be_none_is_named_before_work(
    bucket: str, name: str, message: str, tmp_path: Path
) -> None:
    """Errors of the client, leases lost to no one, chunks that were missing at once."""
    url, records, before = f"{bucket}{name}", str(tmp_path / "r.zarr"), keys_of(f"{bucket}/")
    write_small_collection(records, n_records=60)
    options = make_options(records, url)
    for write in (
        lambda: ingest(write_table(tmp_path), url),
        lambda: append_one(write_table(tmp_path), url),
        lambda: run_serially(options),
    ):
        with serial_flows(), pytest.raises(PrivpipeError, match=message) as caught:
            write()
        assert bucket in caught.value.message
        assert caught.value.code == ("not-found" if "none" in name else "place")
    with pytest.raises(PrivpipeError, match="::" if "::" in name else "No collection can be read"):
        open_collection(url)
    assert keys_of(f"{bucket}/") == before


@pytest.mark.parametrize(
    "place", ["memory", pytest.param("s3", marks=pytest.mark.slow)], indirect=True
)
def test_purge__removes_what_the_run_copied_and_no_more(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small_collection(f"{tmp_path}/records.zarr", n_records=60)
    with serial_flows(), monkeypatch.context() as patch:
        # As where another made the root in between, and took it away again.
        root = f"{place}/r.zarr/zarr.json"
        patch.setattr(destination, "create_bytes", lambda u, v: u != root and create_bytes(u, v))
        with pytest.raises(StoreError, match="exists; nothing is ever overwritten"):
            run_serially(make_options(f"{tmp_path}/records.zarr", f"{place}/r.zarr"))
    assert "features/c/0/0" in keys_of(f"{place}/r.zarr")
    assert create_bytes(f"{place}/r.zarr/mine.txt", b"mine")
    purge_command(f"{place}/r.zarr")
    assert keys_of(f"{place}/r.zarr") == ["mine.txt"]


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("folder", ["partitions", "parts"])
def test_purge_and_append__leave_partitions_of_others(
    place: str, folder: str, local: bool, tmp_path: Path
) -> None:
    url = str(tmp_path / "sales") if local else f"{place}/sales"
    objects.write_bytes(objects.open_store(url), f"{folder}/year=2020/a.csv", b"x")
    purge_command(url)
    with pytest.raises(PrivpipeError):
        append_partition(write_table(tmp_path), url, "one", "2026-11-01")
    assert keys_of(url) == [f"{folder}/year=2020/a.csv"]


def append_one(source: str, url: str) -> None:
    append_partition(source, url, "one", "2026-11-01")


@pytest.mark.parametrize(
    "place", ["memory", pytest.param("s3", marks=pytest.mark.slow)], indirect=True
)
@pytest.mark.parametrize("make", [ingest, append_one])
def test_ingest__leaves_the_copy_of_an_erasure_that_was_killed(
    place: str, make: Callable[[str, str], object], tmp_path: Path
) -> None:
    """It is all that is left of the collection; a refused ingest removed it."""
    url, source = f"{place}/people.zarr", write_table(tmp_path)
    write_small_collection(f"{workspace_url(url)}/{ERASED}", n_records=60)
    with pytest.raises(StoreError, match="belongs to an interrupted erasure"):
        make(source, url)
    end_exchange(url)
    assert open_collection(url).n_records == 60


def test_growing_release__a_chunk_that_is_gone_is_no_withheld_record(tmp_path: Path) -> None:
    options = configure(tmp_path)
    append(tmp_path, "one", np.random.default_rng(1).normal(size=(50, 3)), 1)
    with serial_flows():
        release(options)
    url = str(tmp_path / "release.zarr")
    opened = open_release(url)
    assert np.isfinite(np.asarray(opened["features"])).all()
    for chunk in Path(url).glob("parts/*/features/c"):
        shutil.rmtree(chunk)
    for one in (open_release(url), open_release(url)):
        with pytest.raises(IncompleteReleaseError, match="no longer what it was"):
            np.asarray(one["features"])


def test_is_held__knows_leases(place: str) -> None:
    assert not is_held(f"{place}/r.zarr")
    with hold_workspace(f"{place}/r.zarr"):
        assert is_held(f"{place}/r.zarr")
    assert not is_held(f"{place}/r.zarr")


def test_export__that_fails_shows_nothing_even_where_nothing_may_be_deleted(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_release(f"{place}/r.zarr")
    store = objects.open_store(f"{place}/r.zarr")
    content = bytearray(objects.read_bytes(store, "features/c/1/0") or b"")
    content[20] ^= 1
    objects.write_bytes(store, "features/c/1/0", bytes(content))
    system, out = fsspec.core.url_to_fs(f"{place}/out.parquet")
    if place.startswith("s3:"):

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError("deletes are denied")

        monkeypatch.setattr(system, "rm_file", refuse)
    with pytest.raises(PrivpipeError):
        export_release(f"{place}/r.zarr", f"{place}/out.parquet")
    system.invalidate_cache()
    assert not system.exists(out)


def test_traces__of_what_may_not_be_read_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "moved.parquet").write_bytes(b"x")

    def deny(*_: object, **__: object) -> None:
        raise PermissionError("403")

    monkeypatch.setattr(traces.fsspec, "open", deny)
    found = traces.find_traces((), str(tmp_path / "account"), [str(tmp_path)], "/x", lambda _: 0)
    assert [one for one in found.left if "may not be read" in one]


def test_exchange__never_makes_an_object_of_one_that_is_gone(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{place}/people.zarr"
    new = f"{workspace_url(url)}/{ERASED}"
    write_small_collection(new, n_records=60)
    measured = location.measure_objects

    def go_on(where: str) -> dict[str, int]:
        sizes = measured(where)
        objects.delete_keys(objects.open_store(new), ["features/c/1/0"])
        return sizes

    monkeypatch.setattr(location, "measure_objects", go_on)
    with pytest.raises(FileNotFoundError):
        end_exchange(url)
    assert not objects.list_keys(objects.open_store(url), "zarr.json")
    assert "zarr.json" in keys_of(new)
