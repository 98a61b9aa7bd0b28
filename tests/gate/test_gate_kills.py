"""Killed anywhere between audit and publish, a run shows nothing that no gate let through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from privpipe.errors import GateError
from privpipe.pipeline.runs.approval import approve_release
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.store.access.objects import open_store, read_bytes
from privpipe.store.releases.lazy_release import open_release
from tests.gate.leaky_runs import make_leaky_options, make_records, write_records
from tests.store.serial_run import run_serially


class KilledError(OSError):
    """The process is gone."""


pytestmark = pytest.mark.usefixtures("serially")


@pytest.fixture(params=["file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A file system, and a store without rename."""
    return str(tmp_path) if request.param == "file" else f"memory://{tmp_path.name}"


def leaking(place: str) -> RunOptions:
    options = make_leaky_options(Path("/nowhere"), method={"name": "leace"})
    content = options.model_dump()
    content["method"] = {"name": "leace"}
    content["collection"]["path"] = f"{place}/records.zarr"
    content["release"] |= {"path": f"{place}/release.zarr", "include": ["copy"]}
    return RunOptions(**content)


def is_visible(options: RunOptions) -> bool:
    return read_bytes(open_store(options.release.path, read_only=True), "zarr.json") is not None


def run_killed(options: RunOptions, target: str, *, after: bool = False) -> None:
    """Run, and die before or after the first call of a function."""
    module, _, name = target.rpartition(".")
    with pytest.MonkeyPatch.context() as patch:
        found = getattr(__import__(module, fromlist=[name]), name)

        def dying(*args: Any, **kwargs: Any) -> Any:
            if after:
                found(*args, **kwargs)
            raise KilledError(5, "killed by the test")

        patch.setattr(target, dying)
        with pytest.raises(KilledError):
            run_serially(options)


BEFORE_THE_GATE = [
    ("privpipe.pipeline.stage_tasks.audit_task", False),
    ("privpipe.pipeline.stages.audit.judged_records.distribute_attacks", True),
    ("privpipe.pipeline.stage_tasks.audit_task", True),
    ("privpipe.pipeline.stages.gate.write_case", False),
    ("privpipe.pipeline.stages.gate.write_case", True),
    ("privpipe.pipeline.stages.gate.write_report", False),
    ("privpipe.pipeline.stages.gate.write_report", True),
    ("privpipe.pipeline.stage_tasks.report_gate", True),
    ("privpipe.pipeline.stage_tasks.check_gated", False),
]
BEHIND_THE_GATE = [
    ("privpipe.pipeline.stages.gate.read_approval", True),
    ("privpipe.pipeline.stage_tasks.publish_task", False),
    ("privpipe.pipeline.stages.publish.check_unchanged", False),
    ("privpipe.pipeline.stages.publish.note_release", False),
    ("privpipe.pipeline.stages.publish.note_release", True),
    ("privpipe.pipeline.stages.publish.publish_model", False),
    ("privpipe.pipeline.stages.publish.publish_model", True),
    ("privpipe.pipeline.stages.publish.publish_release", False),
]


@pytest.mark.slow
def test_kill__at_every_boundary_shows_nothing_ungated(place: str) -> None:
    records = make_records(3000)
    write_records(f"{place}/records.zarr", records | {"copy": records["secret"]})
    options = leaking(place)
    for target, after in BEFORE_THE_GATE:
        run_killed(options, target, after=after)
        assert not is_visible(options), target
    with pytest.raises(GateError, match="'secret' leaks"):
        run_serially(options)
    assert not is_visible(options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privpipe.pipeline.runs.approval._write", _die)
        with pytest.raises(KilledError):
            approve_release(options.release.path, "A", "B")
    with pytest.raises(GateError, match="'secret' leaks"):  # an approval that was not finished
        run_serially(options)
    approve_release(options.release.path, "A", "B")
    for target, after in BEHIND_THE_GATE:
        run_killed(options, target, after=after)
        assert not is_visible(options), target
    run_killed(options, "privpipe.pipeline.stages.publish.publish_release", after=True)
    run_serially(options)
    gate = open_release(options.release.path).attrs["privpipe"]["audit"]["gate"]
    assert gate["state"] == "approved"


def _die(*_: Any) -> None:
    raise KilledError(5, "killed by the test")
