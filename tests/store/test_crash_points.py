"""Every write of the real run fails in turn, and the run is started again.

A crash is a process that is dead from its n-th change of the storage on: that change does not
happen, or happens in part (a temporary file stays), and no later one does, cleaning up included.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import zarr.storage._local

from privpipe.errors import OptionError, StoreError
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.store.access import objects
from privpipe.store.access.objects import keep_file
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.releases.published import check_release
from tests.store.serial_run import (
    make_options,
    read_tree,
    run_serially,
    serial_flows,
    write_small_collection,
)

N_RECORDS = 260
"""Six chunks, the last one not full: each is three points, and the middle ones are alike."""

MANIFEST = "zarr.json"
MAY_DIFFER = {"run", "started", "published", "sha256", "options_sha256", "account"}
"""Identifier, times and what covers them; the configurations differ in the release's place."""

How = Literal["lost", "torn"]


class KilledError(OSError):
    """The process is gone."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "killed by the test")


@dataclass
class CrashingStorage:
    """Counts changes of the storage below a folder and dies at one of them.

    Parameters
    ----------
    folder
        Changes elsewhere do not count.
    dies_at
        Number of the change at which the process dies, from 0; None to live.
    how
        Whether that change is lost or leaves a temporary file.
    recovers
        Whether only that one change fails: a bad moment of a disk, not a death.
    died
        Whether a change has failed.
    tear
        Does, once it has died, what that change would have left half done; None where nothing.
    before
        Called before each change while nothing has died, with what would tear it.
    inside
        Whether a step of a change that counts as a whole is under way.
    """

    folder: Path
    dies_at: int | None = None
    how: How = "lost"
    recovers: bool = False
    changes: int = 0
    died: bool = False
    tear: Callable[[], None] | None = None
    before: Callable[[Callable[[], None] | None], None] | None = None
    inside: bool = False

    @property
    def is_dead(self) -> bool:
        if self.dies_at is None or self.changes <= self.dies_at:
            return False
        return not self.recovers or self.changes == self.dies_at + 1

    def guard(self, change: Callable[..., Any], *, torn: Callable[..., None] | None = None) -> Any:
        def guarded(path: Any, *args: Any, **kwargs: Any) -> Any:
            if self.inside or not str(path).startswith(str(self.folder)):
                return change(path, *args, **kwargs)
            if self.before is not None and not self.is_dead:
                self.before(None if torn is None else partial(torn, path, *args))
            self.changes += self.recovers or not self.is_dead
            if self.is_dead:
                if torn is not None and not self.died:
                    self.tear = partial(torn, path, *args)
                    if self.how == "torn":
                        self.tear()
                self.died = True
                raise KilledError
            return change(path, *args, **kwargs)

        return guarded

    def whole(self, change: Callable[..., Any]) -> Callable[..., Any]:
        """A change of several steps as one."""

        def done(*args: Any, **kwargs: Any) -> Any:
            self.inside = True
            try:
                return change(*args, **kwargs)
            finally:
                self.inside = False

        return done

    @contextmanager
    def __call__(self) -> Iterator[CrashingStorage]:
        """Patch every way in which store and flows change what is stored."""
        local = zarr.storage._local
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local, "_put", self.guard(local._put, torn=_tear_object))
            patch.setattr(objects, "keep_file", self.guard(self.whole(keep_file), torn=_tear_file))
            patch.setattr(os, "rename", self.guard(os.rename))
            patch.setattr(os, "unlink", self.guard(os.unlink))
            patch.setattr(shutil, "rmtree", self.guard(shutil.rmtree, torn=_tear_tree))
            yield self


def _tear_object(path: Path, value: Any, exclusive: bool = False) -> None:
    """What a kill in the middle of a write leaves: half a temporary file beside the object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = value.to_bytes()
    path.with_suffix(f".{'0' * 32}.partial").write_bytes(content[: len(content) // 2])


def _tear_file(path: str, content: bytes) -> None:
    """The same of a file that is kept."""
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    if folder.endswith(".report"):  # names there are none of a release, and no part of its tree
        return
    Path(folder, f".{name}.{'0' * 16}.partial").write_bytes(content[: len(content) // 2])


def _tear_tree(path: str, *_: Any) -> None:
    """What a kill in the middle of a removal may leave: folders, and no file."""
    for file in Path(path).rglob("*"):
        if file.is_file():
            os.remove(file)


@pytest.fixture(scope="module", autouse=True)
def keeping_little_sums() -> Iterator[None]:
    """The records here are few: what is kept of their sums is a change of the storage too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privpipe.cluster.pass_checkpoints.FEWEST_CHECKPOINTED", 1)
        patch.setattr("privpipe.cluster.pass_checkpoints.CHECKPOINTED_SHARE", 0.3)
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_small_collection(str(folder / "records.zarr"), n_records=N_RECORDS)
    return folder / "records.zarr"


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A release made without a crash, and the number of changes it took."""
    folder = tmp_path_factory.mktemp("undisturbed")
    storage = CrashingStorage(folder)
    with serial_flows(), storage():
        run_serially(make_known(source, folder))
    return folder, storage.changes


def make_known(source: Path, folder: Path) -> RunOptions:
    """A run whose register of releases is part of what crashes."""
    release = str(folder / "release.zarr")
    return make_options(str(source), release, privacy={"account": str(folder / "account")})


def compare_releases(folder: Path, undisturbed: Path) -> None:
    """Every byte equal but the manifest's times and identifiers; nothing else lies about."""
    found, wanted = read_tree(folder / "release.zarr"), read_tree(undisturbed / "release.zarr")
    manifests = [
        json.loads(tree.pop(MANIFEST))["attributes"]["privpipe"] for tree in (found, wanted)
    ]
    assert found == wanted
    first, second = (
        {key: value for key, value in manifest.items() if key not in MAY_DIFFER}
        for manifest in manifests
    )
    assert first == second
    reports = [read_tree(place / "release.report") for place in (folder, undisturbed)]
    for report, place in zip(reports, (folder, undisturbed), strict=True):
        about = json.loads(report["audit.json"])["about"]
        for name in [one for one in report if one != "run_results.json"]:
            text = report.pop(name).decode()
            for key in MAY_DIFFER & about.keys():
                text = text.replace(str(about[key]), key)
            if name.startswith("attempt-"):  # when it was judged: after a kill, later
                text = json.dumps(json.loads(text.replace(str(place), "")) | {"judged": ""})
            report[name.replace(str(about["run"]), "run")] = text.encode()
        outcome = json.loads(report.pop("run_results.json"))["outcome"]
        assert outcome in ("published", "nothing to do")  # died just after it was published
    assert reports[0] == reports[1]
    models = [read_tree(place / "release.model.zarr") for place in (folder, undisturbed)]
    for tree in models:
        tree.pop(MANIFEST)
    assert models[0] == models[1]
    assert sorted(os.listdir(folder)) == sorted(os.listdir(undisturbed))


@dataclass(frozen=True)
class Moment:
    """What a process that is killed just before a change leaves, and what would tear the change."""

    left: Path
    tear: Callable[[], None] | None


def watch_moments(storage: CrashingStorage, folder: Path) -> list[Moment]:
    """Copies, one before each change, of what the run has stored: filled while it goes on."""
    moments: list[Moment] = []

    def note(tear: Callable[[], None] | None) -> None:
        left = folder / f"{len(moments):03d}"
        shutil.copytree(storage.folder, left)
        moments.append(Moment(left, tear))

    storage.before = note
    return moments


@pytest.mark.slow
def test_run__every_crash_point_publishes_nothing_and_resumes_to_the_same_bytes(
    source: Path, undisturbed: tuple[Path, int], tmp_path: Path
):
    """Each change is lost; where it may be left half done, the run goes on from that as well.

    A process that is gone at a change leaves what a whole run had stored before it.
    """
    reference, n_changes = undisturbed
    assert n_changes > 50
    folder = tmp_path / "run"
    folder.mkdir()
    options = make_known(source, folder)
    storage = CrashingStorage(folder)
    moments = watch_moments(storage, tmp_path / "moments")
    with serial_flows(), storage():
        run_serially(options)
    compare_releases(folder, reference)
    assert len(moments) == n_changes
    for moment in moments:
        shutil.rmtree(folder)
        shutil.copytree(moment.left, folder)
        resume_dead(folder, reference, options)
        if moment.tear is not None:
            shutil.rmtree(folder)
            moment.left.rename(folder)
            moment.tear()
            resume_dead(folder, reference, options)
    assert sum(moment.tear is not None for moment in moments) > 25


@pytest.mark.slow
def test_run__whose_storage_dies_ends_and_leaves_what_was_stored_before(
    source: Path, undisturbed: tuple[Path, int], tmp_path: Path
):
    """A process that lives on when its storage is gone says so, and changes nothing any more."""
    _, n_changes = undisturbed
    folder = tmp_path / "run"
    options = make_known(source, folder)
    for point in sorted({*range(0, n_changes, 9), *range(n_changes - 3, n_changes)}):
        folder.mkdir()
        storage = CrashingStorage(folder, dies_at=point)
        moments = watch_moments(storage, tmp_path / f"moments-{point}")
        with serial_flows(), storage(), pytest.raises((StoreError, KilledError)):
            run_serially(options)
        assert storage.is_dead
        assert len(moments) == point + 1
        assert read_stored(folder) == read_stored(moments[-1].left)
        shutil.rmtree(folder)


def read_stored(folder: Path) -> dict[str, bytes]:
    """Every file by its name, but the one that says how the run ended."""
    tree = read_tree(folder)
    tree.pop("release.report/run_results.json", None)
    return tree


def resume_dead(folder: Path, reference: Path, options: RunOptions) -> None:
    """Nothing half done can be read; the next run ends with the bytes of an undisturbed one."""
    release = str(folder / "release.zarr")
    if os.path.lexists(release):  # only once every byte is there
        check_release(release, verify=True)
    else:
        with pytest.raises(StoreError):
            open_release(release)
    with serial_flows():
        run_serially(options)
    compare_releases(folder, reference)
    check_release(release, verify=True)


def test_run__crashing_at_every_resume_still_ends_with_the_same_bytes(
    source: Path, undisturbed: tuple[Path, int], tmp_path: Path
):
    """Each attempt gets only three changes further than it must to find its place."""
    reference, _ = undisturbed
    options = make_known(source, tmp_path)
    attempts = 0
    with serial_flows():
        for patience in range(3, 400, 3):
            attempts += 1
            storage = CrashingStorage(tmp_path, dies_at=patience, how="torn")
            try:
                with storage():
                    run_serially(options)
                break
            except (StoreError, KilledError):
                if (tmp_path / "release.zarr").exists():  # died while it tidied up
                    check_release(str(tmp_path / "release.zarr"), verify=True)
    assert attempts > 5
    compare_releases(tmp_path, reference)


@pytest.mark.slow
def test_run__a_single_failed_write_fails_the_run_and_the_next_one_ends_it(
    source: Path, undisturbed: tuple[Path, int], tmp_path: Path
):
    """A disk that refuses one write and then goes on: cleaning up works here."""
    reference, n_changes = undisturbed
    for point in range(0, n_changes, 4):
        folder = tmp_path / f"{point:03d}"
        folder.mkdir()
        options = make_known(source, folder)
        storage = CrashingStorage(folder, dies_at=point, recovers=True)
        with serial_flows():
            try:
                with storage():
                    run_serially(options)
            except (StoreError, KilledError):
                if (folder / "release.zarr").exists():
                    check_release(str(folder / "release.zarr"), verify=True)
            run_serially(options)
        compare_releases(folder, reference)


def test_run__resumed_under_another_configuration_is_refused(source: Path, tmp_path: Path):
    release = str(tmp_path / "release.zarr")
    storage = CrashingStorage(tmp_path, dies_at=30)
    with serial_flows():
        with storage(), pytest.raises((StoreError, KilledError)):
            run_serially(make_options(str(source), release))
        other = make_options(str(source), release)
        other = other.model_copy(update={"audit": other.audit.model_copy(update={"holdout": 0.5})})
        before = read_tree(tmp_path)
        with pytest.raises(OptionError, match="another configuration") as caught:
            run_serially(other)
    assert caught.value.code == "other-configuration"
    after = read_tree(tmp_path)
    results = "release.report/run_results.json"  # says how the last run ended
    assert after.pop(results) != before.pop(results, None)
    assert after == before
