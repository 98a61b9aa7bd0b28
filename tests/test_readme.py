"""What README says of methods, keys, commands, codes and names is what there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import typer

import privpipe
from privpipe.attacks.adversaries.table import ADVERSARIES
from privpipe.numerics.kinds import MOST_CODES
from privpipe.protocols import Method
from privpipe.sanitizers import METHODS
from privpipe.store.sources.formats import FORMATS
from privpipe_flows.command.app import app
from privpipe_flows.runs.configuration.run_options import RunOptions, read_options

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TEXT = README.read_text()
PLAIN = " ".join(TEXT.split())
HEAD = ["| `[method] name` | promise | source |", "|---|---|---|"]


def write_row(method: Method) -> str:
    return f"| `{method.name}` | {method.promise} | {method.source} |"


def test_readme__lists_the_methods_as_their_rows_do() -> None:
    lines = README.read_text().splitlines()
    start = lines.index(HEAD[0])
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    assert lines[start:end] == [*HEAD, *map(write_row, METHODS.values())]


def find_block(language: str) -> str:
    [found] = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    return str(found)


def test_readme__configures_what_is_read_and_names_every_default_right(tmp_path: Path) -> None:
    config = tmp_path / "my.toml"
    config.write_text(find_block("toml"))
    options = read_options(str(config))
    assert options.method.name == "null_space"
    given = tomllib.loads(config.read_text())
    asked = {("audit", "group"), ("cluster", "workers")}  # chosen by the example, no defaults
    for section in ("release", "cluster", "audit"):
        known = type(getattr(options, section)).model_fields
        for key, value in given[section].items():
            default = known[key].default
            if not known[key].is_required() and (section, key) not in asked:
                assert (tuple(value) if isinstance(value, list) else value) == default, key
    assert set(given) == set(RunOptions.model_fields)


def test_readme__names_every_command_and_no_other() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    known = set(commands)
    assert "Every command takes `--json`" in PLAIN
    for command in commands.values():
        assert any("--json" in option.opts for option in command.params), command.name
    table = TEXT.partition("| command | does |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = {
        name
        for line in table.splitlines()
        for name in re.findall(r"`([a-z-]+)`", line.split("|")[1])
    }
    assert "forget-key" in rows
    shown = set(re.findall(r"privpipe ([a-z][a-z-]+)", TEXT))
    assert rows <= known
    assert shown <= known
    assert rows | shown | {"demo"} == known
    assert "make demo" in TEXT
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:`|^)make ([a-z-]+)", TEXT, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_readme__names_the_exit_codes_as_help_does() -> None:
    [codes] = re.findall(r"Exit codes: (.*?interrupted)\.", PLAIN)
    assert codes in str(app.info.epilog)


def test_readme__names_what_python_has() -> None:
    named = set(re.findall(r"privpipe\.([a-z_]+)", TEXT))
    assert len(named) > 5
    for name in named:
        if not hasattr(privpipe, name):
            __import__(f"privpipe.{name}")
    assert (ROOT / "tests" / "examples" / "python_use.py").is_file()


def test_readme__counts_adversaries_classes_and_formats() -> None:
    assert len(ADVERSARIES) == 11
    assert "eleven adversaries" in PLAIN
    assert f"at most {MOST_CODES} different values" in PLAIN
    for row in FORMATS:
        assert any(ending in TEXT or ending.title().strip(".") in TEXT for ending in row.endings)
