"""``python -m flows.reproduce [FIGURE]``: a paper's figure done again, ours beside theirs."""

from __future__ import annotations

import io
import json
import os
from functools import partial
from typing import Annotated, Any

import typer
from rich.table import Table

from flows.reproduce.registry import FIGURES, run_reproduction
from flows.reproduce.result import Reproduction
from privpipe.command import main
from privpipe.errors import OptionError
from privpipe.report.console import say, say_raw, tabulate
from privpipe.store.access.objects import write_file

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="Figure of a paper; none lists all.")] = "",
    data: Annotated[
        str, typer.Option(help="Folder of the data sets; default: PRIVPIPE_PAPER_DATA.")
    ] = "",
    runs: Annotated[int, typer.Option(help="Runs to average; 0: the figure's own number.")] = 0,
    out: Annotated[str, typer.Option(help="Folder for JSON, PNG and SVG.")] = "",
    small: Annotated[
        bool, typer.Option("--small", help="A size that ends within five minutes.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout.")
    ] = False,
) -> dict[str, Any]:
    """Do a paper's figure again: our numbers beside the paper's, a verdict per cell.

    Interrupted, it resumes where it was when it is called again.
    """
    return reproduce_figure(name, data=data, runs=runs, out=out, as_json=as_json, small=small)


def reproduce_figure(
    name: str, *, data: str, runs: int, out: str, as_json: bool, small: bool = False
) -> dict[str, Any]:
    """Run one figure, or list all of them when no name is given."""
    if not name:
        if not as_json:
            say(list_figures())
        return {
            "figures": [
                {
                    "name": key,
                    "title": figure.title,
                    "paper": figure.paper,
                    "runs": figure.runs,
                    "takes": figure.takes,
                    "takes_small": figure.takes_small,
                }
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
    found = run_reproduction(name, folder, runs or None, small=small, say=partial(say, stderr=True))
    if not as_json:
        columns = ["cell", "ours", "lower", "upper", "paper", "verdict", "note"]
        say_raw(found.table[columns].to_markdown(index=False, floatfmt=".3g"))
        say("\n".join([f"{found.title} ({found.paper})", *found.notes]))
    if out:
        _write(found, out)
        say(f"table and figure in {out}")
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
    return tabulate(
        [
            {
                "name": name,
                "what": figure.title,
                "paper": figure.paper,
                "runs": figure.runs,
                "takes": figure.takes,
                "--small takes": figure.takes_small,
            }
            for name, figure in FIGURES.items()
        ]
    )


if __name__ == "__main__":
    main(app)
