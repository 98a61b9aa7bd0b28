"""The page of ``privpipe --help``: commands under headings, each with its whole first sentence."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

START, RUN, LOOK, OTHER = "Start", "Run", "Look and share", "More"
"""Headings in their order; commands that name none come last."""

FIRST = ("demo", "ingest", "init", "check", "run")
"""Commands in the order in which they are needed; others as they are written."""


class HeadedCommands(TyperGroup):
    """Commands under the panels that they name.

    What is usual is one list, whose sentences end in dots where the terminal does.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a heading per panel; sentences fold to the width of the terminal."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in sorted(self.commands, key=_place):
            command = self.commands[name]
            panel = getattr(command, "rich_help_panel", None)
            told = (command.help or "").strip().partition("\n\n")[0]
            heading = panel if panel in (START, RUN, LOOK) else OTHER
            panels.setdefault(heading, []).append((name, " ".join(told.split())))
        widest = max(len(name) for name in self.commands)
        for heading in (START, RUN, LOOK, OTHER):
            with formatter.section(heading):
                rows = [(name.ljust(widest), told) for name, told in panels[heading]]
                formatter.write_dl(rows)


def _place(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)
