"""What recovery does at places that few histories strike, asked directly."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from privpipe.errors import StoreError
from privpipe.store.access.generation_log import read_generation, read_newest, write_root
from privpipe.store.access.objects import keep_bytes, keep_file, list_keys, open_store
from privpipe.store.access.workspace import (
    RunState,
    data_url,
    hold_workspace,
    is_held,
    purge_workspace,
    remove_place,
    remove_workspace,
    write_state,
)
from privpipe.store.releases import release_writing
from privpipe.store.releases.incremental_release import delete_part, read_incremental, sweep_parts
from tests.simulation.bucket import Bucket
from tests.simulation.commands import COMMANDS, World, open_world, run_alone
from tests.simulation.disk import ROOT, Change, list_volatile
from tests.simulation.histories import CONTINUATIONS, WORST, History
from tests.simulation.many import open_simulator
from tests.simulation.oracles import purge_all
from tests.simulation.recording import recording


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path) as found:
        yield found


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path, in_bucket=True) as found:
        found.clear()
        yield found
        found.clear()


def test_hold_workspace__is_for_one(tmp_path: Path) -> None:
    url = str(tmp_path / "r.zarr")
    with hold_workspace(url), pytest.raises(StoreError, match="Another process is writing"):
        with hold_workspace(url):
            pass


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """Something that another does again and again meanwhile."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.is_set():
            work()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(repeat)
        try:
            yield
        finally:
            ended.set()
        done.result()


def test_is_held__hinders_no_one_who_holds_and_no_one_who_looks(tmp_path: Path) -> None:
    url = str(tmp_path / "r.zarr")
    with hold_workspace(url):
        assert is_held(url)
    with beside(lambda: is_held(url)):
        assert not any(is_held(url) for _ in range(500))
        for _ in range(200):
            with hold_workspace(url):
                pass


def test_hold_workspace__that_another_removes_is_made_anew_or_busy(tmp_path: Path) -> None:
    url, codes = str(tmp_path / "r.zarr"), Counter[str]()

    def hold_and_remove() -> None:
        try:
            with hold_workspace(url):
                remove_workspace(url)
                codes["held"] += 1
        except StoreError as error:
            codes[error.code] += 1

    mask = os.umask(0o077)  # of the whole process: each of both would restore that of the other
    try:
        with beside(hold_and_remove), beside(hold_and_remove):
            for _ in range(1000):
                hold_and_remove()
    finally:
        os.umask(mask)
    assert codes.keys() <= {"held", "busy"}, codes
    assert codes["held"] > 1000, codes


def test_keep_file__flushes_the_content_and_then_the_name(tmp_path: Path) -> None:
    with recording(tmp_path) as recorder:
        keep_file(str(tmp_path / "kept.json"), b"{}", replacing=True)
    kinds = [one.kind for one in recorder.changes]
    assert kinds == ["make", "write", "sync", "move", "sync"]
    written, named = (one for one in recorder.changes if one.kind == "sync")
    assert written.node == recorder.changes[0].node
    assert named.node == recorder.changes[3].folder


def test_list_keys__knows_no_unfinished_file(tmp_path: Path) -> None:
    (tmp_path / "whole.json").write_bytes(b"{}")
    (tmp_path / ".whole.json.0123456789abcdef.partial").write_bytes(b"{")
    assert list_keys(open_store(str(tmp_path))) == ["whole.json"]


def test_remove_place__is_without_a_name_before_it_loses_content(tmp_path: Path) -> None:
    keep_file(str(tmp_path / "c.zarr" / "zarr.json"), b"{}", replacing=True)
    with recording(tmp_path) as recorder:
        remove_place(str(tmp_path / "c.zarr"))
    steps = [(one.kind, one.folder if one.kind != "sync" else one.node) for one in recorder.changes]
    hidden = steps.index(("move", ROOT))
    assert steps[hidden + 1] == ("sync", ROOT)
    assert steps[-1] == ("sync", ROOT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("ingest", "c.zarr"),
        ("run", "r.zarr"),
        ("run", "r.model.zarr"),
        ("demo", "digits.zarr"),
        ("erase", "c.zarr"),
    ],
)
def test_show__is_of_what_is_flushed_and_flushes_the_name_before_anything_else(
    world: World, name: str, shown: str
) -> None:
    COMMANDS[name].prepare(world)
    with world.record() as recorder:
        COMMANDS[name].call(world)
    changes = [one for one in recorder.changes if isinstance(one, Change)]
    [place] = [n for n, one in enumerate(changes) if (one.kind, one.name) == ("move", shown)]
    assert (changes[place + 1].kind, changes[place + 1].node) == ("sync", changes[place].folder)
    tree = recorder.before.after(changes[:place])
    mine = {changes[place].node, *(node for _, node in tree.walk(changes[place].node))}
    volatile = {changes[n].node for n in list_volatile(changes[:place])}
    assert not mine & volatile


@pytest.mark.slow
def test_erasure__that_was_killed_between_two_renames_ends_the_exchange() -> None:
    """The collection has no name there: whoever calls again, or purges, gives it back."""
    with open_simulator() as simulator:
        changes = simulator.know("erase").changes
        [last] = [n for n, one in enumerate(changes) if (one.kind, one.name) == ("move", "c.zarr")]
        for place in range(last - 3, last + 2):
            where = (place + 0.5) / (len(changes) + 1)
            for then in CONTINUATIONS:
                problem, _ = simulator.judge(History(place, "erase", "lost", where, WORST, then))
                assert not problem, (place, then, problem)


@pytest.mark.slow
def test_withdrawn_part__goes_at_once_where_nobody_waits(world: World) -> None:
    COMMANDS["withdraw"].prepare(world)
    parts = {path.name for path in (world.root / "p.zarr/parts").iterdir()}
    COMMANDS["withdraw"].call(world)
    left = {path.name for path in (world.root / "p.zarr/parts").iterdir()}
    assert len(left) == len(parts) - 1


@pytest.mark.slow
def test_run__that_goes_on_drops_what_a_kill_left_unfinished(world: World) -> None:
    COMMANDS["purge-run"].prepare(world)  # a run that was stopped
    [data] = (world.root / ".r.zarr.privpipe").glob("**/features")
    unfinished = data.parent / ".zarr.json.0123456789abcdef.partial"
    unfinished.write_bytes(b"{")
    options = world.configure("c.zarr", "r.zarr")
    run_alone(options, until="clean")
    assert data.exists()
    assert not unfinished.exists()


@pytest.mark.slow
def test_release__shows_nothing_unfinished(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker died while it wrote, and another one took its task over in the same run."""
    COMMANDS["run"].prepare(world)
    make = release_writing.root_document

    def die_first(header: dict[str, Any], *documents: Any) -> bytes:
        [data] = (world.root / ".r.zarr.privpipe").glob("**/features")
        (data.parent / ".zarr.json.0123456789abcdef.partial").write_bytes(b"{")
        return make(header, *documents)

    monkeypatch.setattr(release_writing, "root_document", die_first)
    COMMANDS["run"].call(world)
    assert (world.root / "r.zarr/zarr.json").exists()
    assert not list((world.root / "r.zarr").rglob("*.partial"))


@pytest.mark.slow
def test_withdrawn_part__stays_until_it_is_due(world: World) -> None:
    """Readers of the generation before still read it."""
    COMMANDS["withdraw-later"].prepare(world)
    parts = {path.name for path in (world.root / "p.zarr/parts").iterdir()}
    COMMANDS["withdraw-later"].call(world)
    purge_all(world, COMMANDS["withdraw-later"])
    assert {path.name for path in (world.root / "p.zarr/parts").iterdir()} == parts
    found = read_incremental(world.at("p.zarr"))
    assert found is not None
    [retired] = found[1].retired
    left = sweep_parts(world.at("p.zarr"), found[1], datetime.fromisoformat(retired.due))
    assert not left
    assert not (world.root / "p.zarr/parts" / retired.id).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "place"), [("append-second", "g.zarr"), ("run-more", "p.zarr"), ("withdraw", "p.zarr")]
)
def test_root__follows_every_generation(world: World, name: str, place: str) -> None:
    COMMANDS[name].prepare(world)
    COMMANDS[name].call(world)
    root, url = world.root / place / "zarr.json", world.at(place)
    newest = read_newest(url, "collection" if place == "g.zarr" else "release")
    assert newest is not None
    assert f'"generation": {newest.number}'.encode() in root.read_bytes()
    followed = root.read_bytes()
    write_root(url, read_generation(url, newest.number - 1 or 1))
    if name == "run-more":  # it finds nothing to do, and mends what a sleeper set back
        COMMANDS[name].call(world)
        assert root.read_bytes() == followed


@pytest.mark.slow
def test_part__that_was_shown_before_a_kill_is_found_and_noted() -> None:
    """Killed at each change from a part's own to the generation that names it."""
    with open_simulator() as simulator:
        changes = simulator.know("run-more").changes
        shown = [n for n, one in enumerate(changes) if one.kind == "move" and len(one.name) == 32]
        assert shown
        for place in sorted({m for n in shown for m in range(n, n + 9)} & {*range(len(changes))}):
            where = (place + 0.5) / (len(changes) + 1)
            for then in ("again", "purge"):
                problem, _ = simulator.judge(History(place, "run-more", "lost", where, WORST, then))
                assert not problem, (place, then, problem)


def test_purge__in_a_bucket_leaves_no_partition_and_no_part_that_is_not_named(
    bucket: World,
) -> None:
    COMMANDS["append-in-bucket"].prepare(bucket)
    COMMANDS["append-in-bucket"].call(bucket)
    named = bucket.read()
    keep_bytes(bucket.at("g.zarr"), "partitions/0123456789abcdef/features/0", b"raw")
    purge_all(bucket, COMMANDS["append-in-bucket"])
    assert bucket.read().keys() == named.keys()
    keep_bytes(bucket.at("p.zarr"), "parts/0/features/0", b"raw")
    delete_part(bucket.at("p.zarr"), "0")
    assert bucket.read().keys() == named.keys()


@pytest.mark.slow
def test_purge__of_a_growing_place_leaves_nothing_that_is_not_named(world: World) -> None:
    """A killed append's partition, a killed run's part, and what a purge itself began."""
    COMMANDS["run-more"].prepare(world)
    for place in ("g.zarr/partitions/0123456789abcdef", "p.zarr/parts/" + "0" * 32):
        keep_file(str(world.root / place / "features" / "0"), b"raw", replacing=True)
    purge_all(world, COMMANDS["run-more"])
    assert not (world.root / "g.zarr/partitions/0123456789abcdef").exists()
    assert not (world.root / "p.zarr/parts" / ("0" * 32)).exists()


def test_first_append__that_was_killed_is_purged_whole(world: World) -> None:
    keep_file(str(world.root / "g.zarr/partitions/0123456789abcdef/0"), b"raw", replacing=True)
    purge_all(world, COMMANDS["append"])
    assert not (world.root / "g.zarr").exists()


@pytest.mark.slow
def test_purge__in_a_bucket_leaves_no_workspace_and_no_begun_release(bucket: World) -> None:
    command = COMMANDS["purge-run-in-bucket"]
    command.prepare(bucket)
    command.call(bucket)
    left = [path for path in bucket.read() if "r.zarr" in path and "/leases/" not in path]
    assert not left


def test_purge__in_a_bucket_removes_what_a_run_began_in_place_and_nothing_that_is_whole(
    bucket: World,
) -> None:
    for name, root in (("begun.zarr", ""), ("whole.zarr", "zarr.json")):
        url = bucket.at(name)
        write_state(url, RunState("0" * 8, "1" * 64, "", "", "", "2026-11-25T00:00:00+00:00"))
        for there in (data_url(url), url):  # arrays are copied from the workspace
            keep_bytes(there, "features/c/0/0", b"half")
        if root:
            keep_bytes(url, root, b"{}")
        purge_workspace(url)
    assert not [path for path in bucket.read() if path.startswith("begun.zarr")]
    assert [path for path in bucket.read() if path.startswith("whole.zarr")]


@pytest.mark.parametrize("name", ["append-in-bucket", "ingest-in-bucket"])
def test_careless_store__is_refused(bucket: World, name: str) -> None:
    COMMANDS[name].prepare(bucket)
    Bucket.is_careless = True
    try:
        with pytest.raises(StoreError) as refused:
            COMMANDS[name].call(bucket)
    finally:
        Bucket.is_careless = False
    assert refused.value.code == "conditions-ignored"
