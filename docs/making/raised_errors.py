"""Every error raised on purpose, by its code, read from where it is raised.

``python -m docs.making.raised_errors`` writes ``errors.json``, which `privpipe explain` reads. A
module that raises a new code has documented it. Names of what a message fills in have angle
brackets.
"""

from __future__ import annotations

import ast
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import privpipe
from privpipe import errors
from privpipe.command.error_catalog import CATALOG, Situation
from privpipe.pipeline.stages.gate import REMEDIES

RAISED = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.PrivpipeError)
}


COMPLAINT = "Complaint"
"""What the gate objects to in a release; the first one's code is the error's."""

TRIED_REMEDY = (
    "Where the message names next.toml beside the report, run that: it was tried. Where it says "
    "that nothing would pass, or how many records are needed, no option of this method helps. "
    "`privpipe suggest` tries before a run; `privpipe approve` publishes once, overridden."
)


def _list_elsewhere() -> Iterator[Situation]:
    """What is not raised by its code: verdicts, warnings, and what the command itself says."""
    usual = {"exit_code": 6, "kind": "GateError"}
    situations = Path(__file__).with_name("situations.toml").read_text("utf-8")
    for code, said in tomllib.loads(situations).items():
        yield Situation(code, **usual | {"remedy": REMEDIES.get(code, TRIED_REMEDY)} | said)
    for kind in errors.PrivpipeWarning.__subclasses__():
        yield Situation(kind.code, 0, kind.__name__, f"A warning: {kind.__doc__}", kind.remedy)


def find_catalog() -> dict[str, list[Situation]]:
    """All codes in alphabetical order, each with what is said where it is raised."""
    found: dict[str, set[Situation]] = {}
    # The source as installed: what is listed is what this version raises.
    paths = Path(str(privpipe.__file__)).parent.rglob("*.py")
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    shared = _find_shared(trees)
    for tree in trees:
        for situation in _find_situations(tree, shared):
            found.setdefault(situation.code, set()).add(situation)
    for situation in _list_elsewhere():
        found.setdefault(situation.code, set()).add(situation)
    return {code: sorted(found[code]) for code in sorted(found)}


def _find_shared(trees: Sequence[ast.Module]) -> dict[str, ast.expr]:
    """Sentences in capitals that one module has for others, by name."""
    found: dict[str, ast.expr] = {}
    for node in (one for tree in trees for one in tree.body if isinstance(one, ast.Assign)):
        [name, *_] = [one.id for one in node.targets if isinstance(one, ast.Name)] or [""]
        if name.isupper() and " " in _write_text(node.value):
            found[name] = node.value
    return found


def _write_text(node: ast.expr) -> str:
    """What a text says, without what it fills in; nothing of what is no text."""
    if not isinstance(node, ast.Constant | ast.JoinedStr):
        return ""
    parts = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
    return "".join(part for part in parts if isinstance(part, str))


class _Constants(ast.NodeTransformer):
    """Puts texts and numbers that have a name where the name is used."""

    def __init__(self, tree: ast.AST, shared: Mapping[str, ast.expr]) -> None:
        self.shared = shared
        found: dict[str, list[ast.Assign]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for name in (one.id for one in node.targets if isinstance(one, ast.Name)):
                    found.setdefault(name, []).append(node)
        # What is assigned twice is one thing here and another there.
        once = {name: nodes[0].value for name, nodes in found.items() if len(nodes) == 1}
        self.known = {name: one for name, one in once.items() if isinstance(one, ast.Constant)}
        # But for a message and a remedy, which have their names on the lines before the error.
        named = [(name, one) for name in ("problem", "remedy") for one in found.get(name, ())]
        self.said = {(name, one.end_lineno, one.col_offset): one.value for name, one in named}
        self.column = 0

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.stmt):
            self.column = node.col_offset
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        line = node.lineno - 1
        # The remedy is in between.
        line -= node.id == "problem" and ("remedy", line, self.column) in self.said
        said = self.said.get((node.id, line, self.column), node)
        return self.known.get(node.id, self._share(node.id, said))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._share(node.attr, node)

    def _share(self, name: str, node: ast.expr) -> ast.expr:
        return self.visit(deepcopy(self.shared[name])) if name in self.shared else node


def _find_situations(tree: ast.AST, shared: Mapping[str, ast.expr]) -> Iterator[Situation]:
    for node in ast.walk(_Constants(tree, shared).visit(tree)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == COMPLAINT and isinstance(node.args[0], ast.Constant):
            code = str(node.args[0].value)
            remedy = REMEDIES.get(code, TRIED_REMEDY)
            yield Situation(code, 6, "GateError", _write(node.args[1]), remedy)
        # A class, or a choice between two.
        called = {one.id for one in ast.walk(node.func) if isinstance(one, ast.Name)}
        for kind in called & RAISED.keys():
            yield from _describe(node, RAISED[kind], node.args[0])
        # A function that raises for others is given the class, and then the message.
        for given, message in itertools.pairwise(node.args):
            if isinstance(given, ast.Name) and given.id in RAISED:
                yield from _describe(node, RAISED[given.id], message)


def _describe(
    node: ast.Call, kind: type[errors.PrivpipeError], text: ast.expr
) -> Iterator[Situation]:
    said = {item.arg: item.value for item in node.keywords}
    message, remedy = _write(text), _write(said.get("remedy"))
    for code in _list_codes(said.get("code"), kind):
        yield Situation(code, kind.exit_code, kind.__name__, message, remedy)


def _list_codes(node: ast.expr | None, kind: type[errors.PrivpipeError]) -> list[str]:
    """A code as it is written; the class's own where there is none, or where it is computed."""
    # A choice between two codes documents both.
    found = [one for one in ast.walk(node or ast.Constant(None)) if isinstance(one, ast.Constant)]
    return [one.value for one in found if isinstance(one.value, str)] or [kind.default_code]


def _write(node: ast.expr | None) -> str:
    """A message as people read it."""
    return " ".join(_fill(node).split())


def _fill(node: ast.expr | None) -> str:
    match node:
        case None:
            return ""
        case ast.Constant(value=str() | int() | float() as value):
            return f"{value:,}" if type(value) is int else str(value)
        case ast.JoinedStr(values=parts):
            return "".join(map(_fill, parts))
        case ast.FormattedValue(value=value):
            return _fill(value)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _fill(left) + _fill(right)
        case ast.IfExp(body=body):
            return _fill(body)
    said = [one for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute)]
    names = [one.id if isinstance(one, ast.Name) else one.attr for one in said]
    plain = [name.strip("_") for name in names if name not in HELPERS]
    return f"<{plain[0].replace('_', ' ')}>" if plain else "…"


HELPERS = (
    *("shown", "join", "sorted", "map", "str", "len", "repr", "type", "max", "min", "suggest"),
    *("quote", "rstrip", "fromkeys", "round_in", "describe"),
)
"""Functions that write what is filled in."""


def write_catalog() -> str:
    """The catalog as JSON, one code after the other."""
    found = {code: [asdict(one) for one in all_of] for code, all_of in find_catalog().items()}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    CATALOG.write_text(write_catalog(), encoding="utf-8")
