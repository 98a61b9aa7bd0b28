"""The one way to say things on a terminal: text is text, never Rich's markup or a control code.

Paths, names of columns and messages are users' own. ``[b]`` in a path is no tag, ``:smile:`` no
emoji, and an escape sequence is shown (``\\x1b``), not obeyed. Only here is a Rich console made and
anything printed; ruff forbids both elsewhere.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from privpipe.errors import printable

PLAIN = "PRIVPIPE_PLAIN"
"""Environment variable for output as in a log: no colour, no bar, no lines of tables."""


class PlainConsole(Console):
    """A Rich console to which every text is plain, in tables as well.

    Parameters
    ----------
    stderr
        Write to stderr instead of stdout.
    file
        Write there instead.
    """

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None) -> None:
        super().__init__(
            file=file,
            stderr=stderr,
            # All three off: texts are users' own, and Rich would read paths as
            # markup.
            markup=False,
            emoji=False,
            highlight=False,
            soft_wrap=True,
            force_terminal=False if os.environ.get(PLAIN) else None,
        )
        self.soft_wrap = not self.is_terminal  # a terminal would fold within words

    def render_str(self, text: str, **options: Any) -> Text:
        """A text as Rich shows it: every one passes here, cells of tables included."""
        # Callers within Rich pass their own: here they end.
        options |= {"markup": False, "emoji": False}
        return super().render_str(printable(text), **options)


def say(*parts: str | Table, style: str = "", stderr: bool = False) -> None:
    """Print texts and tables, a line each; nothing for people where stdout holds a document.

    Parameters
    ----------
    parts
        What to say.
    style
        Colour of all of it, as Rich names it.
    stderr
        Say it on stderr.
    """
    if not stderr and _serves_program():
        return
    console = PlainConsole(stderr=stderr)
    for part in parts:
        # No frame in a log: lines are read by programs.
        if isinstance(part, Table) and not console.is_terminal:
            part.box = None
        # A table folds to any width; text between words, and not at all in a log.
        folds = console.is_terminal or isinstance(part, Table)
        console.print(part, style=style or None, soft_wrap=not folds)


def say_raw(text: str, *, end: str = "\n", flush: bool = False) -> None:
    """Write a document to stdout as it is, for files and programs; control characters shown."""
    if not _serves_program():
        print(printable(text), end=end, flush=flush, file=sys.stdout)


def _serves_program() -> bool:
    """Whether a command with ``--json`` is at work: `main` has then joined stdout to stderr."""
    return sys.stdout is sys.stderr


def tabulate(rows: Sequence[Mapping[str, object]], *, title: str | None = None) -> Table:
    """A table of rows with the same keys; its cells are plain text, and what is too long folds."""
    columns = [Column(name, overflow="fold") for name in next(iter(rows), {})]
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*map(str, row.values()))
    return table
