"""A person is withdrawn between two releases: what the two say together is no more than her row."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.errors import GateError
from privpipe.flows.release_flow import release_collection
from privpipe.pipeline.runs.watch import Watch
from privpipe.records.sampling import make_split
from privpipe.report.console import PlainConsole
from privpipe.store.releases.lazy_release import open_release
from tests.gate.leaky_runs import make_leaky_options, make_records, write_records
from tests.store.serial_run import run_serially

UNGATED = {"gate": {"enforce": False}, "audit": {"adversaries": []}}


pytestmark = pytest.mark.usefixtures("serially")


@pytest.fixture
def records(tmp_path: Path) -> dict[str, np.ndarray]:
    """Records whose last one is in the fit, in two collections: with her and without."""
    found = make_records(1200)
    n = int(np.flatnonzero(_is_fitted(1200))[-1]) + 1
    found = {name: values[:n] for name, values in found.items()}
    fewer = {name: values[:-1] for name, values in found.items()}
    write_records(str(tmp_path / "all" / "records.zarr"), found)
    write_records(str(tmp_path / "less" / "records.zarr"), fewer)
    return found


def _is_fitted(n_records: int) -> np.ndarray:
    """The split is public."""
    return make_split(0.5).keep("fit", np.arange(n_records))


def release(folder: Path, **given: Any) -> tuple[np.ndarray, dict[str, Any]]:
    run_serially(make_leaky_options(folder, **{**UNGATED, **given}))
    place = given.get("release", {}).get("path", str(folder / "release.zarr"))
    opened = open_release(place)
    return opened.features.values, dict(opened.attrs["privpipe"])


def read_gate(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "release.report" / "audit.json").read_text())
    return dict(found["gate"])


def reconstruct(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    fitted = _is_fitted(len(before))
    return np.asarray(before[fitted].sum(axis=0) - after[fitted[:-1]].sum(axis=0))


@pytest.mark.parametrize("method", ["leace", "null_space"])
def test_withdrawal__tells_no_raw_record(
    tmp_path: Path, records: dict[str, np.ndarray], method: str
) -> None:
    given: dict[str, Any] = {"method": {"name": method}}
    if method == "null_space":
        given["method"] |= {"utility_budget": 0.0, "ridge": 0.01}
    before, first = release(tmp_path / "all", **given)
    after, second = release(tmp_path / "less", **given)
    assert first["model_digest"] == second["model_digest"]
    np.testing.assert_array_equal(before[:-1], after)
    np.testing.assert_allclose(reconstruct(before, after), before[-1], atol=1e-9)
    assert np.abs(reconstruct(before, after) - records["features"][-1]).max() > 0.1
    assert "difference" not in {one["code"] for one in read_gate(tmp_path / "less")["complaints"]}
    # The attack is one: with two models her raw record is the difference of two sums.
    anew: dict[str, Any] = {"audit": {"adversaries": [], "disowned": [first["run"]]}}
    for leftover in (tmp_path / "less").glob("release.*"):
        shutil.rmtree(leftover)
    after, second = release(tmp_path / "less", **given, **anew)
    assert first["model_digest"] != second["model_digest"]
    assert np.abs(reconstruct(before, after) - records["features"][-1]).max() < 1e-6
    assert any("disowned" in one for one in read_gate(tmp_path / "less")["weaker"])


def test_run__says_that_the_model_is_an_earlier_one(
    tmp_path: Path, records: dict[str, np.ndarray]
) -> None:
    """Its promise is of what that learned from: of another survey it was said of these."""
    del records
    for name, is_again in (("all", False), ("less", True)):
        options = make_leaky_options(tmp_path / name, **UNGATED, method={"name": "leace"})
        said = io.StringIO()
        release_collection(options, Watch(PlainConsole(file=said)))
        assert (
            "An earlier release's is used again" in " ".join(said.getvalue().split())
        ) is is_again


def test_run__of_other_people_learns_anew_once_the_earlier_release_is_disowned(
    tmp_path: Path,
) -> None:
    """As a refusal advised: it went on with the first survey's model, and published its promise."""
    for k, name in enumerate("ab"):
        found = make_records(1200, seed=k)
        found["features"] = np.sign(found["features"][:, :4])
        write_records(str(tmp_path / name / "records.zarr"), found)
    _, first = release(tmp_path / "a", method={"name": "leace"})
    with pytest.raises(GateError):
        run_serially(make_leaky_options(tmp_path / "b", method={"name": "leace"}))
    disowned: dict[str, Any] = {"adversaries": [], "disowned": [first["run"]]}
    _, second = release(tmp_path / "b", method={"name": "leace"}, audit=disowned)
    assert first["model_digest"] != second["model_digest"]


def list_complaints(folder: Path) -> dict[str, str]:
    return {one["code"]: one["reason"] for one in read_gate(folder)["complaints"]}


def test_gate__is_closed_where_two_models_differ_by_a_record(
    tmp_path: Path, records: dict[str, np.ndarray]
) -> None:
    """Another budget needs another model."""
    del records
    release(tmp_path / "all", method={"name": "leace"})
    other = {"name": "null_space", "utility_budget": 0.5, "ridge": 0.01}
    release(tmp_path / "less", method=other)
    complaint = list_complaints(tmp_path / "less")["difference"]
    # An estimate of a sketch whose key is drawn: all but one of 600 records, to its own accuracy.
    assert re.search(r"another model, learned from records of which up to (0\.99\d*|1) ", complaint)


def test_gate__names_releases_of_equal_profiles_once_and_believes_that_people_are_others(
    tmp_path: Path,
) -> None:
    """Surveys with the same questions: whether the same people answered is not in the records."""
    runs = []
    for k, name in enumerate("abcde"):
        folder = tmp_path / name
        found = make_records(1200, seed=k)
        found["features"] = np.sign(found["features"][:, :4])
        write_records(str(folder / "records.zarr"), found)
        method = {"name": "null_space", "utility_budget": k / 10, "ridge": 0.01}
        disowned = {"adversaries": [], "disowned": runs}
        _, header = release(folder, method=method, **({"audit": disowned} if name == "e" else {}))
        runs.append(header["run"])
    (said,) = [
        one for one in read_gate(tmp_path / "d")["complaints"] if one["code"] == "difference"
    ]
    assert all(said["reason"].count(f"null_space {run}") == 1 for run in runs[:3])
    assert "Then name each run in [audit] disowned" in said["reason"]
    assert not [
        one for one in read_gate(tmp_path / "e")["complaints"] if one["code"] == "difference"
    ]


def test_gate__is_closed_where_a_sketch_is_lost(
    tmp_path: Path, records: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    del records
    monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(tmp_path / "account"))
    _, first = release(tmp_path / "all", method={"name": "leace"})
    shutil.rmtree(tmp_path / "account" / ".records")
    release(tmp_path / "less", method={"name": "leace"})
    complaint = list_complaints(tmp_path / "less")["difference"]
    assert f"records of the release leace {first['run']} have no sketch" in complaint


def test_moved_release__has_its_model_used_again_once_it_is_named(
    tmp_path: Path, records: dict[str, np.ndarray]
) -> None:
    del records
    before, first = release(tmp_path / "all", method={"name": "leace"})
    shutil.move(tmp_path / "all", tmp_path / "moved")
    release(tmp_path / "less", method={"name": "leace"})
    assert "difference" in list_complaints(tmp_path / "less")
    disowned: dict[str, Any] = {"adversaries": [], "disowned": [first["run"]]}
    release(
        tmp_path / "less",
        method={"name": "leace"},
        audit=disowned,
        release={"path": str(tmp_path / "own" / "release.zarr")},
    )
    found = json.loads((tmp_path / "own" / "release.report" / "audit.json").read_text())
    assert found["differences"] == []
    for leftover in (tmp_path / "less").glob("release.*"):
        shutil.rmtree(leftover)
    named = {"adversaries": [], "earlier": [str(tmp_path / "moved" / "release.zarr")]}
    after, second = release(tmp_path / "less", method={"name": "leace"}, audit=named)
    assert first["model_digest"] == second["model_digest"]
    np.testing.assert_array_equal(before[:-1], after)


def test_audit__joins_the_rows_of_a_release_of_nearly_these_records(tmp_path: Path) -> None:
    """Every value is changed a little, a record is taken out, and a partition is cut elsewhere."""
    from privpipe.pipeline.runs.earlier import find_earlier
    from privpipe.pipeline.stages.check import check_stage

    records = make_records(600)
    write_records(str(tmp_path / "first" / "records.zarr"), records, cuts=(200,))
    released, _ = release(tmp_path / "first", method={"name": "leace"})
    fewer = {name: np.delete(values, 7, axis=0) for name, values in records.items()}
    fewer["features"] = fewer["features"] + 1e-9
    write_records(str(tmp_path / "next" / "records.zarr"), fewer, cuts=(410,))
    release(tmp_path / "next", method={"name": "leace"})
    options = make_leaky_options(
        tmp_path / "next", **UNGATED, release={"path": f"{tmp_path}/third.zarr"}
    )
    by_source = {one.rows is None: one for one in find_earlier(check_stage(options)).releases}
    joined = by_source[False].read(0, 599)
    np.testing.assert_array_equal(joined, np.delete(released, 7, axis=0))
