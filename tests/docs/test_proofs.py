"""Each guarantee has a page that proves it, which names tests and functions that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from docs.making.method_pages import PROVED, find_proof, write_method_pages
from privpipe.sanitizers import METHODS

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("privpipe/numerics/*/PROOF.md"))


def list_names(folder: Path) -> set[str]:
    """Functions, classes, parameters and fields defined below a folder."""
    found = set[str]()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
            elif isinstance(node, ast.Assign):
                found |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_proof__says_what_is_assumed_proved_and_held_by_which_test(page: Path) -> None:
    text = page.read_text()
    for word in ("**Statement", "**Assumptions.**", "held by"):
        assert word in text
    tests = re.findall(r"`(tests/[^`]+)`", text)
    assert tests
    assert all((ROOT / one).exists() for one in tests), tests


@pytest.fixture(scope="module")
def known() -> set[str]:
    return list_names(ROOT / "privpipe")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_proof__names_functions_that_there_are(page: Path, known: set[str]) -> None:
    named = re.findall(r"`([a-z]+(?:_[a-z0-9]+)+|[A-Z][A-Za-z]+\.[a-z_]+)`", page.read_text())
    assert named
    assert not [one for one in named if one.rpartition(".")[2] not in known]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return write_method_pages(ROOT / "docs" / "methods" / "bodies")


@pytest.mark.parametrize("name", PROVED)
def test_method__links_its_proof(name: str, pages: dict[str, str]) -> None:
    proof = f"proof_{find_proof(name)}.md"
    assert proof in pages[f"methods/{name}.md"]
    assert f"methods/{proof}" in pages


def test_method__that_promises_a_number_has_a_proof_or_measures() -> None:
    for name, method in METHODS.items():
        measured = method.promise.startswith("none in advance") or name == "leace"
        assert measured or name in PROVED, name
