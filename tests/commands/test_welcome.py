"""Commands for the first hour: version, help in whole sentences, explain, open, completion."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import privpipe
from privpipe.command import main
from privpipe.command.app import COMMANDS, KINDS, app
from privpipe.command.error_catalog import read_catalog
from privpipe.command.report_command import open_command

COMMAND = "from privpipe.command import main; main()"


def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["privpipe", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    said = capsys.readouterr()
    return int(caught.value.code or 0), said.out + said.err


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, capsys, "--version") == (0, f"privpipe {privpipe.__version__}\n")


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_help__cuts_no_sentence_and_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, said = call(monkeypatch, capsys, "--help")
    assert code == 0
    assert "..." not in said.replace("[ARGS]...", "")
    assert max(map(len, said.splitlines())) <= int(columns)
    flat = " ".join(said.split())
    assert "check, train, clean, audit, gate, publish" in flat
    for command in app.registered_commands:
        told = str(command.callback.__doc__).partition("\n\n")[0]
        assert " ".join(told.split()) in flat
    assert flat.index("Start:") < flat.index("Run:") < flat.index("Look and share:")


def test_commands__name_functions_that_take_their_options() -> None:
    """No type checker sees these calls."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert commands.keys() == COMMANDS.keys()
    known = KINDS.keys() | {"default", "required", "none", "name", "min", "max", "complete"}
    for name, about in COMMANDS.items():
        assert all(one.keys() <= known for one in about.get("options", {}).values()), name
        module, _, function = about["calls"].partition(":")
        work = getattr(importlib.import_module(f"privpipe.command.{module}"), function)
        given = {item.name: None for item in commands[name].params if item.name != "as_json"}
        inspect.signature(work).bind(**given)


@pytest.mark.slow
def test_explain__says_when_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = call(monkeypatch, capsys, "explain", "error[rank]")
    assert code == 0
    assert "exit code 3 (data)" in said
    assert "ridge" in said
    code, said = call(monkeypatch, capsys, "explain", "rnak")
    assert code == 2
    assert "did you mean 'rank'" in said
    code, said = call(monkeypatch, capsys, "explain", "--json")
    assert {one["code"] for one in json.loads(said)["codes"]} == set(read_catalog())


def test_open__says_where_the_report_is_when_there_is_no_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release = str(tmp_path / "a.zarr")
    code, said = call(monkeypatch, capsys, "open", release)
    assert code == 4
    assert "privpipe report RELEASE" in said
    (tmp_path / "a.report").mkdir()
    (tmp_path / "a.report" / "report.html").write_text("<p>x</p>")
    monkeypatch.setattr("privpipe.command.report_command._has_window", lambda: False)
    assert open_command(release, public=False)["opened"] is False
    assert "a.report/report.html" in capsys.readouterr().out


@pytest.mark.slow
def test_open__opens_the_report_in_the_browser_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.report").mkdir()
    (tmp_path / "a.report" / "report.html").write_text("<p>x</p>")
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    program = (
        "from privpipe.command.report_command import open_command;"
        f"open_command({str(tmp_path / 'a.zarr')!r}, public=False)"
    )
    environment = {**os.environ, "BROWSER": f"{browser} %s"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert (tmp_path / "opened").read_text().strip().endswith("a.report/report.html")


SHELLS = {
    "bash": {"_PRIVPIPE_COMPLETE": "complete_bash", "COMP_WORDS": "privpipe ", "COMP_CWORD": "1"},
    "zsh": {"_PRIVPIPE_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "privpipe "},
    "fish": {
        "_PRIVPIPE_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": "privpipe ",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    },
}


def complete(shell: str, words: str) -> list[str]:
    """What the command answers to a shell's own completion."""
    asked = {k: v.replace("privpipe ", f"privpipe {words}") for k, v in SHELLS[shell].items()}
    asked["COMP_CWORD"] = str(len(words.split()) + words.endswith(" "))
    program = "import sys; sys.argv = ['privpipe']; " + COMMAND
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split()


@pytest.mark.parametrize("shell", SHELLS)
def test_completion__knows_commands(shell: str) -> None:
    assert any("inspect" in word for word in complete(shell, "ins"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_completion__works_in_bash_itself(tmp_path: Path) -> None:
    """The script that `--show-completion` prints, sourced by a real bash."""
    command = tmp_path / "privpipe"
    program = f"import sys; sys.argv[0] = 'privpipe'; {COMMAND}"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{program}" "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(privpipe --show-completion bash)"; COMP_WORDS=(privpipe explain fill); '
        'COMP_CWORD=2; _privpipe_completion privpipe fill explain; echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**environment, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "fill-in" in done.stdout, done.stderr
