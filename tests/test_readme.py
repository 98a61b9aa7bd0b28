"""What README says of commands, codes, names and files is what there is, in two screens."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import typer

import privpipe
from privpipe.attacks.adversaries.table import ADVERSARIES
from privpipe.sanitizers import METHODS
from privpipe.store.sources.formats import FORMATS
from privpipe_flows.command.app import app
from privpipe_flows.command.explain_command import EXIT_CODES

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TEXT = README.read_text()
PLAIN = " ".join(TEXT.split())

SCREEN = 45
"""Lines of a screen."""


def list_commands() -> dict[str, object]:
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_readme__is_two_screens() -> None:
    assert len(TEXT.splitlines()) <= 2 * SCREEN


def test_readme__shows_commands_and_options_that_there_are() -> None:
    commands = list_commands()
    [shown] = re.findall(r"```\n(\. \.venv.*?)```", TEXT, re.DOTALL)
    lines = re.findall(r"(?m)^privpipe ([a-z-]+)(.*?)(?:#.*)?$", shown)
    assert [name for name, _ in lines] == ["ingest", "init", "check", "run", "open"]
    for name, rest in lines:
        known = {option for item in commands[name].params for option in item.opts}  # type: ignore[attr-defined]
        assert set(re.findall(r"--[a-z-]+", rest)) <= known, name
    assert set(re.findall(r"privpipe ([a-z][a-z-]+)", TEXT)) <= set(commands)
    assert "Every command has `--help` and takes `--json`" in PLAIN
    for name, command in commands.items():
        assert any("--json" in item.opts for item in command.params), name  # type: ignore[attr-defined]


def test_readme__names_targets_of_make_and_files_that_there_are() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"(?:`|^)make ([a-z-]+)", TEXT, re.MULTILINE)
    assert {"demo", "test", "docs", "dist"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for place in re.findall(r"\]\(([^)]+)\)", TEXT):
        assert (ROOT / place).is_file(), place


def test_readme__names_the_exit_codes_as_help_does() -> None:
    [codes] = re.findall(r"Exit codes: (.*?interrupted)\.", PLAIN)
    assert codes in str(app.info.epilog)
    assert {int(code) for code in re.findall(r"\d+", codes)} == set(EXIT_CODES)


def test_readme__python_works_and_prints_a_guarantee(capsys: pytest.CaptureFixture[str]) -> None:
    [program] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    x = np.random.default_rng(0).normal(size=(200, 4))
    exec(program, {"x": x, "y": x[:, 0] - x[:, 1]})
    assert "utility_bound" in capsys.readouterr().out
    for name in re.findall(r"privpipe\.([a-zA-Z_]+)\(", TEXT):
        assert hasattr(privpipe, name)


def test_readme__lists_the_methods_as_their_rows_do() -> None:
    head = "| `[method] name` | promise | source |\n|---|---|---|\n"
    rows = [f"| `{one.name}` | {one.promise} | {one.source} |" for one in METHODS.values()]
    assert TEXT.partition(head)[2].partition("\n\n")[0].splitlines() == rows


def test_readme__counts_adversaries_and_formats() -> None:
    assert len(ADVERSARIES) == 11
    assert "eleven adversaries" in PLAIN
    for row in FORMATS:
        assert any(ending in TEXT or ending.title().strip(".") in TEXT for ending in row.endings)
