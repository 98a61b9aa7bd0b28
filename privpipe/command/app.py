"""The subcommands, from ``commands.toml``; what they do is in the modules they load when called."""

import inspect as signatures
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

from typer import Argument, Exit, Option, Typer
from typer.core import TyperGroup

from privpipe.store.sources.formats import describe_formats

HELP, COMMANDS = (
    tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text("utf-8"))
    for name in ("help", "commands")
)
"""Texts of all commands; and each command: its function, heading, text and options."""

START, RUN, LOOK, OTHER = "Start", "Run", "Look and share", "More"
"""Headings of the help in their order; commands that name none come last."""

FIRST = ("demo", "ingest", "init", "check", "run")
"""Commands in the order in which they are needed; others as they are written."""

# Refused by name, not unknown: scripts of version 0.1 learn where their command is.
MOVED = HELP["moved"]
"""Commands of version 0.1 that `compare` has taken in; the names go with version 0.3."""


class HeadedCommands(TyperGroup):
    """Commands under the panels that they name, each with its whole first sentence.

    What is usual is one list, whose sentences end in dots where the terminal does.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name; one that has moved says where to."""
        if cmd_name in MOVED:
            from privpipe.errors import OptionError

            message = f"`privpipe {cmd_name}` has become part of `privpipe compare`."
            raise OptionError(message, remedy=MOVED[cmd_name], code="moved")
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a heading per panel; sentences fold to the width of the terminal."""
        panels: dict[str, list[tuple[str, str]]] = {}
        widest = max(len(name) for name in self.commands)
        # A stable sort: those that are not in FIRST all have its length as index.
        for name in sorted(self.commands, key=lambda one: (*FIRST, one).index(one)):
            command = self.commands[name]
            panel = getattr(command, "rich_help_panel", None)
            # The first sentence alone: docstrings fold at 100 columns, terminals
            # elsewhere.
            sentence = " ".join((command.help or "").strip().partition("\n\n")[0].split())
            heading = panel if panel in (START, RUN, LOOK) else OTHER
            panels.setdefault(heading, []).append((name.ljust(widest), sentence))
        for heading in (START, RUN, LOOK, OTHER):
            with formatter.section(heading):
                formatter.write_dl(panels[heading])


app = Typer(
    name="privpipe",
    cls=HeadedCommands,
    help=HELP["privpipe"],
    no_args_is_help=True,
    add_completion=True,
    # Typer's own tracebacks print the values of local variables.
    pretty_exceptions_enable=False,
    # Names of files in a message are no markup.
    rich_markup_mode=None,
    epilog=HELP["epilog"],
)

_JSON = signatures.Parameter(
    "as_json",
    signatures.Parameter.KEYWORD_ONLY,
    annotation=bool,
    default=Option(False, "--json", help="Print one JSON document on stdout."),
)
"""An option of all commands; `main` acts upon it."""


def _say_version(shown: bool) -> None:
    """Print the version and end."""
    if shown:
        # Here, as in all commands: what a command does not need is not loaded for --help.
        from privpipe import __version__
        from privpipe.report.console import say

        say(f"privpipe {__version__}")
        raise Exit


@app.callback()
def _all_commands(
    version: bool = Option(
        False, "--version", help="Print the version.", callback=_say_version, is_eager=True
    ),
) -> None:
    """Options of the command itself; its help is the application's."""


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _complete_method(incomplete: str) -> list[str]:
    from privpipe.sanitizers import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def _complete_code(incomplete: str) -> list[str]:
    from privpipe.command.error_catalog import read_catalog

    return [code for code in read_catalog() if code.startswith(incomplete)]


KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "argument": (str, ..., {}),
    "text": (str, "", {}),
    "texts": (list[str], [], {}),
    "names": (Any, "", {"parser": _split_names, "metavar": "NAMES"}),
    "flag": (bool, False, {}),
    "number": (float, 0.0, {}),
    "whole": (int, 0, {}),
}
"""Kinds of options: type, default, and what else typer is given; names are by comma."""

COMPLETED = {"method": _complete_method, "code": _complete_code}


def _read_option(name: str, about: dict[str, Any]) -> signatures.Parameter:
    """An option as typer reads it, from its keys in ``commands.toml``.

    Those are its kind with its text, `default`, `required`, `none`, `name`, `min`, `max` and
    `complete`. With `none` the default is None; `name` is that of the command line, where it is
    another.
    """
    [kind] = about.keys() & KINDS.keys()
    type_, default, how = KINDS[kind]
    how = how | {key: about[key] for key in ("min", "max") if key in about}
    if "complete" in about:
        how["autocompletion"] = COMPLETED[about["complete"]]
    # A flag has no counterpart that begins with "no".
    named = about.get("name") or (f"--{name.replace('_', '-')}" if kind == "flag" else "")
    default = ... if about.get("required") else about.get("default", default)
    made = (Argument if kind == "argument" else Option)(
        None if about.get("none") else default,
        *([named] if named else []),
        help=about[kind].replace("{formats}", describe_formats()),
        **how,
    )
    where = signatures.Parameter.KEYWORD_ONLY
    return signatures.Parameter(name, where, annotation=type_, default=made)


def _begin(name: str, given: dict[str, Any]) -> None:
    """Say so at once; Prefect's server starts with it, unless there is something to refuse."""
    from privpipe.report.console import say

    say(f"begin    {given.get('config', name)}", stderr=True)
    from privpipe.pipeline.runs.first_look import looks_whole

    if looks_whole(given):
        from privpipe.pipeline.operations.prefect_server import begin_server

        begin_server()


def _add_command(name: str, about: dict[str, Any]) -> None:
    """A command whose work is in a function of another module, loaded when it is called.

    ``--help`` and completion, which do no work, would take seconds to load all modules.
    """

    def call(*, as_json: bool = False, **given: Any) -> Any:
        if about.get("prefect") and not (given.get("dry_run") or given.get("released")):
            _begin(name, given)
        module, _, function = about["calls"].partition(":")
        work = getattr(import_module(f"privpipe.command.{module}"), function)
        return work(**given, **about.get("fixed", {}))

    options = [_read_option(key, one) for key, one in about.get("options", {}).items()]
    vars(call)["__signature__"] = signatures.Signature([*options, _JSON])
    call.__annotations__ = {one.name: one.annotation for one in (*options, _JSON)}
    call.__doc__ = about["about"]
    app.command(name, rich_help_panel=about.get("heading"))(call)


for _name, _about in COMMANDS.items():
    _add_command(_name, _about)
