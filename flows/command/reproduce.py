"""``privpipe reproduce``: a paper's figure done again, ours beside theirs."""

from __future__ import annotations

import io
import json
import os
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.reproduce.registry import FIGURES, run_reproduction
from flows.reproduce.result import Reproduction
from privpipe.errors import OptionError
from privpipe.store.text import write_file

__all__ = ["list_figures", "reproduce_command"]


def reproduce_command(
    name: str, *, data: str, runs: int, out: str, as_json: bool
) -> dict[str, Any]:
    """Run one figure, or list all of them when no name is given."""
    console = Console(highlight=False, soft_wrap=True)
    if not name:
        if not as_json:
            console.print(list_figures())
        return {
            "figures": [
                {"name": key, "title": figure.title, "paper": figure.paper, "runs": figure.runs}
                for key, figure in FIGURES.items()
            ]
        }
    folder = data or os.environ.get("PRIVPIPE_PAPER_DATA", "")
    needed = name not in FIGURES or FIGURES[name].files
    if needed and not folder:
        raise OptionError(
            "The papers' data sets are not named.",
            remedy="Give their folder with --data, or set PRIVPIPE_PAPER_DATA.",
        )
    found = run_reproduction(name, folder, runs or None)
    if not as_json:
        columns = ["cell", "ours", "lower", "upper", "paper", "verdict", "note"]
        print(found.table[columns].to_markdown(index=False, floatfmt=".3g"))
        console.print("\n".join([f"{found.title} ({found.paper})", *found.notes]), markup=False)
    if out:
        _write(found, out)
        console.print(f"table and figure in {out}")
    content: dict[str, Any] = json.loads(found.to_json())
    return content


def _write(found: Reproduction, folder: str) -> None:
    """JSON, and the figure as PNG and SVG."""
    write_file(f"{folder}/{found.name}.json", found.to_json())
    figure = found.figure()
    for kind in ("png", "svg"):
        content = io.BytesIO()
        figure.savefig(content, format=kind)
        write_file(f"{folder}/{found.name}.{kind}", content.getvalue())


def list_figures() -> Table:
    """All figures by name."""
    table = Table("name", "what", "paper", "runs")
    for name, figure in FIGURES.items():
        table.add_row(name, figure.title, figure.paper, str(figure.runs))
    return table
