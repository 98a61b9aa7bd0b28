"""README's table of methods says what the rows of the table of methods say."""

from __future__ import annotations

from pathlib import Path

from privpipe.protocols import Method
from privpipe.sanitizers import METHODS

README = Path(__file__).parent.parent / "README.md"
HEAD = ["| `[method] name` | promise | source |", "|---|---|---|"]


def write_row(method: Method) -> str:
    return f"| `{method.name}` | {method.promise} | {method.source} |"


def test_readme__lists_the_methods_as_their_rows_do() -> None:
    lines = README.read_text().splitlines()
    start = lines.index(HEAD[0])
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    assert lines[start:end] == [*HEAD, *map(write_row, METHODS.values())]
