"""Kills, a full disk and damage, by real processes: nothing half done, nothing twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client

from flows.clean import clean_stage, plan_release
from flows.demo import write_digits
from flows.options import RunOptions
from flows.pipeline import release_collection
from flows.publish import merge_utility, publish_stage
from flows.resume import begin_or_resume
from flows.train import train_stage
from flows.watch import Watch
from privpipe.dist.cluster import ClusterOptions, connect
from privpipe.dist.progress import Silent
from privpipe.errors import IncompleteReleaseError, OptionError, StoreError
from privpipe.store.collection import open_collection
from privpipe.store.published import check_release, open_release
from privpipe.store.workspace import hold_workspace, workspace_url

pytestmark = pytest.mark.slow

N_RECORDS = 1797 * 3
CHUNK_ROWS = 128
"""43 chunks in 6 tasks."""

RUN = [sys.executable, "-c", "from flows.command import main; main()", "run"]

CONFIGURATION = """
[collection]
path = "{source}"
desired = ["zero"]
confidential = ["digit"]
[method]
name = "null_space"
utility_budget = 0.01
ridge = 0.01
[release]
path = "{release}"
[audit]
holdout = 0.5
group = "original"
[cluster]
workers = 2
dashboard = "127.0.0.1:0"
"""


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of many small chunks."""
    path = tmp_path_factory.mktemp("digits") / "digits.zarr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flows.demo.plan_chunk_rows", lambda *_: CHUNK_ROWS)
        write_digits(str(path), N_RECORDS)
    return path


@pytest.fixture
def source(digits: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(digits, tmp_path / "digits.zarr"))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with connect(ClusterOptions(workers=2, dashboard="127.0.0.1:0")) as client:
        yield client


def make_options(source: Path, folder: Path, **release: Any) -> RunOptions:
    return RunOptions(
        collection={"path": str(source), "desired": ["zero"], "confidential": ["digit"]},
        method={"name": "null_space", "utility_budget": 0.01, "ridge": 0.01},
        release={"path": str(folder / "release.zarr"), **release},
        audit={"holdout": 0.5, "group": "original"},
        cluster={"workers": 2, "dashboard": "127.0.0.1:0"},
    )


@pytest.fixture
def run_with(client: Client, monkeypatch: pytest.MonkeyPatch) -> Callable[[RunOptions], str]:
    """The whole pipeline on the cluster of this module, without Prefect."""
    from contextlib import nullcontext

    for stage in ("check", "train", "clean", "audit", "publish"):
        module = __import__(f"flows.{stage}", fromlist=["x"])
        monkeypatch.setattr(f"flows.pipeline.{stage}_task", getattr(module, f"{stage}_stage"))
    monkeypatch.setattr("flows.pipeline.connect", lambda _: nullcontext(client))
    monkeypatch.setattr("flows.pipeline.create_markdown_artifact", lambda *_, **__: None)
    return lambda options: release_collection(options, Watch())


@pytest.fixture(scope="module")
def undisturbed(digits: Path, client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a release of the digits is when nothing happens."""
    from flows.audit import audit_stage
    from flows.check import check_stage

    folder = tmp_path_factory.mktemp("undisturbed")
    run = check_stage(make_options(digits, folder))
    with hold_workspace(run.release_url):
        run, _ = begin_or_resume(run)
        trained = train_stage(run, client)
        plan = plan_release(run, trained)
        receipts = clean_stage(run, trained, plan, client, Silent())
        findings = audit_stage(run, trained, plan, merge_utility(receipts), client)
        publish_stage(run, trained, plan, receipts, findings)
    return folder / "release.zarr"


def assert_same(release: Path, undisturbed: Path) -> None:
    """Every byte but the manifest's."""
    check_release(str(release), verify=True)
    names = sorted(str(p.relative_to(release)) for p in release.rglob("*") if p.is_file())
    assert names == sorted(
        str(p.relative_to(undisturbed)) for p in undisturbed.rglob("*") if p.is_file()
    )
    different = [
        name for name in names if (release / name).read_bytes() != (undisturbed / name).read_bytes()
    ]
    assert different == ["zarr.json"]
    assert not os.path.lexists(workspace_url(str(release)))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def die_once(marker: str, when: str) -> None:
    """On a worker: the first process that comes there is gone, before or after a write."""
    from privpipe.dist import apply

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
    from privpipe.dist import apply

    apply.write_block = getattr(apply.write_block, "undisturbed", apply.write_block)


@pytest.mark.parametrize("when", ["before", "after"])
def test_clean__a_worker_killed_at_a_write_changes_nothing(
    source: Path, undisturbed: Path, tmp_path: Path, client: Client, run_with: Any, when: str
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
    source: Path, tmp_path: Path, run_with: Any, monkeypatch: pytest.MonkeyPatch
):
    """Records that are replaced by others of the same size, and a moment after the check."""

    def touch(*args: Any, **kwargs: Any) -> Any:
        os.utime(source / "digit" / "c" / "3")
        return train_stage(*args, **kwargs)

    monkeypatch.setattr("flows.pipeline.train_task", touch)
    with pytest.raises(StoreError, match="has changed since the run began") as caught:
        run_with(make_options(source, tmp_path))
    assert caught.value.code == "source-changed"
    assert not (tmp_path / "release.zarr").exists()
    assert not (tmp_path / "release.model.zarr").exists()
    with pytest.raises(StoreError, match="has changed since the run began"):
        run_with(make_options(source, tmp_path))


def test_run__a_source_changed_while_the_audit_runs_fails_the_release(
    source: Path, tmp_path: Path, run_with: Any, monkeypatch: pytest.MonkeyPatch
):
    from flows.audit import audit_stage

    def touch(*args: Any, **kwargs: Any) -> Any:
        os.utime(source / "zero" / "c" / "3")
        return audit_stage(*args, **kwargs)

    monkeypatch.setattr("flows.pipeline.audit_task", touch)
    with pytest.raises(StoreError, match="has changed since the run began"):
        run_with(make_options(source, tmp_path))
    assert not (tmp_path / "release.zarr").exists()


@pytest.mark.parametrize("how", ["flipped", "missing", "cut"])
def test_run__a_damaged_chunk_of_the_source_is_noticed(
    source: Path, tmp_path: Path, run_with: Any, how: str
):
    chunk = source / "features" / "c" / "17" / "0"
    if how == "flipped":
        flip(chunk)
    elif how == "cut":
        chunk.write_bytes(chunk.read_bytes()[:-5])
    else:
        chunk.unlink()
    with pytest.raises(StoreError) as caught:
        run_with(make_options(source, tmp_path))
    assert caught.value.code == ("missing-chunks" if how == "missing" else "read")
    assert not (tmp_path / "release.zarr").exists()


def test_run__a_damaged_description_of_the_source_is_noticed(
    source: Path, tmp_path: Path, run_with: Any
):
    for name in ("zarr.json", "features/zarr.json", "digit/zarr.json"):
        content = (source / name).read_bytes()
        flip(source / name)
        with pytest.raises(StoreError):
            open_collection(str(source))
        (source / name).write_bytes(content)
    open_collection(str(source))


@pytest.mark.parametrize("how", ["flipped", "missing", "foreign", "description"])
def test_run__a_chunk_damaged_in_the_workspace_is_noticed_and_written_anew(
    source: Path, undisturbed: Path, tmp_path: Path, run_with: Any, how: str,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    data = Path(workspace_url(str(tmp_path / "release.zarr"))) / "release" / "features"
    prove = __import__("flows.clean", fromlist=["x"])._prove

    def damage(*args: Any) -> Any:
        if how == "foreign":
            (data / "c" / "999").mkdir()
            (data / "c" / "999" / "0").write_bytes(b"from elsewhere")
        elif how == "missing":
            (data / "c" / "7" / "0").unlink()
        else:
            flip(data / ("c/7/0" if how == "flipped" else "zarr.json"))
        return prove(*args)

    with monkeypatch.context() as patch:
        patch.setattr("flows.clean._prove", damage)
        with pytest.raises(IncompleteReleaseError):
            run_with(make_options(source, tmp_path))
    assert not (tmp_path / "release.zarr").exists()
    if how == "foreign":
        shutil.rmtree(data / "c" / "999")
    run_with(make_options(source, tmp_path))
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
    source: Path, undisturbed: Path, tmp_path: Path, run_with: Any,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    if os.geteuid() != 0:
        pytest.skip("a small disk can be mounted by root only")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        # The check before the run would refuse it: here the disk fills up later.
        monkeypatch.setattr("flows.check.shutil.disk_usage", lambda _: _Free())
        with pytest.raises(StoreError) as caught:
            run_with(make_options(source, disk))
        assert caught.value.code == "disk-full"
        assert not (disk / "release.zarr").exists()
        kept = len(list(Path(workspace_url(str(disk / "release.zarr"))).glob("ledger/*.json")))
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        run_with(make_options(source, disk))
        assert_same(disk / "release.zarr", undisturbed)
        assert kept > 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


class _Free:
    free = 2**40


def test_run__killed_busy_refused_and_resumed(source: Path, undisturbed: Path, tmp_path: Path):
    """SIGKILL of the flow at half time: the lock dies with it, the next run goes on."""
    config = tmp_path / "run.toml"
    release = tmp_path / "release.zarr"
    config.write_text(CONFIGURATION.format(source=source, release=release))
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")},
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ledger = Path(workspace_url(str(release))) / "ledger"
    first = subprocess.Popen([*RUN, str(config)], env=environment, stderr=subprocess.DEVNULL)
    family: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + 120
        while not list(ledger.glob("*.json")):
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        first.send_signal(signal.SIGSTOP)
        family = psutil.Process(first.pid).children(recursive=True)
        busy = _is_busy(str(release))
        first.send_signal(signal.SIGKILL)
        first.wait(timeout=30)
        assert busy
        assert not release.exists()
        with pytest.raises(OptionError, match="another configuration"):
            begin_or_resume(_check(make_options(source, tmp_path, include=["zero"])))
        state = json.loads((Path(workspace_url(str(release))) / "state.json").read_text())
        _, gone = psutil.wait_procs(_workers(family), timeout=30)
        assert not gone  # no worker outlives its flow
        second = subprocess.run(
            [*RUN, str(config)], env=environment, capture_output=True, text=True, timeout=200
        )
        assert second.returncode == 0, second.stderr
        assert f"resume   run {state['run_id']}" in second.stderr
    finally:
        _end(family)
    assert_same(release, undisturbed)


def _check(options: RunOptions) -> Any:
    from flows.check import check_stage

    return check_stage(options)


def _is_busy(url: str) -> bool:
    try:
        with hold_workspace(url):
            return False
    except StoreError as error:
        return error.code == "busy"


def _workers(family: list[psutil.Process]) -> list[psutil.Process]:
    """Processes of Dask among the children; Prefect's server is one of its own."""

    def is_worker(process: psutil.Process) -> bool:
        try:
            return "spawn_main" in " ".join(process.cmdline())
        except psutil.Error:
            return False

    return [process for process in family if is_worker(process)]


def _end(family: list[psutil.Process]) -> None:
    """What the killed flow left, such as Prefect's server."""
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
