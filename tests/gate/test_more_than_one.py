"""Releases judged with what else is known: earlier releases, and other training records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from privpipe.errors import FormatError, GateError, IncompleteReleaseError, OptionError, StoreError
from privpipe.pipeline.runs.earlier import find_earlier
from privpipe.pipeline.stages.audit import audit_attacks
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.gate import list_weaker_limits
from privpipe.store.access.workspace import read_state
from privpipe.store.keyring.keyfiles import KeyBinding, KeyEntry
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.releases.published import EarlierRelease, open_earlier_release
from tests.gate.leaky_runs import make_leaky_options, make_records, write_records
from tests.gate.test_broken_releases import break_map
from tests.store.serial_run import run_serially

pytestmark = pytest.mark.usefixtures("serially")


def mask(raw: np.ndarray) -> np.ndarray:
    """The same mask for a record in every release, which looks like noise."""
    return 30 * np.sin(1e6 * raw[:, 3])


def show_mask(raw: np.ndarray, released: np.ndarray) -> np.ndarray:
    return np.column_stack([raw[:, 0], mask(raw), np.zeros((len(raw), 2))])


def mask_secret(raw: np.ndarray, released: np.ndarray) -> np.ndarray:
    return np.column_stack([raw[:, 0], mask(raw) + (raw[:, 1] > 3), np.zeros((len(raw), 2))])


def read_audit(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"{name}.report" / "audit.json").read_text())
    return content


@pytest.mark.slow
def test_gate__keeps_back_what_an_earlier_release_unmasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(str(tmp_path / "records.zarr"), make_records())
    given: dict[str, Any] = {"method": {"name": "leace"}}
    with monkeypatch.context() as patch:
        break_map(patch, show_mask)
        run_serially(make_leaky_options(tmp_path, **given, release={"path": f"{tmp_path}/a.zarr"}))
    assert read_audit(tmp_path, "a")["gate"]["state"] == "passed"
    break_map(monkeypatch, mask_secret)
    place = {"path": f"{tmp_path}/b.zarr"}
    known = {"earlier": [f"{tmp_path}/a.zarr"]}
    with pytest.raises(GateError, match="joined with the earlier one 'leace ") as caught:
        run_serially(make_leaky_options(tmp_path, **given, release=place, audit=known))
    assert (caught.value.exit_code, caught.value.code) == (6, "leaks")
    (decision,) = read_audit(tmp_path, "b")["adversaries"]["decisions"]
    assert decision["source"].startswith("together: leace ")
    # By itself the release tells of few: beyond the mask's ends, which a twelfth of each class is.
    rows = [r for r in read_audit(tmp_path, "b")["adversaries"]["table"] if r["score"] == "auc"]
    others = [r for r in rows if r["source"] in ("released", "everything", "bits")]
    assert max(r["gain_lower"] for r in others) < 0.2
    assert not (tmp_path / "b.zarr").exists()


def list_together(audit: dict[str, Any]) -> set[str]:
    """Earlier releases that were joined with this one."""
    table = audit["adversaries"]["table"]
    return {row["source"] for row in table if row["source"].startswith("together: ")}


@pytest.mark.slow
def test_gate__finds_an_earlier_release_that_nobody_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same leak as above, without a word of the first release in the second configuration."""
    write_records(str(tmp_path / "records.zarr"), make_records())
    given: dict[str, Any] = {"method": {"name": "leace"}}
    with monkeypatch.context() as patch:
        break_map(patch, show_mask)
        run_serially(make_leaky_options(tmp_path, **given, release={"path": f"{tmp_path}/a.zarr"}))
    write_records(str(tmp_path / "copy" / "records.zarr"), make_records())  # moved elsewhere
    break_map(monkeypatch, mask_secret)
    with pytest.raises(GateError, match="joined with the earlier one 'leace "):
        run_serially(make_leaky_options(tmp_path / "copy", **given))
    assert not (tmp_path / "copy" / "release.zarr").exists()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["file", "bucket"])
def test_audit__of_a_second_budget_joins_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Two budgets, two folders, no line about it; also where records, releases, account are far."""
    home = str(tmp_path) if place == "file" else f"memory://{tmp_path.name}"
    monkeypatch.setenv("PRIVPIPE_ACCOUNT", f"{home}/account")
    write_records(f"{home}/records.zarr", make_records(2000))
    for name, budget in (("a", 0.01), ("b", 0.5), ("again", 0.01)):
        options = make_leaky_options(
            tmp_path,
            collection={"path": f"{home}/records.zarr"},
            release={"path": f"{home}/{name}.zarr"},
            method={"name": "null_space", "utility_budget": budget, "ridge": 0.01},
            gate={"enforce": False},
        )
        run_serially(options)
    runs = {name: open_release(f"{home}/{name}.zarr").attrs["privpipe"]["run"] for name in "ab"}
    audits = {}
    for name in ("a", "b", "again"):
        with fsspec.open(f"{home}/{name}.report/audit.json") as file:
            audits[name] = json.load(file)
    assert list_together(audits["a"]) == set()
    assert list_together(audits["b"]) == {f"together: null_space {runs['a']}"}
    # The very same records once more tell nothing more; those of the other budget do.
    assert list_together(audits["again"]) == {f"together: null_space {runs['b']}"}
    assert check_stage(options).options == options


@pytest.mark.slow
def test_audit__joins_the_rows_that_two_collections_share(tmp_path: Path) -> None:
    """A collection of two partitions, of which one was released before, by itself."""
    records = make_records(2000)
    # Of four features alone one record in ten meets another's by chance, more with some keys.
    noise = np.random.default_rng(6).normal(size=(2000, 8))
    records["features"] = np.hstack([records["features"], noise])
    second = {name: values[1000:] for name, values in records.items()}
    for folder, some, cuts in (("first", second, (400,)), ("both", records, (1000, 1400))):
        write_records(str(tmp_path / folder / "records.zarr"), some, cuts=cuts)
        run_serially(
            make_leaky_options(tmp_path / folder, method={"name": "leace"}, gate={"enforce": False})
        )
    run = json.loads((tmp_path / "first/release.report/audit.json").read_text())["about"]["run"]
    assert list_together(read_audit(tmp_path / "both", "release")) == {f"together: leace {run}"}
    options = make_leaky_options(
        tmp_path / "both", release={"path": f"{tmp_path}/next.zarr"}, gate={"enforce": False}
    )
    known = find_earlier(check_stage(options)).releases
    assert [one.rows is None for one in known] == [False, True]
    other = known[0]
    assert np.isnan(other.read(0, 1000)).mean() > 0.99
    expected = open_release(str(tmp_path / "first" / "release.zarr")).features.values
    assert np.array_equal(other.read(900, 1100)[100:], expected[:100])


@pytest.mark.slow
def test_audit__says_of_an_earlier_release_that_it_is_gone_or_damaged(tmp_path: Path) -> None:
    write_records(str(tmp_path / "records.zarr"), make_records(3000))
    given: dict[str, Any] = {"method": {"name": "leace"}, "gate": {"enforce": False}}
    for name in "ab":
        changed = {"utility_budget": 0.5, "name": "null_space", "ridge": 0.01}
        method = given if name == "a" else given | {"method": changed}
        run_serially(make_leaky_options(tmp_path, **method, release={"path": f"{tmp_path}/{name}"}))
    shutil.rmtree(tmp_path / "a")
    (chunk,) = list((tmp_path / "b" / "features" / "c").rglob("0"))[-1:]
    chunk.unlink()
    options = make_leaky_options(
        tmp_path, method={"name": "leace"}, release={"path": f"{tmp_path}/c"}
    )
    found = find_earlier(check_stage(options))
    assert found.releases == ()
    gone, damaged = found.unread
    assert "cannot be read (damaged)" in damaged.reason
    assert "no longer at its place" in gone.reason
    assert gone.target.startswith("leace ")
    assert str(tmp_path) not in gone.reason
    with pytest.raises(GateError) as caught:  # what it tells is unknown, and unknown never passes
        run_serially(options)
    assert "was not attacked" in caught.value.message
    assert not (tmp_path / "c").exists()
    runs = [one.target.rpartition(" ")[2] for one in (gone, damaged)]
    disowned = make_leaky_options(
        tmp_path, method={"name": "leace"}, audit={"disowned": [runs[0], f"{tmp_path}/b"]}
    )
    known = find_earlier(check_stage(disowned))
    assert (known.unread, len(known.warnings)) == ((), 2)
    (said,) = (one for one in list_weaker_limits(disowned) if "disowned" in one)
    assert said == f"earlier releases disowned: {runs[0]}, b"


def test_check__opens_no_earlier_release_but_those_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening reads every receipt: of a hundred releases of the same records that takes a while."""
    write_records(str(tmp_path / "records.zarr"), make_records(400))
    given: dict[str, Any] = {"audit": {"adversaries": []}, "gate": {"enforce": False}}
    run_serially(make_leaky_options(tmp_path, **given, release={"path": f"{tmp_path}/a.zarr"}))
    opened = list[str]()

    def note(url: str, **known: Any) -> EarlierRelease:
        opened.append(url)
        return open_earlier_release(url, **known)

    monkeypatch.setattr("privpipe.store.releases.published.open_earlier_release", note)
    place = {"release": {"path": f"{tmp_path}/b.zarr"}}
    run = check_stage(make_leaky_options(tmp_path, **given, **place))
    assert opened == []
    # It trains on its own records: matched with themselves they are as they were.
    assert run.collection is run.training
    assert run.training.matched(run.fitted_schema) == run.training
    assert [one.url for one in find_earlier(run).releases] == opened == [f"{tmp_path}/a.zarr"]
    named = given | {"audit": {"adversaries": [], "earlier": [f"{tmp_path}/a.zarr"]}}
    (chunk, *_) = (tmp_path / "a.zarr" / "features" / "c").glob("*/0")
    chunk.unlink()
    with pytest.raises(IncompleteReleaseError, match="are missing or differ"):
        check_stage(make_leaky_options(tmp_path, **named, **place))
    assert check_stage(make_leaky_options(tmp_path, **given, **place))


def test_publish__shows_nothing_that_the_register_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(str(tmp_path / "records.zarr"), make_records(400))
    options = make_leaky_options(tmp_path, audit={"adversaries": []}, gate={"enforce": False})
    place = tmp_path / "account"
    monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(place))
    place.mkdir()
    (place / ".releases").write_text("a file where a folder should be")
    with pytest.raises(StoreError):
        run_serially(options)
    assert not (tmp_path / "release.zarr").exists()
    (place / ".releases").unlink()
    (place / ".releases").mkdir()
    (place / ".releases" / "01234567.json").write_text('{"url": "x"}')
    with pytest.raises(FormatError, match="register of releases"):
        run_serially(options)
    (place / ".releases" / "01234567.json").unlink()
    run_serially(options)
    assert [file.suffix for file in (place / ".releases").iterdir()] == [".json"]


def test_earlier__other_records_and_missing_places_are_refused(tmp_path: Path) -> None:
    write_records(str(tmp_path / "records.zarr"), make_records())
    options = make_leaky_options(tmp_path, audit={"earlier": [f"{tmp_path}/none.zarr"]})
    with pytest.raises(StoreError, match="no release"):
        check_stage(options)
    ungated = {"method": {"name": "leace"}, "gate": {"enforce": False}, "audit": {"holdout": 0.5}}
    write_records(str(tmp_path / "other" / "records.zarr"), make_records(2000, seed=9))
    ungated["audit"] = {"adversaries": []}
    run_serially(make_leaky_options(tmp_path / "other", **ungated))
    options = make_leaky_options(tmp_path, audit={"earlier": [f"{tmp_path}/other/release.zarr"]})
    with pytest.raises(OptionError, match="other records"):
        run_serially(options)  # known once the records are: before anything is learned
    state = read_state(options.release.path)
    assert state is not None
    assert state.model_digest is None


@pytest.mark.slow
def test_training__of_another_population_is_a_warning(tmp_path: Path) -> None:
    """The judged records are training records cleaned alike; the release holds others."""
    write_records(str(tmp_path / "training.zarr"), make_records(3000))
    shifted = make_records(2000, seed=8)
    shifted["features"][:, 2] += 3.0
    del shifted["secret"]  # with labels they would be judged themselves
    write_records(str(tmp_path / "records.zarr"), shifted)
    run_serially(
        make_leaky_options(
            tmp_path,
            method={"name": "leace"},
            training={"path": f"{tmp_path}/training.zarr"},
            gate={"enforce": False},
        )
    )
    audit = read_audit(tmp_path, "release")
    assert audit["attacks"]["drift"]["report"]["strongest"]["advantage_lower"] > 0.3
    (warning,) = audit["warnings"]
    assert warning.startswith("Drift: ")
    assert "Drift" in (tmp_path / "release.report" / "report.html").read_text()


def test_key_folder__other_draws_for_these_records_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(str(tmp_path / "records.zarr"), make_records(400))
    run = check_stage(make_leaky_options(tmp_path, gate={"enforce": False}))
    content = run.collection.schema_of_records.partitions[0].digest
    mine, others = (
        KeyEntry("key", KeyBinding(digest, "a" * 64, "b" * 64), "", runs=("01234567", run.run_id))
        for digest in (content, "c" * 64)
    )
    monkeypatch.setattr(audit_attacks, "list_keys", lambda: (mine, others))
    assert audit_attacks.find_other_draws(run, ()) == ("01234567",)
    monkeypatch.setattr(audit_attacks, "list_keys", lambda: (others,))
    assert audit_attacks.find_other_draws(run, ()) == ()
