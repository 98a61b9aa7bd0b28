"""Where ingest writes: one process at a time, and nothing visible until it is whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from privpipe.errors import InputError, StoreError
from privpipe.store.access import lease
from privpipe.store.access.location import join
from privpipe.store.access.objects import list_keys, open_store, write_bytes
from privpipe.store.access.workspace import (
    MAKING,
    RunState,
    has_workspace,
    hold_workspace,
    read_state,
    workspace_url,
    write_state,
)
from privpipe.store.arrays.destination import hold_destination
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.ingest import IngestOptions, ingest
from tests.store.serial_run import CHUNK_ROWS, write_small_collection
from tests.store.tables import make_frame


@pytest.fixture
def source(tmp_path: Path) -> str:
    make_frame(40)[["height"]].to_csv(tmp_path / "t.csv", index=False)
    return str(tmp_path / "t.csv")


# A chunk is written, then the process waits for the test to kill it.
STOPS = """
    import sys, time
    from privpipe.store.collections import ingest as module
    from privpipe.store.collections.ingest import IngestOptions, ingest
    fill = module.fill_chunks
    def slow(*given):
        for number, chunk in enumerate(fill(*given)):
            yield chunk
            if number == 2:
                print("written", flush=True)
                time.sleep(600)
    module.fill_chunks = slow
    ingest(sys.argv[1], sys.argv[2], IngestOptions(chunk_bytes=64))
"""


def start_and_stop(source: str, dest: str) -> subprocess.Popen[str]:
    """An ingest in a process of its own that has written some chunks and goes no further."""
    command = [sys.executable, "-c", textwrap.dedent(STOPS), source, dest]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    return process


def test_ingest__killed_leaves_nothing_visible_and_the_next_removes_the_rest(
    tmp_path: Path, source: str
) -> None:
    dest = str(tmp_path / "c.zarr")
    process = start_and_stop(source, dest)
    try:
        with pytest.raises(StoreError, match=r"Another process is writing .*c\.zarr\. Wait"):
            ingest(source, dest)
        assert not os.path.exists(dest)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not os.path.exists(dest)
    left = list_keys(open_store(workspace_url(dest), read_only=True), "made/height")
    left += list_keys(open_store(workspace_url(dest), read_only=True), "made/features")
    assert left
    ingest(source, dest)
    assert open_collection(dest).n_records == 40
    assert sorted(os.listdir(tmp_path)) == ["c.zarr", "t.csv"]


@pytest.mark.slow
def test_ingest__killed_over_a_bucket_leaves_nothing_readable(
    tmp_path: Path, source: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest = f"{bucket}/{tmp_path.name}/c.zarr"
    process = start_and_stop(source, dest)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert list_keys(open_store(dest, read_only=True), "features/c/")
    with pytest.raises(StoreError, match="No collection can be read"):
        open_collection(dest)
    with pytest.raises(StoreError, match="of a run that died expires after 120 s"):
        ingest(source, dest)
    ahead = time.time() + 2 * lease.LEASE_SECONDS
    monkeypatch.setattr(lease.time, "time", lambda: ahead)
    monkeypatch.setattr(lease, "MOST_SKEW", 3 * lease.LEASE_SECONDS)  # the bucket does not wait
    ingest(source, dest)
    assert open_collection(dest).n_records == 40
    assert not has_workspace(dest)


def test_ingest__what_others_left_in_a_bucket_is_never_removed(place: str, source: str) -> None:
    write_bytes(open_store(f"{place}/c.zarr"), "theirs.bin", b"x")
    with pytest.raises(StoreError, match=r"c\.zarr exists"):
        ingest(source, f"{place}/c.zarr")
    assert list_keys(open_store(f"{place}/c.zarr", read_only=True)) == ["theirs.bin"]
    assert not has_workspace(f"{place}/c.zarr")


@pytest.mark.parametrize(
    "place", ["memory", pytest.param("s3", marks=pytest.mark.slow)], indirect=True
)
def test_hold_destination__a_note_that_outlived_its_collection_removes_nothing(place: str) -> None:
    """A process died after the root document was written, before its workspace was removed."""
    url = f"{place}/c.zarr"
    write_small_collection(url, n_records=60)
    write_bytes(open_store(workspace_url(url)), MAKING, b"{}")
    with pytest.raises(StoreError, match="exists"), hold_destination(url):
        pytest.fail("a collection stands there")
    assert open_collection(url).plan.chunk_rows == CHUNK_ROWS


@pytest.mark.parametrize("where", ["local", "memory"])
def test_ingest__a_failed_one_leaves_nothing(tmp_path: Path, where: str) -> None:
    np.savez(tmp_path / "s.npz", X=np.full((9, 2), 1e300))
    place = str(tmp_path) if where == "local" else f"memory://{tmp_path.name}"
    dest = join(place, "c.zarr")
    with pytest.raises(InputError, match="overflow float32"):
        ingest(str(tmp_path / "s.npz"), dest, IngestOptions(dtype="float32"))
    assert not list_keys(open_store(place, read_only=True), "c.zarr")
    assert not has_workspace(dest)


def test_hold_destination__the_work_of_a_run_is_not_removed(tmp_path: Path) -> None:
    url = str(tmp_path / "release.zarr")
    with hold_workspace(url):
        write_state(url, RunState("0123abcd", "", "", "", "", ""))
    with pytest.raises(StoreError, match="interrupted run of a release"), hold_destination(url):
        pytest.fail("the workspace is taken")
    assert read_state(url) is not None


def test_hold_destination__of_two_at_once_one_is_refused(place: str) -> None:
    url = f"{place}/c.zarr"
    with hold_destination(url):
        with (
            pytest.raises(StoreError, match=r"Another (process is writing|run holds)"),
            hold_destination(url),
        ):
            pytest.fail("two hold it")
    with hold_destination(url):
        pass
