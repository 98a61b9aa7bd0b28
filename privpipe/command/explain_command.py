"""``privpipe explain``: the page of an error, by its code."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from privpipe.command.error_catalog import Situation, read_catalog
from privpipe.errors import OptionError
from privpipe.records.schema import suggest
from privpipe.report.console import say, tabulate

EXIT_CODES = {
    0: "a warning: the command goes on",
    2: "command line or configuration",
    3: "data",
    4: "storage",
    5: "cluster or memory",
    6: "guarantee or gate",
    7: "anything else",
    130: "interrupted",
}
"""What an exit code says."""


def explain_command(code: str, *, as_json: bool) -> dict[str, Any]:
    """Say when a code is raised and what to do; without one, list all.

    Raises
    ------
    OptionError
        If there is no such code.
    """
    catalog = read_catalog()
    code = code.removeprefix("error[").removeprefix("warning[").removesuffix("]")
    if code and code not in catalog:
        raise OptionError(
            f"There is no error code {code!r}{suggest(code, catalog)}.",
            remedy="`privpipe explain` lists all of them.",
        )
    chosen = catalog[code] if code else [each[0] for each in catalog.values()]
    if not as_json:
        _show(code, chosen) if code else _list(chosen)
    return {"codes": [asdict(situation) for situation in chosen]}


def _list(situations: list[Situation]) -> None:
    table = tabulate("code", "exit code", "about")
    for situation in situations:
        table.add_row(situation.code, str(situation.exit_code), EXIT_CODES[situation.exit_code])
    say(table, "privpipe explain CODE says when it is raised and what to do.")


def _show(code: str, situations: list[Situation]) -> None:
    for situation in situations[:1]:
        about = EXIT_CODES[situation.exit_code]
        say(f"error[{code}]  exit code {situation.exit_code} ({about})", style="bold")
    for situation in situations:
        kind = "" if situation.kind == "none" else f"   ({situation.kind} in Python)"
        say("", f"  {situation.message}{kind}")
        if situation.remedy:
            say(f"  -> {situation.remedy}", style="green")
