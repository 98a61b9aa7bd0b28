"""Snapshots of an Icechunk repository: what a reader without privpipe finds, and when no more."""

from __future__ import annotations

import os
import shutil
import sys
from datetime import timedelta
from pathlib import Path

import icechunk
import numpy as np
import pytest
import xarray as xr

import privpipe
from privpipe.command.inspect_command import export_command
from privpipe.errors import OptionError, PrivpipeError, StoreError
from privpipe.store.access.workspace import hold_workspace
from privpipe.store.keyring.account import find_account
from privpipe.store.keyring.registers import read_exports
from privpipe.store.releases import icechunk_export
from privpipe.store.releases.icechunk_export import export_snapshot, list_runs
from privpipe.store.releases.incremental_release import withdraw_partition
from tests.operations.increments import append, configure, release

ROWS = (33, 43, 53)


def open_repository(url: str) -> icechunk.Repository:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(url))


def read(url: str, snapshot: str | None = None) -> xr.Dataset:
    """What a reader finds, without privpipe."""
    repository = open_repository(url)
    session = repository.readonly_session(
        "main" if snapshot is None else None, snapshot_id=snapshot
    )
    dataset: xr.Dataset = xr.open_zarr(session.store, consolidated=False)
    return dataset


def list_snapshots(url: str) -> list[str]:
    """All but the empty one that a repository begins with, the newest first."""
    return [one.id for one in open_repository(url).ancestry(branch="main")][:-1]


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of three partitions, exported after each."""
    folder = tmp_path_factory.mktemp("grown")
    options, rng = configure(folder), np.random.default_rng(0)
    for k, n in enumerate(ROWS):
        append(folder, f"p{k}", rng.normal(size=(n, 3)), k)
        release(options)
        url, out = str(folder / "release.zarr"), str(folder / "people.icechunk")
        assert export_snapshot(url, out) == n  # nothing that was there is written again
        assert export_snapshot(url, out) == 0
        released = privpipe.open_release(url)
        xr.testing.assert_identical(read(out).load().drop_attrs(), released.load().drop_attrs())
        assert read(out).attrs["privpipe"] == released.attrs["privpipe"]
    return folder


def test_snapshot__of_each_generation_stays_while_the_release_grows(grown: Path) -> None:
    out = str(grown / "people.icechunk")
    n_records = [read(out, one).sizes["record"] for one in list_snapshots(out)[::-1]]
    assert n_records == np.cumsum(ROWS).tolist()
    assert not list(grown.glob(".people*"))


def die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["expire_snapshots", "garbage_collect"])
def test_withdrawal__is_one_for_readers_of_every_snapshot(
    grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    copied = shutil.copytree(grown, tmp_path / "copied")
    url, out = str(copied / "release.zarr"), str(tmp_path / "people.icechunk")
    export_command(url, out, verify=True)
    # By any run of its records an erasure finds it.
    assert {run for run, place in read_exports(find_account()) if place == out} == set(
        list_runs(url)
    )
    assert len(list_runs(url)) == 3
    before = list_snapshots(out)
    objects = {path for path in Path(out).rglob("*/*") if path.is_file()}
    assert len(objects) > 2
    withdraw_partition(url, "p1", timedelta(0), find_account(), (), ())
    with monkeypatch.context() as patch:
        patch.setattr(icechunk.Repository, step, die)
        with pytest.raises(KeyboardInterrupt):
            export_snapshot(url, out)
    assert export_snapshot(url, out) == 0  # all was written, and nothing forgotten
    xr.testing.assert_equal(read(out).load(), privpipe.open_release(url).load())
    assert not set(before) & set(list_snapshots(out))
    for one in before:
        with pytest.raises(icechunk.IcechunkError):
            read(out, one)
    # What a repository begins with, and where its branch is, hold no record.
    left = {path.parent.name for path in objects if path.exists()}
    assert left <= {"snapshots", "branch.main"}
    assert sum(path.exists() for path in objects if path.parent.name == "snapshots") <= 1
    for name in ("p0", "p2"):
        withdraw_partition(url, name, timedelta(0), find_account(), (), ())
    assert export_snapshot(url, out) == 0
    assert read(out).sizes["record"] == 0


def test_snapshot__of_what_came_after_a_withdrawal_stays(tmp_path: Path) -> None:
    options, rng, n = configure(tmp_path), np.random.default_rng(1), 30
    url, out = str(tmp_path / "release.zarr"), str(tmp_path / "people.icechunk")
    for k in range(4):
        append(tmp_path, f"p{k}", rng.normal(size=(n, 3)), k)
        release(options)
        if k == 1:
            withdraw_partition(url, "p0", timedelta(0), find_account(), (), ())
        export_snapshot(url, out)
    assert [read(out, one).sizes["record"] for one in list_snapshots(out)] == [3 * n, 2 * n, n]


def test_export__that_dies_leaves_the_last_snapshot(
    grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, out = str(grown / "release.zarr"), str(tmp_path / "people.icechunk")

    with monkeypatch.context() as patch:
        patch.setattr(icechunk.Session, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            export_snapshot(url, out)
    assert not list_snapshots(out)
    export_snapshot(url, out)
    assert len(list_snapshots(out)) == 1


def test_export__of_a_release_that_grows_meanwhile_is_refused(
    grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, parts = icechunk_export._list_parts(str(grown / "release.zarr"))
    monkeypatch.setattr(icechunk_export, "_list_parts", lambda _: (rows, parts[:2]))
    with pytest.raises(StoreError, match="changed since the export began"):
        export_snapshot(str(grown / "release.zarr"), str(tmp_path / "people.icechunk"))


def test_export__is_one_at_a_time_to_folders_and_buckets_of_s3(grown: Path, tmp_path: Path) -> None:
    url, out = str(grown / "release.zarr"), str(tmp_path / "people.icechunk")
    with hold_workspace(out), pytest.raises(StoreError, match="Another process"):
        export_snapshot(url, out)
    with pytest.raises(OptionError, match="neither a folder nor an s3 bucket"):
        export_snapshot(url, "memory://out/people.icechunk")
    with pytest.raises(PrivpipeError):
        export_snapshot(str(tmp_path / "nothing.zarr"), out)
    assert not Path(out).exists()


def test_snapshot__in_a_bucket_is_what_it_is_in_a_folder(grown: Path, bucket: str) -> None:
    url, out = str(grown / "release.zarr"), f"{bucket}/a/people.icechunk"
    n_records = privpipe.open_release(url).sizes["record"]
    assert export_snapshot(url, out) == n_records
    storage = icechunk.s3_storage(
        bucket=bucket.removeprefix("s3://"),
        prefix="a/people.icechunk",
        from_env=True,
        endpoint_url=os.environ["AWS_ENDPOINT_URL"],
        allow_http=True,
        force_path_style=True,
    )
    session = icechunk.Repository.open(storage).readonly_session("main")
    found = xr.open_zarr(session.store, consolidated=False)
    xr.testing.assert_equal(found.load(), privpipe.open_release(url).load())


def test_export__without_icechunk_says_what_to_install(
    grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "icechunk", None)
    with pytest.raises(ModuleNotFoundError, match=r"privpipe\[tables\]"):
        export_snapshot(str(grown / "release.zarr"), str(tmp_path / "people.icechunk"))
