"""A run that leaks, as Prefect and the shell see it: failed, with its sentence, exit code 6."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from privpipe.flows.release_flow import run_pipeline
from tests.gate.leaky_runs import make_records, write_records


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A release that includes a copy of the secret, and a gate that is enforced."""
    monkeypatch.delenv("PRIVPIPE_GATE__ENFORCE")
    records = make_records(3000)
    write_records(str(tmp_path / "records.zarr"), records | {"copy": records["secret"]})
    (tmp_path / "run.toml").write_text(
        f'[collection]\npath = "{tmp_path}/records.zarr"\ndesired = ["wanted"]\n'
        'confidential = ["secret"]\n[method]\nname = "leace"\n'
        f'[release]\npath = "{tmp_path}/release.zarr"\ninclude = ["copy"]\n'
        '[audit]\nholdout = 0.5\nadversaries = ["least_squares", "naive_bayes"]\n'
        "[gate]\nconfidential_advantage_max = 0.2\nexposed_max = 0.1\n[cluster]\nworkers = 0\n"
    )
    return str(tmp_path / "run.toml")


@pytest.mark.slow
def test_run__that_leaks_fails_with_its_sentence(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "privpipe.pipeline.stage_tasks.emit_event", lambda **event: told.append(event)
    )
    pages: list[str] = []
    monkeypatch.setattr(
        "privpipe.pipeline.stage_tasks.artifacts.create_markdown_artifact",
        lambda page, key: pages.append(page),
    )
    state = run_pipeline(config, return_state=True)
    assert state.is_failed()
    assert "'secret' leaks" in str(state.message)
    assert ["'secret' leaks" in page for page in pages] == [True], "why, on the run's page"
    (event,) = told
    assert event["event"] == "privpipe.gate"
    assert event["payload"]["state"] == "failed"
    assert "'secret' leaks" in event["payload"]["sentence"]
    report = tmp_path / "release.report"
    results = json.loads((report / "run_results.json").read_text())
    assert (results["outcome"], results["error"]["exit_code"]) == ("failed", 6)
    assert results["error"]["stage"] == "gate"
    assert not (tmp_path / "release.zarr").exists()
    assert 'class="banner line leaks"' in (report / "report.html").read_text()
    assert "banner line leaks" in (report / "public.html").read_text()
