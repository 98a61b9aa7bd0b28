"""Erasure: a canary is planted wherever records reach, and every byte is read afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privpipe
from privpipe.command.erase_command import erase_command
from privpipe.command.inspect_command import export_command
from privpipe.errors import PrivpipeError, StoreError
from privpipe.flows.release_flow import release_collection
from privpipe.pipeline.operations import erase as erasing
from privpipe.pipeline.operations.erase import ErasureOptions, erase_records, plan_erasure
from privpipe.pipeline.operations.record_removal import ChosenRecords, digest_of
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages import publish
from privpipe.store.access.workspace import hold_workspace
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.growing_collection import (
    append_partition,
    open_whole_collection,
    read_partitions,
)
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.collections.writing import read_statistics
from privpipe.store.keyring import registers
from privpipe.store.keyring.account import find_account
from privpipe.store.releases.published import check_release
from privpipe.store.sources.reading.source import SourceLayout
from tests.flows.canaries import Canaries, search_tree
from tests.operations.increments import day, release
from tests.store.collections.test_append_crash_points import dying
from tests.store.serial_run import read_tree, run_serially, serial_flows
from tests.store.test_crash_points import CrashingStorage, KilledError

SERIAL, TOWN = 4_815_162_342_108, "SECRETtownHall"
CELLS = np.array([6151.23456789, 7349.87654321, 8807.19283746])
CHOSEN = ChosenRecords("serial", (str(SERIAL),))
AT_ONCE: Any = {"under": (), "account": "", "name": "", "dry_run": False}
INGEST = IngestOptions(
    layout=SourceLayout(features=("x",), labels=("sign", "serial", "town")),
    categorical=("sign", "town"),
    numeric=("serial",),
    chunk_bytes=20 * 3 * 8,
)
CONFIGURATION = """
[collection]
path = "{place}/{collection}.zarr"
desired = ["sign"]
{training}
[method]
name = "null_space"
utility_budget = 1e-12
ridge = 0.01
[release]
path = "{place}/{release}.zarr"
incremental = {incremental}
include = {include}
[cluster]
workers = 0
[audit]
holdout = 0.5
adversaries = []
[gate]
enforce = {enforce}
drift_max = {drift}
"""


def canaries() -> Canaries:
    return Canaries({"x": CELLS, "serial": np.array([float(SERIAL)])}, {"town": (TOWN,)})


def search(folder: Path) -> dict[str, set[str]]:
    return search_tree(canaries(), folder)


def write_records(path: Path, seed: int, *, n: int = 45, with_her: bool = False) -> str:
    """A source of records, hers as number 7."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) + 6000.0
    serial = rng.integers(10**9, 10**10, n)
    town = rng.choice(["Oslo", "Rome"], n).astype("U16")
    if with_her:
        x[7], serial[7], town[7] = CELLS, SERIAL, TOWN
    np.savez(path, x=x, sign=(x[:, 0] > 6000).astype("int8"), serial=serial, town=town)
    return str(path)


def configure(folder: Path, collection: str, name: str, **more: Any) -> RunOptions:
    given = {"training": "", "incremental": "false", "enforce": "false", "drift": 1e6}
    given |= {"include": '["serial", "town"]', "place": folder} | more
    path = folder / f"{name}.toml"
    path.write_text(CONFIGURATION.format(collection=collection, release=name, **given))
    return read_options(str(path))


def erase(url: Path | str, chosen: ChosenRecords = CHOSEN, **more: Any) -> dict[str, Any]:
    (found,) = erase_records(str(url), chosen, ErasureOptions(**more))
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, sources: Path) -> Path:
    """A folder `whole` and its account, beside copies: what is made knows where it is."""
    folder = tmp_path_factory.mktemp("made")
    place = folder / "whole"
    place.mkdir()
    ingest(write_records(sources / "w.npz", 1, n=90, with_her=True), str(place / "w.zarr"), INGEST)
    with pytest.MonkeyPatch.context() as patch, serial_flows():
        patch.setenv("PRIVPIPE_ACCOUNT", str(folder / "account"))
        run_serially(configure(place, "w", "good"))
        release_collection(configure(place, "w", "kept"), Watch(), until="audit")
        export_command(str(place / "good.zarr"), str(place / "out.parquet"), verify=False)
    for name in ("whole", "account"):
        shutil.copytree(folder / name, folder / "copies" / name)
    return folder


@pytest.fixture
def whole(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collection in one piece, its release, its export, and a run that was stopped."""
    for name in ("whole", "account"):
        shutil.rmtree(made / name)
        shutil.copytree(made / "copies" / name, made / name)
    monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(made / "account"))
    return made / "whole"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources")


def test_erase__of_a_whole_collection_nothing_is_found_in_any_byte(whole: Path) -> None:
    before = search(whole)
    for place in ("w.zarr", "good.zarr", "good.model.zarr", ".kept.zarr.privpipe"):
        assert any(place in name for name in before), place
    assert (whole / "out.parquet").exists()
    assert (whole / "good.report").exists()
    old = open_collection(str(whole / "w.zarr"))
    features = old.read("features", 0, 90)
    certificate = erase(whole / "w.zarr", name="Ada")
    assert search(whole) == {}
    left = open_collection(str(whole / "w.zarr"))
    assert left.n_records == 89
    assert np.array_equal(left.read("features", 0, 89), np.delete(features, 7, axis=0))
    gone = {Path(one["place"]).name: one["why"] for one in certificate["removed"]}
    assert gone == {
        "good.zarr": "learned",
        "good.model.zarr": "learned",
        "good.report": "belongs",
        "kept.zarr": "holds",
        "kept.report": "belongs",
        "out.parquet": "learned",
    }
    assert not any((whole / name).exists() for name in gone)
    assert certificate["by"] == "Ada"
    assert certificate["before"] == old.digest
    assert certificate["after"] == left.digest


def test_erase__names_the_icechunk_repository_that_still_holds_her(whole: Path) -> None:
    place = str(whole / "out.icechunk")
    export_command(str(whole / "good.zarr"), place, verify=False)
    certificate = erase(whole / "w.zarr")
    assert any(place in one and "delete it" in one for one in certificate["left"])


def test_erase__killed_once_the_collection_is_without_her_still_removes_what_was_made(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """She is in no collection any more: only what was written first says what else must go."""

    def die(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("privpipe.pipeline.operations.erase._remove_all", die)
        with pytest.raises(KilledError):
            erase(whole / "w.zarr")
    assert open_collection(str(whole / "w.zarr")).n_records == 89
    assert any("good.zarr" in name for name in search(whole))
    certificate = erase(whole / "w.zarr")
    assert search(whole) == {}
    assert "good.zarr" in {Path(one["place"]).name for one in certificate["removed"]}


def add(folder: Path, name: str, source: str, *, replacing: bool = False) -> None:
    url = str(folder / "g.zarr")
    append_partition(source, url, name, day(len(name)), INGEST, replacing=replacing)


@pytest.fixture
def growing(tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A release in parts of a growing collection: one replaced, one killed when cleaned."""
    ingest(write_records(sources / "t.npz", 9, n=200), str(tmp_path / "t.zarr"), INGEST)
    add(tmp_path, "monday", write_records(sources / "a.npz", 1, with_her=True))
    add(tmp_path, "sunday", write_records(sources / "s.npz", 5))
    add(tmp_path, "tuesday", write_records(sources / "b.npz", 2, with_her=True))
    assert release(configure_growing(tmp_path)) == "published"
    add(tmp_path, "tuesday", write_records(sources / "c.npz", 3, with_her=True), replacing=True)
    with monkeypatch.context() as killed:
        killed.delattr(publish, "show_release")
        with pytest.raises(AttributeError):
            release(configure_growing(tmp_path))
    return tmp_path


def configure_growing(folder: Path, **more: Any) -> RunOptions:
    training = f'[training]\npath = "{folder}/t.zarr"'
    given = {"training": training, "incremental": "true", "include": '["serial"]'} | more
    return configure(folder, "g", "parts", **given)


def test_erase__of_a_growing_collection_nothing_is_found_in_any_byte(growing: Path) -> None:
    before = search(growing)
    for place in ("g.zarr/generations", "g.zarr/partitions", "parts.zarr/parts/"):
        assert any(place in name for name in before), place
    assert any(".privpipe/release" in name for name in before), "cleaned, and killed"
    certificate = erase(growing / "g.zarr")
    assert search(growing) == {}
    assert certificate["n_records"] == 2
    there = read_partitions(str(growing / "g.zarr"))
    assert [(one.name, one.n_records) for one in there] == [
        ("monday", 44),
        ("sunday", 45),
        ("tuesday", 44),
    ]
    with privpipe.open_release(str(growing / "parts.zarr")) as opened:
        assert opened.sizes["record"] == 0
    assert release(configure_growing(growing)) == "published"
    with privpipe.open_release(str(growing / "parts.zarr")) as opened:
        assert opened.sizes["record"] == 133
        assert SERIAL not in opened["serial"].values


def test_erase__of_training_records_takes_the_model_and_what_it_made(
    tmp_path: Path, sources: Path
) -> None:
    """The parts hold nothing of her; the model that cleaned them learned from her."""
    ingest(
        write_records(sources / "t.npz", 9, n=200, with_her=True), str(tmp_path / "t.zarr"), INGEST
    )
    add(tmp_path, "monday", write_records(sources / "a.npz", 1))
    options = configure_growing(tmp_path)
    assert release(options) == "published"
    certificate = erase(tmp_path / "t.zarr")
    why = {one["what"]: one["why"] for one in certificate["removed"]}
    assert why == {"parts": "learned", "model": "learned", "report": "belongs"}
    assert search(tmp_path) == {}
    assert not list(tmp_path.glob("parts.*.model.zarr"))
    assert release(configure_growing(tmp_path)) == "published"
    with privpipe.open_release(str(tmp_path / "parts.zarr")) as opened:
        assert opened.sizes["record"] == 45


def test_erase__of_her_alone_takes_partition_and_names(tmp_path: Path, sources: Path) -> None:
    """A partition that was hers is gone with its name; a collection that was hers as well."""
    add(tmp_path, "monday", write_records(sources / "a.npz", 1, with_her=True))
    url = str(tmp_path / "g.zarr")
    erase(url, ChosenRecords("serial", tuple(map(str, np.load(sources / "a.npz")["serial"]))))
    assert read_partitions(url) == ()
    assert search(tmp_path) == {}
    assert not any(b"monday" in one.read_bytes() for one in tmp_path.rglob("*.json"))
    assert erase_records(url, CHOSEN, ErasureOptions()) == []


def test_erase__is_refused_while_a_run_writes_and_changes_nothing(whole: Path) -> None:
    before = read_tree(whole)
    with hold_workspace(str(whole / "kept.zarr")), pytest.raises(StoreError) as refused:
        erase(whole / "w.zarr")
    assert refused.value.code == "busy"
    plan = plan_erasure(str(whole / "w.zarr"), CHOSEN, ErasureOptions())
    assert {Path(one["place"]).name for one in plan["removed"]} >= {"good.zarr", "kept.zarr"}
    assert read_tree(whole) == before


def test_erase__says_what_it_does_not_reach(tmp_path: Path, sources: Path) -> None:
    """A second collection with the record, and a workspace and a model of nobody knows what."""
    source = write_records(sources / "a.npz", 1, with_her=True)
    for name in ("w", "copy"):
        ingest(source, str(tmp_path / f"{name}.zarr"), INGEST)
    (tmp_path / ".x.parquet.privpipe").mkdir()
    (tmp_path / ".x.parquet.privpipe" / "made").write_bytes(b"half an export")
    left = " ".join(erase(tmp_path / "w.zarr")["left"])
    assert "copy.zarr holds 1 of the records" in left
    assert ".x.parquet.privpipe, a workspace that does not say of what" in left
    assert "backups" in left
    assert search(tmp_path).keys() >= {"copy.zarr/zarr.json"}


def test_erase__names_exports_that_do_not_say_of_what_and_removes_those_that_do(
    whole: Path,
) -> None:
    for name in ("out.csv", "out.pq"):
        export_command(str(whole / "good.zarr"), str(whole / name), verify=False)
    left = erase(whole / "w.zarr")["left"]
    assert not (whole / "out.pq").exists()
    assert not any("out.pq" in one or "out.parquet" in one for one in left)
    assert any("out.csv, CSV" in one and "delete it" in one for one in left)


@pytest.mark.parametrize("place", ["foo://x.parquet", "gs://b/x.parquet", "cc::s3://b/x.parquet"])
def test_erase__is_not_held_up_by_an_export_that_cannot_be_looked_at(
    whole: Path, place: str
) -> None:
    with pytest.raises(PrivpipeError):
        export_command(str(whole / "good.zarr"), place, verify=False)
    assert place not in [one for _, one in registers.read_exports(find_account())]
    run = str(check_release(str(whole / "good.zarr"))["run"])
    registers.note_export(find_account(), run, place)  # as versions before this one did
    left = erase(whole / "w.zarr")["left"]
    assert any(place.rpartition("/")[2] in one and "cannot be looked at" in one for one in left)


def test_erase__a_quote_of_the_value_is_of_the_value(tmp_path: Path, sources: Path) -> None:
    towns = np.array(["O'Brien'", 'a "b"', "Oslo", "Rome"] * 5)
    x = np.random.default_rng(0).normal(size=(20, 3))
    layout = SourceLayout(features=("x",), labels=("town",))
    np.savez(sources / "q.npz", x=x, town=towns)
    url = str(tmp_path / "q.zarr")
    ingest(str(sources / "q.npz"), url, IngestOptions(layout=layout))
    (sources / "bom.txt").write_text("\ufeffOslo\nParis\n", "utf-8")
    for where in (
        "town == O'Brien'",
        'town == a "b"',
        "town == 'Rome'",
        f"town in {sources}/bom.txt",
    ):
        assert [one["n_records"] for one in erase_command(url, where, **AT_ONCE)["erasures"]] == [5]


def test_erase__certificates_are_one_chain_though_the_clock_goes_back(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "w.zarr")
    ingest(write_records(sources / "a.npz", 1), url, INGEST)
    serials, last = np.load(sources / "a.npz")["serial"], ""
    for k, time in enumerate(("05T12:00", "04T12:00", "05T00:00", "05T13:00", "04T00:00")):
        monkeypatch.setattr(erasing, "now", lambda time=time: f"2026-01-{time}:00+00:00")
        certificate = erase(url, ChosenRecords("serial", (str(serials[k]),)))
        assert certificate["previous"] == last
        written = (tmp_path / "w.erasures" / f"{certificate['id']}.json").read_bytes()
        last = hashlib.sha256(written).hexdigest()


def test_plan_erasure__of_nobody_says_that_nothing_would_go(whole: Path) -> None:
    planned = plan_erasure(
        str(whole / "w.zarr"), ChosenRecords("serial", ("11",)), ErasureOptions()
    )
    assert (planned["n_records"], planned["removed"]) == (0, [])


@pytest.mark.parametrize(
    "where", ["", "serial", "serial == ", "nobody == 3", "serial == notanumber", "serial in /no"]
)
def test_erase__a_selection_that_is_none_is_refused_without_its_value(
    where: str, tmp_path: Path, sources: Path
) -> None:
    url = str(tmp_path / "w.zarr")
    ingest(write_records(sources / "a.npz", 1, n=20), url, INGEST)
    with pytest.raises(PrivpipeError) as refused:
        erase_command(url, where, **AT_ONCE)
    assert "notanumber" not in str(refused.value)


def test_erase__by_a_file_of_identifiers(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "w.zarr")
    ingest(write_records(sources / "a.npz", 1, with_her=True), url, INGEST)
    (sources / "ids.txt").write_text(f"17\n{SERIAL}\n")
    where = f"serial in {sources}/ids.txt"
    # What lies beside the journals, and a user without a name, stop no one's erasure.
    (tmp_path / "w.erasures").mkdir()
    (tmp_path / "w.erasures" / "NOTES.txt").write_text("mine")
    for name in ("LOGNAME", "USER"):
        monkeypatch.delenv(name, raising=False)
    found = erase_command(url, where, **AT_ONCE)
    assert [one["n_records"] for one in found["erasures"]] == [1]
    assert open_collection(url).n_records == 44
    assert read_statistics(url).n_missing == {"sign": 0, "serial": 0, "town": 0}
    assert search(tmp_path) == {}
    assert not search_tree(canaries(), Path(os.environ["PRIVPIPE_ACCOUNT"]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["growing", "whole"])
def test_erase__killed_anywhere_the_same_command_ends_the_same(
    kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Files and account as they were, a kill at one change of the storage, then the command.

    Three kills of about a hundred; PRIVPIPE_TEST_KILLS=1 makes all of them.
    """
    folder: Path = request.getfixturevalue(kind)
    url = str(folder / ("g.zarr" if kind == "growing" else "w.zarr"))
    saved, account = tmp_path_factory.mktemp("saved"), Path(os.environ["PRIVPIPE_ACCOUNT"])
    restore = [(folder, saved / "place"), (account, saved / "account")]
    for place, copy in restore:
        shutil.copytree(place, copy)
    storage = CrashingStorage(folder)
    with dying(storage):
        erase(url)
    expected = outcome(folder, url)
    assert storage.changes > 20
    step = int(os.environ.get("PRIVPIPE_TEST_KILLS", storage.changes // 3))
    for number in range(step // 2, storage.changes, step):
        for place, copy in restore:
            shutil.rmtree(place)
            shutil.copytree(copy, place)
        with dying(CrashingStorage(folder, dies_at=number)), suppress(KilledError, StoreError):
            erase(url)
        read_whole(folder, kind)
        erase_records(url, CHOSEN, ErasureOptions())
        assert search(folder) == {}, number
        assert outcome(folder, url) == expected, number


def read_whole(folder: Path, kind: str) -> None:
    """What readers of a killed erasure see: one generation or another, whole, or nothing."""
    if kind == "whole":
        for name, count in (("w.zarr", (89, 90)), ("good.zarr", (90,))):
            if (folder / name).exists():
                opened = open_collection if name == "w.zarr" else check_release
                found = opened(str(folder / name))
                n_records = found["n_records"] if isinstance(found, Mapping) else found.n_records
                assert n_records in count
        return
    collection = open_whole_collection(str(folder / "g.zarr"))
    assert collection.read("features", 0, collection.n_records).shape[0] in (133, 135)
    with privpipe.open_release(str(folder / "parts.zarr")) as opened:
        assert opened["features"].values.shape[0] in (0, 45, 90, 135)


def outcome(folder: Path, url: str) -> tuple[Any, ...]:
    """What stands after an erasure, but for times and drawn names."""
    journals = [json.loads(one.read_bytes()) for one in folder.glob("*.erasures/*.json")]
    names = {re.sub("[0-9a-f]{16,}", "*", name) for name in read_tree(folder)}
    done = [(one["state"], one["n_records"], one["after"]) for one in journals]
    return done, digest_of(url), sorted(names)
