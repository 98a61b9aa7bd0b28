"""A source is not believed: whatever is changed in it, nothing but what was ingested is released.

Each attack is made before the run, between train and clean, and between clean and audit; sizes and
times of all files are put back, so that nothing but the content can tell.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from privpipe.errors import PrivpipeError
from privpipe.pipeline import stage_tasks
from privpipe.store.arrays import blocks
from privpipe.store.arrays.layout import SEAL, root_document
from privpipe.store.releases.published import check_release
from tests.store.serial_run import (
    make_options,
    read_tree,
    run_serially,
    serial_flows,
    write_small_collection,
)

Attack = Callable[[Path, Path], None]


def swap(one: Path, other: Path) -> None:
    mine, theirs = one.read_bytes(), other.read_bytes()
    one.write_bytes(theirs)
    other.write_bytes(mine)


def rotate(folder: Path, n_chunks: int = 9) -> None:
    contents = [(folder / str(chunk)).read_bytes() for chunk in range(n_chunks)]
    for chunk in range(n_chunks):
        (folder / str(chunk)).write_bytes(contents[(chunk + 1) % n_chunks])


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def append_chunk(source: Path, other: Path) -> None:
    """One more chunk of every array, and a shape that tells of it."""
    for name in ("features", "wanted", "secret", "place"):
        last = "c/9/0" if name == "features" else "c/9"
        one_more = source / name / last.replace("9", "10")
        one_more.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name / last.replace("9", "0"), one_more)
        shape = json.loads((source / name / "zarr.json").read_text())["shape"]
        edit(source / name / "zarr.json", shape=[510, *shape[1:]])


ATTACKS: dict[str, Attack] = {
    "swap feature chunks": lambda s, _: swap(s / "features/c/1/0", s / "features/c/3/0"),
    "swap desired chunks": lambda s, _: swap(s / "wanted/c/0", s / "wanted/c/5"),
    "rotate labels": lambda s, _: rotate(s / "secret/c"),
    "rotate included": lambda s, _: rotate(s / "place/c"),
    "foreign features": lambda s, o: shutil.copy(o / "features/c/2/0", s / "features/c/2/0"),
    "foreign labels": lambda s, o: shutil.copy(o / "secret/c/2", s / "secret/c/2"),
    "chunks of another array": lambda s, _: swap(s / "secret/c/4", s / "place/c/4"),
    "swap arrays": lambda s, _: [swap(s / f"secret/c/{i}", s / f"place/c/{i}") for i in range(10)],
    "delete a chunk": lambda s, _: (s / "secret/c/7").unlink(),
    "delete a feature chunk": lambda s, _: (s / "features/c/7/0").unlink(),
    "append": append_chunk,
    "dtype": lambda s, _: edit(s / "secret/zarr.json", data_type="uint8"),
    "shape": lambda s, _: edit(s / "features/zarr.json", shape=[400, 5]),
    "codecs": lambda s, _: edit(s / "secret/zarr.json", codecs=[{"name": "bytes"}]),
    "fill value": lambda s, _: edit(s / "secret/zarr.json", fill_value=0),
    "attributes": lambda s, _: edit(s / "secret/zarr.json", attributes={"categories": ["x"]}),
}
BEFORE = ("run", "clean_task", "audit_task")


def attack_unseen(attack: Attack, source: Path, other: Path) -> None:
    """Change the source; put back the times of everything that is still there."""
    places = [source, *source.rglob("*")]
    times = {path: path.stat() for path in places}
    attack(source, other)
    for path, status in times.items():
        if path.exists():
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def forget() -> None:
    """What a worker that comes now would not know."""
    blocks.open_array.cache_clear()
    try:
        from privpipe.store.arrays import sealed_arrays
    except ImportError:
        return
    sealed_arrays._open.cache_clear()
    sealed_arrays._held.clear()


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collections")
    write_small_collection(str(folder / "records.zarr"))
    write_small_collection(str(folder / "other.zarr"), seed=8)
    return folder


def release(folder: Path) -> tuple[dict[str, bytes], str]:
    """Arrays of the release, and what the audit found."""
    with serial_flows():
        run_serially(make_options(str(folder / "records.zarr"), str(folder / "release.zarr")))
    found = read_tree(folder / "release.zarr")
    assert proof_of(folder).startswith("proved: ")
    header = check_release(str(folder / "release.zarr"), verify=True)
    del found["zarr.json"]
    audit = {name: value for name, value in header["audit"].items() if name != "about"}
    return found, json.dumps(audit, sort_keys=True)


def proof_of(folder: Path) -> str:
    header = check_release(str(folder / "release.zarr"))
    assert header["source_proof"] == header["training_proof"]
    return str(header["source_proof"])


def make_old(source: Path) -> None:
    """As an earlier privpipe made it: without receipts."""
    shutil.rmtree(source / "__receipts__")
    header = json.loads((source / "zarr.json").read_text())["attributes"]["privpipe"]
    del header[SEAL], header["receipts"]
    (source / "zarr.json").write_bytes(root_document(header))


@pytest.fixture(scope="module")
def undisturbed(
    collections: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, bytes], str]:
    folder = tmp_path_factory.mktemp("undisturbed")
    shutil.copytree(collections / "records.zarr", folder / "records.zarr")
    return release(folder)


def test_run__says_how_the_source_was_proved(
    collections: Path, undisturbed: tuple[dict[str, bytes], str], tmp_path: Path
) -> None:
    for name in ("new", "old"):
        shutil.copytree(collections / "records.zarr", tmp_path / name / "records.zarr")
    make_old(tmp_path / "old" / "records.zarr")
    assert release(tmp_path / "new") == release(tmp_path / "old") == undisturbed
    assert "by its receipt" in proof_of(tmp_path / "new")
    assert "has no receipts; every byte was read once" in proof_of(tmp_path / "old")


OLD = ("swap feature chunks", "rotate labels", "foreign labels", "delete a chunk", "dtype")


@pytest.mark.slow
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize(
    ("name", "old"), [*((name, False) for name in ATTACKS), *((name, True) for name in OLD)]
)
def test_run__releases_what_was_ingested_or_nothing(
    collections: Path,
    undisturbed: tuple[dict[str, bytes], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    old: bool,
    before: str,
) -> None:
    source, other = tmp_path / "records.zarr", collections / "other.zarr"
    shutil.copytree(collections / "records.zarr", source)
    if old:
        make_old(source)

    def attack() -> None:
        attack_unseen(ATTACKS[name], source, other)
        forget()

    if before == "run":
        attack()
    else:
        stage = getattr(stage_tasks, before)

        def attack_then_work(*args: object) -> object:
            attack()
            return stage(*args)

        monkeypatch.setattr(stage_tasks, before, attack_then_work)
    try:
        found = release(tmp_path)
    except PrivpipeError:
        assert not (tmp_path / "release.zarr").exists()
        return
    assert before != "run", "what metadata or the first pass tells is refused"
    assert found == undisturbed
