"""One bad chunk or partition among many is named and closes the gate, end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.cleaning_pass import CleaningJob, clean_chunks
from privpipe.errors import GateError
from privpipe.pipeline.runs.resume import begin_or_resume
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.audit.audit_places import audit_places
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.clean import clean_stage, plan_release
from privpipe.pipeline.stages.gate import judge_findings
from privpipe.pipeline.stages.train import train_stage
from privpipe.store.access.workspace import hold_workspace, workspace_url
from tests.gate.leaky_runs import CHUNK_ROWS, make_leaky_options, make_records, write_records
from tests.store.serial_run import run_serially

N_CHUNKS = 12


pytestmark = pytest.mark.usefixtures("serially")


def write_leaking(folder: Path, rows: slice, cuts: tuple[int, ...] = ()) -> RunOptions:
    """An included variable that is the secret in some rows, and else has nothing to do with it."""
    records = make_records(N_CHUNKS * CHUNK_ROWS)
    records["other"][rows] = records["secret"][rows]
    write_records(str(folder / "records.zarr"), records, cuts=cuts)
    more: dict[str, Any] = {"release": {"include": ["other"]}, "method": {"name": "leace"}}
    return make_leaky_options(folder, **more)


def look(options: RunOptions) -> dict[str, Any]:
    """The places of a run that stops before its attacks."""
    run, executor = check_stage(options), Executor()
    with hold_workspace(run.release_url):
        run, _ = begin_or_resume(run)
        trained = train_stage(run, executor)
        plan = plan_release(run, trained)
        clean_stage(run, trained, plan, executor)
        return audit_places(run, trained, plan)


@pytest.mark.slow
def test_gate__names_the_chunk_that_reveals_more(tmp_path: Path) -> None:
    options = write_leaking(tmp_path, slice(7000, 8000))
    with pytest.raises(GateError) as caught:
        run_serially(options)
    assert "In chunk 7 (records 7,000 to 7,999) the variable 'other' reveals 'secret'" in str(
        caught.value
    )
    assert not (tmp_path / "release.zarr").exists()
    report = tmp_path / "release.report"
    found = json.loads((report / "audit.json").read_text())
    assert [one["code"] for one in found["gate"]["complaints"]] == ["place"]  # all else is in order
    for page in ("audit.md", "report.html"):
        text = (report / page).read_text()
        assert "chunk 7 (records 7,000 to 7,999)" in text.replace("\\", "")
        assert "12 chunks" in text
    assert "chunk 7" not in (report / "public.html").read_text()


def test_audit_places__names_a_partition_whose_chunks_are_full_of_others(tmp_path: Path) -> None:
    """Of each chunk that the partition touches it has a part."""
    options = write_leaking(tmp_path, slice(3600, 4200), cuts=(3600, 4200, 9000))
    found = look(options)
    assert found["places"][0]["place"] == "partition 'part-3600'"
    assert found["places"][0]["advantage"] > 0.95
    codes = [one.code for one in judge_findings(_as_findings(found), options.gate)]
    assert "place" in codes


@pytest.mark.slow
def test_audit_places__finds_small_chunks_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight chunks of ten records are enough; one is not, and that is said."""
    monkeypatch.setattr("tests.gate.leaky_runs.CHUNK_ROWS", 10)
    records = make_records(2000)
    rows = slice(320, 480)
    records["other"][rows] = records["secret"][rows]
    write_records(str(tmp_path / "records.zarr"), records)
    more: dict[str, Any] = {"release": {"include": ["other"]}, "gate": {"enforce": False}}
    found = look(make_leaky_options(tmp_path, **more))
    assert {one["place"] for one in found["places"]} >= {"chunks 32 to 39 together"}
    assert found["blind"] == {"secret": 200}


def test_audit_places__accuses_nothing_that_is_sound(tmp_path: Path) -> None:
    options = write_leaking(tmp_path, slice(0, 0), cuts=(3600, 9000))
    found = look(options)
    assert (found["status"], found["places"], found["n_found"]) == ("measured", [], 0)
    assert found["blind"] == {"secret": 0}
    assert not list(judge_findings(_as_findings(found), options.gate))


def _as_findings(places: dict[str, Any]) -> dict[str, Any]:
    adversaries = {"verdict": "safe", "decisions": [], "reason": ""}
    return {"adversaries": adversaries, "desired": {}, "places": places}


def test_clean_stage__makes_sums_that_are_missing_again(tmp_path: Path) -> None:
    options = write_leaking(tmp_path, slice(7000, 8000))
    first = look(options)
    folder = Path(workspace_url(options.release.path)) / "places"
    lost, damaged, *_ = sorted(folder.iterdir())
    lost.unlink()
    damaged.write_bytes(b"nothing" + damaged.read_bytes())
    assert look(options) == first


def test_audit_places__without_its_sums_is_unknown_and_closes_the_gate(tmp_path: Path) -> None:
    options = write_leaking(tmp_path, slice(0, 0))
    run, executor = check_stage(options), Executor()
    with hold_workspace(run.release_url):
        run, _ = begin_or_resume(run)
        trained = train_stage(run, executor)
        plan = plan_release(run, trained)
        clean_stage(run, trained, plan, executor)
        sorted((Path(workspace_url(options.release.path)) / "places").iterdir())[3].unlink()
        found = audit_places(run, trained, plan)
    assert found["status"] == "unknown"
    complaints = judge_findings(_as_findings(found), options.gate)
    assert [one.code for one in complaints] == ["place"]


def test_clean_chunks__sums_the_same_whoever_has_which_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tasks, as of another cluster: the same places, bit for bit."""
    options = write_leaking(tmp_path, slice(7000, 8000))
    first = look(options)
    folder = Path(workspace_url(options.release.path)) / "places"
    for one in [*folder.iterdir(), *(folder.parent / "ledger").iterdir()]:
        one.unlink()

    def one_by_one(job: CleaningJob, chunks: list[int]) -> list[Any]:
        return [receipt for chunk in reversed(chunks) for receipt in clean_chunks(job, [chunk])]

    monkeypatch.setattr("privpipe.cluster.passes.cleaning_pass.clean_chunks", one_by_one)
    assert look(options) == first
    assert len(list(folder.iterdir())) == N_CHUNKS


def test_audit_places__says_what_was_not_looked_at(tmp_path: Path) -> None:
    """The released records have no label of their own: nothing is known of any place."""
    records = make_records(3000)
    write_records(str(tmp_path / "labelled.zarr"), records)
    del records["secret"]
    write_records(str(tmp_path / "records.zarr"), records)
    options = make_leaky_options(tmp_path, training={"path": str(tmp_path / "labelled.zarr")})
    found = look(options)
    assert found["status"] == "none"
    assert found["not_looked"] == ["secret"]
    assert not list(judge_findings(_as_findings(found), options.gate))


def test_clean_stage__looks_at_who_is_withheld(tmp_path: Path) -> None:
    """A withheld row that tells the secret, in one chunk."""
    records = make_records(N_CHUNKS * CHUNK_ROWS)
    rows = slice(5000, 6000)
    records["features"][rows][records["secret"][rows] == 1, 3] = np.nan
    write_records(str(tmp_path / "records.zarr"), records)
    found = look(make_leaky_options(tmp_path, release={"nonfinite": "withhold"}))
    assert found["places"][0]["place"].startswith("chunk 5 ")
    assert found["places"][0]["column"] == "the variable 'released'"
