"""What a bucket holds of a release that was refused: nothing where readers look, and no array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privpipe.command.run_command import purge_command
from privpipe.errors import GateError, IncompleteReleaseError, StoreError
from privpipe.pipeline import stage_tasks
from privpipe.pipeline.operations.erase import ErasureOptions, erase_records
from privpipe.pipeline.operations.record_removal import ChosenRecords
from privpipe.pipeline.operations.traces import find_traces
from privpipe.pipeline.runs.approval import approve_release
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages import publish
from privpipe.store.access.location import create_bytes
from privpipe.store.access.objects import list_keys, open_store, read_bytes
from privpipe.store.access.workspace import has_workspace, workspace_url
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.growing_collection import read_partitions
from privpipe.store.keyring.account import Account, find_account
from privpipe.store.releases import release_writing as release_module
from privpipe.store.releases.incremental_release import part_url
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.releases.published import check_release
from tests.gate.leaky_runs import make_leaky_options, make_records, write_records
from tests.operations.increments import append, configure
from tests.operations.increments import release as release_increment
from tests.store.serial_run import make_options, run_serially, write_small_collection
from tests.store.test_noisy_crash_points import home, make_noisy

__all__ = ["home"]


pytestmark = pytest.mark.usefixtures("serially")


def list_place(url: str) -> list[str]:
    return list_keys(open_store(url, read_only=True))


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close the gate, whatever was found."""
    judge = stage_tasks.gate_stage

    def close(*args: Any) -> dict[str, Any]:
        judged = judge(*args)
        complaint = {"code": "leaks", "reason": "Closed by the test."}
        closed = {"state": "failed", "complaints": [complaint], "sentence": "Closed by the test."}
        return {**judged, "gate": {**judged["gate"], **closed}}

    monkeypatch.setattr(stage_tasks, "gate_stage", close)


@pytest.mark.slow
def test_refused_run__leaves_nothing_where_readers_look(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = make_records(2000)
    write_records(f"{place}/records.zarr", records | {"copy": records["secret"]})
    url = f"{place}/release.zarr"
    options = make_leaky_options(
        tmp_path,
        collection={"path": f"{place}/records.zarr"},
        release={"path": url, "include": ["copy"]},
    )
    seen: list[list[str]] = []
    judge = stage_tasks.gate_stage

    def look(*args: Any) -> Any:
        seen.append(list_place(url))
        return judge(*args)

    monkeypatch.setattr(stage_tasks, "gate_stage", look)
    with pytest.raises(GateError, match="secret") as refused:
        run_serially(options)
    assert seen == [[]]  # while it was judged
    assert list_place(url) == []
    assert list_place(f"{workspace_url(url)}/release") == []
    assert list_place(f"{workspace_url(url)}/sample") == ["key"]  # raw beside released records
    assert "could not be removed" not in refused.value.remedy
    approve_release(url, "A. Engineer", "Pilot.")
    run_serially(options)
    assert seen == [[], []]
    check_release(url, verify=True)
    assert not has_workspace(url)


@pytest.mark.slow
def test_refused_run__says_what_could_not_be_removed(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small_collection(f"{place}/records.zarr", n_records=110)
    refuse(monkeypatch)

    def fail(*_: Any) -> None:
        raise PermissionError(13, "not allowed")

    monkeypatch.setattr(release_module.objects, "delete_tree", fail)
    with pytest.raises(GateError, match="Closed by the test") as refused:
        run_serially(make_options(f"{place}/records.zarr", f"{place}/release.zarr"))
    assert f"{place}/.release.zarr.privpipe/release" in refused.value.remedy
    assert "could not be removed" in refused.value.remedy
    assert list_place(f"{place}/release.zarr") == []


def test_refused_run__on_files_keeps_its_arrays_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small_collection(str(tmp_path / "records.zarr"), n_records=110)
    refuse(monkeypatch)
    url = str(tmp_path / "release.zarr")
    with pytest.raises(GateError, match="Closed"):
        run_serially(make_options(str(tmp_path / "records.zarr"), url))
    assert list_place(f"{workspace_url(url)}/release")


@pytest.mark.slow
def test_refused_noisy_run__is_charged_though_its_arrays_are_gone(
    home: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were in the bucket: who goes on and fails before the first chunk gives nothing back."""
    noisy = make_noisy(home, home / "out")
    release = noisy.release.model_copy(update={"path": f"{place}/release.zarr"})
    options = noisy.model_copy(update={"release": release})
    with monkeypatch.context() as patch:
        refuse(patch)
        with pytest.raises(GateError, match="Closed"):
            run_serially(options)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(5, "killed by the test")

    monkeypatch.setattr("privpipe.cluster.passes.cleaning_pass.clean_collection", fail)
    with pytest.raises(OSError, match="killed"):
        run_serially(options)
    (loss,) = Account(str(home / "out" / "account")).read_all()
    assert (loss.epsilon, loss.n_charges) == (1.5, 1)


@pytest.mark.slow
def test_publish__does_not_mix_with_what_stands_at_the_place(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a run it refuses at once; what came while it ran stays apart from the release."""
    write_small_collection(f"{place}/records.zarr", n_records=110)
    url = f"{place}/release.zarr"
    judge = stage_tasks.gate_stage

    def intrude(*args: Any) -> Any:
        assert create_bytes(f"{url}/features/c/9/9", b"of somebody")
        return judge(*args)

    with monkeypatch.context() as patch:
        patch.setattr(stage_tasks, "gate_stage", intrude)
        with pytest.raises(IncompleteReleaseError, match="features/c/9/9"):
            run_serially(make_options(f"{place}/records.zarr", url))
    assert list_place(url) == ["features/c/9/9"]
    other = make_options(f"{place}/records.zarr", f"{place}/other.zarr")
    assert create_bytes(f"{place}/other.zarr/features/c/9/9", b"of somebody")
    with pytest.raises(StoreError, match="nothing is ever overwritten"):
        run_serially(other)
    assert not has_workspace(f"{place}/other.zarr")


@pytest.mark.slow
def test_publish__a_copy_that_lost_something_is_not_shown(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small_collection(f"{place}/records.zarr", n_records=110)
    url, copy = f"{place}/release.zarr", release_module.location.copy_objects

    def lose(source: str, target: str, keys: list[str]) -> None:
        copy(source, target, keys[1:])

    with monkeypatch.context() as patch:
        patch.setattr(release_module.location, "copy_objects", lose)
        with pytest.raises(IncompleteReleaseError, match="not what was proved"):
            run_serially(make_options(f"{place}/records.zarr", url))
    assert read_bytes(open_store(url, read_only=True), "zarr.json") is None
    run_serially(make_options(f"{place}/records.zarr", url))
    check_release(url, verify=True)


def move_release(options: RunOptions, url: str) -> RunOptions:
    release = options.release.model_copy(update={"path": url})
    return options.model_copy(update={"release": release})


@pytest.fixture(params=["files", "memory"])
def release_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an incremental release; in memory all is as in a bucket."""
    folder = str(tmp_path)
    return f"{folder if request.param == 'files' else 'memory:/' + folder}/out/release.zarr"


def test_refused_increment__leaves_no_model_and_nothing_in_the_release(
    tmp_path: Path, release_url: str
) -> None:
    records = make_records(40)["features"][:, :3]
    append(tmp_path, "a", records, 1)
    with pytest.raises(GateError, match="drift"):
        release_increment(move_release(configure(tmp_path, drift=1e-6), release_url))
    out = release_url.removesuffix("/release.zarr")
    shown = [key for key in list_place(out) if ".privpipe/" not in key]
    assert not [key for key in shown if "model.zarr" in key]
    if release_url.startswith("memory"):
        assert not [key for key in shown if key.startswith("release.zarr/")]
        assert not [key for key in list_place(out) if "/features/c/" in key]
    release_increment(move_release(configure(tmp_path), release_url))
    with open_release(release_url) as opened:
        assert opened.features.shape == (40, 3)
    assert [key for key in list_place(out) if ".model.zarr/zarr.json" in key]
    assert not has_workspace(release_url)


def test_workspace_of_a_part__is_not_inside_what_readers_list() -> None:
    part = part_url("s3://bucket/a/release.zarr", "0123456789abcdef" * 2)
    assert workspace_url(part).startswith("s3://bucket/a/.release.zarr.privpipe/parts/")
    for url in ("s3://bucket/parts/release.zarr", "s3://bucket/parts/" + "0" * 32):
        assert workspace_url(url).startswith("s3://bucket/parts/.")
    local = part_url("/a/release.zarr", "0" * 32)
    assert workspace_url(local) == f"/a/release.zarr/parts/.{'0' * 32}.privpipe"


def test_increment__the_switch_is_the_only_thing_that_shows_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a part passed its gate nothing of it is below the release."""
    url = f"memory:/{tmp_path}/release.zarr"
    append(tmp_path, "a", make_records(40)["features"][:, :3], 1)
    seen: list[list[str]] = []
    note = publish.note_release

    def look(*args: Any, **more: Any) -> Any:
        seen.append(list_place(url))
        return note(*args, **more)

    monkeypatch.setattr(publish, "note_release", look)
    release_increment(move_release(configure(tmp_path), url))
    assert seen == [[]]


def test_erase__finds_a_part_that_was_refused(
    tmp_path: Path, release_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arrays are gone from a bucket; its model, sums and samples' key are still there."""
    append(tmp_path, "a", make_records(40)["features"][:, :3], 1)
    refuse(monkeypatch)
    with pytest.raises(GateError, match="Closed by the test"):
        release_increment(move_release(configure(tmp_path), release_url))
    growing, out = str(tmp_path / "growing.zarr"), release_url.removesuffix("/release.zarr")
    kept = [key for key in list_place(out) if "/features/c/" in key or "/sample/" in key]
    if release_url.startswith("memory"):
        assert [Path(key).name for key in kept] == ["key"]
    (partition,) = read_partitions(growing)
    known = [partition.content, open_collection(partition.url(growing)).digest]
    options = ErasureOptions(roots=(out,))
    traces = find_traces(known, find_account(), [out], growing, lambda _: 0)
    assert [one.what for one in traces.found.values()] == ["parts", "report"]
    assert traces.left == []
    erase_records(growing, ChosenRecords("sign", ("1",)), options)
    assert [key for key in list_place(out) if ".ledger/" not in key] == []


@pytest.mark.slow
def test_purge__of_a_run_killed_while_it_copied_leaves_nothing(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small_collection(f"{place}/records.zarr", n_records=110)
    url, copy = f"{place}/release.zarr", release_module.location.copy_objects

    def die(source: str, target: str, keys: list[str]) -> None:
        copy(source, target, keys[:2])
        raise OSError(5, "killed by the test")

    monkeypatch.setattr(release_module.location, "copy_objects", die)
    with pytest.raises(OSError, match="killed"):
        run_serially(make_options(f"{place}/records.zarr", url))
    assert len(list_place(url)) == 2
    assert purge_command(url)["removed"] is True
    assert list_place(url) == []
    assert not has_workspace(url)
