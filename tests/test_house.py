"""The house as CONTRIBUTING.md draws it is the house that stands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.measures import (
    MOST_FLOORS,
    Module,
    count_floors,
    list_rooms,
    measure_house,
    measure_options,
    read_house,
)

ROOT = Path(__file__).parent.parent
WINGS = ("null_space", "minimax", "mapping", "noise", "masking")


def read_rows() -> list[list[str]]:
    """Cells of every table row of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names_in(cell: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", cell))


@pytest.mark.parametrize("floor", ["sanitizers", "numerics"])
def test_house__wings_and_shared_rooms_are_those_of_the_table(floor: str) -> None:
    (row,) = [r for r in read_rows() if r[0] == f"`privpipe/{floor}`" and len(r) > 3]
    assert set().union(*map(names_in, row[1:])) == list_rooms(ROOT / "privpipe" / floor)


def test_house__every_floor_and_every_room_of_it_stands_in_the_table() -> None:
    rows = {row[0].strip("`"): row for row in read_rows() if len(row) == 3}
    floors = {f"privpipe/{path.parent.name}" for path in ROOT.glob("privpipe/*/__init__.py")}
    assert set(rows) == floors | {"flows"}
    for floor, row in rows.items():
        packages = {path.parent.name for path in (ROOT / floor).glob("*/__init__.py")}
        named = names_in(re.sub(r"\(.*?\)", "", row[2]))  # rooms of rooms stand in brackets
        assert named == (set() if "wings" in row[2] else packages), floor


def read_imports(file: Path) -> Iterator[str]:
    """Full names of what a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_house__holds_its_bounds() -> None:
    """All that `make measures` counts without a run; floors and circles of every folder.

    In one test: the house is read once, and not by every process that collects tests.
    """
    house = read_house()
    measures = [*measure_house(house), *measure_options()]
    broken = [measure.describe() for measure in measures if not measure.holds]
    assert len(measures) > 10
    assert not broken, f"folders of more floors: {list_tall(house)}"


def list_tall(house: list[Module]) -> list[str]:
    return [
        str(folder.relative_to(ROOT))
        for folder in {one.path.parent for one in house}
        if folder != ROOT / "privpipe" and count_floors(folder, house) > MOST_FLOORS
    ]


def test_house__what_is_installed_does_not_import_what_is_not() -> None:
    files = [*(ROOT / "privpipe").rglob("*.py"), *(ROOT / "privpipe_flows").rglob("*.py")]
    wrong = {
        str(path)
        for path in files
        for name in read_imports(path)
        if name == "flows" or name.startswith(("flows.", "privpipe_flows"))
    }
    assert not wrong


def test_house__every_wing_says_where_to_start_reading() -> None:
    for floor in ("numerics", "sanitizers"):
        for wing in list_rooms(ROOT / "privpipe" / floor) & set(WINGS):
            text = (ROOT / "privpipe" / floor / wing / "__init__.py").read_text()
            assert "Start reading at" in text, f"{floor}/{wing}"


def test_house__a_name_of_a_module_stands_once() -> None:
    files = [
        path
        for top in ("privpipe", "flows")
        for path in (ROOT / top).rglob("*.py")
        if path.name != "__init__.py"
    ]
    deployed = {"release.py", "increment.py", "backfill.py"}  # named as the flow that each imports
    names = [path.name for path in files if path.parent != ROOT / "flows"]
    twice = {name for name in names if names.count(name) > 1}
    assert {path.name for path in (ROOT / "flows").glob("*.py")} == deployed | {"__init__.py"}
    assert not twice


def test_house__the_page_of_the_spine_names_functions_where_they_are() -> None:
    """From the command to a released byte, each step where the page says that it stands."""
    page = ROOT / "privpipe" / "pipeline" / "DESIGN.md"
    steps = re.findall(r"^\d+\. \[`(\w+)`\]\((.+?)\)", page.read_text(), flags=re.MULTILINE)
    assert len(steps) > 10
    for name, place in steps:
        tree = ast.parse((page.parent / place).read_text())
        functions = {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}
        assert name in functions, f"{name} is not in {place}"
