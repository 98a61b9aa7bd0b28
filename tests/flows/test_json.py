"""What machines read: one JSON document on stdout whatever happens, and the results of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from privpipe.command import main
from privpipe.command.app import app
from privpipe.command.demo_command import prepare_demo
from privpipe.command.output import printing_to_stderr
from privpipe.errors import GuaranteeError
from privpipe.flows.release_flow import release_collection
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages.check import check_stage
from tests.flows.test_pipeline import configure
from tests.standard import write_standard
from tests.store.releases.test_export import make_release
from tests.store.serial_run import make_options, serial_flows, write_small_collection

Ask = Callable[..., tuple[int, Any]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run the command with --json; returns exit code and the whole of stdout, read as JSON."""

    def run(*arguments: object) -> tuple[int, Any]:
        monkeypatch.setattr("sys.argv", ["privpipe", *map(str, arguments), "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), json.loads(capsys.readouterr().out)

    return run


def test_json__every_command_has_it() -> None:
    for command in app.registered_commands:
        assert command.callback is not None
        assert "as_json" in command.callback.__annotations__, command.callback.__name__


def test_json__of_the_commands_around_a_run(tmp_path: Path, ask: Ask) -> None:
    records, release = tmp_path / "records.zarr", tmp_path / "r.release.zarr"
    np.savez(tmp_path / "s.npz", X=np.eye(7), secret=np.arange(7) == 3)
    code, found = ask("ingest", tmp_path / "s.npz", tmp_path / "s.zarr")
    assert (code, found["n_records"]) == (0, 7)
    write_standard(str(records), 400)
    code, found = ask("init", records, tmp_path / "p.toml", "--desired", "height")
    assert (code, found["complete"]) == (0, True)
    code, found = ask("check", tmp_path / "p.toml")
    assert (code, found["collection"]["n_records"]) == (0, 400)
    assert found["budget"]["share"] == pytest.approx(0.01, rel=0.06)
    code, found = ask("run", tmp_path / "p.toml", "--dry-run")
    assert (code, found["records"]) == (0, 400)
    code, found = ask("status", tmp_path / "records.release.zarr")
    assert (code, found["published"]) == (0, False)
    code, found = ask("purge", tmp_path / "p.toml")  # nothing of it is begun
    assert (code, found["removed"]) == (0, False)
    make_release(release)
    code, found = ask("inspect", release, "--verify")
    assert (code, found["verified"]) == (0, True)
    code, found = ask("export", release, tmp_path / "r.parquet")
    assert (code, found["n_records"]) == (0, 23)
    assert ask("schema")[1]["type"] == "object"
    assert ask("forget-key")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (("run", "missing.toml"), 2, "config-file"),
        (("inspect", "missing.zarr"), 4, "not-found"),
        (("ingest", "records.docx", "out.zarr"), 3, "source-format"),
        (("check",), 2, "usage"),
        (("frobnicate",), 2, "usage"),
        (("run", "x.toml", "--frob"), 2, "usage"),
        (("demo", "--records", "many"), 2, "usage"),
        (("check", "x.toml", "--cost-of", "nan"), 2, "usage"),
        (("check", "x.toml", "--price", "-3"), 2, "usage"),
        (("check", "x.toml", "--score", "1e400"), 2, "usage"),
    ],
)
def test_json__of_a_failure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ask: Ask,
    arguments: tuple[str, ...],
    code: int,
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "records.docx").write_bytes(b"not a source")
    ended, found = ask(*arguments)
    assert (ended, found["error"]["exit_code"], found["error"]["code"]) == (code, code, name)
    assert found["error"]["message"]
    assert found["error"]["remedy"]


def test_json__of_an_interrupted_command(monkeypatch: pytest.MonkeyPatch, ask: Ask) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("privpipe.command.inspect_command.inspect_command", stop)
    code, found = ask("inspect", "x.zarr")
    assert (code, found["error"]["code"]) == (130, "interrupted")


def test_printing_to_stderr__also_catches_child_processes() -> None:
    """In a process of its own: here stdout belongs to pytest."""
    script = (
        "import os, subprocess, sys\n"
        "from privpipe.command.output import printing_to_stderr\n"
        "with printing_to_stderr():\n"
        "    print('noise'); os.write(1, b'noise'); subprocess.run(['echo', 'noise'])\n"
        "print('answer')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "answer\n"
    assert done.stderr.count("noise") == 3
    assert printing_to_stderr.__doc__


def test_print_document__who_stops_reading_gets_no_traceback() -> None:
    script = (
        "import sys; from privpipe.command.output import print_document\n"
        "sys.stdin.read(); print_document(['x'] * 100_000)"
    )
    command = [sys.executable, "-c", script]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stdin is not None
    process.stdin.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0


def read_results(folder: Path) -> dict[str, Any]:
    content = (folder / "release.report" / "run_results.json").read_text()
    return dict(json.loads(content))


def test_run_results__of_a_failed_check(tmp_path: Path, ask: Ask) -> None:
    write_standard(str(tmp_path / "records.zarr"), 50)
    code, found = ask("run", configure(tmp_path, desired='["hight"]'))
    assert (code, found["error"]["code"]) == (3, "missing-variable")
    results = read_results(tmp_path)
    assert results["outcome"] == "failed"
    assert (results["error"]["stage"], results["error"]["exit_code"]) == ("check", 3)


def test_run_results__are_not_written_into_the_source(tmp_path: Path, ask: Ask) -> None:
    write_standard(str(tmp_path / "records.zarr"), 50)
    before = sorted(os.listdir(tmp_path / "records.zarr"))
    code, found = ask("run", configure(tmp_path, release=str(tmp_path / "records.zarr" / "r.zarr")))
    assert (code, found["error"]["code"]) == (2, "output-inside-input")
    assert sorted(os.listdir(tmp_path / "records.zarr")) == before


@pytest.mark.parametrize("stage", ["train", "clean", "audit", "publish"])
@pytest.mark.parametrize("how", [GuaranteeError, ValueError, KeyboardInterrupt])
def test_run_results__of_a_failure_in_any_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, how: type[BaseException]
) -> None:
    write_small_collection(str(tmp_path / "records.zarr"))
    options = make_options(str(tmp_path / "records.zarr"), str(tmp_path / "release.zarr"))

    def fail(*_: object) -> None:
        raise how("a value of a record")

    with serial_flows(), monkeypatch.context() as patch:
        patch.setattr(f"privpipe.pipeline.stage_tasks.{stage}_task", fail)
        with pytest.raises(how):
            release_collection(options, Watch())
    results = read_results(tmp_path)
    before = ("check", "train", "clean", "audit", "gate", "publish")
    done = [item["stage"] for item in results["stages"]]
    assert done == list(before[: before.index(stage)])
    if how is KeyboardInterrupt:
        assert (results["outcome"], results["error"]) == ("interrupted", None)
        return
    assert results["outcome"] == "failed"
    assert results["error"]["stage"] == stage
    assert results["error"]["exit_code"] == (6 if how is GuaranteeError else 7)
    if how is ValueError:
        assert "a value of a record" not in json.dumps(results)


def test_schema__accepts_what_demo_and_init_write(tmp_path: Path, ask: Ask) -> None:
    schema = ask("schema")[1]
    jsonschema.Draft202012Validator.check_schema(schema)
    write_standard(str(tmp_path / "records.zarr"), 100)
    more = ("--desired", "height", "--confidential", "party")
    ask("init", tmp_path / "records.zarr", tmp_path / "init.toml", *more)
    demo = prepare_demo(str(tmp_path / "demo"), 1797, 2)
    for path in (demo, tmp_path / "init.toml"):
        content = tomllib.loads(Path(path).read_text())
        jsonschema.validate(content, schema, cls=jsonschema.Draft202012Validator)
        content["release"]["pth"] = "x"
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(content, schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("method", ["null_space", "leace", "minimax", "privacy_lds"])
def test_init__is_accepted_unchanged(tmp_path: Path, ask: Ask, method: str) -> None:
    write_standard(str(tmp_path / "records.zarr"), 400)
    more = ("--desired", "late", "--confidential", "party", "--method", method)
    code, found = ask("init", tmp_path / "records.zarr", tmp_path / "p.toml", *more)
    assert (code, found["complete"]) == (0, True)
    assert check_stage(read_options(str(tmp_path / "p.toml"))).method.name == method
    assert ask("check", tmp_path / "p.toml")[0] == 0


def test_init__marks_what_nobody_else_can_decide(tmp_path: Path, ask: Ask) -> None:
    write_standard(str(tmp_path / "records.zarr"), 100)
    code, found = ask("init", tmp_path / "records.zarr", tmp_path / "p.toml")
    assert (code, found["complete"]) == (0, False)
    marked = [line for line in found["text"].splitlines() if line.endswith("[FILL IN]")]
    assert marked == ["desired = [FILL IN]", "confidential = [FILL IN]"]
