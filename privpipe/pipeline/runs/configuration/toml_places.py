"""Where a key stands in a TOML text: line and column, for error messages.

tomllib keeps no positions. This looks for ``[table]`` headers and bare or quoted keys at the
start of a line, which is how configurations are written; inside multi-line values it may miss.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_HEADER = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""^(\s*)(["']?)([A-Za-z0-9_.\-]+)\2\s*=""")


def find_place(text: str, names: Sequence[str]) -> tuple[int, int] | None:
    """Line and column, from 1, of a key by its path; of the nearest table around it otherwise.

    >>> find_place("[method]\\nname = 1\\n  budgte = 2\\n", ["method", "budgte"])
    (3, 3)
    >>> find_place("[method]\\n", ["method", "missing"])
    (1, 1)
    """
    best: tuple[int, int] | None = None
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = header.group(1).split(".")
            if list(names[: len(table)]) == table:
                best = best or (number, line.index("[") + 1)
        elif (key := _KEY.match(line)) and [*table, *key.group(3).split(".")] == list(names):
            return number, len(key.group(1)) + 1
    return best
