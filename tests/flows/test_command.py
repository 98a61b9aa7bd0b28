"""The command: exit codes, messages without tracebacks, what inspect shows and withholds."""

from __future__ import annotations

import json
import re
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privpipe import NullSpaceCleaner, write_model
from privpipe.command import main
from privpipe.errors import PrivacyWarning
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.resume import begin_or_resume
from privpipe.pipeline.stages.check import check_stage
from privpipe.store.access.location import create_bytes
from privpipe.store.access.workspace import (
    RunState,
    hold_workspace,
    read_state,
    workspace_url,
    write_state,
)
from tests.flows.test_pipeline import configure
from tests.standard import write_standard


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["privpipe", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_ingest_then_inspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "s.npz", X=np.eye(7), secret=np.arange(7) == 3)
    assert call(monkeypatch, "ingest", str(tmp_path / "s.npz"), str(tmp_path / "r.zarr")) == 0
    assert call(monkeypatch, "inspect", str(tmp_path / "r.zarr"), "--json") == 0
    content = capsys.readouterr().out
    described = json.loads(content[content.index("\n{") :])
    assert described["n_records"] == 7
    (secret,) = described["variables"]
    assert (secret["name"], secret["dtype"], secret["n_categories"]) == ("secret", "int8", 2)


def test_inspect__describes_a_model_without_its_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cleaner = NullSpaceCleaner.from_predictor(np.array([[0.123456], [7.0]]), utility_budget=0.5)
    write_model(cleaner, str(tmp_path / "model.zarr"))
    assert call(monkeypatch, "inspect", str(tmp_path / "model.zarr")) == 0
    output = capsys.readouterr().out
    assert "utility_bound" in output
    assert "0.123456" not in output


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("run", "missing.toml"), 2, "error[config-file]"),
        (("inspect", "missing.zarr"), 4, "error[not-found]"),
        (("ingest", "missing.npz", "out.zarr"), 4, "cannot be read as .npz"),
        (("ingest", "records.docx", "out.zarr"), 3, "error[source-format]"),
        (("demo", "--records", "1000"), 2, "not whole repeats of 1797"),
    ],
)
def test_failures__have_a_code_and_no_traceback(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "records.docx").write_bytes(b"not a source")
    assert call(monkeypatch, *arguments) == code
    errors = capsys.readouterr().err
    assert expected in errors
    assert "Traceback" not in errors


def test_run__refuses_a_bad_configuration_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_standard(str(tmp_path / "records.zarr"), 50)
    assert call(monkeypatch, "run", configure(tmp_path, include='["party"]')) == 2
    assert "A confidential variable is never released" in capsys.readouterr().err


def test_internal_error__is_sealed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a value of a record")

    monkeypatch.setattr("privpipe.command.inspect_command.inspect_command", fail)
    assert call(monkeypatch, "inspect", "x.zarr") == 7
    errors = capsys.readouterr().err
    assert "RuntimeError at test_command.py" in errors
    assert "a value of a record" not in errors


def test_status_and_purge__of_an_interrupted_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_standard(str(tmp_path / "records.zarr"), 50)
    config, release = configure(tmp_path), str(tmp_path / "release.zarr")
    run = check_stage(read_options(config))
    with hold_workspace(release):
        begin_or_resume(run)
        assert call(monkeypatch, "status", release, "--json") == 0
        content = capsys.readouterr().out
        assert call(monkeypatch, "status", config, "--json") == 0  # what writes it will do
        assert capsys.readouterr().out == content
        assert json.loads(content) == json.loads(content) | {
            "running": True,
            "published": False,
            "run": run.run_id,
            "stage": "check",
        }
        assert call(monkeypatch, "purge", release) == 4
        assert "A run is writing" in capsys.readouterr().err
    assert call(monkeypatch, "status", release) == 0
    assert "interrupted" in capsys.readouterr().out
    state = read_state(release)
    assert state is not None
    write_state(release, replace(state, stage="gate"))
    assert call(monkeypatch, "status", release) == 0
    assert "refused by the gate, or interrupted there" in capsys.readouterr().out
    assert call(monkeypatch, "purge", release) == 0
    assert not (tmp_path / ".release.zarr.privpipe").exists()
    assert call(monkeypatch, "resume", config) == 2


def test_status__of_a_run_in_a_bucket_says_when_it_was_last_heard_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was killed was "running", without a word more, until its lease ended."""
    url = f"memory://{tmp_path.name}/people.zarr"
    write_state(url, RunState("abcdef01", "o", "s", "f", "t", "2026-11-30T07:00:00+00:00"))
    place = f"{workspace_url(url)}/lease/00000000.json"
    assert create_bytes(place, json.dumps({"holder": "x", "expires": time.time() + 40}).encode())
    assert call(monkeypatch, "status", url) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"running (79|80|81) s ago, when it was last heard of", said)
    assert re.search("every 30 s; the lease of one that died ends in (39|40) s. Run abc", said)
    assert call(monkeypatch, "status", url, "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["running"]
    assert content["heard_seconds_ago"] + content["lease_seconds_left"] == 120.0


def test_dry_run__says_what_would_be_written_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_standard(str(tmp_path / "records.zarr"), 150, chunk_rows=64)
    config = configure(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert call(monkeypatch, "run", config, "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["records"], plan["chunks"], plan["tasks"]) == (150, 3, 3)
    assert plan["writes"]["release"] == str(tmp_path / "release.zarr")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_check__says_what_the_budget_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_standard(str(tmp_path / "records.zarr"), 400)
    assert call(monkeypatch, "check", configure(tmp_path)) == 0
    output = capsys.readouterr().out
    assert "of the variance of the target prediction" in output


NULL_SPACE = 'name = "null_space"\nutility_budget = 0.5\nridge = 1e-6'


def check_config(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: str
) -> tuple[int, str]:
    """Exit code and standard error of ``privpipe check``."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", PrivacyWarning)
        code = call(monkeypatch, "check", config)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"confidential": '["height"]'}, "share height: whoever gets the target prediction"),
        (
            {"method": NULL_SPACE.replace("null_space", "null_space_targeted")}
            | {"confidential": '["height"]'},
            "The confidential predictor is a function of the desired one",
        ),
    ],
)
def test_check__warns_in_a_line_and_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str],
    expected: str,
) -> None:
    write_standard(str(tmp_path / "records.zarr"), 200)
    code, told = check_config(monkeypatch, capsys, configure(tmp_path, **changes))
    assert code == 0
    (line,) = [line for line in told.splitlines() if expected in line]
    assert line.startswith("warning[privacy]: ")
    assert ".py" not in told


@pytest.mark.parametrize(
    ("predictor", "code", "expected"),
    [
        (np.ones((4, 1)), 3, "has 4 rows, the records 9 features"),
        (np.zeros((9, 1)), 3, "is zero: it predicts the same for every record"),
        (np.full((9, 2), np.nan), 3, "holds 18 of 18 values that are not finite"),
        (np.ones((9, 1, 1)), 3, "has shape (9, 1, 1)"),
        (np.eye(9, 12), 0, "determine the whole record"),
        (None, 4, "cannot be read"),
    ],
)
def test_check__says_what_is_wrong_with_a_predictor(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    predictor: np.ndarray | None,
    code: int,
    expected: str,
) -> None:
    write_standard(str(tmp_path / "records.zarr"), 200)
    path = tmp_path / "ally.npy"
    if predictor is None:
        path.write_bytes(b"not an array")
    else:
        np.save(path, predictor)
    config = configure(tmp_path, method=f'{NULL_SPACE}\npredictor = "{path}"')
    found, told = check_config(monkeypatch, capsys, config)
    assert found == code
    assert expected in told
