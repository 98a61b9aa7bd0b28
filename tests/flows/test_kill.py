"""Kills and a full disk, by real processes, and damage: nothing half done, nothing twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from privpipe.cluster.executors.boundary import run_sealed
from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Executor
from privpipe.errors import IncompleteReleaseError, StoreError
from privpipe.flows.release_flow import release_collection
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages.train import train_stage
from privpipe.store.access.workspace import workspace_url
from privpipe.store.collections.collection import open_collection
from privpipe.store.releases.lazy_release import open_release
from tests.flows.digits_runs import N_RECORDS, assert_same, make_options

pytestmark = pytest.mark.slow


Run = Callable[[RunOptions], str]


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The whole pipeline in this process, without Prefect: the bits are those of the cluster."""
    monkeypatch.setattr(
        "privpipe.flows.release_flow.open_executor", lambda *_: nullcontext(Executor())
    )
    return lambda options: run_sealed(release_collection, options, Watch())  # as a flow is


@pytest.fixture
def run_with(client: Client, run_here: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same on the cluster of this module."""

    def open_cluster(_: object, run: str, listener: Any) -> Any:
        return nullcontext(DaskExecutor(client, run, listener))

    monkeypatch.setattr("privpipe.flows.release_flow.open_executor", open_cluster)
    return run_here


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def die_once(marker: str, when: str) -> None:
    """On a worker: the first process that comes there is gone, before or after a write."""
    from privpipe.cluster.passes import cleaning_pass as apply

    write = apply.write_block

    def write_and_die(url: str, arrays: Any, chunk: int, block: Any, run: str) -> Any:
        if when == "before" and chunk >= 20:
            _die(marker)
        receipt = write(url, arrays, chunk, block, run)
        if when == "after" and chunk >= 20:
            _die(marker)
        return receipt

    def _die(path: str) -> None:
        import os

        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os._exit(9)

    write_and_die.undisturbed = write  # type: ignore[attr-defined]
    apply.write_block = write_and_die  # type: ignore[assignment]


def heal() -> None:
    """On a worker: write again as ever."""
    from privpipe.cluster.passes import cleaning_pass as apply

    apply.write_block = getattr(apply.write_block, "undisturbed", apply.write_block)


@pytest.mark.parametrize("when", ["before", "after"])
def test_clean__a_worker_killed_at_a_write_changes_nothing(
    source: Path, undisturbed: Path, tmp_path: Path, client: Client, run_with: Run, when: str
):
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    marker = tmp_path / "died"
    client.run(die_once, str(marker), when)
    run_with(make_options(source, tmp_path))
    client.wait_for_workers(2, timeout=120)
    client.run(heal)
    assert marker.exists()
    assert_same(tmp_path / "release.zarr", undisturbed)


def test_run__a_changed_source_fails_the_release(
    source: Path, tmp_path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch
):
    """Records that are replaced by others of the same size, and a moment after the check."""

    def touch(*args: Any, **kwargs: Any) -> Any:
        os.utime(source / "digit" / "c" / "3")
        return train_stage(*args, **kwargs)

    monkeypatch.setattr("privpipe.pipeline.stage_tasks.train_task", touch)
    with pytest.raises(StoreError, match="has changed since the run began") as caught:
        run_here(make_options(source, tmp_path))
    assert caught.value.code == "source-changed"
    assert not (tmp_path / "release.zarr").exists()
    assert not (tmp_path / "release.model.zarr").exists()
    with pytest.raises(StoreError, match="has changed since the run began"):
        run_here(make_options(source, tmp_path))


def test_run__a_source_changed_while_the_audit_runs_fails_the_release(
    source: Path, tmp_path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch
):
    from privpipe.pipeline.stages.audit.audit_stage import audit_stage

    def touch(*args: Any, **kwargs: Any) -> Any:
        os.utime(source / "zero" / "c" / "3")
        return audit_stage(*args, **kwargs)

    monkeypatch.setattr("privpipe.pipeline.stage_tasks.audit_task", touch)
    with pytest.raises(StoreError, match="has changed since the run began"):
        run_here(make_options(source, tmp_path))
    assert not (tmp_path / "release.zarr").exists()


def test_run__an_audit_that_goes_on_counts_no_record_again(
    source: Path, tmp_path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch
):
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("privpipe.pipeline.stages.audit.audit_stage.report_losses", stop)
        with pytest.raises(KeyboardInterrupt):
            run_here(make_options(source, tmp_path))
    monkeypatch.setattr("privpipe.store.collections.collection.Collection.count_parts", stop)
    run_here(make_options(source, tmp_path))
    assert (tmp_path / "release.zarr").exists()


@pytest.mark.parametrize("how", ["flipped", "missing", "cut"])
def test_run__a_damaged_chunk_of_the_source_is_noticed(
    source: Path, undisturbed: Path, tmp_path: Path, run_here: Run, how: str
):
    """Once it is restored the run resumes: "has changed since the run began" was said for ever."""
    chunk = source / "features" / "c" / "17" / "0"
    sound = chunk.read_bytes()
    if how == "flipped":
        flip(chunk)
    elif how == "cut":
        chunk.write_bytes(chunk.read_bytes()[:-5])
    else:
        chunk.unlink()
    with pytest.raises(StoreError) as caught:
        run_here(make_options(source, tmp_path))
    assert caught.value.code == ("missing-chunks" if how == "missing" else "source-damaged")
    assert not (tmp_path / "release.zarr").exists()
    # As the message advises: the same bytes under another time, and the run as it was.
    chunk.write_bytes(sound)
    run_here(make_options(source, tmp_path))
    assert_same(tmp_path / "release.zarr", undisturbed)


def test_run__a_damaged_description_of_the_source_is_noticed(
    source: Path, tmp_path: Path, run_here: Run
):
    for name in ("zarr.json", "features/zarr.json", "digit/zarr.json"):
        content = (source / name).read_bytes()
        flip(source / name)
        with pytest.raises(StoreError):
            open_collection(str(source))
        (source / name).write_bytes(content)
    open_collection(str(source))


def test_run__a_chunk_damaged_in_the_workspace_is_noticed_and_written_anew(
    source: Path, undisturbed: Path, tmp_path: Path, run_here: Run, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    data = Path(workspace_url(str(tmp_path / "release.zarr"))) / "release" / "features"
    prove = __import__("privpipe.pipeline.stages.clean", fromlist=["x"]).prove_receipts

    def add() -> None:
        (data / "c" / "999").mkdir()
        (data / "c" / "999" / "0").write_bytes(b"from elsewhere")

    damages: tuple[Callable[[], Any], ...] = (
        lambda: flip(data / "c/7/0"),
        lambda: (data / "c/7/0").unlink(),
        add,
        lambda: flip(data / "zarr.json"),
    )
    for damage in damages:

        def damage_and_prove(*args: Any, damage: Callable[[], Any] = damage) -> Any:
            damage()
            return prove(*args)

        with monkeypatch.context() as patch:
            patch.setattr("privpipe.pipeline.stages.clean.prove_receipts", damage_and_prove)
            with pytest.raises(IncompleteReleaseError):
                run_here(make_options(source, tmp_path))
        assert not (tmp_path / "release.zarr").exists()
        if damage is add:
            shutil.rmtree(data / "c" / "999")
    run_here(make_options(source, tmp_path))
    assert_same(tmp_path / "release.zarr", undisturbed)


def test_open_release__any_damage_of_a_published_release_is_noticed(
    undisturbed: Path, tmp_path: Path
):
    release = Path(shutil.copytree(undisturbed, tmp_path / "release.zarr"))
    files = [path for path in release.rglob("*") if path.is_file()]
    some = [path for path in files if "/c/" not in str(path)] + files[::11]
    for path in some:
        content = path.read_bytes()
        flip(path)
        with pytest.raises(StoreError):
            open_release(str(release), verify=True)
        path.unlink()
        with pytest.raises(StoreError):
            open_release(str(release))
        path.write_bytes(content)
    open_release(str(release), verify=True).close()


def test_run__a_full_disk_keeps_the_work_and_goes_on(
    source: Path, undisturbed: Path, tmp_path: Path, run_with: Run,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    if os.geteuid() != 0:
        pytest.skip("a small disk can be mounted by root only")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6000k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        # The check before the run would refuse it: here the disk fills up later.
        with monkeypatch.context() as patch:
            patch.setattr("privpipe.pipeline.stages.check.shutil.disk_usage", lambda _: _Free())
            with pytest.raises(StoreError) as caught:
                run_with(make_options(source, disk))
        assert caught.value.code == "disk-full"
        assert not (disk / "release.zarr").exists()
        work = Path(workspace_url(str(disk / "release.zarr")))
        assert list(work.glob("ledger/*.json"))
        # Less is free than release and sample may take, and enough for what is left of them.
        room = N_RECORDS * (65 * 4 + 2 * 8 * (64 + 64))
        size = shutil.disk_usage(disk).used + room * 3 // 5
        subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
        assert shutil.disk_usage(disk).free < room
        run_with(make_options(source, disk))
        assert_same(disk / "release.zarr", undisturbed)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


class _Free:
    free = 2**40
