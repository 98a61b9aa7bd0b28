"""``privpipe explain``: every error raised on purpose, by its code, as ``errors.json`` lists them.

The list is written by ``make errors``, from where errors are raised. Names of what a message fills
in have angle brackets.
"""

import json
import re
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from privpipe.errors import OptionError
from privpipe.records.schema import suggest
from privpipe.report.console import say, tabulate

CATALOG = Path(__file__).with_name("errors.json")
"""All situations by code."""


@dataclass(frozen=True, order=True)
class Situation:
    """One place where a code is raised.

    Parameters
    ----------
    code
        The stable name, as in ``error[CODE]``.
    exit_code
        Of the command that fails with it.
    kind
        The class that Python sees.
    message, remedy
        What is said, with names in angle brackets for what is filled in.
    """

    code: str
    exit_code: int
    kind: str
    message: str
    remedy: str


_HELP = tomllib.loads(Path(__file__).with_name("help.toml").read_text("utf-8"))

EXIT_CODES = {int(code): text for code, text in _HELP["exit_codes"].items()}
"""What an exit code says."""


def read_catalog() -> dict[str, list[Situation]]:
    """All codes in alphabetical order, each with what is said where it is raised."""
    found = json.loads(CATALOG.read_text("utf-8"))
    return {code: [Situation(**one) for one in all_of] for code, all_of in found.items()}


def explain_command(code: str) -> dict[str, Any]:
    """Say when a code is raised and what to do; without one, list all.

    Raises
    ------
    OptionError
        If there is no such code.
    """
    catalog = read_catalog()
    code = code.removeprefix("error[").removeprefix("warning[").removesuffix("]")
    if code and code not in catalog:
        problem = f"There is no error code {code!r}{suggest(code, catalog)}"
        raise OptionError(problem, remedy="`privpipe explain` lists all of them.")
    chosen = catalog[code] if code else [each[0] for each in catalog.values()]
    if code:
        _show(code, chosen)
    else:
        rows = [
            {"code": one.code, "exit code": one.exit_code, "about": EXIT_CODES[one.exit_code]}
            for one in chosen
        ]
        say(tabulate(rows), "privpipe explain CODE says when it is raised and what to do.")
    return {"codes": [asdict(situation) for situation in chosen]}


def _show(code: str, situations: list[Situation]) -> None:
    number = situations[0].exit_code
    say(f"error[{code}]  exit code {number} ({EXIT_CODES[number]})", style="bold")
    for situation in situations:
        kind = "" if situation.kind == "none" else f"   ({situation.kind} in Python)"
        say("", f"  {situation.message}{kind}")
        if not re.fullmatch("(<[^<>]*>)?", situation.remedy):  # else the message alone knows it
            # No one types angle brackets: what a message fills in is in capitals.
            filled = re.sub("<([^<>]+)>", lambda found: found[1].upper(), situation.remedy)
            say(f"  -> {filled}", style="green")
