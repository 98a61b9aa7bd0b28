"""Every public name, command, key, method and error code is documented: counted, not believed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import privpipe
from docs.making.commands import list_commands, write_commands
from docs.making.configuration import list_keys, write_configuration
from docs.making.figures import DRAWN
from docs.making.links import find_problems
from docs.making.method_pages import write_method_pages
from docs.making.option_ranges import write_ranges
from docs.making.pages import write_errors, write_public_names
from docs.making.raised_errors import write_catalog
from privpipe.command.error_catalog import CATALOG, read_catalog
from privpipe.pipeline.runs.first_look import RANGES
from privpipe.report.audit_text import ABOUT
from privpipe.sanitizers import METHODS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_public_names__each_has_a_place_in_the_reference() -> None:
    page = write_public_names()
    for name in privpipe.__all__:
        if name != "__version__":
            assert re.search(rf"\.\. auto(function|class):: privpipe\.{name}$", page, re.M), name
    assert "privpipe.__version__" in page


def test_commands__each_option_is_described() -> None:
    page = write_commands()
    sections = dict(re.findall(r"## `privpipe ([a-z-]+)`\n(.*?)(?=\n## |\Z)", page, re.S))
    commands = list_commands()
    assert set(sections) == set(commands)
    for name, command in commands.items():
        assert len(sections[name].splitlines()[1]) > 10
        for item in command.params:
            shown = item.name.upper() if item.param_type_name == "argument" else item.opts[0]
            row = next(line for line in sections[name].splitlines() if f"`{shown}" in line)
            assert len(row.rstrip("| ").rpartition("|")[2]) > 5, (name, shown)


def test_configuration__each_key_has_a_meaning() -> None:
    page = write_configuration()
    for section, keys in list_keys().items():
        _, _, method = section.partition(".")
        head = f'### `name = "{method}"`' if method else f"## `[{section}]`"
        body = re.split(r"\n#{2,3} ", page.partition(head)[2])[0]
        for key in keys:
            if method and key == "name":
                continue
            row = next(line for line in body.splitlines() if line.startswith(f"| `{key}` |"))
            assert len(re.split(r"(?<!\\)\|", row)[-2].strip()) > 5, (section, key)


def test_methods__each_has_a_page_with_its_promise_and_a_figure() -> None:
    pages = write_method_pages(DOCS / "methods" / "bodies")
    for name, method in METHODS.items():
        page = pages[f"methods/{name}.md"]
        assert method.promise in page
        assert method.source in page
        body = DOCS / "methods" / "bodies" / f"{name}.md"
        if body.exists():
            assert name in DRAWN
            for heading in ("## What it promises", "## How", "## When not to use it"):
                assert heading in page, (name, heading)
    named = {path.stem for path in (DOCS / "methods" / "bodies").glob("*.md")}
    assert named <= set(METHODS), "a page of a method that is gone"


def list_written_codes() -> set[str]:
    """What follows ``code=``, without the catalog's own parser; heads of classes raise nothing."""
    files = set((ROOT / "privpipe").rglob("*.py")) - {ROOT / "privpipe" / "errors.py"}
    pattern = re.compile(r"\bcode=\"([\w-]+)\"")
    return {code for path in files for code in pattern.findall(path.read_text())}


def test_error_codes__the_list_is_that_of_the_code() -> None:
    assert CATALOG.read_text("utf-8") == write_catalog(), "run `make errors`"


def test_ranges__are_those_of_the_declarations() -> None:
    assert RANGES.read_text("utf-8") == write_ranges(), "run `make errors`"


def test_error_codes__each_is_in_the_catalog_and_on_the_page() -> None:
    catalog, page = read_catalog(), write_errors()
    assert len(catalog) > 100
    assert list_written_codes() - {"usage"} <= set(catalog)
    for code, situations in catalog.items():
        assert f"## `{code}`" in page
        assert all(one.message for one in situations), code
    # A message that has a name, on the line before, is the message, not its name.
    assert "The lease on <work url> was lost to another run." in {
        one.message for one in catalog["busy"]
    }


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ('<a href="nowhere.html">x</a>', "is not there"),
        ('<a href="#nowhere">x</a>', "has no such place"),
        ('<script src="https://example.org/x.js"></script>', "from a network"),
        ('<p id="here"><a href="#here">x</a><a href="https://example.org">y</a></p>', ""),
    ],
)
def test_links__what_leads_nowhere_is_found(tmp_path: Path, page: str, problem: str) -> None:
    (tmp_path / "index.html").write_text(page)
    found = find_problems(tmp_path)
    assert bool(found) == bool(problem)
    assert not found or problem in found[0]


PROSE = [
    ROOT / "SECURITY.md",
    ROOT / "CONTRIBUTING.md",
    *DOCS.glob("*.md"),
    *DOCS.glob("howto/*.md"),
    *DOCS.glob("explanation/*.md"),
    *DOCS.glob("methods/bodies/*.md"),
]
"""Written by hand; other pages are made from the code."""


@pytest.mark.slow
def test_prose__names_commands_options_and_keys_that_there_are() -> None:
    commands, keys = list_commands(), {key for known in list_keys().values() for key in known}
    for path in PROSE:
        text = path.read_text()
        for name, rest in re.findall(r"[`$] ?privpipe ([a-z][a-z-]+)([^`\n]*)", text):
            assert name in commands, (path.name, name)
            known = {option for item in commands[name].params for option in item.opts}
            assert set(re.findall(r"--[a-z][a-z-]+", rest)) <= known | {"--help"}, (path.name, name)
        for section, key in re.findall(r"`\[([a-z]+)\] ([a-z_]+)", text):
            known = ABOUT if section == "about" else list_keys().get(section, keys)
            assert key in known, (path.name, section, key)


def test_tutorials__name_commands_and_options_that_there_are() -> None:
    commands = list_commands()
    for path in (DOCS / "tutorials").glob("*.py"):
        calls = re.findall(r"shell\(\s*((?:f?\"[^\"]*\"\s*)+)", path.read_text())
        assert len(calls) >= 3
        for call in calls:
            line = "".join(re.findall(r'"([^"]*)"', call))
            _, name, *rest = line.split()
            known = {option for item in commands[name].params for option in item.opts}
            assert {word for word in rest if word.startswith("--")} <= known, line
