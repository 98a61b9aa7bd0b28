"""``python -m tests.measures``: how large the house is, each count beside its bound.

Ends with 1 where a count is beyond its bound. Code lines are those that hold a token which is no
comment and no docstring; reproductions of the papers, which are not installed, are not counted.
"""

from __future__ import annotations

import ast
import io
import os
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import FrameType
from typing import Any

from tests.words import find_words

ROOT = Path(__file__).parent.parent
PLAIN = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
"""Tokens that are no code."""

MOST_ROOMS = 15
MOST_FLOORS = 3
MOST_CODE_LINES = 45_000  # the rebuilt house had 39,997; what was added since has this much room
AUDIT_CALLS = {"audit_stage", "gate_stage", "write_report", "report_summary"}
"""Calls of a run that it would do without if nothing were judged."""

AUDIT_ROOMS = (
    "privpipe/attacks",
    "privpipe/report",
    "privpipe/pipeline/stages/audit",
    "privpipe/pipeline/stages/gate",
    "privpipe/cluster/passes/place_pass",
)
"""What the cleaning sums up and the publication says for the audit alone."""


@dataclass(frozen=True)
class Measure:
    """A count and its bound.

    Parameters
    ----------
    name
        What is counted.
    found
        How many there are.
    bound
        How many there may be, or must be where `least`.
    least
        Whether the bound is the least that is wanted.
    """

    name: str
    found: float
    bound: float
    least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the count is within its bound."""
        return self.found >= self.bound if self.least else self.found <= self.bound

    def describe(self) -> str:
        """One line."""
        within = "at least" if self.least else "at most"
        mark = "" if self.holds else "   beyond"
        return f"{self.name:52s}{self.found:9,.4g}   {within} {self.bound:,.4g}{mark}"


@dataclass(frozen=True)
class Module:
    """A file, read once."""

    path: Path
    tree: ast.Module
    code: frozenset[int]
    comments: int
    imports: tuple[str, ...]
    """Full names of what it imports, anywhere in it."""

    @classmethod
    def read(cls, path: Path) -> Module:
        """Lines of code, and how many comments there are."""
        text = path.read_text()
        tree = ast.parse(text)
        lines, comments = set[int](), 0
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            comments += token.type == tokenize.COMMENT
            if token.type not in PLAIN:
                lines.update(range(token.start[0], token.end[0] + 1))
        code = frozenset(lines - set(_list_prose(tree)))
        return cls(path, tree, code, comments, tuple(_list_imports(tree)))

    @property
    def name(self) -> str:
        """As it is imported."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def count_heads(self) -> int:
        """Lines of imports and of ``__all__``."""
        return sum(
            len(self.code & set(_span(node)))
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Import | ast.ImportFrom) or _is_all(node)
        )


def _list_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _span(node: ast.AST) -> range:
    assert isinstance(node, ast.stmt | ast.expr)
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _is_all(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(one, ast.Name) and one.id == "__all__" for one in node.targets
    )


def _list_prose(tree: ast.Module) -> Iterator[int]:
    """Lines of docstrings, of constants and fields too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield from _span(node)


def read_house() -> list[Module]:
    """What is installed, and the deployed flows."""
    files = [*(ROOT / "privpipe").rglob("*.py"), *(ROOT / "flows").glob("*.py")]
    return [Module.read(path) for path in sorted(files)]


def measure_house(house: list[Module]) -> list[Measure]:
    """All counts."""
    n_code = sum(len(one.code) for one in house)
    folders = sorted({one.path.parent for one in house})
    floors = {
        folder: count_floors(folder, house) for folder in folders if folder.name != "privpipe"
    }
    rooms = {folder: len(list_rooms(folder)) for folder in folders if folder.name != "privpipe"}
    heads = sum(one.count_heads() for one in house)
    links = [path for path in ROOT.glob("*") if path.is_symlink()]
    return [
        Measure("code lines", n_code, MOST_CODE_LINES),
        Measure("modules", len(house), 400),
        Measure("folders", len(folders), 45),
        Measure("folders of more than 3 floors, or with a circle", _beyond(floors, MOST_FLOORS), 0),
        Measure("folders of more than 15 entries", _beyond(rooms, MOST_ROOMS), 0),
        Measure("symbolic links", len(links), 0),
        Measure("imports and __all__, share of the code", heads / n_code, 0.1),
        Measure("names of modules that two have", _count_twice(one.path.stem for one in house), 0),
        Measure("names of public classes that two have", _count_twice(_list_classes(house)), 0),
        Measure("words that only we use", sum(map(len, find_words().values())), 0),
        Measure("comments per 1,000 code lines", _count_comments(house) / n_code * 1000, 40, True),
    ]


def measure_options() -> list[Measure]:
    """Names that a user may set, each counted once, and what a method's row holds."""
    from privpipe.pipeline.runs.run_options import RunOptions
    from privpipe.protocols import Method
    from privpipe.sanitizers import METHODS

    of_methods = {one.name for method in METHODS.values() for one in fields(method.options)}
    sections = (part.annotation for part in RunOptions.model_fields.values())
    of_runs = {name for part in sections for name in _list_options(part)}
    return [
        Measure("names of options of methods", len(of_methods), 75),
        Measure("names of options of a run", len(of_runs), 35),
        Measure("fields of a method's row", len(fields(Method)), 12),
    ]


def _list_options(section: Any) -> Iterator[str]:
    known: Mapping[str, Any] | None = getattr(section, "model_fields", None)
    if known is not None:
        yield from known
    elif hasattr(section, "__dataclass_fields__"):
        yield from (one.name for one in fields(section))


def measure_run(house: list[Module]) -> list[Measure]:
    """Code lines of the functions that a run without audit enters, its training included.

    The run is the real one in one thread, so that all of it is seen; what is imported only then is
    entered once before. What only the audit, the gate and their report enter is left out.
    """
    with tempfile.TemporaryDirectory(prefix="privpipe-measures-") as folder:
        os.environ["PRIVPIPE_ACCOUNT"] = str(Path(folder) / "account")
        for name in ("warm", "seen"):
            entered = _run_traced(Path(folder) / name)
    lines = sum(
        len(
            module.code
            & {
                line
                for node in ast.walk(module.tree)
                if isinstance(node, ast.FunctionDef)
                and (str(module.path), min(_span(node)[0], *_decorated(node))) in entered
                for line in _span(node)
            }
        )
        for module in house
        if not str(module.path.relative_to(ROOT)).startswith(AUDIT_ROOMS)
    )
    return [Measure("lines of functions that a run without audit enters", lines, 2_500)]


def _decorated(node: ast.FunctionDef) -> Iterator[int]:
    """Where a function begins for Python: at its first decorator."""
    yield node.lineno
    yield from (one.lineno for one in node.decorator_list)


def _run_traced(folder: Path) -> set[tuple[str, int]]:
    """File and first line of every function that was entered."""
    from tests.store.serial_run import (
        make_options,
        run_serially,
        serial_flows,
        write_small_collection,
    )

    source, entered = str(folder / "records.zarr"), set[tuple[str, int]]()
    write_small_collection(source)
    n_audits = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal n_audits
        if frame.f_code.co_name in AUDIT_CALLS and event in ("call", "return"):
            n_audits += 1 if event == "call" else -1
        elif event == "call" and not n_audits:
            entered.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    with serial_flows():
        sys.setprofile(note)
        try:
            run_serially(make_options(source, str(folder / "release.zarr")))
        finally:
            sys.setprofile(None)
    return entered


def list_rooms(folder: Path) -> set[str]:
    """Packages and modules of a folder."""
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    return packages | {path.stem for path in folder.glob("*.py")} - {"__init__"}


def count_floors(folder: Path, house: list[Module]) -> int:
    """The longest way down among the entries of a folder; 99 where there is a circle."""
    package, rooms = ".".join(folder.relative_to(ROOT).parts), list_rooms(folder)
    below: dict[str, set[str]] = {room: set() for room in rooms}
    for module in house:
        if module.name.startswith(f"{package}.") and folder in module.path.parents:
            room = module.path.relative_to(folder).with_suffix("").parts[0]
            if room in rooms:
                names = (name for name in module.imports if name.startswith(f"{package}."))
                found = {name.removeprefix(f"{package}.").split(".")[0] for name in names}
                below[room] |= found & rooms - {room}
    height: dict[str, int] = {}
    try:
        for room in TopologicalSorter(below).static_order():
            height[room] = 1 + max((height[other] for other in below[room]), default=0)
    except CycleError:
        return 99
    return max(height.values(), default=1)


def _beyond(counts: dict[Path, int], most: int) -> int:
    return sum(count > most for count in counts.values())


def _count_twice(names: Iterator[str]) -> int:
    return sum(count > 1 for name, count in Counter(names).items() if name != "__init__")


def _list_classes(house: list[Module]) -> Iterator[str]:
    for module in house:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name


def _count_comments(house: list[Module]) -> int:
    return sum(one.comments for one in house)


def main() -> int:
    house = read_house()
    found = [*measure_house(house), *measure_options(), *measure_run(house)]
    for measure in found:
        print(measure.describe())
    if "--folders" in sys.argv:
        for folder in sorted({one.path.parent for one in house}):
            lines = sum(len(one.code) for one in house if one.path.parent == folder)
            floors, rooms = count_floors(folder, house), len(list_rooms(folder))
            print(f"{folder.relative_to(ROOT)!s:56s}{lines:7,} {floors:3d} floors {rooms:3d} rooms")
    return 0 if all(measure.holds for measure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
