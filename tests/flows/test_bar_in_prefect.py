"""A run's bar on Prefect's page of it, and the way from its report to that page and back."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from privpipe.flows.release_flow import release_collection
from privpipe.pipeline import stage_tasks
from privpipe.pipeline.runs import watch
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.watch import Watch
from privpipe.report.release_page import write_audit_markdown
from privpipe.store.arrays.layout import read_header
from tests.store.serial_run import make_options, serial_flows, write_small_collection

LINK = "http://127.0.0.1:4200/flow-runs/flow-run/0badcafe"
BAR = UUID(int=7)


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    write_small_collection(str(tmp_path / "records.zarr"), n_records=110)
    return make_options(str(tmp_path / "records.zarr"), str(tmp_path / "People_2026.zarr"))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[Any, ...]]]:
    """What Prefect is sent, by name of its function."""
    found = dict[str, list[tuple[Any, ...]]]()

    def take(where: ModuleType, name: str) -> None:
        def note(*given: Any, **named: Any) -> UUID:
            found.setdefault(name, []).append((*given, *named.values()))
            if name == "update_artifact" and len(found[name]) % 2:
                raise ConnectionError("It is away.")
            return BAR

        monkeypatch.setattr(where, name, note, raising=False)

    take(stage_tasks, "emit_event")
    for kind in ("create_progress", "create_markdown"):
        take(stage_tasks.artifacts, f"{kind}_artifact")
    take(stage_tasks, "update_artifact")
    client = SimpleNamespace(update_artifact=vars(stage_tasks)["update_artifact"])
    monkeypatch.setattr(stage_tasks, "get_client", lambda **_: nullcontext(client))
    monkeypatch.setattr(watch, "BEAT_EVERY", 0.02)
    return found


def test_bar__of_a_run_moves_with_its_beats_and_ends_whole(
    options: RunOptions,
    sent: dict[str, list[tuple[Any, ...]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage_tasks, "_in_flow", lambda: True)
    with serial_flows():
        release_collection(options, Watch(link=LINK))
    assert sent["create_progress_artifact"] == [(0.0, "privpipe-progress", "People_2026.zarr")]
    marks, moved = zip(*sent["update_artifact"], strict=True)
    percents, texts = [one.data for one in moved], [one.description for one in moved]
    assert set(marks) == {BAR}
    assert list(percents) == sorted(percents)
    assert percents[-1] == 100.0
    assert "People_2026.zarr: finished, publish" in texts[-1]
    [(page, _)] = sent["create_markdown_artifact"]
    report = tmp_path / "People_2026.report"
    assert f"{report}/report.html" in page
    assert LINK in (report / "report.html").read_text()
    # An address within the house is no business of readers of the release.
    assert "127.0.0.1" not in (report / "public.html").read_text()
    assert "127.0.0.1" not in (report / "officer.html").read_text()
    assert "127.0.0.1" not in json.dumps(read_header(options.release.path, "release"))


def test_bar__of_a_run_outside_prefect_is_none(
    options: RunOptions, sent: dict[str, list[tuple[Any, ...]]], tmp_path: Path
) -> None:
    with serial_flows():
        release_collection(options, Watch())
    assert sent == {}
    report = tmp_path / "People_2026.report"
    assert "prefect" not in json.loads((report / "audit.json").read_text())["about"]


def test_summary__has_no_name_of_a_group(
    sent: dict[str, list[tuple[Any, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of groups are values of records, and Prefect's server is no place for them."""
    findings = json.loads((Path(__file__).parents[1] / "report" / "audit.json").read_text())
    row = findings["adversaries"]["decisions"][0] | {"group": "Smithtown", "of": "town"}
    unknown = [{"group": "Elsewhere", "of": "town", "reason": "fault"}]
    rows = [row | {"n_records": 300}]
    findings["groups"] = {"n_groups": 2, "rows": rows, "utility": [], "unknown": unknown}
    monkeypatch.setattr(stage_tasks, "_in_flow", lambda: True)
    stage_tasks.report_summary("/somewhere", findings)
    [(page, *_)] = sent["create_markdown_artifact"]
    assert "Adversaries" in page or "adversaries" in page
    assert "Smithtown" not in page
    assert "Elsewhere" not in page
    # The report itself, which stays with the operator, names both.
    whole = write_audit_markdown(findings)
    assert "Smithtown" in whole
    assert "Elsewhere" in whole
