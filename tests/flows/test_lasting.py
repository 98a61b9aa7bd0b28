"""An account or keys in memory or in a container's layer: refused where a promise needs them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privpipe.command.check_command import check_command
from privpipe.command.run_command import run_command
from privpipe.errors import OptionError, StoreError
from privpipe.flows.increment_flow import release_increment
from privpipe.pipeline.operations.health import check_account
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.spend import list_fleeting
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.gate import list_weaker_limits
from privpipe.pipeline.stages.increment_check import TimeSpan, find_history
from privpipe.store.access import mounts
from tests.operations.increments import configure
from tests.store.serial_run import make_options, run_serially, write_small_collection
from tests.store.test_noisy_crash_points import home, make_noisy

__all__ = ["home"]

Mounting = Callable[[str, Path], None]


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounting:
    """Say that a file system lies over a folder, and a disk over all others."""
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(mounts, "TABLE", str(table))
    lines = ["1 0 8:1 / / rw - ext4 /dev/sda1 rw"]

    def over(kind: str, folder: Path) -> None:
        below = mounts.find_mount(str(folder), mounts.read_mounts("\n".join(lines)))
        assert below is not None
        lines.append(f"{len(lines) + 1} {below.id} 0:9 / {folder} rw - {kind} {kind} rw")
        table.write_text("\n".join(lines))

    return over


def change_privacy(options: RunOptions, **changes: Any) -> RunOptions:
    return options.model_copy(update={"privacy": options.privacy.model_copy(update=changes)})


def list_tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("kind", ["tmpfs", "ramfs", "overlay"])
@pytest.mark.parametrize("what", ["account", "keys"])
def test_noisy_run__is_refused_before_it_writes(
    home: Path, mount: Mounting, serially: None, kind: str, what: str
) -> None:
    options = make_noisy(home, home / "out")
    mount(kind, home / "out" / "account" if what == "account" else home / "keys")
    named = "account" if what == "account" else "key folder"
    with pytest.raises(StoreError, match=rf"The {named} /.* is in .*\({kind}\)") as caught:
        run_serially(options)
    assert (caught.value.code, caught.value.exit_code) == ("ephemeral", 4)
    assert "PRIVPIPE_KEYS" in caught.value.remedy
    with pytest.raises(StoreError, match=named):
        check_stage(options)
    assert list_tree(home / "out") == {"release.report", "release.report/run_results.json"}
    assert not (home / "keys").exists()


def test_noisy_run__a_link_to_memory_is_memory(home: Path, mount: Mounting) -> None:
    (home / "memory").mkdir()
    mount("tmpfs", home / "memory")
    options = make_noisy(home, home / "out")
    check_stage(options)
    (home / "out" / "account").symlink_to(home / "memory" / "account")
    with pytest.raises(StoreError, match="tmpfs"):
        check_stage(options)


@pytest.mark.slow
def test_noisy_run__what_is_accepted_runs_and_counts_as_weaker(
    home: Path, mount: Mounting, serially: None
) -> None:
    mount("overlay", home)
    options = make_noisy(home, home / "out")
    assert len(list_fleeting(options)) == 2
    assert not any("ephemeral" in one for one in list_weaker_limits(options))
    accepted = change_privacy(options, ephemeral="accept")
    run_serially(accepted)
    assert (home / "out" / "release.zarr" / "zarr.json").exists()
    assert "ephemeral accept (usually refuse)" in list_weaker_limits(accepted)


def test_other_run__in_a_container_is_told_and_not_refused(
    tmp_path: Path, mount: Mounting, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A first release in a container works; nothing is promised that needs the account."""
    monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(tmp_path / "account"))
    mount("overlay", tmp_path)
    write_small_collection(str(tmp_path / "records.zarr"))
    options = make_options(str(tmp_path / "records.zarr"), str(tmp_path / "release.zarr"))
    check_stage(options)
    (sentence,) = list_fleeting(options)
    assert sentence == (
        f"The account {tmp_path}/account is in a layer that goes with its container (overlay)"
    )
    assert list_weaker_limits(change_privacy(options, ephemeral="accept")) == list_weaker_limits(
        options
    )
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(
        '[collection]\npath = "records.zarr"\ndesired = ["wanted"]\nconfidential = ["secret"]\n'
        '[method]\nname = "null_space"\nutility_budget = 0.05\nridge = 0.01\n'
        '[release]\npath = "release.zarr"\n[audit]\nadversaries = []\n'
        "[gate]\nenforce = false\n"
    )
    check_command("run.toml")
    assert "goes with its container" in " ".join(capsys.readouterr().out.split())


def test_check__of_a_scheduled_place_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the refusal advised, --time, was no option of `check`, and a dry run ignored it."""
    write_small_collection(str(tmp_path / "records.zarr"))
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(
        '[collection]\npath = "records.zarr"\ndesired = ["wanted"]\nconfidential = ["secret"]\n'
        '[method]\nname = "null_space"\nutility_budget = 0.05\nridge = 0.01\n'
        '[release]\npath = "{logical_time}.zarr"\n[audit]\nadversaries = []\n'
        "[gate]\nenforce = false\n"
    )
    with pytest.raises(OptionError, match="no logical time"):
        check_command("run.toml")
    check_command("run.toml", time="2026-11-22T06:00:00Z")
    given: Any = {"dry_run": True, "time": "2026-11-22T06:00:00Z"}
    run_command("run.toml", since="", trust=(), **given)
    assert "20261122T060000Z.zarr" in " ".join(capsys.readouterr().out.split())


def test_incremental_run__is_refused_before_its_workspace(
    tmp_path: Path, mount: Mounting, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = configure(tmp_path)
    noisy = {"name": "noisy", "epsilon": 1.0, "filter": {"name": "pca", "n_filtered": 2}}
    private = RunOptions(**options.model_dump() | {"method": noisy})
    monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(tmp_path / "account"))
    mount("tmpfs", tmp_path)
    before = list_tree(tmp_path)
    with pytest.raises(StoreError, match="tmpfs"):
        release_increment(private, Watch(), TimeSpan())
    assert list_tree(tmp_path) == before


def test_line__is_the_same_whatever_is_accepted(tmp_path: Path) -> None:
    options = configure(tmp_path)
    assert find_history(options) == find_history(change_privacy(options, ephemeral="accept"))


def test_doctor__says_of_account_and_keys_what_becomes_of_them(home: Path, mount: Mounting) -> None:
    options = make_noisy(home, home / "out")
    mount("ext4", home)
    assert [one.state for one in check_account(options)] == ["ok"]
    mount("tmpfs", home / "keys")
    (found,) = check_account(options)
    assert (found.state, found.what) == ("fails", "account")
    assert "key folder" in found.detail
    assert [one.state for one in check_account(change_privacy(options, ephemeral="accept"))] == [
        "warns"
    ]


def test_doctor__asks_the_kernel_itself(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "TABLE", "/proc/self/mountinfo")
    if "/dev/shm tmpfs" not in Path("/proc/mounts").read_text():
        pytest.skip("no /dev/shm")
    options = change_privacy(make_noisy(home, home / "out"), account="/dev/shm/account")
    assert "is in memory (tmpfs)" in list_fleeting(options)[0]
    with pytest.raises(StoreError, match="/dev/shm/account is in memory"):
        check_stage(options)
    assert not os.path.exists("/dev/shm/account")


def test_account__in_a_bucket_lasts(home: Path, mount: Mounting) -> None:
    mount("overlay", Path("/"))
    options = change_privacy(make_noisy(home, home / "out"), account="s3://bucket/account")
    assert not any("s3://" in one for one in list_fleeting(options))
